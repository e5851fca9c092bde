"""Encrypted connections in Python: the engine's record layer, and sockets whose bytes are sent by it."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_int64, c_void_p

from spark_estimator import _native
from spark_estimator._native import Status
from spark_estimator.errors import AuthenticationError, EncryptionUnavailableError
from spark_estimator.log import logger
from spark_estimator.security.encryption import Session, libcrypto_path

RECORD_BYTES = 64 << 10
RECORD_OVERHEAD = 20
_TUNNEL_BYTES = 256 << 10

_log = logger(__name__)


class Sealer:
    """Encrypts the bytes of one direction. Not thread-safe."""

    def __init__(self, session: Session) -> None:
        handle = c_void_p()
        _check(
            _native.library().se_sealer_create(
                libcrypto_path().encode(), session.cipher, session.send, ctypes.byref(handle)
            )
        )
        self._handle = handle
        self._free = weakref.finalize(self, _native.library().se_sealer_destroy, handle)

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """The records that hold `data`."""
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
                libcrypto_path().encode(), session.cipher, session.receive, ctypes.byref(handle)
            )
        )
        self._handle = handle
        self._free = weakref.finalize(self, _native.library().se_opener_destroy, handle)
        self._pending = bytearray()

    def open(self, received: bytes) -> bytes:
        """The plain bytes of the records that these bytes complete.

        Raises:
            AuthenticationError: a record was altered, repeated, left out or reordered; the connection must end.
        """
        self._pending += received
        size = len(self._pending)
        data = ctypes.create_string_buffer(max(size, 1))
        taken, opened = c_int64(), c_int64()
        status = _native.library().se_open(
            self._handle, bytes(self._pending), size, data, ctypes.byref(taken), ctypes.byref(opened)
        )
        if status != Status.OK:
            raise AuthenticationError(f"the connection ended: {_native.last_error()}")
        del self._pending[: taken.value]
        return data.raw[: opened.value]


def sealing(session: Session | None) -> Callable[[bytes], bytes]:
    """Returns the bytes to send for `data`; without a session, the data itself."""
    return bytes if session is None else Sealer(session).seal


def opening(session: Session | None) -> Callable[[bytes], bytes]:
    """Returns the data of received bytes, as `Opener.open`; without a session, these bytes themselves."""
    return bytes if session is None else Opener(session).open


# Of all tunnels: a forked child must not keep them open.
_tunnel_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def tunnel(sock: socket.socket, session: Session | None, name: str) -> socket.socket:
    """A socket whose bytes are sent encrypted over `sock`, for code that reads and writes a plain descriptor.

    Args:
        sock: authenticated, blocking, with its options set. It belongs to the tunnel from now on.
        session: that of its handshake; None: `sock` itself is returned.
        name: of the connection, for messages and threads.
    """
    if session is None:
        return sock
    sealer, opener = Sealer(session), Opener(session)
    user_end, inner = socket.socketpair()
    sock.settimeout(None)
    _tunnel_sockets.update((sock, inner))
    ends_left = [2]
    lock = threading.Lock()

    def end(reading: socket.socket, writing: socket.socket) -> None:
        with suppress(OSError):
            writing.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            reading.shutdown(socket.SHUT_RD)
        with lock:
            ends_left[0] -= 1
            if ends_left[0] == 0:
                sock.close()
                inner.close()

    def send() -> None:
        try:
            while data := inner.recv(_TUNNEL_BYTES):
                sock.sendall(sealer.seal(data))
        except OSError as error:
            _log.debug("%s ended while sending: %s", name, error)
        finally:
            end(inner, sock)

    def receive() -> None:
        try:
            while received := sock.recv(_TUNNEL_BYTES):
                inner.sendall(opener.open(received))
        except AuthenticationError as error:
            _log.warning("%s: %s", name, error)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("%s ended while receiving: %s", name, error)
        finally:
            end(sock, inner)

    for target in (send, receive):
        threading.Thread(target=target, name=f"spark_estimator {name} {target.__name__}", daemon=True).start()
    return user_end


def _close_tunnels() -> None:
    for sock in list(_tunnel_sockets):
        with suppress(OSError):
            sock.close()


os.register_at_fork(after_in_child=_close_tunnels)


def _check(status: int) -> None:
    if status != Status.OK:
        raise EncryptionUnavailableError(f"connections can't be encrypted: {_native.last_error()}")
