"""The rendezvous server of rank 0: every other rank sends its facts, and gets those of all ranks.

Every connection begins with the usual challenge (``security.authentication``), by the key of the notice. Then there is
a frame each way (`frames`). The server's frame repeats the nonce of each client, so a recorded one is of no use.
The job's key is made of the notice's key and of the server's frame, so it is fresh also where the user's own key serves
many jobs. No key is sent on these connections.

What shows that a job cannot come together is an error at once, on all ranks: rank 0 answers those that come within two
seconds after it. A rank that is only missing is waited for until the time-out.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from spark_estimator.collectives.other_launchers.frames import FRAME_SECONDS, encode, receive, send
from spark_estimator.collectives.other_launchers.notices import Notice
from spark_estimator.collectives.rendezvous import Endpoint, PeerFacts, Rendezvous, host_id, make_job_id
from spark_estimator.errors import AuthenticationError, ForeignLauncherError, PeerLostError
from spark_estimator.security.authentication import connect
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer

_CONTEXT = b"spark_estimator rendezvous server"
_DIAL_SECONDS = 2.0
# Rank 0 reports which ranks are missing. Its answer must come before the client itself gives up.
_ANSWER_SECONDS = 5.0
_CLIENT, _SERVER = b"client", b"server"
# Rank 0 answers ranks that start later than the one that was wrong, or ended.
_LATE_SECONDS = 2.0
_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class JobTerms:
    """What a rank sends to the server.

    Attributes:
        size: of the job, as the launcher's variables give it.
        version: of this package.
        encrypted: whether the ranks are to encrypt what they send between hosts.
    """

    size: int
    version: str
    encrypted: bool


class Waiting(Protocol):
    """The checks of a client while it waits. Each raises an error if the job cannot come together."""

    def check(self) -> None:
        """Check the job; called all the time."""

    def check_unanswered(self, *, noticed: bool) -> None:
        """Check the job while no server has answered; `noticed`: whether there is a notice of one."""


class _Interval:
    """Lets a check run every half second only."""

    def __init__(self) -> None:
        self._next = 0.0

    def run(self, check: Callable[[], None] | None) -> None:
        if check is not None and time.monotonic() >= self._next:
            check()
            self._next = time.monotonic() + _CHECK_SECONDS


class RendezvousServer:
    """Rank 0's side.

    Args:
        listeners: the server's ports; it takes ownership of them.
        key: of the notice.
        terms: what rank 0 expects of the job.
        job: the job and this process's part in it, for messages.
        where: the notice, for messages.
    """

    def __init__(self, listeners: Sequence[socket.socket], key: bytes, terms: JobTerms, job: str, where: str) -> None:
        self._key = key
        self._terms = terms
        self._job = job
        self._where = where
        self._arrived: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._clients: dict[int, tuple[socket.socket, PeerFacts, str]] = {}
        self._server = HandshakeServer(listeners, key, self._admit, name="rank 0's server")

    def gather(self, seconds: float, own_address: str, check: Callable[[], None] | None = None) -> Rendezvous:
        """Wait for all other ranks, and send each the list of all.

        Args:
            seconds: how long to wait.
            own_address: at which rank 0 itself listens; '': the address to which most ranks of other hosts connected.
            check: is called meanwhile, every half second. Its errors are sent to the ranks that have connected.

        Raises:
            PeerLostError: a rank did not connect in time, or ended meanwhile; the text names it.
            ForeignLauncherError: the ranks were started for jobs of different sizes, with two processes for one rank,
                or have different versions.
        """
        deadline = time.monotonic() + seconds
        interval = _Interval()
        try:
            while len(self._clients) < self._terms.size - 1:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    missing = [rank for rank in range(1, self._terms.size) if rank not in self._clients]
                    raise PeerLostError(
                        f"init(): {_describe_ranks(missing)} of {self._job} did not come within {seconds:g} s "
                        "(HOROVOD_START_TIMEOUT). Check that as many processes were started, and that each calls "
                        f"init(). Rank 0's notice is at {self._where}."
                    )
                with contextlib.suppress(queue.Empty):
                    self._take(self._arrived.get(timeout=min(remaining, 0.1)))
                self._check_for_losses()
                interval.run(check)
            return self._finish(own_address)
        except (PeerLostError, ForeignLauncherError) as error:
            answer = {"kind": "lost" if isinstance(error, PeerLostError) else "wrong", "text": str(error)}
            self._send_all(answer)
            self._answer_late_ranks(answer, min(_LATE_SECONDS, deadline - time.monotonic()))
            raise

    def close(self) -> None:
        """Close the ports and all connections. Idempotent."""
        self._server.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._arrived.get_nowait().close()
        while self._clients:
            self._clients.popitem()[1][0].close()

    def _admit(self, sock: socket.socket, _context: bytes, _origin: str, _session: Session | None) -> None:
        self._arrived.put(sock)

    def _take(self, sock: socket.socket) -> None:
        try:
            frame = receive(sock, self._key, _CLIENT, time.monotonic() + FRAME_SECONDS)
            facts, nonce = PeerFacts(**frame["facts"]), str(frame["nonce"])
            theirs = JobTerms(int(frame["size"]), str(frame["version"]), bool(frame["encrypted"]))
        except (OSError, ValueError, KeyError, TypeError):
            sock.close()  # it connects again, or is reported as missing
            return
        former = self._clients.get(facts.rank)
        problem = ""
        if theirs.size != self._terms.size:
            problem = f"was started as one of {theirs.size}"
        elif facts.rank == 0:
            problem = "has the same number as another process"
        elif not 0 < facts.rank < self._terms.size:
            problem = f"isn't one of ranks 1 to {self._terms.size - 1}"
        elif theirs.version != self._terms.version:
            problem = f"has spark_estimator {theirs.version}, and rank 0 has {self._terms.version}"
        elif theirs.encrypted != self._terms.encrypted:
            problem = "has another SPARK_ESTIMATOR_ENCRYPTION than rank 0"
        elif former is not None:
            problem = f"has the same number as {former[1].describe()}"
        self._clients[facts.rank if former is None else self._terms.size + facts.rank] = sock, facts, nonce
        if problem:
            raise ForeignLauncherError(f"init(): {facts.describe()} {problem}; rank 0 is {self._job}.")

    def _answer_late_ranks(self, answer: dict[str, Any], seconds: float) -> None:
        came = {facts.rank for _, facts, _ in self._clients.values()} - {0}
        deadline = time.monotonic() + seconds
        while len(came) < self._terms.size - 1 and (remaining := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty, OSError, ValueError, KeyError, TypeError):
                with self._arrived.get(timeout=remaining) as sock:
                    came.add(int(receive(sock, self._key, _CLIENT, time.monotonic() + FRAME_SECONDS)["facts"]["rank"]))
                    send(sock, self._key, _SERVER, answer)

    def _check_for_losses(self) -> None:
        """Raise PeerLostError if a client's connection has ended: its socket is readable, though it sends nothing."""
        poll = select.poll()
        for sock, _, _ in self._clients.values():
            poll.register(sock, select.POLLIN)
        ended = {descriptor for descriptor, _ in poll.poll(0)} if self._clients else set()
        for sock, facts, _ in self._clients.values():
            if sock.fileno() in ended:
                raise PeerLostError(f"init(): {facts.describe()} ended before all ranks of {self._job} had come.")

    def _finish(self, own_address: str) -> Rendezvous:
        if not own_address:
            came = [
                (facts.host_id != host_id(), str(sock.getsockname()[0])) for sock, facts, _ in self._clients.values()
            ]
            own_address = max(came, key=lambda each: (each[0], came.count(each)))[1]
        endpoint = Endpoint.open(own_address)
        facts = [endpoint.facts(0)] + [self._clients[rank][1] for rank in sorted(self._clients)]
        roster = {
            "kind": "roster",
            "job_id": make_job_id(),
            "nonce": secrets.token_hex(32),
            "nonces": {str(rank): nonce for rank, (_, _, nonce) in self._clients.items()},
            "encrypted": self._terms.encrypted,
            "peers": [asdict(peer) for peer in facts],
        }
        self._send_all(roster)
        return _make_rendezvous(roster, self._key, 0, endpoint)

    def _send_all(self, message: dict[str, Any]) -> None:
        for sock, _, _ in self._clients.values():
            with contextlib.suppress(OSError):  # the connecting that follows names a lost rank
                send(sock, self._key, _SERVER, message)


def join_server(
    find: Callable[[], Notice | None],
    where: str,
    rank: int,
    terms: JobTerms,
    seconds: float,
    one_host: bool,
    waiting: Waiting | None = None,
) -> Rendezvous:
    """Look for the server until it answers, on every rank but 0, and wait there for the list of all ranks.

    Args:
        find: gives the present notice.
        where: of that, for messages.
        rank: this process's.
        terms: what it expects of the job.
        seconds: how long to wait.
        one_host: whether all ranks are on this host.
        waiting: what to check meanwhile, every half second.

    Raises:
        PeerLostError: rank 0 did not start in time, or ended, or another rank is missing.
        ForeignLauncherError: as for `RendezvousServer.gather`.
    """
    deadline = time.monotonic() + seconds
    interval = _Interval()
    while True:
        notice = find()
        sock = None if notice is None else connect_to_server(notice, deadline)
        if notice is not None and sock is not None:
            with sock:
                return exchange_with_server(sock, notice.key, rank, terms, deadline, one_host=one_host, waiting=waiting)
        if waiting is not None:
            interval.run(partial(waiting.check_unanswered, noticed=notice is not None))
        if time.monotonic() > deadline:
            problem = "left no notice" if notice is None else f"did not answer at {_describe_places(notice.places)}"
            raise PeerLostError(
                f"init(): rank 0 {problem} within {seconds:g} s (HOROVOD_START_TIMEOUT), so rank {rank} on "
                f"{socket.gethostname()} can't join. It looked at {where}. Either rank 0 was not started or never "
                "called init(), or it can't be reached from here."
            )
        time.sleep(0.02)


def connect_to_server(notice: Notice, deadline: float) -> socket.socket | None:
    """Return a connection with the server of a notice; None if there is no server at any of its places."""
    for address in notice.places:
        sock = _connect_to(address, notice.key, deadline)
        if sock is not None:
            return sock
    return None


def _connect_to(address: tuple[str, int], key: bytes, deadline: float) -> socket.socket | None:
    """Return a connection with the server; None if it isn't there."""
    limit = max(0.1, min(_DIAL_SECONDS, deadline - time.monotonic()))
    try:
        sock = socket.create_connection(address, timeout=limit)
    except OSError:
        return None
    try:
        connect(sock, key, _CONTEXT, timeout=timedelta(seconds=limit))
    except (OSError, AuthenticationError):
        sock.close()
        return None
    return sock


def exchange_with_server(
    sock: socket.socket,
    key: bytes,
    rank: int,
    terms: JobTerms,
    deadline: float,
    *,
    one_host: bool,
    waiting: Waiting | None = None,
) -> Rendezvous:
    """Exchange facts on a connection that `connect_to_server` made. Raises what `join_server` raises."""
    endpoint = Endpoint.open("127.0.0.1" if one_host else str(sock.getsockname()[0]))
    nonce = secrets.token_hex(32)
    try:
        facts = endpoint.facts(rank)
        send(sock, key, _CLIENT, {"facts": asdict(facts), "nonce": nonce, **asdict(terms)})
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while not poll.poll(_CHECK_SECONDS * 1000) and time.monotonic() < deadline + _ANSWER_SECONDS:
            if waiting is not None:
                waiting.check()
        try:
            answer = receive(sock, key, _SERVER, deadline + _ANSWER_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            text = f"init(): rank 0 ended before all ranks had come; {facts.describe()} was there."
            raise PeerLostError(text) from error
        if answer["kind"] == "wrong":
            raise ForeignLauncherError(answer["text"])
        if answer["kind"] == "lost":
            raise PeerLostError(answer["text"])
        if answer["nonces"].get(str(rank)) != nonce:
            raise AuthenticationError(f"init(): rank 0 answered rank {rank} with the answer to another process")
        return _make_rendezvous(answer, key, rank, endpoint)
    except BaseException:
        endpoint.close()
        raise


def _make_rendezvous(roster: dict[str, Any], key: bytes, rank: int, endpoint: Endpoint) -> Rendezvous:
    listen_fd, local_fd = endpoint.detach()
    return Rendezvous(
        job_id=roster["job_id"],
        key=hmac.digest(key, b"job\x01" + hashlib.sha256(encode(roster)).digest(), "sha256"),
        rank=rank,
        peers=tuple(PeerFacts(**peer) for peer in roster["peers"]),
        listen_fd=listen_fd,
        local_fd=local_fd,
        encrypted=roster["encrypted"],
    )


def _describe_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _describe_places(addresses: Sequence[tuple[str, int]]) -> str:
    shown = ", ".join(f"{host} port {port}" for host, port in addresses[:3])
    return shown + (", ..." if len(addresses) > 3 else "")
