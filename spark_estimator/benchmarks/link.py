"""The network between hosts by itself: plain TCP streams round a ring of one rank a host, as fast as they go."""

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
    """This rank's place in the ring: the lowest rank of each host sends to the next host's and receives from the
    last's.

    Attributes:
        hosts: how many there are.
    """

    def __init__(self, hosts: int, right: socket.socket | None, left: socket.socket | None) -> None:
        self.hosts = hosts
        self._right = right
        self._left = left

    @classmethod
    def connect(cls) -> Ring:
        """All ranks call this. Raises OSError when hosts cannot connect."""
        found = rendezvous.current(Settings.read().rendezvous_fd)
        if found is None:
            return cls(1, None, None)
        leaders: dict[str, int] = {}
        for peer in found.peers:
            leaders.setdefault(peer.host_id, peer.rank)
        ring = list(leaders.values())
        own = found.peers[context.rank()]
        with socket.create_server((own.address, 0)) as listener:
            listener.settimeout(_CONNECT_SECONDS)
            ports = allgather_object(listener.getsockname()[1])
            if len(ring) == 1 or own.rank not in ring:
                return cls(len(ring), None, None)
            next_rank = ring[(ring.index(own.rank) + 1) % len(ring)]
            to = (found.peers[next_rank].address, ports[next_rank])
            right = socket.create_connection(to, timeout=_CONNECT_SECONDS)
            left, _ = listener.accept()
        for sock in (right, left):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
        return cls(len(ring), right, left)

    def carrier(self, count: int) -> Callable[[], None]:
        """A call that sends `count` bytes to the right while it receives as many from the left; none off the ring."""
        right, left = self._right, self._left
        if right is None or left is None or count == 0:
            return lambda: None
        data = memoryview(bytearray(min(count, _PIECE)))
        room = memoryview(bytearray(min(count, _PIECE)))

        def carry() -> None:
            unsent, missing = count, count
            while unsent or missing:
                # One thread, or the start of a second one would be most of a small message's time.
                readable, writable, _ = select.select([left] if missing else [], [right] if unsent else [], [])
                if writable:
                    unsent -= right.send(data[: min(unsent, len(data))])
                if readable:
                    received = left.recv_into(room, min(missing, len(room)))
                    if not received:
                        raise ConnectionResetError("the host to the left has closed its stream")
                    missing -= received

        return carry
