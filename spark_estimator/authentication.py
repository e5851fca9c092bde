"""Lets two processes that hold the same key prove it to each other over a connected socket, and keeps others out.

A connection begins with four messages of fixed size, at most 96 bytes each, within a deadline::

    connector                                                acceptor
      magic, role, context length, context, nonce    ------>            hello, 96 bytes
                                         <------  magic, role, nonce    challenge, 48 bytes
      HMAC(key, "connect" + hello + challenge)       ------>            proof, 32 bytes
           <------  HMAC(key, "accept" or "refuse" + hello + challenge)   answer, 32 bytes

All are HMAC-SHA256 over everything that was said, with the role of their maker in front: a recorded proof fits no
other exchange, and an end's own words sent back to it prove nothing. The connector proves first, so that an acceptor
computes nothing with the key for a stranger to see. The context says what the connection is for (job, ranks, round...);
the proofs cover it, so it cannot be changed on the way.

What is proved is who was at the other end when the connection was made. Nothing is encrypted: where others can alter
packets in flight, the network below must be encrypted.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from spark_estimator.errors import AuthenticationError
from spark_estimator.log import logger

KEY_BYTES = 32
MAX_CONTEXT_BYTES = 48
HANDSHAKE_TIMEOUT = timedelta(seconds=5)

_MAGIC = b"SPKEST\x00\x01"  # ends in the version of this exchange
_HELLO = struct.Struct("<8s7sB48s32s")
_CHALLENGE = struct.Struct("<8s8s32s")
_CONNECTOR = b"connect"
_ACCEPTOR = b"accept"
_REFUSER = b"refuse"
_PROOF_BYTES = hashlib.sha256().digest_size

_log = logger(__name__)


class NotReadyError(AuthenticationError):
    """The acceptor did not ask for a proof: it has not started yet, was full, or was ending. Trying again may help."""


class RefusedError(AuthenticationError):
    """The acceptor holds the key, but does not want a connection of this context."""


def connect(sock: socket.socket, key: bytes, context: bytes, *, timeout: timedelta = HANDSHAKE_TIMEOUT) -> None:
    """Proves to the end that accepted `sock` that this end holds `key`, and has it prove the same.

    Args:
        sock: a connected stream socket. Its time-out is left as it was. The caller closes it on an error.
        key: the secret of the job, `KEY_BYTES` random bytes.
        context: what the connection is for, at most `MAX_CONTEXT_BYTES`; the acceptor gets it, unaltered.
        timeout: for the whole exchange.

    Raises:
        NotReadyError: the other end closed the connection at once, or said nothing.
        RefusedError: it holds the key, and refuses the context.
        AuthenticationError: it does not hold the key, or speaks something else.
    """
    if len(context) > MAX_CONTEXT_BYTES:
        raise ValueError(f"context has {len(context)} bytes; at most {MAX_CONTEXT_BYTES} fit.")
    with _Exchange(sock, timeout) as exchange:
        exchange.failure = NotReadyError
        hello = _HELLO.pack(_MAGIC, _CONNECTOR, len(context), context, secrets.token_bytes(32))
        exchange.send(hello)
        challenge = exchange.receive(_CHALLENGE.size, _MAGIC)
        exchange.failure = AuthenticationError
        if _CHALLENGE.unpack(challenge)[1].rstrip(b"\x00") != _ACCEPTOR:
            raise AuthenticationError("the other end answered in the wrong role")
        exchange.send(_proof(key, _CONNECTOR, hello, challenge))
        answer = exchange.receive(_PROOF_BYTES)
        if hmac.compare_digest(answer, _proof(key, _REFUSER, hello, challenge)):
            raise RefusedError("the other end does not want this connection: it serves another job, rank or round")
        if not hmac.compare_digest(answer, _proof(key, _ACCEPTOR, hello, challenge)):
            raise AuthenticationError("the other end does not hold this job's key")


def accept(
    sock: socket.socket,
    key: bytes,
    *,
    timeout: timedelta = HANDSHAKE_TIMEOUT,
    approve: Callable[[bytes], None] | None = None,
) -> bytes:
    """The accepting half of `connect`.

    Args:
        sock: a connected stream socket. Its time-out is left as it was. The caller closes it on an error.
        key: the secret of the job.
        timeout: for the whole exchange.
        approve: is given the context once the connector has proved that it holds the key, and raises
            AuthenticationError when such a connection is not wanted; the connector then gets RefusedError.

    Returns:
        The connector's context, authenticated.

    Raises:
        AuthenticationError: the other end does not hold the key, speaks something else, does not answer, is refused.
    """
    with _Exchange(sock, timeout) as exchange:
        hello = exchange.receive(_HELLO.size, _MAGIC)
        _, role, length, context, _ = _HELLO.unpack(hello)
        if role != _CONNECTOR or length > MAX_CONTEXT_BYTES:
            raise AuthenticationError("the connection began with a malformed hello")
        challenge = _CHALLENGE.pack(_MAGIC, _ACCEPTOR, secrets.token_bytes(32))
        exchange.send(challenge)
        if not hmac.compare_digest(exchange.receive(_PROOF_BYTES), _proof(key, _CONNECTOR, hello, challenge)):
            raise AuthenticationError("the connector does not hold this job's key")
        stated: bytes = context[:length]
        if approve is not None:
            try:
                approve(stated)
            except AuthenticationError:
                exchange.send(_proof(key, _REFUSER, hello, challenge))
                raise
        exchange.send(_proof(key, _ACCEPTOR, hello, challenge))
        return stated


def _proof(key: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, role.ljust(8, b"\x00") + hello + challenge, "sha256")


class _Exchange:
    """Fixed-size messages over a socket, all before one deadline; a broken or silent link is raised as `failure`."""

    def __init__(self, sock: socket.socket, timeout: timedelta) -> None:
        self.failure: type[AuthenticationError] = AuthenticationError
        self._sock = sock
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._before = sock.gettimeout()

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with suppress(OSError):
            self._sock.settimeout(self._before)
        if isinstance(error, TimeoutError):
            late = f"the other end did not complete the handshake within {self._timeout.total_seconds():g} seconds"
            raise self.failure(late) from None
        if isinstance(error, ConnectionError):
            raise self.failure("the other end closed the connection during the handshake") from error
        if isinstance(error, OSError):
            raise self.failure(f"the connection broke during the handshake: {error}") from error

    def send(self, message: bytes) -> None:
        self._arm()
        self._sock.sendall(message)

    def receive(self, count: int, prefix: bytes = b"") -> bytes:
        """Exactly `count` bytes. What cannot begin with `prefix` any more is refused without waiting for the rest."""
        received = b""
        while len(received) < count:
            self._arm()
            part = self._sock.recv(count - len(received))
            if not part:
                raise ConnectionResetError
            received += part
            if received[: len(prefix)] != prefix[: len(received)]:
                raise AuthenticationError(f"the other end speaks something else; it began with {received[:8]!r}")
        return received

    def _arm(self) -> None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)


def peer_credentials(sock: socket.socket) -> tuple[int, int] | None:
    """(process id, user id) at the other end of a connected Unix socket; None where the kernel does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return int(pid), int(uid)


def require_same_user(sock: socket.socket) -> None:
    """Raises AuthenticationError when the other end of a connected Unix socket belongs to another user."""
    credentials = peer_credentials(sock)
    if credentials is not None and credentials[1] != os.getuid():
        raise AuthenticationError(f"the other end runs as user {credentials[1]}, this process as user {os.getuid()}")


class HandshakeServer:
    """A thread that answers listening sockets for as long as the process lives, and lets in only who holds the key.

    Each connection is authenticated in a short-lived thread of its own, so that a silent one delays nobody; at most
    `capacity` at a time, what comes above that is closed at once. Connections over a Unix socket must also come from
    this process's own user. Whatever fails is closed; nothing is allocated by the size that a stranger states.

    Args:
        listeners: listening stream sockets; the HandshakeServer owns them from now on.
        key: the secret of the job.
        admit: is given each authenticated socket, its context and the peer's address in words; it owns the socket
            unless it raises. It runs in the connection's own thread.
        approve: as in `accept`.
        timeout: for each handshake.
        capacity: handshakes at a time.
        name: for the thread and for messages.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        key: bytes,
        admit: Callable[[socket.socket, bytes, str], None],
        *,
        approve: Callable[[bytes], None] | None = None,
        timeout: timedelta = HANDSHAKE_TIMEOUT,
        capacity: int = 64,
        name: str = "doorkeeper",
    ) -> None:
        self._listeners = list(listeners)
        self._key = key
        self._admit = admit
        self._approve = approve
        self._timeout = timeout
        self._capacity = capacity
        self._name = name
        self._lock = threading.Lock()
        self._in_handshake: set[socket.socket] = set()
        self._closed = False
        self._failing: OSError | None = None  # why the last connection could not be accepted
        self._wake_read, self._wake_write = socket.socketpair()
        for listener in self._listeners:
            listener.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name=f"spark_estimator {name}", daemon=True)
        self._thread.start()

    @property
    def lacks_descriptors(self) -> bool:
        """Whether somebody waits to be let in, and this process has no file descriptor for it."""
        return self._failing is not None and self._failing.errno in (errno.EMFILE, errno.ENFILE)

    def close(self) -> None:
        """Stops listening and breaks handshakes that are under way. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            in_handshake = list(self._in_handshake)
        with suppress(OSError):
            self._wake_write.send(b"\x00")
        for sock in in_handshake:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._close_sockets()

    def before_fork(self) -> None:
        """Holds new connections back, so that the child knows of every socket that it inherits."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Ends what `before_fork` began."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Closes the child's copies of all sockets without a word to anyone. The parent goes on listening."""
        self._closed = True
        self._lock = threading.Lock()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in [*self._listeners, *self._in_handshake, self._wake_read, self._wake_write]:
            with suppress(OSError):
                sock.close()
        self._in_handshake.clear()

    def _watch(self) -> None:
        # poll, not epoll: an epoll descriptor is shared with forked children, and so is what they do to it.
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        by_descriptor = {}
        for listener in self._listeners:
            poll.register(listener, select.POLLIN)
            by_descriptor[listener.fileno()] = listener
        while not self._closed:
            for descriptor, _event in poll.poll():
                if descriptor in by_descriptor and not self._closed:
                    self._accept_from(by_descriptor[descriptor])

    def _accept_from(self, listener: socket.socket) -> None:
        try:
            with self._lock:
                sock, address = listener.accept()
                full = len(self._in_handshake) >= self._capacity
                if not full and not self._closed:
                    self._in_handshake.add(sock)
        except (BlockingIOError, ConnectionError):
            self._failing = None
            return  # it went away between poll and accept
        except OSError as error:
            # Most likely out of descriptors. The connection stays in the queue; without a pause this would spin.
            if self._failing is None:
                _log.warning("%s cannot accept a connection, and goes on trying: %s", self._name, error)
            self._failing = error
            time.sleep(0.1)
            return
        self._failing = None
        origin = _origin(sock, address)
        if full or self._closed:
            _log.info("%s closed a connection from %s: %d handshakes under way", self._name, origin, self._capacity)
            sock.close()
            return
        name = f"spark_estimator {self._name}: {origin}"
        try:
            threading.Thread(target=self._authenticate, args=(sock, origin), name=name, daemon=True).start()
        except RuntimeError as error:
            _log.warning("%s closed a connection from %s: %s", self._name, origin, error)
            self._done_with(sock, keep=False)

    def _authenticate(self, sock: socket.socket, origin: str) -> None:
        keep = False
        try:
            if sock.family == socket.AF_UNIX:
                require_same_user(sock)
            context = accept(sock, self._key, timeout=self._timeout, approve=self._approve)
            self._admit(sock, context, origin)
            keep = True
        except (AuthenticationError, OSError) as error:
            _log.info("%s refused a connection from %s: %s", self._name, origin, error)
        finally:
            self._done_with(sock, keep=keep)

    def _done_with(self, sock: socket.socket, *, keep: bool) -> None:
        with self._lock:
            self._in_handshake.discard(sock)
        if not keep:
            sock.close()


def _origin(sock: socket.socket, address: object) -> str:
    """Where a connection came from, in words for messages."""
    if sock.family == socket.AF_UNIX:
        with suppress(OSError):
            credentials = peer_credentials(sock)
            return "this host" if credentials is None else f"pid {credentials[0]} of this host"
    return f"{address[0]} port {address[1]}" if isinstance(address, tuple) else str(address)
