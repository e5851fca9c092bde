"""The driver channel: one authenticated connection from each supervisor to the driver, for text.

A supervisor sends its facts, lines, messages and failure reports; it receives all supervisors' facts and the order to
stop (see ``frames``). A peer that breaks the protocol is disconnected. If the driver's end closes, the driver has
ended, and its supervisors end their workers. A supervisor sends a heartbeat each second, by which the driver notices a
frozen one.
"""

from __future__ import annotations

import collections
import contextlib
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from spark_estimator.errors import AuthenticationError
from spark_estimator.log import logger
from spark_estimator.observe.frames import (
    ALIVE,
    BYE,
    GONE,
    HEARD,
    LINE,
    LOG,
    MAX_FRAME_BYTES,
    PROGRESS,
    RECORD,
    SILENT,
    STOP,
    encode,
    take_frames,
)
from spark_estimator.observe.inbound import Inbound
from spark_estimator.observe.silence import Hearing, Silence
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security import authentication
from spark_estimator.security.encrypted_stream import opening, sealing
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer

CONNECT_TIMEOUT = timedelta(seconds=3)
# A supervisor sends at least that often; the driver looks as often whether it does.
HEARTBEAT_SECONDS = 1.0

_CONTEXT = struct.Struct(">16sI")  # job id, partition
# Lines and messages that the network is too slow for are dropped and counted above this: printing must never hold up
# training.
_MAX_WAITING_BYTES = 4 << 20
_log = logger(__name__)


def context_of(job_id: str, partition: int) -> bytes:
    """A supervisor's identity, which it sends when it connects."""
    return _CONTEXT.pack(job_id.encode(), partition)


def read_context(context: bytes) -> tuple[bytes, int]:
    """The job and the partition of `context_of`.

    Raises:
        AuthenticationError: it is not valid.
    """
    if len(context) != _CONTEXT.size:
        raise AuthenticationError("unexpected handshake from supervisor")
    job_id, partition = _CONTEXT.unpack(context)
    return job_id.rstrip(b"\0"), partition


class DriverServer:
    """The driver's end: listens at one address of this host, and passes frames to `receive`.

    Args:
        address: of this host.
        job_id: of the job, at most 16 characters; supervisors of others are refused.
        size: number of supervisors; their partitions are 0 to size - 1, each has one connection at a time.
        receive: called with (partition, frame) in the server's thread. Frames are as `valid` lets them through.
        lost_after: seconds without a heartbeat after which a supervisor is lost; zero: it never is.
        encrypted: whether connections are encrypted.
        approve: called with the partition of each supervisor that connects, until `stop` is called; raises
            AuthenticationError to refuse it. None: each may connect.

    Attributes:
        token: what supervisors must hold.
        address, port: where it listens.
    """

    def __init__(
        self,
        address: str,
        job_id: str,
        size: int,
        receive: Callable[[int, dict[str, Any]], None],
        lost_after: float = 0.0,
        *,
        encrypted: bool = False,
        approve: Callable[[int], None] | None = None,
    ) -> None:
        self.token = secrets.token_bytes(authentication.KEY_BYTES)
        self._job_id = job_id.encode()
        self._size = size
        self._receive = receive
        self._lost_after = lost_after
        self._approve_partition = approve
        self._lock = threading.Lock()
        self._connections: dict[int, Inbound] = {}
        self._stop_reason: str | None = None
        self._closed = False
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.address, self.port = listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._arrived: collections.deque[Inbound] = collections.deque()
        self._handshake_server = HandshakeServer(
            [listener],
            self.token,
            self._admit,
            approve=self._approve,
            name="driver channel",
            encrypted=encrypted,
        )
        self._thread = ReaderThread(self._serve, self._end, name="driver channel")
        self._thread.start()

    @property
    def connected(self) -> int:
        """How many supervisors are connected now."""
        with self._lock:
            return len(self._connections)

    def stop(self, reason: str) -> None:
        """Has every supervisor end its worker, also those that connect later. Idempotent."""
        with self._lock:
            if self._stop_reason is not None:
                return
            self._stop_reason = reason
            connections = list(self._connections.values())
        for connection in connections:
            connection.send(STOP, {"text": reason})
        self._wake()

    def send(self, partition: int, kind: str, fields: dict[str, Any]) -> None:
        """Sends a frame to a supervisor, if it is connected. Does not block."""
        with self._lock:
            connection = self._connections.get(partition)
        if connection is not None:
            connection.send(kind, fields)
            self._wake()

    def close(self) -> None:
        """Disconnects everybody and stops listening; supervisors that still run then end their workers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._handshake_server.close()
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    def _approve(self, context: bytes) -> None:
        job_id, partition = read_context(context)
        with self._lock:
            taken = partition in self._connections
            stopping = self._stop_reason is not None
        if job_id != self._job_id or not 0 <= partition < self._size or taken:
            raise AuthenticationError(f"no supervisor of that job and partition is expected: {job_id!r}, {partition}")
        if self._approve_partition is not None and not stopping:
            self._approve_partition(partition)

    def _admit(self, sock: socket.socket, context: bytes, origin: str, session: Session | None) -> None:
        inbound = Inbound(sock, read_context(context)[1], origin, Silence(self._lost_after), session)
        with self._lock:
            if self._closed or inbound.partition in self._connections:
                raise AuthenticationError("the channel is closed, or this partition is connected already")
            self._connections[inbound.partition] = inbound
            reason = self._stop_reason
            self._arrived.append(inbound)
        if reason is not None:
            inbound.send(STOP, {"text": reason})
        self._wake()

    def _serve(self) -> None:
        looked = time.monotonic()
        while not self._closed:
            for key, ready in self._selector.select(HEARTBEAT_SECONDS if self._lost_after else None):
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(4096)
                    while self._arrived:
                        inbound = self._arrived.popleft()
                        self._selector.register(inbound.sock, selectors.EVENT_READ, inbound)
                    self._watch_those_that_wait()
                    continue
                if ready & selectors.EVENT_WRITE:
                    key.data.send_more()
                    self._watch_those_that_wait()
                if ready & selectors.EVENT_READ and not self._take(key.data):
                    self._selector.unregister(key.fileobj)
                    self._drop(key.data)
            now = time.monotonic()
            if now - looked >= HEARTBEAT_SECONDS:
                self._look_for_silence(now - looked)
                looked = now
        with self._lock:
            remaining = list(self._connections.values())
        for inbound in remaining:
            while self._take(inbound):  # what had arrived before the end
                pass

    def _end(self, _error: BaseException | None) -> None:
        """Drops all supervisors; where an error has ended the thread, they are reported as gone."""
        self._handshake_server.close()
        with self._lock:
            remaining = list(self._connections.values())
        for inbound in remaining:
            self._drop(inbound)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _watch_those_that_wait(self) -> None:
        """Has the selector report when a connection accepts more of its queued data."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if key.data.has_more else 0)
                if events != key.events:
                    self._selector.modify(key.fileobj, events, key.data)

    def _look_for_silence(self, seconds: float) -> None:
        """Reports supervisors that have sent nothing for too long, `seconds` after the last check."""
        for key in list(self._selector.get_map().values()):
            inbound = key.data
            if inbound is None or inbound.said_bye or not inbound.silence.look(seconds):
                continue
            if inbound.silence.state is Hearing.LOST:
                self._selector.unregister(key.fileobj)
                self._drop(inbound, silent_seconds=round(inbound.silence.seconds))
            else:
                report = {"kind": SILENT, "seconds": round(inbound.silence.seconds), "limit": round(self._lost_after)}
                self._receive(inbound.partition, report)

    def _take(self, inbound: Inbound) -> bool:
        """Reads the available data; False if the connection is closed, or there is no data."""
        try:
            for frame in inbound.receive():
                if inbound.silence.heard():
                    self._receive(inbound.partition, {"kind": HEARD})
                if frame["kind"] == BYE:
                    inbound.said_bye = True
                elif frame["kind"] != ALIVE:
                    self._receive(inbound.partition, frame)
        except BlockingIOError:
            return not self._closed
        except EOFError:
            return False
        except (OSError, ValueError, AuthenticationError) as error:
            _log.info("driver channel: partition %d at %s: %s", inbound.partition, inbound.origin, error)
            return False
        except Exception:  # of this one connection: the other supervisors are still heard
            _log.exception("driver channel: partition %d at %s", inbound.partition, inbound.origin)
            return False
        return True

    def _drop(self, inbound: Inbound, **why: int) -> None:
        with self._lock:
            self._connections.pop(inbound.partition, None)
        inbound.sock.close()
        if not inbound.said_bye and not self._closed:
            self._receive(inbound.partition, {"kind": GONE, **why})


class SupervisorChannel:
    """A supervisor's end. Sending never blocks.

    Args:
        on_stop: called once, in the channel's thread, with the reason, when the driver orders to stop or has
            disconnected.
        session: the secrets of an encrypted connection; None: it is not encrypted.
    """

    def __init__(self, sock: socket.socket, on_stop: Callable[[str], None], session: Session | None = None) -> None:
        self._sock = sock
        self._seal = sealing(session)
        self._open = opening(session)
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
        """Connects to the driver.

        Raises:
            OSError: it cannot be reached within `CONNECT_TIMEOUT`.
            AuthenticationError: what listens there is not this job's driver.
        """
        sock, session = connected_socket(address, token, job_id, partition, encrypted=encrypted)
        return cls(sock, on_stop, session)

    @property
    def usable(self) -> bool:
        """Whether the driver still listens."""
        return not self._broken

    @property
    def stopped(self) -> bool:
        """Whether the driver has sent the order to stop."""
        return self._stopped

    def send(self, kind: str, **fields: Any) -> bool:
        """Queues a frame.

        Lines and messages are dropped if too much is queued already. False: the driver has disconnected.
        """
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
        """Waits until all that was sent is with the kernel, where it outlives this process. False when it is not."""
        with self._changed:
            self._changed.wait_for(lambda: self._broken or not self._waiting_bytes, timeout.total_seconds())
            return not self._broken and not self._waiting_bytes

    def answer(self) -> dict[str, Any] | None:
        """Waits for the driver's next frame other than a stop; None if it has ordered to stop, or has disconnected."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._broken or self._stopped or self._closing)
            return self._answers.popleft() if self._answers else None

    def _enqueue(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._changed.notify_all()

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Sends what waits, as far as `timeout` allows, and disconnects."""
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


def connected_socket(
    address: tuple[str, int], token: bytes, job_id: str, partition: int, *, encrypted: bool = False
) -> tuple[socket.socket, Session | None]:
    """A socket to the driver, authenticated both ways, and its secrets. Raises as `SupervisorChannel.connect`."""
    sock, session = authentication.dial(
        address, token, context_of(job_id, partition), timeout=CONNECT_TIMEOUT, encrypted=encrypted
    )
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
    except BaseException:
        sock.close()
        raise
    return sock, session


def _keep_alive(sock: socket.socket) -> None:
    """Has the kernel detect within about half a minute that the other host has disappeared."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
