"""Encrypted connections in Python: the engine's record layer, and sockets whose bytes are sent by it."""

from __future__ import annotations

import atexit
import ctypes
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_int64, c_void_p

from spark_estimator import _native
from spark_estimator._native import Status
from spark_estimator.errors import AuthenticationError, EncryptionUnavailableError
from spark_estimator.log import get_logger
from spark_estimator.posix import register_at_fork
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security.encryption import Session, find_libcrypto

RECORD_BYTES = 64 << 10
RECORD_OVERHEAD = 20
_TUNNEL_BYTES = 256 << 10
# At the end of the process: how long other ends may take to receive the last bytes, and threads to end after that.
_LAST_BYTES_SECONDS = 2.0
_ENDING_SECONDS = 1.0

_log = get_logger(__name__)


class Sealer:
    """Encrypts the bytes of one direction. Not thread-safe."""

    def __init__(self, session: Session) -> None:
        handle = c_void_p()
        _check(
            _native.library().se_sealer_create(
                find_libcrypto().encode(), session.cipher, session.send, ctypes.byref(handle)
            )
        )
        self._handle = handle
        _free_after(self, _native.library().se_sealer_destroy, handle)

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the records that hold `data`."""
        size = len(data)
        if not size:
            return b""
        records = ctypes.create_string_buffer(size + -(-size // RECORD_BYTES) * RECORD_OVERHEAD)
        _check(_native.library().se_seal(self._handle, bytes(data), size, records))
        return records.raw


class Opener:
    """Decrypts the bytes of one direction, in pieces of any size. Not thread-safe."""

    def __init__(self, session: Session) -> None:
        handle = c_void_p()
        _check(
            _native.library().se_opener_create(
                find_libcrypto().encode(), session.cipher, session.receive, ctypes.byref(handle)
            )
        )
        self._handle = handle
        _free_after(self, _native.library().se_opener_destroy, handle)
        self._pending = bytearray()

    def open(self, received: bytes) -> bytes:
        """Return the plain bytes of the records that these complete. Raises AuthenticationError: one was changed."""
        self._pending += received
        size = len(self._pending)
        data = ctypes.create_string_buffer(max(size, 1))
        taken, opened = c_int64(), c_int64()
        status = _native.library().se_open(
            self._handle, bytes(self._pending), size, data, ctypes.byref(taken), ctypes.byref(opened)
        )
        if status != Status.OK:
            raise AuthenticationError(f"the connection ended: {_native.get_last_error()}")
        del self._pending[: taken.value]
        return data.raw[: opened.value]


def make_sealer(session: Session | None) -> Callable[[bytes], bytes]:
    """Make a function that returns the bytes to send for its data; without a session, the data itself."""
    return bytes if session is None else Sealer(session).seal


def make_opener(session: Session | None) -> Callable[[bytes], bytes]:
    """Make a function that returns the data of received bytes, as `Opener.open`; without a session, these bytes."""
    return bytes if session is None else Opener(session).open


class _Tunnel:
    """The threads behind a socket that `open_tunnel` returns."""

    def __init__(self, sock: socket.socket, inner: socket.socket, session: Session, name: str) -> None:
        self._sock = sock
        self._inner = inner
        self._name = name
        self._sealer, self._opener = Sealer(session), Opener(session)
        self._lock = threading.Lock()
        self._ends_left = 2
        sender = ReaderThread(self._send, lambda error: self._end(inner, sock, error), name=f"{name} send")
        receiver = ReaderThread(self._receive, lambda error: self._end(sock, inner, error), name=f"{name} receive")
        self._threads = sender, receiver
        for thread in self._threads:
            thread.start()
        _tunnels.add(self)

    def finish(self, deadline: float) -> None:
        """Send what the user has written, as far as the other end takes it in time, and end both threads."""
        with suppress(OSError):
            self._inner.shutdown(socket.SHUT_RD)  # what is in it is still read
        sender, _ = self._threads
        sender.join(max(0.0, deadline - time.monotonic()))
        for sock in (self._sock, self._inner):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_ENDING_SECONDS)

    def close(self) -> None:
        """Close the sockets, where no thread is."""
        self._sock.close()
        self._inner.close()

    def _send(self) -> None:
        while data := self._inner.recv(_TUNNEL_BYTES):
            self._sock.sendall(self._sealer.seal(data))

    def _receive(self) -> None:
        while received := self._sock.recv(_TUNNEL_BYTES):
            self._inner.sendall(self._opener.open(received))

    def _end(self, reading: socket.socket, writing: socket.socket, error: BaseException | None) -> None:
        if isinstance(error, AuthenticationError):
            _log.warning("%s: %s", self._name, error)
        elif error is not None:
            _log.debug("%s ended: %r", self._name, error)
        if error is not None and not isinstance(error, OSError):  # it must not look like the other end's own end
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            writing.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            reading.shutdown(socket.SHUT_RD)
        with self._lock:
            self._ends_left -= 1
            if self._ends_left == 0:
                self.close()


_tunnels: weakref.WeakSet[_Tunnel] = weakref.WeakSet()


def open_tunnel(sock: socket.socket, session: Session | None, name: str) -> socket.socket:
    """Open a socket whose bytes are sent encrypted over `sock`, for code that reads and writes a plain descriptor.

    Args:
        sock: authenticated, blocking, with its options set. It belongs to the tunnel from now on.
        session: that of its handshake; None: `sock` itself is returned.
        name: of the connection, for messages and threads.
    """
    if session is None:
        return sock
    user_end, inner = socket.socketpair()
    sock.settimeout(None)
    _Tunnel(sock, inner, session, name)
    return user_end


def _finish_tunnels() -> None:
    """End all tunnels before the process ends: OpenSSL then frees what their threads use."""
    deadline = time.monotonic() + _LAST_BYTES_SECONDS
    for each in list(_tunnels):
        each.finish(deadline)


def _forget_tunnels() -> None:
    """Leave a forked child none of them, so that the other ends notice the end of this process's parent."""
    for each in list(_tunnels):
        each.close()
    _tunnels.clear()


atexit.register(_finish_tunnels)
register_at_fork(after_in_child=_forget_tunnels)


def _free_after(owner: object, free: Callable[[c_void_p], None], handle: c_void_p) -> None:
    """Free a handle after its owner; not at the end of the process, when a thread may be using it."""
    weakref.finalize(owner, free, handle).atexit = False


def _check(status: int) -> None:
    if status != Status.OK:
        raise EncryptionUnavailableError(f"connections can't be encrypted: {_native.get_last_error()}")
