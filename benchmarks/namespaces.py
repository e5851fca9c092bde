"""Simulates several hosts on one machine: network namespaces joined by a bridge, or by one for each of two racks.

Links can be cut, slowed or lossy.

    with Network.open(hosts=2) as network:
        rendezvous = network.rendezvous(ranks_per_host=2)
        with network.hosts[0].entered():
            ...  # sockets opened here and processes started here belong to that host
        network.hosts[1].cut()

Requires Linux, root, and iproute2's ``ip``; for `Host.limit` its ``tc``, and for `Host.lose` nftables. The namespaces
have no names: the kernel removes each when this object is closed and its last process has ended.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, make_job

_CLONE_NEWNET = 0x40000000
_SUBNET = "10.77.0"
_DEVICE = "eth0"
# The token bucket must hold several of the kernel's 64 KiB offload segments.
_BURST_BYTES = 256 << 10
_QUEUE_MILLISECONDS = 50


class UnavailableError(Exception):
    """Something can't be measured on this machine, or by this user; the message names what is missing."""


@dataclass(frozen=True)
class Host:
    """A namespace that simulates a host, with one link to the bridge.

    Attributes:
        name: host name of its ranks.
        address: address on which its ranks listen.
    """

    name: str
    address: str
    _namespace: int
    _switch: int
    _port: str

    @property
    def named(self) -> list[str]:
        """The first words of a command that shall see this host's name as its own."""
        return ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Moves the calling thread to this host: sockets that it opens and processes that it starts belong to it."""
        with _entered(self._namespace):
            yield

    def cut(self) -> None:
        """Drops all traffic to and from this host. No peer gets an error, because the link stays up."""
        _run(self._switch, "ip", "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        """Restores the traffic after `cut`."""
        _run(self._switch, "ip", "link", "set", self._port, "master", "bridge")

    def lose(self, per_mille: int) -> None:
        """Drops `per_mille` of 1000 packets that arrive at this host, at random; 0 restores the link."""
        _run(self._namespace, "nft", "add table inet loss; delete table inet loss")
        if per_mille:
            rule = f"numgen random mod 1000 < {per_mille} drop"
            hook = "{ type filter hook input priority 0; }"
            _run(
                self._namespace,
                "nft",
                f"add table inet loss; add chain inet loss in {hook}; add rule inet loss in {rule}",
            )

    def limit(self, bits_per_second: int) -> None:
        """Limits the rate of the link in each direction. May be called again to change it."""
        for namespace, device in ((self._namespace, _DEVICE), (self._switch, self._port)):
            _limit(namespace, device, bits_per_second)

    def limit_sending(self, bits_per_second: int) -> None:
        """Limits the rate at which this host sends; 0: no more."""
        if bits_per_second:
            _limit(self._namespace, _DEVICE, bits_per_second)
        else:
            _run(self._namespace, "tc", "qdisc", "del", "dev", _DEVICE, "root")

    def control_congestion(self, algorithm: str) -> None:
        """Sets TCP's congestion control for connections that open from now on; the kernel must allow its use here.

        The hosts start with that of the machine.

        Raises:
            UnavailableError: the kernel lacks the algorithm, or does not allow it in a namespace.
        """
        command = ("sysctl", "--quiet", "--write", f"net.ipv4.tcp_congestion_control={algorithm}")
        _run(self._namespace, *command)


class Network:
    """Hosts that can reach each other and nothing else. A context manager.

    Attributes:
        hosts: the hosts, in the order of their addresses.
    """

    def __init__(self, hosts: Sequence[Host], closing: ExitStack) -> None:
        self.hosts = tuple(hosts)
        self._closing = closing

    @classmethod
    def open(cls, hosts: int, *, uplink_bits_per_second: int = 0) -> Network:
        """Creates a network of hosts.

        Args:
            hosts: how many.
            uplink_bits_per_second: the hosts alternate between two racks, which a link of this rate in each direction
                connects; 0: all are in one.

        Raises:
            UnavailableError: namespaces are not permitted, or ``ip`` is missing.
        """
        with ExitStack() as closing:
            switches = [_new_switch(closing) for _ in range(2 if uplink_bits_per_second else 1)]
            if uplink_bits_per_second:
                _connect(switches, uplink_bits_per_second)
            created = [_new_host(number, switches[number % len(switches)], closing) for number in range(hosts)]
            return cls(created, closing.pop_all())

    def rendezvous(self, ranks_per_host: int, *, encrypted: bool = False) -> list[tuple[Rendezvous, Endpoint]]:
        """A rendezvous and an endpoint for each rank, as ``local_rendezvous``; ranks of a host are consecutive.

        The process of rank r must be started on ``hosts[r // ranks_per_host]``.
        """
        host_of_rank = [host for host in self.hosts for _ in range(ranks_per_host)]
        endpoints: list[Endpoint] = []
        try:
            for host in host_of_rank:
                with host.entered():
                    endpoints.append(Endpoint.open(host.address))
        except OSError:
            for endpoint in endpoints:
                endpoint.close()
            raise
        # All hosts share the kernel's host name, so their names and ids are made up here.
        peers = [
            replace(endpoint.facts(rank), host=host.name, host_id=f"{socket.gethostname()}/{host.name}")
            for rank, (host, endpoint) in enumerate(zip(host_of_rank, endpoints, strict=True))
        ]
        return make_job(endpoints, peers, encrypted=encrypted)

    def close(self) -> None:
        """Closes the namespaces; those with running processes remain until these end. Idempotent."""
        self._closing.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remote_shell(folder: Path, hosts: Sequence[Host]) -> str:
    """Writes a program that replaces ``ssh`` for these hosts: it starts a command on one, by its name.

    It runs as long as this process keeps the hosts.
    """
    path = folder / "remote_shell"
    cases = "\n".join(f"{host.name}) net=/proc/{os.getpid()}/fd/{host._namespace};;" for host in hosts)
    path.write_text(
        "#!/bin/sh\nwhile :; do case $1 in -[oipF]) shift 2;; -*) shift;; *) break;; esac; done\n"
        f"host=$1; shift\ncase $host in\n{cases}\nesac\n"
        'exec nsenter --net=$net unshare --uts sh -c "hostname $host; $*"\n'
    )
    path.chmod(0o700)
    return str(path)


def _new_switch(closing: ExitStack) -> int:
    switch = _new_namespace(closing)
    _run(switch, "ip", "link", "add", "bridge", "type", "bridge")
    _run(switch, "ip", "link", "set", "bridge", "up")
    return switch


def _connect(switches: Sequence[int], bits_per_second: int) -> None:
    first, second = switches
    path = f"/proc/{os.getpid()}/fd/{second}"
    _run(first, "ip", "link", "add", "uplink", "type", "veth", "peer", "name", "uplink", "netns", path)
    for switch in switches:
        _run(switch, "ip", "link", "set", "uplink", "master", "bridge", "up")
        _limit(switch, "uplink", bits_per_second)


def _limit(namespace: int, device: str, bits_per_second: int) -> None:
    shape = f"rate {bits_per_second}bit burst {_BURST_BYTES} latency {_QUEUE_MILLISECONDS}ms"
    _run(namespace, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *shape.split())


def _new_host(number: int, switch: int, closing: ExitStack) -> Host:
    namespace = _new_namespace(closing)
    port, address = f"port{number}", f"{_SUBNET}.{number + 1}"
    path = f"/proc/{os.getpid()}/fd/{namespace}"
    _run(switch, "ip", "link", "add", port, "type", "veth", "peer", "name", _DEVICE, "netns", path)
    _run(switch, "ip", "link", "set", port, "master", "bridge", "up")
    _run(namespace, "ip", "address", "add", f"{address}/24", "dev", _DEVICE)
    _run(namespace, "ip", "link", "set", _DEVICE, "up")
    _run(namespace, "ip", "link", "set", "lo", "up")
    return Host(f"host{number}", address, namespace, switch, port)


def _new_namespace(closing: ExitStack) -> int:
    before = _own_namespace()
    try:
        _system_call("unshare", _CLONE_NEWNET)
        try:
            namespace = _own_namespace()
        finally:
            _system_call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)
    closing.callback(os.close, namespace)
    return namespace


def _own_namespace() -> int:
    """Opens a descriptor of the calling thread's network namespace."""
    try:
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"this system has no network namespaces: {error}") from error


@contextmanager
def _entered(namespace: int) -> Iterator[None]:
    before = _own_namespace()
    try:
        _system_call("setns", namespace, _CLONE_NEWNET)
        try:
            yield
        finally:
            _system_call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)


def _system_call(name: str, *arguments: int) -> None:
    # os.setns and os.unshare exist since Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise UnavailableError(f"network namespaces are not permitted here: {name}: {os.strerror(error)}")


def _run(namespace: int, *command: str) -> None:
    try:
        with _entered(namespace):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UnavailableError(f"{command[0]} was not found; install iproute2 (nft: nftables)") from error
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)!r} failed: {done.stderr.strip()}")
