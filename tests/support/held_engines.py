"""Two engines in this process whose bulk bytes can be held, as by a network that passes only small packets."""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from spark_estimator import _native
from spark_estimator.collectives.engine import Engine


class HeldLink:
    """Passes on what two sockets send each other, unless it is held."""

    def __init__(self, ends: tuple[socket.socket, socket.socket]) -> None:
        self._ends = ends
        self._open = threading.Event()
        self._open.set()
        self._stopped = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Nothing is passed on from now on."""
        self._open.clear()

    def let_go(self) -> None:
        """Everything is passed on, in order."""
        self._open.set()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped = True
        self._open.set()
        self._thread.join()

    def _pass_on(self) -> None:
        others = dict(zip(self._ends, reversed(self._ends), strict=True))
        while not self._stopped:
            self._open.wait()
            for end in select.select(self._ends, [], [], 0.02)[0]:
                if not self._open.is_set():
                    break
                with contextlib.suppress(OSError):
                    others[end].sendall(end.recv(1 << 16))


def _engine(rank: int, control: socket.socket, data: socket.socket) -> Engine:
    config = _native.Config(
        struct_bytes=ctypes.sizeof(_native.Config),
        rank=rank,
        global_rank=rank,
        size=2,
        own_segment_fd=-1,
        cache_capacity=64,
        cores=1,
        hierarchical=-1,
        affinity_core=-1,
        fusion_threshold_bytes=1 << 20,
        start_timeout_seconds=30,
        heartbeat_seconds=1,
        silence_seconds=30,
        name=b"here",
    )
    other = 1 - rank
    return Engine(config, [_native.Peer.of(other, other, control.detach(), [data.detach()], -1, "there")])


@contextlib.contextmanager
def held_engines() -> Iterator[tuple[list[Engine], HeldLink]]:
    """[rank] the engines, and the link between them."""
    controls = socket.socketpair()
    outer = [socket.socketpair() for _ in range(2)]
    link = HeldLink((outer[0][1], outer[1][1]))
    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(_engine, range(2), controls, [pair[0] for pair in outer]))
        try:
            yield engines, link
        finally:
            list(pool.map(lambda engine: engine.shutdown(), engines))
            link.stop()
            for pair in outer:
                pair[1].close()
