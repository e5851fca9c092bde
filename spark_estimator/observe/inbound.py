"""One supervisor's connection on the driver channel, at the driver."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from spark_estimator.observe.frames import encode, take_frames
from spark_estimator.observe.silence import Silence
from spark_estimator.security.encrypted_stream import opening, sealing
from spark_estimator.security.encryption import Session

# A supervisor that takes so little of what it is sent is disconnected.
_MAX_UNTAKEN_BYTES = 16 << 20


class Inbound:
    """The connection; `send` from any thread, the rest from one."""

    def __init__(
        self, sock: socket.socket, partition: int, origin: str, silence: Silence, session: Session | None
    ) -> None:
        self.sock = sock
        self.partition = partition
        self.origin = origin
        self.silence = silence
        self.said_bye = False
        self._seal = sealing(session)
        self._open = opening(session)
        self._pending = bytearray()
        self._lock = threading.Lock()  # any thread sends
        self._outgoing = bytearray()
        sock.setblocking(False)

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yields the frames that one read completes.

        Raises:
            EOFError: the other end has closed.
            ValueError: it breaks the rules.
            AuthenticationError: an encrypted connection was tampered with.
            OSError: the connection broke; BlockingIOError when there is nothing to read.
        """
        received = self.sock.recv(1 << 16)
        if not received:
            raise EOFError
        self._pending += self._open(received)
        yield from take_frames(self._pending)

    @property
    def has_more(self) -> bool:
        """Whether something waits that the kernel has not taken yet."""
        return bool(self._outgoing)

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        """Passes a frame to the kernel, as much of it as possible without waiting; `send_more` sends the rest."""
        with self._lock:
            self._outgoing += self._seal(encode({"kind": kind, **fields}))
        self.send_more()
        with self._lock:
            if len(self._outgoing) > _MAX_UNTAKEN_BYTES:
                self._outgoing.clear()
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)  # its reader finds the end

    def send_more(self) -> None:
        """Hands the kernel what it takes of what waits. A connection that is broken is found so by reading."""
        with self._lock:
            try:
                while self._outgoing:
                    del self._outgoing[: self.sock.send(self._outgoing)]
            except BlockingIOError:
                pass
            except OSError:
                self._outgoing.clear()
