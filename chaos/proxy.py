"""A proxy before one rank's port, which cuts, delays, resets or corrupts what passes through it."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from chaos.plan import Fault, Kind

_READ_BYTES = 1 << 16
_TICK_SECONDS = 0.01
_FLAP_SECONDS = 0.3
_FLAPS = 4
_JITTER_SECONDS = 0.02


@dataclass(eq=False)
class _Pipe:
    """One direction of a connection; `waiting` holds what has been read, with the time at which it may leave."""

    source: socket.socket
    target: socket.socket
    inbound: bool
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    ended: bool = False


class Proxy:
    """Passes connections on to a port of this host until it is closed.

    Args:
        port: where the rank listens.
        seed: of the random numbers of delays.

    Attributes:
        port: where peers connect instead.
    """

    def __init__(self, port: int, seed: str) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._chance = random.Random(seed)
        self._pipes: list[_Pipe] = []
        self._struck: dict[Kind, float] = {}
        self._corrupted = False
        self._open = True
        self._thread = threading.Thread(target=self._serve, name=f"proxy {self.port}", daemon=True)
        self._thread.start()

    def strike(self, fault: Fault) -> None:
        """Begins a fault of the link. From any thread."""
        self._struck[fault.kind] = time.monotonic()

    def close(self) -> None:
        """Closes all connections. Returns when the thread has ended."""
        self._open = False
        self._thread.join()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while self._open:
                for key, _ in selector.select(_TICK_SECONDS):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    else:
                        self._read(selector, key.data)
                if Kind.RESET in self._struck:
                    self._reset(selector)
                for pipe in list(self._pipes):
                    self._write(selector, pipe)
        for pipe in self._pipes:  # the other direction may already be closed
            pipe.source.close()
            pipe.target.close()
        self._listener.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target, 5)
        except OSError:
            near.close()
            return
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
        for source, target, inbound in ((near, far, True), (far, near, False)):
            pipe = _Pipe(source, target, inbound)
            self._pipes.append(pipe)
            selector.register(source, selectors.EVENT_READ, pipe)

    def _is_cut(self, pipe: _Pipe) -> bool:
        """Whether nothing of this direction may pass now."""
        if Kind.CUT in self._struck or (Kind.ONE_WAY in self._struck and pipe.inbound):
            return True
        since = self._struck.get(Kind.FLAP)
        if since is None:
            return False
        turn = int((time.monotonic() - since) / _FLAP_SECONDS)
        return turn < 2 * _FLAPS and turn % 2 == 0

    def _read(self, selector: selectors.BaseSelector, pipe: _Pipe) -> None:
        if pipe not in self._pipes:  # closed since the selector has returned
            return
        # What is in flight is bounded, so that a receiver that is slow slows its sender down.
        if len(pipe.waiting) > 64 or self._is_cut(pipe):
            time.sleep(_TICK_SECONDS / 10)
            return
        try:
            received = pipe.source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            pipe.ended = True
            selector.unregister(pipe.source)
            return
        if Kind.CORRUPT in self._struck and not self._corrupted:
            self._corrupted = True
            place = self._chance.randrange(len(received))
            received = received[:place] + bytes([received[place] ^ 1]) + received[place + 1 :]
        delay = self._chance.uniform(0, _JITTER_SECONDS) if Kind.DELAY in self._struck else 0.0
        due = max(time.monotonic() + delay, pipe.waiting[-1][0] if pipe.waiting else 0.0)
        pipe.waiting.append((due, received))

    def _write(self, selector: selectors.BaseSelector, pipe: _Pipe) -> None:
        if self._is_cut(pipe):
            return
        try:
            while pipe.waiting and pipe.waiting[0][0] <= time.monotonic():
                due, content = pipe.waiting.popleft()
                sent = pipe.target.send(content)
                if sent < len(content):
                    pipe.waiting.appendleft((due, content[sent:]))
        except BlockingIOError:
            pipe.waiting.appendleft((due, content))
        except OSError:
            self._end(selector, pipe)
            return
        if pipe.ended and not pipe.waiting:
            with contextlib.suppress(OSError):
                pipe.target.shutdown(socket.SHUT_WR)
            self._pipes.remove(pipe)
            if not any(other.source in (pipe.source, pipe.target) for other in self._pipes):
                pipe.source.close()
                pipe.target.close()

    def _end(self, selector: selectors.BaseSelector, pipe: _Pipe) -> None:
        """Closes both directions of a pipe's connection."""
        both = [other for other in self._pipes if other.source in (pipe.source, pipe.target)]
        for other in both:
            self._pipes.remove(other)
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(other.source)
        pipe.source.close()
        pipe.target.close()

    def _reset(self, selector: selectors.BaseSelector) -> None:
        while self._pipes:
            pipe = self._pipes[0]
            with contextlib.suppress(OSError):
                pipe.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._end(selector, pipe)
