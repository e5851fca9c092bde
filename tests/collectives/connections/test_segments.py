"""Shared segments over Unix sockets: mutual, one-sided, and over a broken connection."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from spark_estimator.collectives.connections import segments
from spark_estimator.collectives.connections.plan import find_neighbours
from spark_estimator.collectives.rendezvous import PeerFacts, make_local_rendezvous
from spark_estimator.errors import PeerLostError


@pytest.fixture
def peers() -> list[PeerFacts]:
    pairs = make_local_rendezvous(2)
    for _, endpoint in pairs:
        endpoint.close()
    return list(pairs[0][0].peers)


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def open_segments() -> int:
    """How many descriptors of anonymous memory this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:")
    return count


def exchange(
    peers: list[PeerFacts], connection: tuple[socket.socket, socket.socket], first: int, second: int
) -> list[int]:
    """[rank] the segment that each of two ranks gets."""
    deadline = time.monotonic() + 20
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(segments.exchange, {1 - rank: (peers[1 - rank], sock)}, rank, 2, segment, deadline)
            for rank, (sock, segment) in enumerate(zip(connection, (first, second), strict=True))
        ]
        return [future.result(30)[1 - rank] for rank, future in enumerate(futures)]


def test_both_ranks_map_the_others_segment(
    peers: list[PeerFacts], connection: tuple[socket.socket, socket.socket]
) -> None:
    mine = [segments.create_segment(2) for _ in range(2)]
    received = exchange(peers, connection, *mine)
    assert os.path.sameopenfile(received[0], mine[1]) and os.path.sameopenfile(received[1], mine[0])
    assert not any(os.get_inheritable(fd) for fd in (*mine, *received))
    for fd in (*mine, *received):
        segments.close_descriptor(fd)


def test_a_segment_is_not_used_in_one_direction_only(
    peers: list[PeerFacts], connection: tuple[socket.socket, socket.socket]
) -> None:
    before = open_segments()
    mine = segments.create_segment(2)
    assert exchange(peers, connection, mine, -1) == [-1, -1]
    assert open_segments() == before + 1
    segments.close_descriptor(mine)
    assert open_segments() == before


def test_a_peer_over_tcp_gets_no_segment(peers: list[PeerFacts]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        assert segments.exchange({1: (peers[1], sock)}, 0, 2, -1, time.monotonic() + 1) == [-1, -1]


@pytest.mark.parametrize("reason", ["closed", "silent"])
def test_a_broken_connection_names_the_peer(
    peers: list[PeerFacts], connection: tuple[socket.socket, socket.socket], reason: str
) -> None:
    if reason == "closed":
        connection[1].close()
    with pytest.raises(PeerLostError, match=r"the connection with rank 1 .* broke while segments were passed"):
        segments.exchange({1: (peers[1], connection[0])}, 0, 2, -1, time.monotonic() + 0.1)


def circle(
    size: int, mine: Sequence[int], seconds: float = 60, kinds: Callable[[int], bool] = lambda _rank: True
) -> list[list[int] | PeerLostError]:
    """[position] what each of some ranks gets, or its error; connected by Unix socket where `kinds` holds for both."""
    pairs = make_local_rendezvous(size)
    for _, endpoint in pairs:
        endpoint.close()
    facts = pairs[0][0].peers
    links: list[dict[int, tuple[PeerFacts, socket.socket]]] = [{} for _ in range(size)]
    for position in range(size):
        for peer in find_neighbours(position, size):
            if peer > position:
                ends = socket.socketpair() if kinds(position) and kinds(peer) else tcp_pair()
                links[position][peer] = facts[peer], ends[0]
                links[peer][position] = facts[position], ends[1]
    deadline = time.monotonic() + seconds

    def run(position: int) -> list[int] | PeerLostError:
        try:
            return segments.exchange(links[position], position, size, mine[position], deadline)
        except PeerLostError as error:
            return error
        finally:
            if seconds < 60:  # as after a failure of init()
                for _, sock in links[position].values():
                    sock.close()

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(run, range(size)))
    for link in links:
        for _, sock in link.values():
            sock.close()
    return results


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        return first, server.accept()[0]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_every_rank_of_a_host_gets_the_segments_of_all_others(size: int) -> None:
    mine = [os.memfd_create("segment") for _ in range(size)]
    for position, received in enumerate(circle(size, mine)):
        assert isinstance(received, list)
        assert received[position] == -1
        for other, fd in enumerate(received):
            if other != position:
                assert os.path.sameopenfile(fd, mine[other]) and not os.get_inheritable(fd)
                os.close(fd)
    for fd in mine:
        os.close(fd)


def test_a_rank_without_a_segment_passes_on_those_of_others() -> None:
    before = open_segments()
    mine = [os.memfd_create("segment") if position != 2 else -1 for position in range(6)]
    for position, received in enumerate(circle(6, mine)):
        assert isinstance(received, list)
        got = {other for other, fd in enumerate(received) if fd >= 0}
        assert got == (set() if position == 2 else {0, 1, 3, 4, 5} - {position})
        for fd in received:
            segments.close_descriptor(fd)
    for fd in mine:
        segments.close_descriptor(fd)
    assert open_segments() == before


def test_nothing_is_passed_over_tcp() -> None:
    mine = [os.memfd_create("segment") for _ in range(5)]
    for received in circle(5, mine, kinds=lambda rank: rank != 3):
        assert isinstance(received, list)
        assert received[3] == -1
        for fd in received:
            segments.close_descriptor(fd)
    for fd in mine:
        os.close(fd)


def test_many_segments_take_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MOST_AT_ONCE", 3)
    test_every_rank_of_a_host_gets_the_segments_of_all_others(13)


def test_a_user_with_too_many_descriptors_under_way_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    send_fds, refusals = socket.send_fds, [errno.ETOOMANYREFS] * 3

    def send(*arguments: Any) -> int:
        if refusals:
            raise OSError(refusals.pop(), "Too many references: cannot splice")
        return send_fds(*arguments)

    monkeypatch.setattr(socket, "send_fds", send)
    test_every_rank_of_a_host_gets_the_segments_of_all_others(5)
    assert not refusals


def test_all_name_the_rank_that_sends_nothing() -> None:
    mine = [os.memfd_create("segment") for _ in range(8)]
    before, exchange = open_segments(), segments.exchange

    def exchange_or_not(links: Any, position: int, *arguments: Any) -> list[int]:
        if position == 3:
            time.sleep(1)
            raise PeerLostError("rank 3 sends nothing")
        return exchange(links, position, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "exchange", exchange_or_not)
        errors = circle(8, mine, seconds=0.5)
    assert all(isinstance(error, PeerLostError) for error in errors)
    assert sum("rank 3 " in str(error) for error in errors) == 8, errors
    assert open_segments() == before
    for fd in mine:
        os.close(fd)


def test_closing_no_descriptor_is_allowed() -> None:
    segments.close_descriptor(-1)
    fd = os.memfd_create("x")
    segments.close_descriptor(fd)
    segments.close_descriptor(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
