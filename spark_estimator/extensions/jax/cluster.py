"""The job as a cluster that ``jax.distributed.initialize()`` finds by itself, as it finds Slurm's and Open MPI's.

Variables of those, which JAX would read without this module, would mislead MPI and Lightning. The ranks learn of rank
0's address and port through the engine, so that the port is one that was free a moment before, in every round of an
elastic job and beside any other job.
"""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path
from typing import Any

from jax._src.clusters import ClusterEnv

from spark_estimator.collectives import context
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import EncryptionUnavailableError
from spark_estimator.log import get_logger

_log = get_logger(__name__)
_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU of the machine or container

_chosen: str | None = None
_held: socket.socket | None = None


class JobCluster(ClusterEnv):
    """What JAX asks, from its own classes' methods. Others of their arguments differ among JAX's versions."""

    name = "spark_estimator"

    @classmethod
    def is_env_present(cls) -> bool:
        """Return whether this process is a rank."""
        joined = context.is_initialized() or rendezvous_module.find_current() is not None
        return joined or Settings.read().rendezvous_fd is not None

    @classmethod
    def get_coordinator_address(cls, *_: object, **options: object) -> str:
        """Return the address of JAX's coordinator, which rank 0 is about to start. All ranks call it.

        Raises:
            EncryptionUnavailableError: the job encrypts what it sends between hosts, and JAX does not.
        """
        context.init()
        rendezvous = rendezvous_module.find_current()
        several = rendezvous is not None and len({peer.host_id for peer in rendezvous.peers}) > 1
        own_address = rendezvous.peers[rendezvous.rank].address if rendezvous is not None and several else "127.0.0.1"
        if rendezvous is not None and several:
            _check_encryption(rendezvous)
        _choose_gloo_address(own_address)
        port = options.get("override_coordinator_port")
        coordinator = _hold_port(own_address, int(str(port or 0))) if context.rank() == 0 else None
        return str(broadcast_object(coordinator, 0, "jax.distributed"))

    @classmethod
    def get_process_count(cls) -> int:
        """Return the number of ranks."""
        context.init()
        return context.size()

    @classmethod
    def get_process_id(cls) -> int:
        """Return this rank."""
        context.init()
        return context.rank()

    @classmethod
    def get_local_process_id(cls) -> Any:
        """Return the numbers, among those that it sees, of the GPUs that are this rank's; None where it sees none.

        JAX takes the text of several, separated by commas, as well as one number.
        """
        visible = os.environ.get(_VISIBLE)
        count = len([each for each in visible.split(",") if each.strip() not in ("", "-1")]) if visible else 0
        if visible is None and _NVIDIA.is_dir():
            count = len(list(_NVIDIA.iterdir()))
        return choose_gpus(count, context.local_rank(), context.local_size())


def choose_gpus(count: int, local_rank: int, local_size: int) -> int | str | None:
    """Return which of `count` GPUs a rank uses, in the order in which the launcher lists those of a host's ranks."""
    if count < 2:
        return 0 if count else None
    numbers = range(local_rank, count, local_size) or [local_rank % count]
    return numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))


def _hold_port(address: str, port: int) -> str:
    """Return where the coordinator is to listen, at a free port that no other program is given meanwhile."""
    global _chosen, _held
    family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    # gRPC listens with SO_REUSEPORT, beside this socket, which does not listen. Programs of others can't.
    _held = socket.socket(family, socket.SOCK_STREAM)
    _held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _held.bind(place)
    port = _held.getsockname()[1]
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    if os.environ.get(_BIND) in (None, "", _chosen):
        os.environ[_BIND] = _chosen = where  # JAX's own default is every interface
    return where


def _choose_gloo_address(address: str) -> None:
    """Make JAX's collectives on CPUs listen where the job does, not at the address of the host's name."""
    from jax._src import xla_bridge

    native = getattr(xla_bridge, "_jax", None)
    make = getattr(native, "make_gloo_tcp_collectives", None)
    if make is not None:  # older versions of JAX, and perhaps newer ones, have it elsewhere
        setattr(native, "make_gloo_tcp_collectives", functools.partial(make, hostname=address))  # noqa: B010  # private


def _check_encryption(rendezvous: Rendezvous) -> None:
    if rendezvous.encrypted:
        raise EncryptionUnavailableError(
            f"jax.distributed.initialize() on {rendezvous.own_name}: this job encrypts what its ranks send between "
            "hosts, and JAX can't. Use spark_estimator.jax for pytrees in host memory."
        )
    if rendezvous.rank == 0:
        _log.warning(
            "JAX's coordinator and collectives neither authenticate nor encrypt what they send between hosts: use them "
            "on a network that you trust. spark_estimator.jax authenticates every connection."
        )


# JAX takes the first kind of cluster that is present: a job may run within an allocation of Slurm.
ClusterEnv._cluster_types.insert(0, ClusterEnv._cluster_types.pop())
