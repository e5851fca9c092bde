"""Ranks connect to rank 0's server: each gets the list of all, or an error that names the wrong or missing rank."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from spark_estimator.collectives.other_launchers.addresses import listen
from spark_estimator.collectives.other_launchers.frames import send
from spark_estimator.collectives.other_launchers.notices import Notice
from spark_estimator.collectives.other_launchers.rendezvous_server import (
    JobTerms,
    RendezvousServer,
    connect_to_server,
    join_server,
)
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.errors import ForeignLauncherError, PeerLostError

KEY = b"k" * 32
THREE = JobTerms(3, "1.0", False)


def closed(rendezvous: Rendezvous) -> Rendezvous:
    for descriptor in (rendezvous.listen_fd, rendezvous.local_fd):
        if descriptor >= 0:
            os.close(descriptor)
    return rendezvous


class Meeting:
    """A server in this process, and clients in threads."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(8)
        self.listeners = listen([["127.0.0.1"]], [0])
        self.place = self.listeners[0].getsockname()[:2]
        self.server = RendezvousServer(self.listeners, KEY, THREE, "number 0 of 3", "the board")

    def gather(self, seconds: float = 30.0) -> Future[Rendezvous]:
        return self.threads.submit(lambda: closed(self.server.gather(seconds, "127.0.0.1")))

    def join_server(
        self,
        rank: int,
        terms: JobTerms = THREE,
        find: Callable[[], Notice | None] | None = None,
        seconds: float = 30.0,
    ) -> Future[Rendezvous]:
        find = find or (lambda: Notice((self.place,), KEY))
        return self.threads.submit(lambda: closed(join_server(find, "the board", rank, terms, seconds, one_host=True)))


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    made.server.close()
    made.threads.shutdown()


def test_all_ranks_get_the_same_job_and_a_fresh_key(meeting: Meeting) -> None:
    gathered, first, second = meeting.gather(), meeting.join_server(2), meeting.join_server(1)
    jobs = [gathered.result(), second.result(), first.result()]
    assert [job.rank for job in jobs] == [0, 1, 2]
    assert len({(job.job_id, job.key, job.peers, job.encrypted) for job in jobs}) == 1
    assert jobs[0].key != KEY and len(jobs[0].key) == 32
    assert [peer.rank for peer in jobs[0].peers] == [0, 1, 2]
    assert len({peer.port for peer in jobs[0].peers}) == 3


def test_a_visitor_looks_again_until_the_right_notice_is_there(meeting: Meeting) -> None:
    with socket.socket() as nobody:  # bound, and not listening: a port of an earlier job
        nobody.bind(("127.0.0.1", 0))
        stale = nobody.getsockname()
        notices = iter([None, Notice((stale,), KEY), Notice((meeting.place,), b"f" * 32)])
        late = meeting.join_server(1, find=lambda: next(notices, Notice((stale, meeting.place), KEY)))
        gathered, other = meeting.gather(), meeting.join_server(2)
        assert gathered.result().job_id == late.result().job_id == other.result().job_id


def test_a_stranger_at_the_desk_changes_nothing(meeting: Meeting) -> None:
    gathered = meeting.gather()
    with socket.create_connection(meeting.place) as silent, socket.create_connection(meeting.place) as loud:
        loud.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(PeerLostError, match=r"rank 0 did not answer at 127\.0\.0\.1"):
            meeting.join_server(1, find=lambda: Notice((meeting.place,), b"w" * 32), seconds=0.1).result()
        assert meeting.join_server(1) and meeting.join_server(2).result().job_id == gathered.result().job_id
        assert silent.fileno() >= 0


def test_who_is_missing_is_named_on_all_ranks(meeting: Meeting) -> None:
    came = meeting.join_server(2)
    with pytest.raises(
        PeerLostError,
        match=r"rank 1 of number 0 of 3 did not come within 1 s .* notice is at the board",
    ):
        meeting.gather(1.0).result()
    with pytest.raises(PeerLostError, match="rank 1 of number 0 of 3 did not come"):
        came.result()


def test_rank_0_that_never_comes_is_named_with_the_board(meeting: Meeting) -> None:
    with pytest.raises(PeerLostError, match=r"rank 0 left no notice within 0.1 s .* looked at the board"):
        meeting.join_server(2, find=lambda: None, seconds=0.1).result()


def test_rank_0_that_ends_meanwhile_is_named(meeting: Meeting) -> None:
    came = meeting.join_server(1)
    arrived = threading.Event()
    take = meeting.server._take

    def note(sock: socket.socket) -> None:
        take(sock)
        arrived.set()

    meeting.server._take = note  # type: ignore[method-assign]
    gathered = meeting.gather(3.0)
    assert arrived.wait(30)
    meeting.server.close()
    with pytest.raises(PeerLostError, match="rank 0 ended before all ranks had come"):
        came.result()
    with pytest.raises(PeerLostError):
        gathered.result()


@pytest.mark.parametrize(
    ("rank", "terms", "problem"),
    [
        (1, dataclasses.replace(THREE, size=4), "was started as one of 4"),
        (3, THREE, "isn't one of ranks 1 to 2"),
        (1, dataclasses.replace(THREE, version="2.0"), "has spark_estimator 2.0, and rank 0 has 1.0"),
        (1, dataclasses.replace(THREE, encrypted=True), "has another SPARK_ESTIMATOR_ENCRYPTION than rank 0"),
    ],
)
def test_a_rank_of_another_world_is_named_on_all_ranks(
    meeting: Meeting, rank: int, terms: JobTerms, problem: str
) -> None:
    gathered, wrong = meeting.gather(), meeting.join_server(rank, terms)
    for future in (gathered, wrong):
        with pytest.raises(ForeignLauncherError, match=rf"rank {rank} \(host .*\) {problem}; rank 0 is number 0 of 3"):
            future.result()


def test_a_rank_that_starts_after_the_error_gets_it_too(meeting: Meeting) -> None:
    gathered, wrong = meeting.gather(), meeting.join_server(1, dataclasses.replace(THREE, size=4))
    with pytest.raises(ForeignLauncherError, match="was started as one of 4"):
        wrong.result()
    late = meeting.join_server(2)
    for future in (late, gathered):
        with pytest.raises(ForeignLauncherError, match="was started as one of 4"):
            future.result()


def test_what_rank_0_finds_meanwhile_is_an_error_on_all_ranks(meeting: Meeting) -> None:
    arrived = threading.Event()
    first = meeting.join_server(1)

    def check() -> None:
        if arrived.wait(0.2):
            raise PeerLostError("rank 2 has ended")

    take = meeting.server._take

    def note(sock: socket.socket) -> None:
        take(sock)
        arrived.set()

    meeting.server._take = note  # type: ignore[method-assign]
    gathered = meeting.threads.submit(meeting.server.gather, 30.0, "127.0.0.1", check)
    for future in (first, gathered):
        with pytest.raises(PeerLostError, match="rank 2 has ended"):
            future.result()


def test_two_processes_with_one_number_are_named(meeting: Meeting) -> None:
    gathered, *both = meeting.gather(), meeting.join_server(1), meeting.join_server(1)
    for future in (gathered, *both):
        with pytest.raises(ForeignLauncherError, match="has the same number as rank 1"):
            future.result()


def test_a_rank_that_dies_while_it_waits_is_named(meeting: Meeting) -> None:
    gathered = meeting.gather()
    sock = connect_to_server(Notice((meeting.place,), KEY), float("inf"))
    assert sock is not None
    facts = {"rank": 2, "host": "h", "host_id": "i", "address": "127.0.0.1", "port": 9}
    send(sock, KEY, b"client", {"facts": facts, "nonce": "n", **dataclasses.asdict(THREE)})
    sock.close()
    with pytest.raises(PeerLostError, match=r"rank 2 \(host h, .*\) ended before all ranks of number 0 of 3 had come"):
        gathered.result()


def test_a_frame_that_was_changed_on_its_way_is_not_taken(meeting: Meeting) -> None:
    gathered = meeting.gather()
    sock = connect_to_server(Notice((meeting.place,), KEY), float("inf"))
    assert sock is not None
    with sock:
        facts = {"rank": 1, "host": "h", "host_id": "i", "address": "127.0.0.1", "port": 9}
        send(sock, b"w" * 32, b"client", {"facts": facts, "nonce": "n", **dataclasses.asdict(THREE)})
        assert sock.recv(1) == b""
    assert meeting.join_server(1) and meeting.join_server(2).result().job_id == gathered.result().job_id
    assert all(peer.port != 9 for peer in gathered.result().peers)
