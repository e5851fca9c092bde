"""The driver channel: one authenticated connection from each supervisor to the driver, for text. A supervisor's end.

A supervisor sends its facts, lines, messages and failure reports; it receives all supervisors' facts and the order to
stop (see ``frames``). A peer that breaks the protocol is disconnected. If the driver's end closes, the driver has
ended, and its supervisors end their workers. A supervisor sends a heartbeat each second, by which the driver notices a
frozen one.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from spark_estimator.errors import AuthenticationError
from spark_estimator.observe.frames import (
    ALIVE,
    BYE,
    LINE,
    LOG,
    MAX_FRAME_BYTES,
    PROGRESS,
    RECORD,
    STOP,
    encode,
    take_frames,
)
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security import authentication
from spark_estimator.security.encrypted_stream import make_opener, make_sealer
from spark_estimator.security.encryption import Session

CONNECT_TIMEOUT = timedelta(seconds=3)
# A supervisor sends at least that often; the driver looks as often whether it does.
HEARTBEAT_SECONDS = 1.0

_CONTEXT = struct.Struct(">16sI")  # job id, partition
# Lines and messages that the network is too slow for are dropped and counted above this: printing must never hold up
# training.
_MAX_WAITING_BYTES = 4 << 20


def pack_context(job_id: str, partition: int) -> bytes:
    """Return a supervisor's identity, which it sends when it connects."""
    return _CONTEXT.pack(job_id.encode(), partition)


def unpack_context(context: bytes) -> tuple[bytes, int]:
    """Return the job and the partition that `pack_context` has packed. Raises AuthenticationError: it is not valid."""
    if len(context) != _CONTEXT.size:
        raise AuthenticationError("unexpected handshake from supervisor")
    job_id, partition = _CONTEXT.unpack(context)
    return job_id.rstrip(b"\0"), partition


class SupervisorChannel:
    """A supervisor's end. Sending never blocks.

    Args:
        on_stop: called once, in the channel's thread, with the reason, when the driver orders to stop or has
            disconnected.
        session: the secrets of an encrypted connection; None: it is not encrypted.
    """

    def __init__(self, sock: socket.socket, on_stop: Callable[[str], None], session: Session | None = None) -> None:
        self._sock = sock
        self._seal = make_sealer(session)
        self._open = make_opener(session)
        self._on_stop = on_stop
        self._changed = threading.Condition()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._closing = False
        self._broken = False
        self._stopped = False
        self._answers: collections.deque[dict[str, Any]] = collections.deque()
        self._threads = [
            ReaderThread(self._read, self._end_reading, name="channel reads"),
            ReaderThread(self._write, self._end_writing, name="channel writes"),
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def connect(
        cls,
        address: tuple[str, int],
        token: bytes,
        job_id: str,
        partition: int,
        on_stop: Callable[[str], None],
        *,
        encrypted: bool = False,
    ) -> SupervisorChannel:
        """Connect to the driver. Raises OSError: not within `CONNECT_TIMEOUT`; AuthenticationError: another job's."""
        sock, session = connect_socket(address, token, job_id, partition, encrypted=encrypted)
        return cls(sock, on_stop, session)

    @property
    def usable(self) -> bool:
        """Return whether the driver still listens."""
        return not self._broken

    @property
    def stopped(self) -> bool:
        """Return whether the driver has sent the order to stop."""
        return self._stopped

    def send(self, kind: str, **fields: Any) -> bool:
        """Queue a frame; lines and messages are dropped if there is too much. False: the driver has disconnected."""
        frame = encode({"kind": kind, **fields})
        if len(frame) > MAX_FRAME_BYTES:
            return False
        with self._changed:
            if self._broken or self._closing:
                return False
            if kind in (LINE, LOG) and self._waiting_bytes + len(frame) > _MAX_WAITING_BYTES:
                self._dropped += 1
                return True
            if kind == RECORD and self._waiting_bytes + len(frame) > _MAX_WAITING_BYTES:
                return True  # those of epochs are in the history, too
            if kind == PROGRESS and self._waiting:
                return True  # the next one replaces it
            if self._dropped and kind in (LINE, LOG):
                text = f"[{self._dropped} lines were dropped: the rank printed faster than the network could send them]"
                self._dropped = 0
                self._enqueue(encode({"stream": "stderr", **fields, "kind": LINE, "text": text}))
            self._enqueue(frame)
        return True

    def flush(self, timeout: timedelta) -> bool:
        """Wait until all that was sent is with the kernel, where it outlives this process. False when it is not."""
        with self._changed:
            self._changed.wait_for(lambda: self._broken or not self._waiting_bytes, timeout.total_seconds())
            return not self._broken and not self._waiting_bytes

    def wait_for_answer(self) -> dict[str, Any] | None:
        """Wait for the driver's next frame other than a stop; None if it has ordered to stop, or has disconnected."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._broken or self._stopped or self._closing)
            return self._answers.popleft() if self._answers else None

    def _enqueue(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._changed.notify_all()

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Send what waits, as far as `timeout` allows, and disconnect."""
        with self._changed:
            if not self._closing:
                self._enqueue(encode({"kind": BYE}))
            self._closing = True
            self._changed.notify_all()
        self._threads[1].join(timeout.total_seconds())
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(timeout.total_seconds())
        self._sock.close()

    def _write(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting or self._closing, HEARTBEAT_SECONDS):
                    self._enqueue(encode({"kind": ALIVE}))
                if not self._waiting:
                    return
                batch = b"".join(self._waiting)
                self._waiting.clear()
            self._sock.sendall(self._seal(batch))
            with self._changed:
                self._waiting_bytes -= len(batch)
                self._changed.notify_all()

    def _end_writing(self, error: BaseException | None) -> None:
        if error is not None:
            self._break()
            with contextlib.suppress(OSError):  # the reader's end has the worker stopped
                self._sock.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        pending = bytearray()
        while received := self._sock.recv(1 << 16):
            pending += self._open(received)
            for frame in take_frames(pending):
                with self._changed:
                    if frame["kind"] == STOP:
                        self._stopped = True
                    else:
                        self._answers.append(frame)
                    self._changed.notify_all()
                if frame["kind"] == STOP:
                    self._on_stop(str(frame["text"]))

    def _end_reading(self, error: BaseException | None) -> None:
        self._break()
        if not self._closing:
            broken = f"because the connection to the driver broke: {str(error) or repr(error)}"
            self._on_stop("because the driver has ended" if error is None else broken)

    def _break(self) -> None:
        with self._changed:
            self._broken = True
            self._changed.notify_all()


def connect_socket(
    address: tuple[str, int], token: bytes, job_id: str, partition: int, *, encrypted: bool = False
) -> tuple[socket.socket, Session | None]:
    """Return a socket to the driver, authenticated both ways, and its secrets. Raises as the channel's `connect`."""
    sock, session = authentication.dial(
        address, token, pack_context(job_id, partition), timeout=CONNECT_TIMEOUT, encrypted=encrypted
    )
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
    except BaseException:
        sock.close()
        raise
    return sock, session


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel detect within about half a minute that the other host has disappeared."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
