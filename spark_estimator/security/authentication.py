"""Mutual authentication of two processes over a connected socket: each proves that it holds the job's key.

A connection begins with four messages of fixed size, at most 96 bytes each, before a deadline::

    connector                                                acceptor
      magic, role, flags, context length, context, nonce  ------>       hello, 96 bytes
                                  <------  magic, role, flags, nonce    challenge, 48 bytes
      HMAC(key, "connect" + hello + challenge)            ------>       proof, 32 bytes
           <------  HMAC(key, "accept" or "refuse" + hello + challenge)   answer, 32 bytes

Proof and answer are HMAC-SHA256 over the role of their sender, the hello and the challenge. Both messages hold fresh
nonces, so a recorded proof is invalid in another exchange; the role makes a reflected message invalid. The connector
proves first: the acceptor sends nothing computed from the key to an unauthenticated peer. The context identifies the
purpose of the connection (job, ranks, round, ...); the proofs cover it, so it can't be changed in transit. An acceptor
that has too many connections without a proof closes one before its challenge, or answers "busy": the connector tries
again.

Whether a connection is encrypted is a property of its job, which both ends know beforehand. The flags of both messages
hold it, and the proofs cover them: no attacker in between can change it, and ends that differ refuse each other. The
nonces of an encrypted connection are fresh X25519 public keys, from which both ends derive its secrets
(``encryption.derive``). Without encryption the handshake authenticates the peer at connection time only.
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
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from spark_estimator._native import Cipher
from spark_estimator.errors import AuthenticationError
from spark_estimator.security.encryption import KeyPair, Session, derive, has_fast_aes

KEY_BYTES = 32
MAX_CONTEXT_BYTES = 47
HANDSHAKE_TIMEOUT = timedelta(seconds=5)
#: After which a connector tries an acceptor again that was not ready.
RETRY_SECONDS = 0.05

_MAGIC = b"SPKEST\x00\x02"  # ends in the version of this exchange
_HELLO = struct.Struct("<8s7sBB47s32s")
_CHALLENGE = struct.Struct("<8s7sB32s")
_CONNECTOR = b"connect"
_ACCEPTOR = b"accept"
_REFUSER = b"refuse"
_PROOF_BYTES = hashlib.sha256().digest_size
# Flags of hello and challenge.
_ENCRYPTED = 1
_FAST_AES = 2
#: Sent instead of the answer to a connector that had to make room for later ones.
BUSY = b"busy: connect again".ljust(_PROOF_BYTES, b"\0")


class NotReadyError(AuthenticationError):
    """The acceptor sent no challenge, was busy, or left the proof unread.

    It had not started yet, got no processor time, or was closing. A retry may succeed.
    """


class RefusedError(AuthenticationError):
    """The acceptor holds the key, but refuses a connection with this context."""


def connect(
    sock: socket.socket, key: bytes, context: bytes, *, timeout: timedelta = HANDSHAKE_TIMEOUT, encrypted: bool = False
) -> Session | None:
    """Authenticate both ends of `sock`, on the side that connected.

    Args:
        sock: a connected stream socket. Its timeout is restored afterwards. The caller closes it on an error.
        key: the secret of the job, `KEY_BYTES` random bytes.
        context: the purpose of the connection, at most `MAX_CONTEXT_BYTES`; the acceptor receives it, authenticated.
        timeout: of the whole handshake.
        encrypted: whether the connection will be encrypted; the other end must agree.

    Returns:
        The secrets of an encrypted connection; None if it is not encrypted.

    Raises:
        EncryptionUnavailableError: it would be encrypted, and this host can't.
        NotReadyError: the other end closed the connection before its challenge or without reading the proof, sent
            nothing, or was busy.
        RefusedError: the other end holds the key, but refuses the context.
        AuthenticationError: the other end does not hold the key, or uses another protocol.
        ValueError: `context` is too long.
    """
    if len(context) > MAX_CONTEXT_BYTES:
        raise ValueError(f"context has {len(context)} bytes; at most {MAX_CONTEXT_BYTES} fit.")
    with _Exchange(sock, timeout) as exchange:
        exchange.failure = NotReadyError
        half = _Half.make(encrypted)
        hello = _HELLO.pack(_MAGIC, _CONNECTOR, half.flags, len(context), context, half.share)
        exchange.send(hello)
        challenge = exchange.receive(_CHALLENGE.size, _MAGIC)
        exchange.failure = AuthenticationError  # who closes after it has read the proof has judged it
        exchange.unread_failure = NotReadyError
        _, role, flags, share = _CHALLENGE.unpack(challenge)
        if role.rstrip(b"\x00") != _ACCEPTOR:
            raise AuthenticationError("the other end answered with the wrong role: it is not an acceptor")
        half.require_agreement(flags)
        exchange.send(_compute_proof(key, _CONNECTOR, hello, challenge))
        answer = exchange.receive(_PROOF_BYTES)
        if answer == BUSY:
            raise NotReadyError("the other end is busy with other connections")
        if hmac.compare_digest(answer, _compute_proof(key, _REFUSER, hello, challenge)):
            raise RefusedError("the other end refused this connection, because it serves another job, rank or round")
        if not hmac.compare_digest(answer, _compute_proof(key, _ACCEPTOR, hello, challenge)):
            raise AuthenticationError("the other end does not hold this job's key")
    return half.derive_session(key, flags, share, hello + challenge, connector=True)


def dial(
    address: tuple[str, int],
    key: bytes,
    context: bytes,
    *,
    timeout: timedelta = HANDSHAKE_TIMEOUT,
    encrypted: bool = False,
) -> tuple[socket.socket, Session | None]:
    """Open a TCP connection that is authenticated on both ends; try an acceptor again that is not ready.

    Args:
        address: host and port.
        key, context, encrypted: as for `connect`.
        timeout: of all tries together.

    Returns:
        The socket, without a timeout, and what `connect` returned.

    Raises:
        OSError: the address can't be reached.
        AuthenticationError: as `connect` raises it; NotReadyError if no try succeeded in time.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        remaining = max(0.01, deadline - time.monotonic())
        sock = socket.create_connection(address, timeout=remaining)
        try:
            session = connect(sock, key, context, timeout=timedelta(seconds=remaining), encrypted=encrypted)
            sock.settimeout(None)
            return sock, session
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
        encrypted: whether the connection will be encrypted; the connector must agree.

    Attributes:
        state: how far it is.
        context: the connector's, authenticated once `state` is ACCEPTED.
        session: the secrets of an encrypted connection, once `state` is ACCEPTED; None if it is not encrypted.
        refusal: what `approve` raised; None in other states than REFUSED.
    """

    def __init__(self, key: bytes, approve: Callable[[bytes], None] | None = None, *, encrypted: bool = False) -> None:
        self.state = AcceptState.HELLO
        self.context = b""
        self.session: Session | None = None
        self.refusal: AuthenticationError | None = None
        self._key = key
        self._approve = approve
        self._hello = b""
        self._challenge = b""
        self._received = b""
        self._encrypted = encrypted
        self._half: _Half | None = None

    @property
    def missing(self) -> int:
        """Return how many bytes the next message lacks; 0 in a final state. A caller must not read more than that."""
        expected = {AcceptState.HELLO: _HELLO.size, AcceptState.PROOF: _PROOF_BYTES}.get(self.state, 0)
        return expected - len(self._received)

    def receive(self, data: bytes) -> bytes:
        """Take 1 to `missing` bytes.

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
        _, role, _, length, context, _ = _HELLO.unpack(hello)
        if role != _CONNECTOR or length > MAX_CONTEXT_BYTES:
            raise AuthenticationError("the connector sent a malformed hello")
        self._hello, self.context = hello, context[:length]
        self._half = _Half.make(self._encrypted)
        self._challenge = _CHALLENGE.pack(_MAGIC, _ACCEPTOR, self._half.flags, self._half.share)
        self.state = AcceptState.PROOF
        return self._challenge

    def _take_proof(self, proof: bytes) -> bytes:
        if not hmac.compare_digest(proof, _compute_proof(self._key, _CONNECTOR, self._hello, self._challenge)):
            raise AuthenticationError("the connector does not hold this job's key")
        _, _, flags, _, _, share = _HELLO.unpack(self._hello)
        assert self._half is not None
        self._half.require_agreement(flags)
        session = self._half.derive_session(self._key, flags, share, self._hello + self._challenge, connector=False)
        try:
            if self._approve is not None:
                self._approve(self.context)
        except AuthenticationError as error:
            self.state, self.refusal = AcceptState.REFUSED, error
            return _compute_proof(self._key, _REFUSER, self._hello, self._challenge)
        self.state, self.session = AcceptState.ACCEPTED, session
        return _compute_proof(self._key, _ACCEPTOR, self._hello, self._challenge)


def accept(
    sock: socket.socket,
    key: bytes,
    *,
    timeout: timedelta = HANDSHAKE_TIMEOUT,
    approve: Callable[[bytes], None] | None = None,
) -> bytes:
    """Authenticate both ends of `sock`, on the side that accepted the connection; the counterpart of `connect`.

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


@dataclass(frozen=True)
class _Half:
    """One end's contribution to a handshake: its flags and its share, which is new each time."""

    flags: int
    share: bytes
    pair: KeyPair | None

    @classmethod
    def make(cls, encrypted: bool) -> _Half:
        if not encrypted:
            return cls(0, secrets.token_bytes(32), None)
        pair = KeyPair()
        return cls(_ENCRYPTED | (_FAST_AES if has_fast_aes() else 0), pair.share, pair)

    def require_agreement(self, peer_flags: int) -> None:
        """Raise AuthenticationError if one end encrypts and the other doesn't."""
        if bool(peer_flags & _ENCRYPTED) != (self.pair is not None):
            here, there = ("encrypts", "doesn't") if self.pair is not None else ("doesn't encrypt", "does")
            raise AuthenticationError(
                f"this end {here} the connection, and the other end {there}: set SPARK_ESTIMATOR_ENCRYPTION to one "
                "value for the whole job"
            )

    def derive_session(
        self, key: bytes, peer_flags: int, peer_share: bytes, transcript: bytes, *, connector: bool
    ) -> Session | None:
        """Derive the secrets, once the peer has proved that flags and shares of both are as they were sent."""
        if self.pair is None:
            return None
        both_fast = self.flags & peer_flags & _FAST_AES
        cipher = Cipher.AES_128_GCM if both_fast else Cipher.CHACHA20_POLY1305
        return derive(key, self.pair.derive_shared_secret(peer_share), transcript, cipher, connector=connector)


def _require_prefix(received: bytes, prefix: bytes) -> None:
    """Raise AuthenticationError if what has arrived so far does not begin as `prefix` does."""
    if received[: len(prefix)] != prefix[: len(received)]:
        raise AuthenticationError(f"the other end uses another protocol; its first bytes are {received[:8]!r}")


def _compute_proof(key: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, role.ljust(8, b"\x00") + hello + challenge, "sha256")


class _EndedError(ConnectionError):
    """The other end has closed the connection."""


class _Exchange:
    """Fixed-size messages over a socket before one deadline. Raises `failure` if the peer is silent or disconnects.

    If the peer disconnects without reading what was sent, it raises `unread_failure`, if any.
    """

    def __init__(self, sock: socket.socket, timeout: timedelta) -> None:
        self.failure: type[AuthenticationError] = AuthenticationError
        self.unread_failure: type[AuthenticationError] | None = None
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
            unread = not isinstance(error, _EndedError)
            failure = self.unread_failure if unread and self.unread_failure is not None else self.failure
            raise failure("the other end closed the connection during the handshake") from error
        if isinstance(error, OSError):
            raise self.failure(f"the connection broke during the handshake: {error}") from error

    def send(self, message: bytes) -> None:
        self._arm()
        self._sock.sendall(message)

    def receive(self, count: int, prefix: bytes = b"") -> bytes:
        """Receive exactly `count` bytes. Data that does not start with `prefix` fails at the first differing byte."""
        received = b""
        while len(received) < count:
            received += self.receive_some(count - len(received))
            _require_prefix(received, prefix)
        return received

    def receive_some(self, count: int) -> bytes:
        """Receive 1 to `count` bytes."""
        self._arm()
        received = self._sock.recv(count)
        if not received:
            raise _EndedError
        return received

    def _arm(self) -> None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)


def get_peer_credentials(sock: socket.socket) -> tuple[int, int] | None:
    """Return (process id, user id) at the other end of a connected Unix socket; None where the kernel has none."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return int(pid), int(uid)


def require_same_user(sock: socket.socket) -> None:
    """Raise AuthenticationError when the other end of a connected Unix socket belongs to another user."""
    credentials = get_peer_credentials(sock)
    if credentials is not None and credentials[1] != os.getuid():
        raise AuthenticationError(f"the other end runs as user {credentials[1]}, this process as user {os.getuid()}")
