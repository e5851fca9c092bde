"""Mutual authentication of two processes over a connected socket: each proves that it holds the job's key.

A connection begins with four messages of fixed size, at most 96 bytes each, before a deadline::

    connector                                                acceptor
      magic, role, context length, context, nonce    ------>            hello, 96 bytes
                                         <------  magic, role, nonce    challenge, 48 bytes
      HMAC(key, "connect" + hello + challenge)       ------>            proof, 32 bytes
           <------  HMAC(key, "accept" or "refuse" + hello + challenge)   answer, 32 bytes

Proof and answer are HMAC-SHA256 over the role of their sender, the hello and the challenge. Both messages hold fresh
nonces, so a recorded proof is invalid in another exchange; the role makes a reflected message invalid. The connector
proves first: the acceptor sends nothing computed from the key to an unauthenticated peer. The context identifies the
purpose of the connection (job, ranks, round, ...); the proofs cover it, so it can't be changed in transit. An acceptor
that has too many connections without a proof closes one before its challenge, or answers "busy": the connector tries
again.

The handshake authenticates the peer at connection time only. Nothing is encrypted: if an attacker can alter packets in
transit, encrypt the network below.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import Enum

from spark_estimator.errors import AuthenticationError

KEY_BYTES = 32
MAX_CONTEXT_BYTES = 48
HANDSHAKE_TIMEOUT = timedelta(seconds=5)
#: After which a connector tries an acceptor again that was not ready.
RETRY_SECONDS = 0.05

_MAGIC = b"SPKEST\x00\x01"  # ends in the version of this exchange
_HELLO = struct.Struct("<8s7sB48s32s")
_CHALLENGE = struct.Struct("<8s8s32s")
_CONNECTOR = b"connect"
_ACCEPTOR = b"accept"
_REFUSER = b"refuse"
_PROOF_BYTES = hashlib.sha256().digest_size
#: Sent instead of the answer to a connector that had to make room for later ones.
BUSY = b"busy: connect again".ljust(_PROOF_BYTES, b"\0")


class NotReadyError(AuthenticationError):
    """The acceptor sent no challenge, or was busy: it had not started yet, or was closing. A retry may succeed."""


class RefusedError(AuthenticationError):
    """The acceptor holds the key, but refuses a connection with this context."""


def connect(sock: socket.socket, key: bytes, context: bytes, *, timeout: timedelta = HANDSHAKE_TIMEOUT) -> None:
    """Authenticates both ends of `sock`, on the side that connected.

    Args:
        sock: a connected stream socket. Its timeout is restored afterwards. The caller closes it on an error.
        key: the secret of the job, `KEY_BYTES` random bytes.
        context: the purpose of the connection, at most `MAX_CONTEXT_BYTES`; the acceptor receives it, authenticated.
        timeout: of the whole handshake.

    Raises:
        NotReadyError: the other end closed the connection before its challenge, sent nothing, or was busy.
        RefusedError: the other end holds the key, but refuses the context.
        AuthenticationError: the other end does not hold the key, or uses another protocol.
        ValueError: `context` is too long.
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
            raise AuthenticationError("the other end answered with the wrong role: it is not an acceptor")
        exchange.send(_proof(key, _CONNECTOR, hello, challenge))
        answer = exchange.receive(_PROOF_BYTES)
        if answer == BUSY:
            raise NotReadyError("the other end is busy with other connections")
        if hmac.compare_digest(answer, _proof(key, _REFUSER, hello, challenge)):
            raise RefusedError("the other end refused this connection, because it serves another job, rank or round")
        if not hmac.compare_digest(answer, _proof(key, _ACCEPTOR, hello, challenge)):
            raise AuthenticationError("the other end does not hold this job's key")


def dial(
    address: tuple[str, int], key: bytes, context: bytes, *, timeout: timedelta = HANDSHAKE_TIMEOUT
) -> socket.socket:
    """A TCP connection that is authenticated on both ends; an acceptor that is not ready is tried again.

    Args:
        address: host and port.
        key, context: as for `connect`.
        timeout: of all tries together.

    Returns:
        The socket, without a timeout.

    Raises:
        OSError: the address can't be reached.
        AuthenticationError: as `connect` raises it; NotReadyError if no try succeeded in time.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        remaining = max(0.01, deadline - time.monotonic())
        sock = socket.create_connection(address, timeout=remaining)
        try:
            connect(sock, key, context, timeout=timedelta(seconds=remaining))
            sock.settimeout(None)
            return sock
        except NotReadyError:
            sock.close()
            if time.monotonic() + RETRY_SECONDS >= deadline:
                raise
            time.sleep(RETRY_SECONDS)
        except BaseException:
            sock.close()
            raise


class AcceptState(Enum):
    """How far an accepting side is. Each state follows the one before; `REFUSED` and `ACCEPTED` are final."""

    HELLO = "waits for the hello"
    PROOF = "has sent its challenge and waits for the proof"
    ACCEPTED = "the connector has proved that it holds the key"
    REFUSED = "the connector holds the key, but its context is refused"


class Acceptor:
    """The accepting side of one handshake, without its socket: takes what arrives and returns what to send.

    Args:
        key: the secret of the job.
        approve: called with the context after the connector has proved that it holds the key. It raises
            AuthenticationError to refuse the connection; the connector then gets RefusedError.

    Attributes:
        state: how far it is.
        context: the connector's, authenticated once `state` is ACCEPTED.
        refusal: what `approve` raised; None in other states than REFUSED.
    """

    def __init__(self, key: bytes, approve: Callable[[bytes], None] | None = None) -> None:
        self.state = AcceptState.HELLO
        self.context = b""
        self.refusal: AuthenticationError | None = None
        self._key = key
        self._approve = approve
        self._hello = b""
        self._challenge = b""
        self._received = b""

    @property
    def missing(self) -> int:
        """How many bytes the next message lacks; 0 in a final state. A caller must not read more than that."""
        expected = {AcceptState.HELLO: _HELLO.size, AcceptState.PROOF: _PROOF_BYTES}.get(self.state, 0)
        return expected - len(self._received)

    def receive(self, data: bytes) -> bytes:
        """Takes 1 to `missing` bytes.

        Returns:
            What to send now; the caller closes the connection after it when the new state is REFUSED.

        Raises:
            AuthenticationError: the connector does not hold the key, or uses another protocol.
        """
        self._received += data
        if self.state is AcceptState.HELLO:
            _require_prefix(self._received, _MAGIC)
        if self.missing:
            return b""
        message, self._received = self._received, b""
        return self._take_hello(message) if self.state is AcceptState.HELLO else self._take_proof(message)

    def _take_hello(self, hello: bytes) -> bytes:
        _, role, length, context, _ = _HELLO.unpack(hello)
        if role != _CONNECTOR or length > MAX_CONTEXT_BYTES:
            raise AuthenticationError("the connector sent a malformed hello")
        self._hello, self.context = hello, context[:length]
        self._challenge = _CHALLENGE.pack(_MAGIC, _ACCEPTOR, secrets.token_bytes(32))
        self.state = AcceptState.PROOF
        return self._challenge

    def _take_proof(self, proof: bytes) -> bytes:
        if not hmac.compare_digest(proof, _proof(self._key, _CONNECTOR, self._hello, self._challenge)):
            raise AuthenticationError("the connector does not hold this job's key")
        try:
            if self._approve is not None:
                self._approve(self.context)
        except AuthenticationError as error:
            self.state, self.refusal = AcceptState.REFUSED, error
            return _proof(self._key, _REFUSER, self._hello, self._challenge)
        self.state = AcceptState.ACCEPTED
        return _proof(self._key, _ACCEPTOR, self._hello, self._challenge)


def accept(
    sock: socket.socket,
    key: bytes,
    *,
    timeout: timedelta = HANDSHAKE_TIMEOUT,
    approve: Callable[[bytes], None] | None = None,
) -> bytes:
    """Authenticates both ends of `sock`, on the side that accepted the connection; the counterpart of `connect`.

    Args:
        sock: a connected stream socket. Its timeout is restored afterwards. The caller closes it on an error.
        key, approve: as for `Acceptor`.
        timeout: of the whole handshake.

    Returns:
        The connector's context, authenticated.

    Raises:
        AuthenticationError: the other end does not hold the key, uses another protocol, does not answer, or is refused.
    """
    acceptor = Acceptor(key, approve)
    with _Exchange(sock, timeout) as exchange:
        while acceptor.missing:
            answer = acceptor.receive(exchange.receive_some(acceptor.missing))
            if answer:
                exchange.send(answer)
    if acceptor.refusal is not None:
        raise acceptor.refusal
    return acceptor.context


def _require_prefix(received: bytes, prefix: bytes) -> None:
    """Raises AuthenticationError if what has arrived so far does not begin as `prefix` does."""
    if received[: len(prefix)] != prefix[: len(received)]:
        raise AuthenticationError(f"the other end uses another protocol; its first bytes are {received[:8]!r}")


def _proof(key: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, role.ljust(8, b"\x00") + hello + challenge, "sha256")


class _Exchange:
    """Fixed-size messages over a socket before one deadline. Raises `failure` if the peer is silent or disconnects."""

    def __init__(self, sock: socket.socket, timeout: timedelta) -> None:
        self.failure: type[AuthenticationError] = AuthenticationError
        self._sock = sock
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._original_timeout = sock.gettimeout()

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with suppress(OSError):
            self._sock.settimeout(self._original_timeout)
        if isinstance(error, TimeoutError):
            message = f"the other end did not complete the handshake within {self._timeout.total_seconds():g} seconds"
            raise self.failure(message) from None
        if isinstance(error, ConnectionError):
            raise self.failure("the other end closed the connection during the handshake") from error
        if isinstance(error, OSError):
            raise self.failure(f"the connection broke during the handshake: {error}") from error

    def send(self, message: bytes) -> None:
        self._arm()
        self._sock.sendall(message)

    def receive(self, count: int, prefix: bytes = b"") -> bytes:
        """Receives exactly `count` bytes. Data that does not start with `prefix` fails at the first differing byte."""
        received = b""
        while len(received) < count:
            received += self.receive_some(count - len(received))
            _require_prefix(received, prefix)
        return received

    def receive_some(self, count: int) -> bytes:
        """Receives 1 to `count` bytes."""
        self._arm()
        received = self._sock.recv(count)
        if not received:
            raise ConnectionResetError
        return received

    def _arm(self) -> None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)


def peer_credentials(sock: socket.socket) -> tuple[int, int] | None:
    """(process id, user id) at the other end of a connected Unix socket; None where the kernel does not report them."""
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
