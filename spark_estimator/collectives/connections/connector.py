"""Connects this rank with others: authenticated sockets between each two, and on one host a shared segment each.

Between two ranks the lower connects and the higher accepts: by an abstract Unix socket where both are on one host,
by TCP otherwise. A pair has a control connection (negotiation, liveness) and a data connection (bulk bytes), or several
to another host; in a large group not every pair, see `plan`. The handshake authenticates the context of a connection
(job, from, to, round, group, purpose).

A *round* is one ``init()`` to ``shutdown()``, counted from 1. In a round the whole job connects first, and then each
process set that is added, as a separate group; a round and a group are a *stage*. A faster rank may already connect for
a later stage: such connections are kept until this rank reaches that stage; those of past stages are refused.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_estimator._native import Peer
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.connections.connection import (
    CONTROL,
    DATA,
    Connection,
    RankGroup,
    make_absent_error,
    to_encryption,
    tune,
)
from spark_estimator.collectives.connections.late import LateConnections
from spark_estimator.collectives.connections.outgoing import connect, plan_data_connections
from spark_estimator.collectives.connections.plan import (
    count_descriptors,
    find_control_peers,
    find_local_ranks,
    is_overlay,
)
from spark_estimator.collectives.connections.segments import close_descriptor, create_segment, exchange
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, HorovodInternalError, PeerLostError
from spark_estimator.log import get_logger
from spark_estimator.security.authentication import get_peer_credentials
from spark_estimator.security.encryption import Session, check_encryption
from spark_estimator.security.handshake_server import HandshakeServer

_log = get_logger(__name__)


@dataclass(frozen=True)
class Connections:
    """The input of the engine's creation. It owns its descriptors.

    Attributes:
        rank, size: this rank's number in the group, and how many the group has.
        peers: all other ranks, in rank order.
        segment_fd: this rank's shared segment, -1 for none.
        late: makes the data connections on first use; None: all connections are there.
    """

    rank: int
    size: int
    peers: tuple[Peer, ...]
    segment_fd: int
    late: LateConnections | None = None

    def close(self) -> None:
        """Close all descriptors; for when no engine takes them."""
        for peer in self.peers:
            for fd in peer.descriptors:
                close_descriptor(fd)
        close_descriptor(self.segment_fd)
        if self.late is not None:
            self.late.stop()


class Connector:
    """All connections of one process as one rank. Listens from its making until `close`, over any number of rounds.

    Args:
        rendezvous: who this rank and its peers are. Its listening descriptors belong to the connector from now on.
        make_segment: makes a shared segment for that number of ranks of one host.
        is_over: whether a rank is known to be lost, so that waiting for missing ranks has no purpose.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        make_segment: Callable[[int], int] = create_segment,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rendezvous = rendezvous
        self._is_over = is_over
        self._facts = rendezvous.peers[rendezvous.rank]
        self._tag = hashlib.sha256(rendezvous.job_id.encode()).digest()[:16]
        self._make_segment = make_segment
        self._changed = threading.Condition()
        self._begun = (0, 0)  # the last stage that was begun
        self._over = (0, 0)  # the last stage that no rank may join any more
        self._gone = False
        # Authenticated, and not yet the engine's; with the secrets of those that are encrypted.
        self._sockets: dict[Connection, tuple[socket.socket, Session | None]] = {}
        self._late: dict[tuple[int, int], LateConnections] = {}  # by stage
        self._handshake_server = HandshakeServer(
            [self._adopt(fd) for fd in (rendezvous.listen_fd, rendezvous.local_fd) if fd >= 0],
            rendezvous.key,
            self._admit,
            approve=self._approve,
            name=f"rank {rendezvous.rank}",
            encrypted=rendezvous.encrypted,
        )

    def next_round(self) -> int:
        """Return the number of the next round."""
        return self._begun[0] + 1

    def round(self) -> int:
        """Return the number of the present round."""
        return self._begun[0]

    def connect_all(self, round_: int, settings: Settings, group: RankGroup | None = None) -> Connections:
        """Connect with every other rank of a group. All of these call it for the same stage. Blocks until all do.

        Args:
            round_: of the group.
            settings: how long to wait, and whether to share memory.
            group: this rank is one of it; None: all ranks of the job.

        Raises:
            PeerLostError: some ranks were not there within ``settings.start_timeout_seconds``; the text names them.
            AuthenticationError: a rank answered but does not hold this job's key, or refused this rank.
            HorovodInternalError: this process has too few file descriptors left. No rank was connected.
            EncryptionUnavailableError: the job is encrypted, and this host can't encrypt.
        """
        deadline = time.monotonic() + settings.start_timeout_seconds
        if self.rendezvous.encrypted:
            check_encryption()  # so that this rank is named, and not those that it can't answer
        group = RankGroup.job(len(self.rendezvous.peers)) if group is None else group
        lacking = descriptors.find_shortage(count_descriptors(self.rendezvous, group.ranks, settings))
        if lacking:
            raise HorovodInternalError(f"{group} on {self.rendezvous.own_name}: {lacking}")
        stage = round_, group.number
        with self._changed:
            if stage <= self._begun:
                raise ValueError(f"round {round_} is over; the next is {self._begun[0] + 1}.")
            self._begun = stage
            self._over = max(self._over, (round_, group.number - 1))
            for stale in [connection for connection in self._sockets if connection.stage < stage]:
                self._sockets.pop(stale)[0].close()
        segment, late = -1, self._accept_late_connections(round_, group, settings)
        try:
            segment = self._create_segment(settings, group)
            outgoing = self._plan_outgoing(round_, group, settings)
            connect(self.rendezvous, group, outgoing, self._tag, settings, deadline, self._keep)
            self._await_callers(round_, group, settings, deadline)
            peers = self._hand_over(round_, group, segment, settings, deadline)
            return Connections(group.ranks.index(self._facts.rank), len(group.ranks), peers, segment, late)
        except BaseException:
            self._end(stage)
            close_descriptor(segment)
            if late is not None:
                late.stop()
            raise

    def close(self) -> None:
        """Stop listening; connections that no round has taken are closed. Idempotent."""
        self._handshake_server.close()
        with self._changed:
            self._gone = True
            while self._sockets:
                self._sockets.popitem()[1][0].close()

    # --- forks -------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Hold everything still, so that the child knows of every socket that it inherits."""
        self._handshake_server.before_fork()
        self._changed.acquire()
        for late in self._late.values():
            late.before_fork()

    def after_fork_in_parent(self) -> None:
        """End what `before_fork` began."""
        for late in self._late.values():
            late.after_fork_in_parent()
        self._changed.release()
        self._handshake_server.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Close the child's copies of all sockets: peers must notice when the rank dies, though the child lives on."""
        self._changed = threading.Condition()
        self._handshake_server.after_fork_in_child()
        while self._sockets:
            self._sockets.popitem()[1][0].close()
        for late in self._late.values():
            late.after_fork_in_child()

    # --- the accepting side ------------------------------------------------------------------------------------------

    def _approve(self, context: bytes) -> None:
        connection = Connection.unpack(context, self._tag)
        if connection.to_rank != self._facts.rank:
            raise AuthenticationError(f"it is for rank {connection.to_rank}, but this is rank {self._facts.rank}")
        if connection.from_rank >= self._facts.rank:
            raise AuthenticationError(f"rank {connection.from_rank} must not connect here: only lower ranks do")
        if connection.part >= connection.parts or (connection.purpose == CONTROL and connection.parts > 1):
            raise AuthenticationError(f"rank {connection.from_rank} has no connection {connection.part}")
        with self._changed:
            if not self._is_late(connection):
                self._require_open(connection)

    def _is_late(self, connection: Connection) -> bool:
        """Return whether an engine gets it on its first use. With the lock held."""
        return connection.purpose == DATA and connection.stage in self._late

    def _require_open(self, connection: Connection) -> None:
        """Raise AuthenticationError when it is too late, or too early, for `connection`."""
        begun = self._begun[0]
        if connection.stage <= self._over or self._gone:
            raise AuthenticationError(f"round {connection.round} is over; this rank has begun round {begun}")
        # No rank can be two rounds ahead: the one between needs this rank.
        if connection.round > begun + 1:
            raise AuthenticationError(f"round {connection.round} is too far ahead of round {begun}")

    def _admit(self, sock: socket.socket, context: bytes, _origin: str, session: Session | None) -> None:
        connection = Connection.unpack(context, self._tag)
        with self._changed:
            if self._is_late(connection):
                self._late[connection.stage].take(connection, sock, session)
                return
            self._require_open(connection)
            former = self._sockets.pop(connection, None)
            if former is not None:  # the peer lost it half way and tried again
                former[0].close()
            self._sockets[connection] = sock, session
            self._changed.notify_all()

    def _keep(self, connection: Connection, sock: socket.socket, session: Session | None) -> None:
        """Take a connection that this rank has made."""
        with self._changed:
            if connection.stage <= self._over or self._gone:
                sock.close()
            else:
                self._sockets[connection] = sock, session

    def _plan_outgoing(self, round_: int, group: RankGroup, settings: Settings) -> list[Connection]:
        """Return the connections that this rank makes at the start of a stage."""
        own_rank, overlay = self._facts.rank, is_overlay(group.ranks, settings)
        outgoing = []
        for rank in find_control_peers(self.rendezvous, group.ranks, settings):
            if rank > own_rank:
                outgoing.append(Connection(round_, own_rank, rank, CONTROL, group.number, overlay=overlay))
                if not overlay:
                    outgoing += plan_data_connections(self.rendezvous, round_, group, rank, settings)
        return outgoing

    def _accept_late_connections(self, round_: int, group: RankGroup, settings: Settings) -> LateConnections | None:
        """Accept an overlay's data connections from now on."""
        if not is_overlay(group.ranks, settings):
            return None
        stage = round_, group.number
        late = LateConnections(
            self.rendezvous, round_, group, self._tag, settings, over=lambda: self._forget_late(stage)
        )
        with self._changed:
            self._late[stage] = late
        return late

    def _forget_late(self, stage: tuple[int, int]) -> None:
        with self._changed:
            self._late.pop(stage, None)

    def _await_callers(self, round_: int, group: RankGroup, settings: Settings, deadline: float) -> None:
        overlay = is_overlay(group.ranks, settings)
        callers = [
            rank for rank in find_control_peers(self.rendezvous, group.ranks, settings) if rank < self._facts.rank
        ]
        with self._changed:
            while True:
                self._check_settings(round_, group, settings)
                absent = self._find_incomplete(round_, group, callers, 1 if overlay else 2)
                if not absent:
                    return
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise make_absent_error(self.rendezvous, group, absent, "did not connect", settings)
                if self._handshake_server.lacks_descriptors:
                    reason = descriptors.describe_shortage(count_descriptors(self.rendezvous, group.ranks, settings), 0)
                    raise HorovodInternalError(f"{group} on {self.rendezvous.own_name}: {reason}")
                if self._is_over():
                    raise PeerLostError(
                        f"{group} on {self.rendezvous.own_name}: another rank was lost before all had connected."
                    )
                # In slices: a wait without end cannot be interrupted by Ctrl-C everywhere.
                self._changed.wait(min(remaining, 0.1))

    def _check_settings(self, round_: int, group: RankGroup, settings: Settings) -> None:
        """Raise HorovodInternalError if a rank connects for another kind of group. With the lock held."""
        overlay = is_overlay(group.ranks, settings)
        for connection in self._sockets:
            is_other = connection.purpose == CONTROL and connection.overlay is not overlay
            if is_other and connection.stage == (round_, group.number):
                raise HorovodInternalError(
                    f"{group} on {self.rendezvous.own_name}: SPARK_ESTIMATOR_MESH_RANKS is {settings.mesh_ranks} here, "
                    f"and {'at least' if overlay else 'less than'} {len(group.ranks)}, the number of ranks, on "
                    f"{self.rendezvous.peers[connection.from_rank]}. Set it to the same value on all ranks."
                )

    def _find_incomplete(self, round_: int, group: RankGroup, callers: Sequence[int], fewest: int) -> list[int]:
        """Return the lower ranks that lack some connections, of which each has `fewest` or more. With the lock held."""
        arrived: Counter[int] = Counter()
        expected: dict[int, int] = {}
        for connection in self._sockets:
            if connection.stage == (round_, group.number):
                arrived[connection.from_rank] += 1
                if connection.purpose == DATA:
                    expected[connection.from_rank] = 1 + connection.parts
        return [rank for rank in callers if arrived[rank] < expected.get(rank, fewest)]

    def _create_segment(self, settings: Settings, group: RankGroup) -> int:
        """Create this rank's shared segment; return -1 if no peer could use it or memory cannot be allocated."""
        local_size = len(find_local_ranks(self.rendezvous, group.ranks))
        if local_size < 2 or not settings.shared_memory:
            return -1
        try:
            return self._make_segment(local_size)
        except HorovodInternalError as error:
            _log.warning("rank %d has no shared memory and uses sockets only: %s", self._facts.rank, error)
            return -1

    def _hand_over(
        self, round_: int, group: RankGroup, segment: int, settings: Settings, deadline: float
    ) -> tuple[Peer, ...]:
        """Exchanges segments with the peers on this host, and gives up all sockets of the stage to the engine."""
        stage = round_, group.number
        with self._changed:
            sockets = {connection: sock for connection, sock in self._sockets.items() if connection.stage == stage}
        # The control connection comes first, then those for data in the order of their parts.
        links: dict[int, list[tuple[socket.socket, Session | None]]] = {}
        for connection in sorted(sockets):
            rank = connection.to_rank if connection.from_rank == self._facts.rank else connection.from_rank
            links.setdefault(rank, []).append(sockets[connection])
        segments = self._exchange_segments(group, {rank: link[0][0] for rank, link in links.items()}, segment, deadline)
        with self._changed:
            self._over = stage
            for connection in sockets:
                del self._sockets[connection]
        others = [self.rendezvous.peers[rank] for rank in group.ranks if rank != self._facts.rank]
        try:
            for sock, _ in sockets.values():
                tune(sock, settings.silence_seconds)
            names = {
                facts: _name_peer(facts, links[facts.rank][0][0] if facts.rank in links else None, self._facts.rank)
                for facts in others
            }
        except BaseException:
            for sock, _ in sockets.values():
                sock.close()
            for fd in segments.values():
                close_descriptor(fd)
            raise
        # From here on nothing can fail: a descriptor without its socket would stay open.
        return tuple(
            _make_peer(
                group.ranks.index(facts.rank),
                facts.rank,
                links.get(facts.rank, []),
                segments.get(facts.rank, -1),
                names[facts],
            )
            for facts in others
        )

    def _exchange_segments(
        self, group: RankGroup, controls: dict[int, socket.socket], segment: int, deadline: float
    ) -> dict[int, int]:
        """Return, by rank of this host, its segment, or -1."""
        circle = find_local_ranks(self.rendezvous, group.ranks)
        links = {
            position: (self.rendezvous.peers[rank], controls[rank])
            for position, rank in enumerate(circle)
            if rank in controls
        }
        segments = exchange(links, circle.index(self._facts.rank), len(circle), segment, deadline)
        return dict(zip(circle, segments, strict=True))

    def _adopt(self, fd: int) -> socket.socket:
        """Return the listening socket that this process inherited as `fd`."""
        try:
            listener = socket.socket(fileno=fd)
            listener.set_inheritable(False)
        except OSError as error:
            raise HorovodInternalError(
                f"{self._facts} did not inherit its listening socket, descriptor {fd}: {error}"
            ) from error
        return listener

    def _end(self, stage: tuple[int, int]) -> None:
        """Give up a stage: closes its connections, and refuses new ones for it."""
        with self._changed:
            self._over = stage
            for connection in [connection for connection in self._sockets if connection.stage == stage]:
                self._sockets.pop(connection)[0].close()


def _make_peer(
    position: int, rank: int, link: Sequence[tuple[socket.socket, Session | None]], segment: int, name: str
) -> Peer:
    """Make the engine's form of a peer; `link`: its control connection and those for data, or nothing."""
    control, *data = [sock.detach() for sock, _ in link] or [-1]
    secrets = [to_encryption(session) for _, session in link]
    return Peer.of(position, rank, control, data, segment, name, secrets[0] if secrets else None, secrets[1:])


def _name_peer(facts: PeerFacts, control: socket.socket | None, own_rank: int) -> str:
    """Return a peer's name until its engine reports it; with the process that has connected here, if known."""
    if control is not None and facts.rank < own_rank and control.family == socket.AF_UNIX:
        credentials = get_peer_credentials(control)
        if credentials is not None:
            return f"{facts.host} (pid {credentials[0]})"
    return f"{facts.host} (started as pid {facts.pid})" if facts.pid else facts.host
