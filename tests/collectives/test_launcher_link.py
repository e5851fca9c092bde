"""The socket between a rank and its launcher: frames, and what a process sends and receives on it."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.connections.connection import RankGroup, make_absent_error
from spark_estimator.collectives.launcher_link import (
    OVER,
    READY,
    ROUND,
    UPDATED,
    FrameSocket,
    LauncherLink,
    Ready,
    parse_silent_ranks,
)
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_key, make_local_rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import JobFailedError
from tests.support.high_descriptors import high_descriptor


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    left, right = socket.socketpair()
    links = FrameSocket(left), FrameSocket(right)
    yield links
    for link in links:
        link.close()


def test_frames_of_any_length_arrive_whole(pair: tuple[FrameSocket, FrameSocket]) -> None:
    sender_end, other = pair
    assert other.receive(wait=False) is None
    frames = [{"kind": UPDATED}, {"text": "x" * 3_000_000}, {"kind": ROUND}]
    sender = threading.Thread(target=lambda: [sender_end.send(frame) for frame in frames])
    sender.start()
    assert [other.receive(wait=True) for _ in frames] == frames
    sender.join()
    sender_end.close()
    with pytest.raises(EOFError):
        other.receive(wait=False)


def test_a_launcher_of_many_ranks_has_descriptors_above_1023() -> None:
    left, right = socket.socketpair()
    high = socket.socket(fileno=high_descriptor(left.fileno()))
    with left, right, high:
        FrameSocket(high).send({"kind": UPDATED})
        assert FrameSocket(right).receive(wait=True) == {"kind": UPDATED}


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x01x"])
def test_what_is_no_frame_is_refused(sent: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(sent)
        with pytest.raises(ValueError, match=r"frame|Expecting|where an object belongs"):
            FrameSocket(right).receive(wait=True)


def test_who_takes_nothing_is_not_waited_for_without_end(
    pair: tuple[FrameSocket, FrameSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_estimator.collectives.launcher_link._SEND_SECONDS", 0.1)
    with pytest.raises(TimeoutError):
        pair[0].send({"text": "x" * 10_000_000})


FACTS = PeerFacts(2, "host", "id", "127.0.0.1", 5, "name", 7)


def test_what_a_process_says_survives_the_way() -> None:
    ready = Ready(FACTS, True, (1, 3), "rank 1 is lost")
    assert Ready.from_message(ready.to_message()) == ready
    for spoiled in ({"kind": READY}, {"kind": READY, "facts": 5}, {**ready.to_message(), "more": 1}):
        with pytest.raises(ValueError, match="malformed"):
            Ready.from_message(spoiled)


@pytest.fixture
def launched() -> Iterator[tuple[FrameSocket, LauncherLink, Rendezvous]]:
    """The launcher's end, the rank's, and by which it is a rank."""
    ours, theirs = socket.socketpair()
    rendezvous, endpoint = make_local_rendezvous(3)[1]
    environ = dict(os.environ)
    link = LauncherLink(theirs.detach())
    yield FrameSocket(ours), link, rendezvous
    link.close()
    ours.close()
    endpoint.close()
    rendezvous_module.set_current(None)
    os.environ.clear()
    os.environ.update(environ)


def test_a_rank_hears_who_it_is_in_the_next_round(launched: tuple[FrameSocket, LauncherLink, Rendezvous]) -> None:
    launcher, link, former = launched
    launcher.send({"kind": UPDATED})
    assert link.take_announcement() and not link.take_announcement() and not link.round_is_over()
    launcher.send({"kind": OVER})
    launcher.send({"kind": UPDATED})
    assert link.round_is_over()
    link.holds_state, link.silent, link.why = True, (2,), "rank 2 is lost"
    key = make_key()

    def answer() -> None:
        frame = launcher.receive(wait=True)
        assert frame is not None
        heard.append(Ready.from_message(frame))
        peers = (replace(heard[0].facts, rank=0), replace(FACTS, rank=1))
        launcher.send({"kind": UPDATED})  # of the round that is being left
        launcher.send({"kind": ROUND, "rendezvous": Rendezvous("job2", key, 0, peers, -1).to_json()})

    heard: list[Ready] = []
    thread = threading.Thread(target=answer)
    thread.start()
    coming = link.await_next_round(former)
    thread.join()
    assert (heard[0].holds_state, heard[0].silent, heard[0].why) == (True, (2,), "rank 2 is lost")
    assert heard[0].facts.pid == os.getpid() and heard[0].facts.port != former.peers[1].port
    assert (coming.rank, coming.job_id, coming.key, coming.awaited) == (0, "job2", key, False)
    assert rendezvous_module.find_current() == coming
    listening = socket.socket(fileno=coming.listen_fd)
    assert listening.getsockname()[1] == heard[0].facts.port
    listening.close()
    os.close(coming.local_fd)
    assert (os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]) == ("0", "2")
    assert not link.take_announcement() and not link.round_is_over() and link.why == ""


def test_a_launcher_that_is_gone_is_told(launched: tuple[FrameSocket, LauncherLink, Rendezvous]) -> None:
    launcher, link, former = launched
    launcher.close()
    before = len(os.listdir("/proc/self/fd"))
    for ask in (link.take_announcement, link.round_is_over, lambda: link.await_next_round(former)):
        with pytest.raises(JobFailedError, match="launcher of this elastic job has ended"):
            ask()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("cause", ["given no sign of life", "sent no heartbeat"])
def test_silent_ranks_are_read_from_the_error(cause: str) -> None:
    frozen = (
        f"allreduce 'x' failed: rank 1 on vm (pid 5903) is lost: it has {cause} for 6.0 s (its process "
        "is frozen, or its machine or the network to it is gone). "
        "SPARK_ESTIMATOR_SILENCE_SECONDS sets this time (reported by rank 2)"
    )
    assert parse_silent_ranks(frozen) == (1,)
    assert parse_silent_ranks("rank 1 on vm (pid 5) is lost: its connection broke") == ()
    absent = (
        "init() on rank 0 (host vm, pid 1, address 127.0.0.1:1): rank 1 (host vm, started as pid 2, address "
        "127.0.0.1:2), rank 3 (host vm, started as pid 4, address 127.0.0.1:3) did not connect within 30 seconds. "
        "Check the log of these ranks for an error"
    )
    assert parse_silent_ranks(absent) == (1, 3)


def test_the_texts_of_the_engine_and_of_init_are_recognized() -> None:
    pairs = make_local_rendezvous(3)
    for _, endpoint in pairs:
        endpoint.close()
    error = make_absent_error(pairs[1][0], RankGroup.job(3), [0, 2], "did not connect", Settings())
    assert parse_silent_ranks(str(error)) == (0, 2)
    engine = Path(__file__).parents[2] / "native/engine/membership/membership.cc"
    text = re.search(r'"(is lost: it has [a-z ]+ for )"', engine.read_text())
    assert text is not None
    assert parse_silent_ranks(f"rank 2 on vm (pid 1) {text[1]}6.0 s") == (2,)
