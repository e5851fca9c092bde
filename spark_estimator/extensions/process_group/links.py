"""Connections between ranks beside the engine's, for operations that are no collectives: torch's store, and messages of
two ranks.

Each rank listens at its own address, on a free port that the ranks exchange through the engine. Every connection is
authenticated with the job's key, as the engine's are (``spark_estimator.security.authentication``).
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from spark_estimator.collectives import context
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.connections.connection import tune
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.requests import gather_bytes
from spark_estimator.errors import AuthenticationError, PeerLostError
from spark_estimator.peer_json import parse_json
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security import authentication
from spark_estimator.security.encrypted_stream import open_tunnel
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer

_log = logging.getLogger(__name__)
_EXCHANGE = "spark_estimator.torch.links"
_TIMEOUT = timedelta(seconds=10)

Taker = Callable[[socket.socket, int], None]


class Links:
    """This rank's own listening port, and connections to every other's. All ranks of the job make it together.

    Args:
        engine: of the job.
        takers: by purpose (a word of at most 16 bytes), the function that is called with (socket, peer's rank) of a new
            connection, in a separate thread; the socket is theirs.
    """

    def __init__(self, engine: Engine, takers: dict[str, Taker]) -> None:
        self.rank, self.size = engine.global_rank, engine.size
        self._takers = takers
        self._closed = False
        self._handshake_server: HandshakeServer | None = None
        self._silence_seconds = context.settings().silence_seconds
        rendezvous = rendezvous_module.find_current()
        if engine.size == 1 or rendezvous is None:
            return
        self._rendezvous = rendezvous
        # Random, so that a connection for an earlier membership of this process is refused.
        address = rendezvous.peers[rendezvous.rank].address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=min(4096, 4 * engine.size))
        port = listener.getsockname()[1]
        self._handshake_server = HandshakeServer(
            [listener],
            rendezvous.key,
            self._admit,
            approve=self._approve,
            name=f"rank {self.rank} links",
            encrypted=rendezvous.encrypted,
        )
        try:
            texts = gather_bytes(engine, _EXCHANGE, json.dumps(port).encode())
        except BaseException:
            self.close()
            raise
        self._ports = [parse_json(bytes(text)) for text in texts]

    def connect(self, rank: int, purpose: str) -> socket.socket:
        """Return a fresh connection to another rank.

        Raises:
            PeerLostError: it cannot be reached, or does not listen any more. Caused by a NotReadyError where
                something listens, and does not answer.
        """
        peer = self._rendezvous.peers[rank]
        try:
            address = (peer.address, self._ports[rank])
            sock, session = authentication.dial(
                address,
                self._rendezvous.key,
                _make_context(purpose, self.rank),
                timeout=_TIMEOUT,
                encrypted=self._rendezvous.encrypted,
            )
            tune(sock, self._silence_seconds)
            sock = open_tunnel(sock, session, f"the {purpose} connection with {peer}")
        except (AuthenticationError, OSError) as error:
            raise PeerLostError(
                f"rank {self.rank} cannot reach {peer} for its {purpose}: {str(error).rstrip('.')}."
            ) from error
        return sock

    def describe(self, rank: int) -> str:
        """Return a rank in words for messages, with its host."""
        return f"rank {rank}" if self._handshake_server is None else str(self._rendezvous.peers[rank])

    def close(self) -> None:
        """Stop listening. Connections that were made are their users'. Idempotent."""
        self._closed = True
        if self._handshake_server is not None:
            self._handshake_server.close()

    def before_fork(self) -> None:
        """Hold back new connections, so that a child knows of the sockets that it inherits."""
        if self._handshake_server is not None:
            self._handshake_server.before_fork()

    def after_fork_in_parent(self) -> None:
        """End what `before_fork` began."""
        if self._handshake_server is not None:
            self._handshake_server.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Close the child's copies of listening sockets."""
        if self._handshake_server is not None:
            self._handshake_server.after_fork_in_child()

    def _approve(self, stated: bytes) -> None:
        purpose, rank = _read_context(stated)
        if self._closed or purpose not in self._takers or not 0 <= rank < self.size:
            raise AuthenticationError(f"rank {rank} must not connect to rank {self.rank} for {purpose!r}")

    def _admit(self, sock: socket.socket, stated: bytes, _origin: str, session: Session | None) -> None:
        purpose, rank = _read_context(stated)
        tune(sock, self._silence_seconds)
        sock = open_tunnel(sock, session, f"the {purpose} connection of rank {rank}")
        name = f"{purpose} of rank {rank}"

        def end(error: BaseException | None) -> None:
            if error is not None:
                _log.info("the %s connection of rank %d broke: %s", purpose, rank, error)
            with suppress(OSError):
                sock.close()

        ReaderThread(lambda: self._takers[purpose](sock, rank), end, name=name).start()


def receive_exactly(sock: socket.socket, memory: memoryview) -> bool:
    """Fill `memory` (bytes) from a socket; return False if the other end closed before the first byte.

    Raises:
        ConnectionResetError: it closed in the middle.
        OSError: the connection broke.
    """
    filled = 0
    while filled < len(memory):
        count = sock.recv_into(memory[filled:])
        if count == 0:
            if filled == 0:
                return False
            raise ConnectionResetError("the connection ended in the middle of a message")
        filled += count
    return True


def _make_context(purpose: str, rank: int) -> bytes:
    return f"{purpose} {rank}".encode()


def _read_context(stated: bytes) -> tuple[str, int]:
    purpose, _, rank = stated.decode("ascii", "replace").partition(" ")
    if not rank.isdecimal():
        raise AuthenticationError(f"the connector sent {stated!r} instead of its purpose and rank")
    return purpose, int(rank)
