"""The driver's end of the driver channel: a server, and one connection from each supervisor (see ``channel``)."""

from __future__ import annotations

import collections
import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from spark_estimator.errors import AuthenticationError
from spark_estimator.log import get_logger
from spark_estimator.observe import channel
from spark_estimator.observe.channel import unpack_context
from spark_estimator.observe.frames import ALIVE, BYE, GONE, HEARD, SILENT, STOP, encode, take_frames
from spark_estimator.observe.silence import Hearing, Silence
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security import authentication
from spark_estimator.security.encrypted_stream import make_opener, make_sealer
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer

# A supervisor that takes so little of what it is sent is disconnected.
_MAX_UNTAKEN_BYTES = 16 << 20
_log = get_logger(__name__)


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
        self._seal = make_sealer(session)
        self._open = make_opener(session)
        self._pending = bytearray()
        self._lock = threading.Lock()  # any thread sends
        self._outgoing = bytearray()
        sock.setblocking(False)

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield the frames that one read completes.

        Raises EOFError: closed; ValueError, AuthenticationError: bad data; OSError: broken, or (BlockingIOError) empty.
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
        """Pass a frame to the kernel, as much of it as possible without waiting; `send_more` sends the rest."""
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


class InboundSelector:
    """Waits for data of connections, and sends what is queued for them. `add` and `wake` from any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._arrived: collections.deque[Inbound] = collections.deque()

    def add(self, inbound: Inbound) -> None:
        """Watch a connection from now on."""
        self._arrived.append(inbound)
        self.wake()

    def wake(self) -> None:
        """End the present or next `wait`, after which it also sends what has been queued meanwhile."""
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    def wait(self, seconds: float | None) -> list[Inbound]:
        """Return the connections that have data, or have ended; after `seconds` or `wake` perhaps none."""
        readable = []
        is_changed = False
        for key, events in self._selector.select(seconds):
            is_changed |= key.data is None or bool(events & selectors.EVENT_WRITE)
            if key.data is None:
                self._wake_read.recv(4096)
                while self._arrived:
                    inbound = self._arrived.popleft()
                    self._selector.register(inbound.sock, selectors.EVENT_READ, inbound)
                continue
            if events & selectors.EVENT_WRITE:
                key.data.send_more()
            if events & selectors.EVENT_READ:
                readable.append(key.data)
        for inbound in self.list_connections() if is_changed else []:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if inbound.has_more else 0)
            self._selector.modify(inbound.sock, events, inbound)
        return readable

    def list_connections(self) -> list[Inbound]:
        """Return the watched connections."""
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def remove(self, inbound: Inbound) -> None:
        """Watch a connection no more."""
        with contextlib.suppress(KeyError):  # it has just been added
            self._selector.unregister(inbound.sock)

    def close(self) -> None:
        """Release the descriptors, but those of connections."""
        for each in (self._selector, self._wake_read, self._wake_write):
            each.close()


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
        self._selector = InboundSelector()
        self._handshake_server = HandshakeServer(
            [listener], self.token, self._admit, approve=self._approve, name="driver channel", encrypted=encrypted
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
        self._selector.wake()

    def send(self, partition: int, kind: str, fields: dict[str, Any]) -> None:
        """Send a frame to a supervisor, if it is connected. Do not block."""
        with self._lock:
            connection = self._connections.get(partition)
        if connection is not None:
            connection.send(kind, fields)
            self._selector.wake()

    def close(self) -> None:
        """Disconnects everybody and stops listening; supervisors that still run then end their workers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._handshake_server.close()
        self._selector.wake()
        self._thread.join()

    def _approve(self, context: bytes) -> None:
        job_id, partition = unpack_context(context)
        with self._lock:
            taken = partition in self._connections
            stopping = self._stop_reason is not None
        if job_id != self._job_id or not 0 <= partition < self._size or taken:
            raise AuthenticationError(f"no supervisor of that job and partition is expected: {job_id!r}, {partition}")
        if self._approve_partition is not None and not stopping:
            self._approve_partition(partition)

    def _admit(self, sock: socket.socket, context: bytes, origin: str, session: Session | None) -> None:
        inbound = Inbound(sock, unpack_context(context)[1], origin, Silence(self._lost_after), session)
        with self._lock:
            if self._closed or inbound.partition in self._connections:
                raise AuthenticationError("the channel is closed, or this partition is connected already")
            self._connections[inbound.partition] = inbound
            reason = self._stop_reason
        if reason is not None:
            inbound.send(STOP, {"text": reason})
        self._selector.add(inbound)

    def _serve(self) -> None:
        looked = time.monotonic()
        while not self._closed:
            for inbound in self._selector.wait(channel.HEARTBEAT_SECONDS if self._lost_after else None):
                if not self._take(inbound):
                    self._drop(inbound)
            now = time.monotonic()
            if now - looked >= channel.HEARTBEAT_SECONDS:
                self._look_for_silence(now - looked)
                looked = now
        with self._lock:
            remaining = list(self._connections.values())
        for inbound in remaining:
            while self._take(inbound):  # what had arrived before the end
                pass

    def _end(self, _error: BaseException | None) -> None:
        """Drop all supervisors; where an error has ended the thread, they are reported as gone."""
        self._handshake_server.close()
        with self._lock:
            remaining = list(self._connections.values())
        for inbound in remaining:
            self._drop(inbound)
        self._selector.close()

    def _look_for_silence(self, seconds: float) -> None:
        """Report supervisors that have sent nothing for too long, `seconds` after the last check."""
        for inbound in self._selector.list_connections():
            if inbound.said_bye or not inbound.silence.note_silence(seconds):
                continue
            if inbound.silence.state is Hearing.LOST:
                self._drop(inbound, silent_seconds=round(inbound.silence.seconds))
            else:
                report = {"kind": SILENT, "seconds": round(inbound.silence.seconds), "limit": round(self._lost_after)}
                self._receive(inbound.partition, report)

    def _take(self, inbound: Inbound) -> bool:
        """Read the available data; False if the connection is closed, or there is no data."""
        try:
            for frame in inbound.receive():
                if inbound.silence.note_data():
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
        self._selector.remove(inbound)
        inbound.sock.close()
        if not inbound.said_bye and not self._closed:
            self._receive(inbound.partition, {"kind": GONE, **why})
