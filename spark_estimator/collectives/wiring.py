"""Connects this rank with every other: two authenticated sockets a pair, and on one host a shared segment each.

Between two ranks the lower connects and the higher accepts: by an abstract Unix socket where both are on one host,
by TCP otherwise. Each pair has a control connection (negotiation, liveness) and a data connection (bulk bytes). What a
connection is for stands in its context (job, from, to, round, purpose), which the handshake authenticates.

A *round* is one ``init()`` to ``shutdown()``, counted from 1. A faster rank may already connect for the next round:
such connections are kept until this rank gets there; those of rounds gone by are refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from spark_estimator import _native, authentication
from spark_estimator._native import Peer
from spark_estimator.authentication import Doorkeeper, NotReadyError, RefusedError
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, HorovodInternalError, PeerLostError
from spark_estimator.log import logger

CONTROL = 0
DATA = 1

_CONTEXT = struct.Struct("<16sIIQB")
_MAX_CONNECTING_THREADS = 16
_RETRY_SECONDS = 0.05

# A link that is cut without a word is noticed by the idle end after 2 + 4 * 1 seconds, and by one that has sent
# something after 15: longer, as the kernel treats a receiver that reads nothing (a paused process) in the same way.
_KEEPALIVE_IDLE_SECONDS = 2
_KEEPALIVE_INTERVAL_SECONDS = 1
_KEEPALIVE_PROBES = 4
_UNACKNOWLEDGED_MILLISECONDS = 15_000

_log = logger(__name__)


@dataclass(frozen=True, order=True)
class Connection:
    """What one connection is for: the context of its handshake."""

    round: int
    from_rank: int
    to_rank: int
    purpose: int

    def pack(self, tag: bytes) -> bytes:
        return _CONTEXT.pack(tag, self.from_rank, self.to_rank, self.round, self.purpose)

    @classmethod
    def unpack(cls, context: bytes, tag: bytes) -> Connection:
        """Raises AuthenticationError when `context` is malformed or of another job than `tag`'s."""
        if len(context) != _CONTEXT.size:
            raise AuthenticationError(f"its context has {len(context)} bytes, not {_CONTEXT.size}")
        stated, from_rank, to_rank, round_, purpose = _CONTEXT.unpack(context)
        if stated != tag:
            raise AuthenticationError("it belongs to another job")
        return cls(round_, from_rank, to_rank, purpose)


@dataclass(frozen=True)
class Wired:
    """What the engine is created from. The descriptors in it belong to nobody else.

    Attributes:
        peers: all other ranks, in rank order.
        segment_fd: this rank's shared segment, -1 for none.
    """

    peers: tuple[Peer, ...]
    segment_fd: int

    def close(self) -> None:
        """Closes all descriptors; for when no engine takes them."""
        for peer in self.peers:
            for fd in (peer.control_fd, peer.data_fd, peer.segment_fd):
                _close(fd)
        _close(self.segment_fd)


def create_segment(size: int) -> int:
    """This rank's shared segment for a job of `size` ranks, as a descriptor. Raises HorovodInternalError."""
    fd = ctypes.c_int32(-1)
    _native.check(_native.library().se_segment_create(size, ctypes.byref(fd)))
    return fd.value


class Switchboard:
    """All connections of one process as one rank. Listens from its making until `close`, over any number of rounds.

    Args:
        rendezvous: who this rank and its peers are. Its listening descriptors belong to the switchboard from now on.
        make_segment: gives a shared segment for so many ranks.
    """

    def __init__(self, rendezvous: Rendezvous, make_segment: Callable[[int], int] = create_segment) -> None:
        self.rendezvous = rendezvous
        self._own = rendezvous.peers[rendezvous.rank]
        self._tag = hashlib.sha256(rendezvous.job_id.encode()).digest()[:16]
        self._make_segment = make_segment
        self._changed = threading.Condition()
        self._round = 0  # the last that was begun
        self._over = 0  # the last that nobody may join any more
        self._gone = False
        self._sockets: dict[Connection, socket.socket] = {}  # authenticated, and not yet the engine's
        self._doorkeeper = Doorkeeper(
            [self._adopt(fd) for fd in (rendezvous.listen_fd, rendezvous.local_fd) if fd >= 0],
            rendezvous.key,
            self._admit,
            approve=self._approve,
            name=f"rank {rendezvous.rank}",
        )

    def next_round(self) -> int:
        """The number of the round that comes next."""
        return self._round + 1

    def connect_all(self, round_: int, settings: Settings) -> Wired:
        """Connects with every other rank. All ranks call this, for the same round. Blocks until all are there.

        Raises:
            PeerLostError: some ranks were not there within ``settings.start_timeout_seconds``; the text names them.
            AuthenticationError: a rank answered but does not hold this job's key, or refused this rank.
        """
        started = time.monotonic()
        deadline = started + settings.start_timeout_seconds
        with self._changed:
            if round_ <= self._round:
                raise ValueError(f"round {round_} is over; the next is {self._round + 1}.")
            self._round = round_
            self._over = max(self._over, round_ - 1)
            for stale in [connection for connection in self._sockets if connection.round < round_]:
                self._sockets.pop(stale).close()
        segment = -1
        try:
            segment = self._segment(settings)
            self._dial(round_, settings, deadline)
            self._await_callers(round_, settings, deadline)
            return Wired(self._exchange_segments(round_, segment, deadline), segment)
        except BaseException:
            self._end(round_)
            _close(segment)
            raise

    def close(self) -> None:
        """Stops listening; connections that no round has taken are closed. Idempotent."""
        self._doorkeeper.close()
        with self._changed:
            self._gone = True
            while self._sockets:
                self._sockets.popitem()[1].close()

    # --- forks -------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Holds everything still, so that the child knows of every socket that it inherits."""
        self._doorkeeper.before_fork()
        self._changed.acquire()

    def after_fork_in_parent(self) -> None:
        """Ends what `before_fork` began."""
        self._changed.release()
        self._doorkeeper.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Closes the child's copies of all sockets: peers must notice when the rank dies, though the child lives on."""
        self._changed = threading.Condition()
        self._doorkeeper.after_fork_in_child()
        while self._sockets:
            self._sockets.popitem()[1].close()

    # --- the accepting side ------------------------------------------------------------------------------------------

    def _approve(self, context: bytes) -> None:
        connection = Connection.unpack(context, self._tag)
        if connection.to_rank != self._own.rank:
            raise AuthenticationError(f"it is meant for rank {connection.to_rank}, and this is rank {self._own.rank}")
        if not connection.from_rank < self._own.rank or connection.purpose not in (CONTROL, DATA):
            raise AuthenticationError(f"rank {connection.from_rank} is not to connect here for {connection.purpose}")
        with self._changed:
            self._require_open(connection)

    def _require_open(self, connection: Connection) -> None:
        """Raises AuthenticationError when it is too late, or too early, for `connection`."""
        if connection.round <= self._over or self._gone:
            raise AuthenticationError(f"round {connection.round} is over; this rank has begun round {self._round}")
        # No rank can be two rounds ahead: the one between needs this rank.
        if connection.round > self._round + 1:
            raise AuthenticationError(f"round {connection.round} is too far ahead of round {self._round}")

    def _admit(self, sock: socket.socket, context: bytes, _origin: str) -> None:
        connection = Connection.unpack(context, self._tag)
        with self._changed:
            self._require_open(connection)
            former = self._sockets.pop(connection, None)
            if former is not None:  # the peer lost it half way and tried again
                former.close()
            self._sockets[connection] = sock
            self._changed.notify_all()

    def _await_callers(self, round_: int, settings: Settings, deadline: float) -> None:
        own = self._own.rank
        expected = {Connection(round_, rank, own, purpose) for rank in range(own) for purpose in (CONTROL, DATA)}
        with self._changed:
            while missing := expected - self._sockets.keys():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    absent = sorted({connection.from_rank for connection in missing})
                    raise self._absent(absent, "did not connect", settings)
                # In slices: a wait without end cannot be interrupted by Ctrl-C everywhere.
                self._changed.wait(min(remaining, 0.1))

    # --- the connecting side -----------------------------------------------------------------------------------------

    def _dial(self, round_: int, settings: Settings, deadline: float) -> None:
        """Connects to every higher rank, several at a time: a late one must not cost the others their turn."""
        waiting = [
            Connection(round_, self._own.rank, rank, purpose)
            for rank in range(self._own.rank + 1, len(self.rendezvous.peers))
            for purpose in (CONTROL, DATA)
        ]
        if not waiting:
            return
        waiting.reverse()
        failures: dict[int, Exception] = {}
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    connection = waiting.pop()
                except IndexError:
                    return
                try:
                    self._dial_one(connection, settings, deadline, stop)
                except Exception as error:
                    failures.setdefault(connection.to_rank, error)
                    if not isinstance(error, PeerLostError):
                        stop.set()  # waiting for the others will not mend a wrong key

        threads = [
            threading.Thread(target=work, name=f"spark_estimator rank {self._own.rank} connects", daemon=True)
            for _ in range(min(len(waiting), _MAX_CONNECTING_THREADS))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                # Those that are still waiting when all is lost close what they get.
                while thread.is_alive() and not stop.is_set():
                    thread.join(0.1)
        except BaseException:
            stop.set()
            raise
        if failures:
            raise self._unreachable(failures, settings)

    def _dial_one(self, connection: Connection, settings: Settings, deadline: float, stop: threading.Event) -> None:
        """Makes one connection, trying again while the peer is not ready, until the deadline."""
        peer = self.rendezvous.peers[connection.to_rank]
        while True:
            sock: socket.socket | None = None
            try:
                sock = self._reach(peer, settings, deadline)
                remaining = timedelta(seconds=max(0.0, deadline - time.monotonic()))
                authentication.connect(sock, self.rendezvous.key, connection.pack(self._tag), timeout=remaining)
                with self._changed:
                    if stop.is_set() or self._gone:
                        sock.close()
                    else:
                        self._sockets[connection] = sock
                return
            except (NotReadyError, OSError) as error:
                if sock is not None:
                    sock.close()
                if time.monotonic() + _RETRY_SECONDS >= deadline or stop.wait(_RETRY_SECONDS):
                    raise PeerLostError(str(error)) from error
            except BaseException:
                if sock is not None:
                    sock.close()
                raise

    def _reach(self, peer: PeerFacts, settings: Settings, deadline: float) -> socket.socket:
        """An open connection to `peer`, not yet authenticated: by Unix socket if that can be, else by TCP."""
        remaining = max(0.01, deadline - time.monotonic())
        if self._is_local(peer, settings) and peer.local_name:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                local.settimeout(remaining)
                local.connect(b"\x00" + peer.local_name.encode())
                authentication.require_same_user(local)
                return local
            except (OSError, AuthenticationError) as error:
                # Another network namespace of the same host, for one.
                local.close()
                _log.info("rank %d reaches %s by TCP, as its Unix socket failed: %s", self._own.rank, peer, error)
        return socket.create_connection((peer.address, peer.port), timeout=remaining)

    def _is_local(self, peer: PeerFacts, settings: Settings) -> bool:
        return settings.shared_memory and peer.host_id == self._own.host_id

    # --- segments ----------------------------------------------------------------------------------------------------

    def _segment(self, settings: Settings) -> int:
        others = [peer for peer in self.rendezvous.peers if peer is not self._own]
        if not any(self._is_local(peer, settings) and peer.local_name for peer in others) or not self._own.local_name:
            return -1
        try:
            return self._make_segment(len(self.rendezvous.peers))
        except HorovodInternalError as error:
            _log.warning("rank %d has no shared memory and talks by sockets only: %s", self._own.rank, error)
            return -1

    def _exchange_segments(self, round_: int, segment: int, deadline: float) -> tuple[Peer, ...]:
        """Passes the own segment over each local control connection, takes the peer's, and gives up all sockets."""
        with self._changed:
            sockets = {connection: sock for connection, sock in self._sockets.items() if connection.round == round_}
        pairs = {}
        for peer in self.rendezvous.peers:
            if peer is not self._own:
                low, high = sorted((peer.rank, self._own.rank))
                pairs[peer.rank] = [sockets[Connection(round_, low, high, purpose)] for purpose in (CONTROL, DATA)]
        received: dict[int, int] = {}
        try:
            # First send to all, then receive from all: the messages are small enough never to block.
            for rank, (control, _) in pairs.items():
                with _naming(self.rendezvous.peers[rank], "broke while segments were passed"):
                    if control.family == socket.AF_UNIX:
                        _send_segment(control, segment)
            for rank, (control, _) in pairs.items():
                with _naming(self.rendezvous.peers[rank], "broke while segments were passed"):
                    if control.family == socket.AF_UNIX:
                        received[rank] = _receive_segment(control, deadline)
        except BaseException:
            for fd in received.values():
                _close(fd)
            raise
        with self._changed:
            self._over = round_
            for connection in sockets:
                del self._sockets[connection]
        peers = []
        for rank, (control, data) in pairs.items():
            for sock in (control, data):
                sock.settimeout(None)
                _tune(sock)
            other = received.get(rank, -1)
            if segment < 0:  # sharing is mutual or not at all
                _close(other)
                other = -1
            facts = self.rendezvous.peers[rank]
            name = f"{facts.host} (pid {facts.pid})" if facts.pid else facts.host
            peers.append(Peer(rank, control.detach(), data.detach(), other, name.encode()))
        return tuple(peers)

    def _adopt(self, fd: int) -> socket.socket:
        """The listening socket that this process inherited as `fd`."""
        try:
            listener = socket.socket(fileno=fd)
            listener.set_inheritable(False)
        except OSError as error:
            raise HorovodInternalError(
                f"{self._own} did not inherit its listening socket, descriptor {fd}: {error}"
            ) from error
        return listener

    # --- failures ----------------------------------------------------------------------------------------------------

    def _end(self, round_: int) -> None:
        """Gives a round up: closes what it has, and refuses who still comes for it."""
        with self._changed:
            self._over = round_
            for connection in [connection for connection in self._sockets if connection.round == round_]:
                self._sockets.pop(connection).close()

    def _absent(self, ranks: Sequence[int], what: str, settings: Settings) -> PeerLostError:
        names = ", ".join(str(self.rendezvous.peers[rank]) for rank in ranks)
        return PeerLostError(
            f"init() on {self._own}: {names} {what} within {settings.start_timeout_seconds:g} seconds. Look at what "
            "became of it; if it is only slow to start, raise HOROVOD_START_TIMEOUT."
        )

    def _unreachable(self, failures: dict[int, Exception], settings: Settings) -> Exception:
        for rank, error in sorted(failures.items()):
            if not isinstance(error, PeerLostError):
                kind = PeerLostError if isinstance(error, RefusedError) else AuthenticationError
                told = kind(f"init() on {self._own}: no connection with {self.rendezvous.peers[rank]}: {error}.")
                told.__cause__ = error
                return told
        reasons = "; ".join(f"{self.rendezvous.peers[rank]}: {error}" for rank, error in sorted(failures.items()))
        lost = self._absent(sorted(failures), f"could not be reached ({reasons})", settings)
        lost.__cause__ = failures[min(failures)]
        return lost


@contextmanager
def _naming(peer: PeerFacts, what: str) -> Iterator[None]:
    """Turns a system error into one that names the peer."""
    try:
        yield
    except OSError as error:
        raise PeerLostError(f"init(): the connection with {peer} {what}: {error}") from error


def _send_segment(control: socket.socket, segment: int) -> None:
    """Tells the peer over a local control connection of this rank's segment; -1 when there is none."""
    if segment >= 0:
        socket.send_fds(control, [b"\x01"], [segment])
    else:
        control.sendall(b"\x00")


def _receive_segment(control: socket.socket, deadline: float) -> int:
    """What the peer sent of its segment over a local control connection: a descriptor, -1 when it has none."""
    control.settimeout(max(0.01, deadline - time.monotonic()))
    # Not recv_fds: it drops the flag without which every program started later would inherit the segment.
    room = socket.CMSG_LEN(struct.calcsize("i"))
    message, ancillary, _flags, _address = control.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    if not message:
        raise ConnectionResetError("it was closed")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(data) >= struct.calcsize("i"):
            return int(struct.unpack_from("i", data)[0])
    return -1


def _tune(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MILLISECONDS),
    ):
        if hasattr(socket, option):  # macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _close(fd: int) -> None:
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)
