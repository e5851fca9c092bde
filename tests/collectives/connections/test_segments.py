"""Shared segments over Unix sockets: mutual, one-sided, and over a broken connection."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from spark_estimator.collectives.connections import segments
from spark_estimator.collectives.rendezvous import PeerFacts, local_rendezvous
from spark_estimator.errors import PeerLostError


@pytest.fixture
def peers() -> list[PeerFacts]:
    pairs = local_rendezvous(2)
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
            pool.submit(segments.exchange, {peers[1 - rank]: sock}, segment, deadline)
            for rank, (sock, segment) in enumerate(zip(connection, (first, second), strict=True))
        ]
        return [future.result(30)[peers[1 - rank]] for rank, future in enumerate(futures)]


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
        assert segments.exchange({peers[1]: sock}, -1, time.monotonic() + 1) == {peers[1]: -1}


@pytest.mark.parametrize("reason", ["closed", "silent"])
def test_a_broken_connection_names_the_peer(
    peers: list[PeerFacts], connection: tuple[socket.socket, socket.socket], reason: str
) -> None:
    if reason == "closed":
        connection[1].close()
    with pytest.raises(PeerLostError, match=r"the connection with rank 1 .* broke while segments were passed"):
        segments.exchange({peers[1]: connection[0]}, -1, time.monotonic() + 0.1)


def test_closing_no_descriptor_is_allowed() -> None:
    segments.close_descriptor(-1)
    fd = os.memfd_create("x")
    segments.close_descriptor(fd)
    segments.close_descriptor(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
