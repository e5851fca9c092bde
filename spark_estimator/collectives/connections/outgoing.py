"""Makes the connections for which this rank is the lower of the two."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.connections.connection import DATA, Connection, RankGroup, make_absent_error
from spark_estimator.collectives.connections.plan import count_descriptors
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, HorovodInternalError, PeerLostError
from spark_estimator.log import get_logger
from spark_estimator.security import authentication
from spark_estimator.security.authentication import RETRY_SECONDS, NotReadyError, RefusedError
from spark_estimator.security.encryption import Session

_MAX_THREADS = 16

_log = get_logger(__name__)


class _GoneError(Exception):
    """No process listens at the peer's address, at which it listened before it was started: its process has ended."""


def plan_data_connections(
    rendezvous: Rendezvous, round_: int, group: RankGroup, rank: int, settings: Settings
) -> list[Connection]:
    """Return the data connections to make with a higher rank of a group."""
    # Only networks limit what a connection carries.
    is_local = rendezvous.peers[rank].host_id == rendezvous.peers[rendezvous.rank].host_id
    parts = 1 if is_local else settings.connections
    return [Connection(round_, rendezvous.rank, rank, DATA, group.number, part, parts) for part in range(parts)]


def connect(
    rendezvous: Rendezvous,
    group: RankGroup,
    connections: Sequence[Connection],
    tag: bytes,
    settings: Settings,
    deadline: float,
    keep: Callable[[Connection, socket.socket, Session | None], None],
    *,
    stop: threading.Event | None = None,
    failures: dict[int, Exception] | None = None,
) -> None:
    """Make connections with higher ranks, several at a time: a late rank must not cost the others their turn.

    Args:
        rendezvous: who this rank and its peers are.
        group: what to connect for.
        connections: in the order in which they are begun.
        tag: of the job.
        settings: whether local sockets are to be used.
        deadline: on the monotonic clock, in seconds; until then a peer that is not ready is tried again.
        keep: receives each connection once it is authenticated, and its secrets if it is encrypted; from any thread,
            even after this has raised.
        stop: set from outside to give up.
        failures: filled with the error for each rank that could not be connected, the decisive one first.

    Raises:
        PeerLostError: some ranks could not be reached, or are in another round.
        AuthenticationError: a rank does not hold this job's key.
        HorovodInternalError: this process has no file descriptor left.
    """
    waiting = list(reversed(connections))
    failed: dict[int, Exception] = {}
    ended = threading.Event()

    def work() -> None:
        while waiting and not ended.is_set():
            try:
                connection = waiting.pop()
            except IndexError:
                return
            try:
                keep(connection, *_connect(rendezvous, group, connection, tag, settings, deadline, ended))
            except Exception as error:
                failed.setdefault(connection.to_rank, error)
                if not isinstance(error, PeerLostError):
                    ended.set()  # waiting for the others will mend neither a wrong key nor a dead peer

    threads: list[threading.Thread] = []
    try:
        for _ in range(min(len(waiting), _MAX_THREADS)):
            thread = threading.Thread(target=work, name=f"spark_estimator rank {rendezvous.rank} connects", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more: those that there are, or this one
                break
            threads.append(thread)
        if not threads:
            work()
        for thread in threads:
            while thread.is_alive() and not ended.is_set():
                thread.join(0.1)
                if stop is not None and stop.is_set():
                    ended.set()
    except BaseException:
        ended.set()
        raise
    if failed:
        rank, error = _combine_errors(rendezvous, group, failed, settings)
        if failures is not None:
            failures.update({rank: error, **{other: failed[other] for other in failed if other != rank}})
        raise error


def _connect(
    rendezvous: Rendezvous,
    group: RankGroup,
    connection: Connection,
    tag: bytes,
    settings: Settings,
    deadline: float,
    stop: threading.Event,
) -> tuple[socket.socket, Session | None]:
    """Make one connection, trying again while the peer is not ready, until the deadline."""
    peer = rendezvous.peers[connection.to_rank]
    while True:
        sock: socket.socket | None = None
        try:
            sock = _reach(rendezvous.peers[rendezvous.rank], peer, settings, deadline)
            remaining = timedelta(seconds=max(0.0, deadline - time.monotonic()))
            encrypted = rendezvous.encrypted and sock.family != socket.AF_UNIX
            context = connection.pack(tag)
            return sock, authentication.connect(sock, rendezvous.key, context, timeout=remaining, encrypted=encrypted)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, ConnectionRefusedError):
                # Ranks listen before their addresses are sent, so this cannot mean "not yet".
                raise _GoneError("its process has ended") from error
            if not isinstance(error, (NotReadyError, OSError)):
                raise
            if descriptors.are_used_up(error):
                # This process's own trouble: no peer is to blame, and waiting does not help.
                reason = descriptors.describe_shortage(count_descriptors(rendezvous, group.ranks, settings), 0)
                raise HorovodInternalError(f"{group} on {rendezvous.own_name}: {reason}") from error
            if time.monotonic() + RETRY_SECONDS >= deadline or stop.wait(RETRY_SECONDS):
                raise PeerLostError(str(error)) from error


def _reach(own_facts: PeerFacts, peer: PeerFacts, settings: Settings, deadline: float) -> socket.socket:
    """Return an open connection to `peer`, not yet authenticated: by Unix socket if possible, else by TCP."""
    remaining = max(0.01, deadline - time.monotonic())
    if settings.shared_memory and own_facts.shares_with(peer):
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(remaining)
            local.connect(b"\x00" + peer.local_name.encode())
            authentication.require_same_user(local)
            return local
        except (OSError, AuthenticationError) as error:
            # Another network namespace of the same host, for one.
            local.close()
            _log.info("rank %d goes to %s by TCP, as its Unix socket failed: %s", own_facts.rank, peer, error)
    return socket.create_connection((peer.address, peer.port), timeout=remaining)


def _combine_errors(
    rendezvous: Rendezvous, group: RankGroup, failures: dict[int, Exception], settings: Settings
) -> tuple[int, Exception]:
    """Return one error with all failures, and its rank; certain ones come before those that only timed out."""
    named_error: Exception
    for rank, error in sorted(failures.items()):
        if isinstance(error, HorovodInternalError) and not isinstance(error, PeerLostError):
            return rank, error
        if not isinstance(error, PeerLostError):
            kind = PeerLostError if isinstance(error, (RefusedError, _GoneError)) else AuthenticationError
            peer = rendezvous.peers[rank]
            named_error = kind(f"{group} on {rendezvous.own_name}: no connection with {peer}: {error}.")
            named_error.__cause__ = error
            return rank, named_error
    reasons = "; ".join(f"rank {rank}: {error}" for rank, error in sorted(failures.items()))
    named_error = make_absent_error(rendezvous, group, sorted(failures), f"could not be reached ({reasons})", settings)
    named_error.__cause__ = failures[min(failures)]
    return min(failures), named_error
