"""Measures the network between hosts itself: plain TCP streams around a ring with one rank per host."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from spark_estimator.collectives import context, rendezvous
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.env import Settings

_CONNECT_SECONDS = 20.0
_PIECE = 1 << 20


class Ring:
    """This rank's connections in the ring: the lowest rank of each host sends to that of the next host and receives
    from that of the previous host.

    Attributes:
        hosts: number of hosts.
    """

    def __init__(self, hosts: int, right: socket.socket | None, left: socket.socket | None) -> None:
        self.hosts = hosts
        self._right = right
        self._left = left

    @classmethod
    def connect(cls) -> Ring:
        """Connects the ring; all ranks must call it. Raises OSError if hosts can't connect."""
        job = rendezvous.find_current(Settings.read().rendezvous_fd)
        if job is None:
            return cls(1, None, None)
        leaders: dict[str, int] = {}
        for peer in job.peers:
            leaders.setdefault(peer.host_id, peer.rank)
        ring = list(leaders.values())
        this = job.peers[context.rank()]
        with socket.create_server((this.address, 0)) as listener:
            listener.settimeout(_CONNECT_SECONDS)
            ports = allgather_object(listener.getsockname()[1])
            if len(ring) == 1 or this.rank not in ring:
                return cls(len(ring), None, None)
            next_rank = ring[(ring.index(this.rank) + 1) % len(ring)]
            address = (job.peers[next_rank].address, ports[next_rank])
            right = socket.create_connection(address, timeout=_CONNECT_SECONDS)
            left, _ = listener.accept()
        for sock in (right, left):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
        return cls(len(ring), right, left)

    def carrier(self, count: int) -> Callable[[], None]:
        """A function that sends `count` bytes to the next host and receives as many from the previous host.

        It does nothing on a rank outside the ring.
        """
        right, left = self._right, self._left
        if right is None or left is None or count == 0:
            return lambda: None
        data = memoryview(bytearray(min(count, _PIECE)))
        buffer = memoryview(bytearray(min(count, _PIECE)))

        def carry() -> None:
            unsent, missing = count, count
            while unsent or missing:
                # In one thread: the start of a second one would take most of the time of a small message.
                readable, writable, _ = select.select([left] if missing else [], [right] if unsent else [], [])
                if writable:
                    unsent -= right.send(data[: min(unsent, len(data))])
                if readable:
                    received = left.recv_into(buffer, min(missing, len(buffer)))
                    if not received:
                        raise ConnectionResetError("the previous host in the ring closed its connection")
                    missing -= received

        return carry
