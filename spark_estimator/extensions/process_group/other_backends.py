"""Handles torch's own backends, whose connections this package can't authenticate: gloo and NCCL."""

from __future__ import annotations

import logging
import os
import socket

from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.other_launchers.addresses import find_address
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.errors import EncryptionUnavailableError

_log = logging.getLogger(__name__)
_GLOO = "GLOO_SOCKET_IFNAME"

_chosen: str | None = None
_warned = False


def choose_interface() -> None:
    """Make gloo listen where the job does, not at the address of the host's name: on one host at the loopback
    interface.

    A value of GLOO_SOCKET_IFNAME that this function did not set stays.
    """
    global _chosen
    rendezvous = rendezvous_module.find_current()
    if rendezvous is None or os.environ.get(_GLOO) not in (None, "", _chosen):
        return
    name = find_interface(
        "127.0.0.1" if not _has_several_hosts(rendezvous) else rendezvous.peers[rendezvous.rank].address
    )
    if name is not None:
        os.environ[_GLOO] = _chosen = name


def find_interface(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if there is none."""
    return next((name for _, name in socket.if_nameindex() if find_address(name) == address), None)


def check_encryption() -> None:
    """Warn, once, that another backend's connections between hosts are open to the network.

    Raises:
        EncryptionUnavailableError: the job encrypts traffic between hosts, which such a backend does not.
    """
    global _warned
    rendezvous = rendezvous_module.find_current()
    if rendezvous is None or not _has_several_hosts(rendezvous):
        return
    if rendezvous.encrypted:
        raise EncryptionUnavailableError(
            f"init_process_group() on {rendezvous.own_name}: this job encrypts what its ranks send between hosts, and "
            "torch's own backends (gloo, nccl) can't. Use init_process_group(\"spark_estimator\") for tensors in host "
            "memory, or spark_estimator.torch for those on a GPU."
        )
    if not _warned and rendezvous.rank == 0:
        _warned = True
        _log.warning(
            "torch's own backends (gloo, nccl) neither authenticate nor encrypt what they send between hosts: use them "
            'on a network that you trust. init_process_group("spark_estimator") authenticates every connection.'
        )


def _has_several_hosts(rendezvous: Rendezvous) -> bool:
    return len({peer.host_id for peer in rendezvous.peers}) > 1
