"""Makes the data connections of an engine whose ranks are connected as an overlay, each on its first use.

The engine of the lower of two ranks asks for them, and a thread of this rank connects. On the higher one they arrive
at the connector, which passes them on to its engine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_estimator._native import Peer
from spark_estimator.collectives.connections.connection import Connection, RankGroup, to_encryption, tune
from spark_estimator.collectives.connections.outgoing import connect, plan_data_connections
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import HorovodInternalError, remove_links
from spark_estimator.log import get_logger
from spark_estimator.security.encryption import Session

if TYPE_CHECKING:
    from spark_estimator.collectives.engine import Engine

_AWAIT_SECONDS = 60
_STOP_SECONDS = 5
_FORK_WAITS_SECONDS = 1

_log = get_logger(__name__)

_Sockets = dict[Connection, tuple[socket.socket, Session | None]]


class LateConnections:
    """The data connections of one engine that are made after its start.

    Args:
        rendezvous: who this rank and its peers are.
        round_, group: of the engine.
        tag: of the job.
        settings: how many connections two ranks have, and how long to try.
        over: called by each `stop`.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        round_: int,
        group: RankGroup,
        tag: bytes,
        settings: Settings,
        over: Callable[[], object],
    ) -> None:
        self._rendezvous = rendezvous
        self._round = round_
        self._group = replace(group, call="the first data for other ranks")
        self._tag = tag
        self._settings = settings
        self._over = over
        self._engine: Engine | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._connecting = threading.Lock()  # held while connections are made: a fork waits for that
        self._is_still = False
        self._lock = threading.Lock()  # guards what follows
        self._arrived: dict[int, _Sockets] = {}  # by the other rank; fewer than it and this one are to have

    def attach(self, engine: Engine) -> None:
        """Make what this engine wants from now on, and passes on what has arrived."""
        with self._lock:
            self._engine = engine
            for rank in list(self._arrived):
                self._deliver(rank)
        self._thread = threading.Thread(target=self._serve, args=[engine], name="spark_estimator late", daemon=True)
        self._thread.start()

    def take(self, connection: Connection, sock: socket.socket, session: Session | None) -> None:
        """Take an authenticated connection, whichever rank has made it. From any thread."""
        own_rank = self._rendezvous.rank
        with self._lock:
            if self._stopped.is_set():
                sock.close()
                return
            rank = connection.to_rank if connection.from_rank == own_rank else connection.from_rank
            connections = self._arrived.setdefault(rank, {})
            former = connections.pop(connection, None)
            if former is not None:  # the peer lost it half way and tried again
                former[0].close()
            connections[connection] = sock, session
            self._deliver(rank)

    def stop(self) -> None:
        """End it, once the engine has been shut down or could not be started. Idempotent."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        with self._lock:
            self._close_arrived()
        self._over()

    def before_fork(self) -> None:
        """Hold everything still, for a second at most, so that the child knows of every socket that it inherits."""
        self._is_still = self._connecting.acquire(timeout=_FORK_WAITS_SECONDS)
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """End what `before_fork` began."""
        self._lock.release()
        if self._is_still:
            self._connecting.release()

    def after_fork_in_child(self) -> None:
        """Close the child's copies of the sockets that no engine has taken."""
        self._stopped = threading.Event()  # another thread may have held the lock of the former
        self._stopped.set()
        self._lock, self._connecting = threading.Lock(), threading.Lock()
        self._close_arrived()

    def _close_arrived(self) -> None:
        while self._arrived:
            for sock, _ in self._arrived.popitem()[1].values():
                sock.close()

    def _deliver(self, rank: int) -> None:
        """Give the engine the connections with a rank, if there is one and all are there. With the lock held."""
        connections = self._arrived[rank]
        if self._engine is None or len(connections) < next(iter(connections)).parts:
            return
        del self._arrived[rank]
        ordered = [connections[connection] for connection in sorted(connections)]
        try:
            for sock, _ in ordered:
                tune(sock, self._settings.silence_seconds)
        except OSError as error:
            for sock, _ in ordered:
                sock.close()
            self._engine.refuse_peer(self._group.ranks.index(rank), str(error))
            return
        self._engine.connect_peer(
            Peer.of(
                self._group.ranks.index(rank),
                rank,
                -1,
                [sock.detach() for sock, _ in ordered],
                -1,
                "",
                None,
                [to_encryption(session) for _, session in ordered],
            )
        )

    def _serve(self, engine: Engine) -> None:
        while not self._stopped.is_set():
            try:
                position = engine.await_wanted_peer(_AWAIT_SECONDS)
                positions = []
                while position is not None:  # all that are wanted by now: a late rank does not delay these
                    positions.append(position)
                    position = engine.await_wanted_peer(0)
                if positions:
                    self._connect(engine, positions)
            except HorovodInternalError as error:  # the engine's end is one
                _log.debug("no more data connections are made: %s", error)
                return
            except Exception:  # without memory, for one: the operation still waits
                _log.exception("data connections could not be made")

    def _connect(self, engine: Engine, positions: list[int]) -> None:
        ranks = [self._group.ranks[position] for position in positions]
        connections = [
            connection
            for rank in ranks
            for connection in plan_data_connections(self._rendezvous, self._round, self._group, rank, self._settings)
        ]
        deadline = time.monotonic() + self._settings.start_timeout_seconds
        failures: dict[int, Exception] = {}
        with self._connecting:
            try:
                connect(
                    self._rendezvous,
                    self._group,
                    connections,
                    self._tag,
                    self._settings,
                    deadline,
                    self.take,
                    stop=self._stopped,
                    failures=failures,
                )
            except Exception as error:  # for any reason: the operation that waits must end
                rank = next(iter(failures), ranks[0])
                with suppress(HorovodInternalError):
                    engine.refuse_peer(self._group.ranks.index(rank), remove_links(str(failures.get(rank, error))))
