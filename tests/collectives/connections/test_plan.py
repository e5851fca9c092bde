"""Which ranks connect at once: few of many, and each two agree."""

from __future__ import annotations

import pytest

from spark_estimator.collectives.connections.plan import (
    count_descriptors,
    find_control_peers,
    find_neighbours,
    is_overlay,
)
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.env import Settings


def job(size: int, ranks_per_host: int, *, interleaved: bool = False) -> list[PeerFacts]:
    hosts = size // ranks_per_host
    return [
        PeerFacts(
            rank=rank,
            host=f"host{rank % hosts if interleaved else rank // ranks_per_host}",
            host_id=f"id{rank % hosts if interleaved else rank // ranks_per_host}",
            address="127.0.0.1",
            port=1000 + rank,
            local_name=f"socket {rank}",
        )
        for rank in range(size)
    ]


def rendezvous(peers: list[PeerFacts], rank: int) -> Rendezvous:
    return Rendezvous(job_id="job", key=bytes(32), rank=rank, peers=tuple(peers), listen_fd=-1, local_fd=-1)


def test_neighbours_are_at_distances_of_powers_of_two() -> None:
    assert find_neighbours(0, 1) == []
    assert find_neighbours(0, 2) == [1]
    assert find_neighbours(3, 10) == [1, 2, 4, 5, 7, 9]
    assert find_neighbours(0, 1024) == sorted({1 << k for k in range(10)} | {1024 - (1 << k) for k in range(10)})


@pytest.mark.parametrize("size", [2, 16])
def test_in_a_small_group_each_two_are_connected(size: int) -> None:
    peers, settings = job(size, 1), Settings()
    assert not is_overlay(range(size), settings)
    for rank in range(size):
        others = [other for other in range(size) if other != rank]
        assert find_control_peers(rendezvous(peers, rank), range(size), settings) == others


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("ranks_per_host", [1, 4, 34])
def test_each_two_agree_whether_they_are_connected(ranks_per_host: int, interleaved: bool) -> None:
    peers, settings = job(68, ranks_per_host, interleaved=interleaved), Settings()
    group = [rank for rank in range(68) if rank % 3]  # a process set
    connected = {rank: set(find_control_peers(rendezvous(peers, rank), group, settings)) for rank in group}
    assert all(rank in connected[other] for rank in group for other in connected[rank])


@pytest.mark.parametrize("ranks_per_host", [1, 8, 64, 1024])
def test_a_rank_of_1024_holds_at_most_64_sockets(ranks_per_host: int) -> None:
    """Also with the data connections of a ring and of recursive doubling over all ranks, the most that repeat."""
    peers, settings, size = job(1024, ranks_per_host), Settings(), 1024
    for rank in (0, 1, 7, 500, 1023):
        control = find_control_peers(rendezvous(peers, rank), range(size), settings)
        data = {rank ^ (1 << k) for k in range(10)} | {(rank + 1) % size, (rank - 1) % size}
        assert len(control) <= 19 + 19
        assert len(control) + len(data) <= 64


def test_descriptors_are_counted_for_what_is_connected() -> None:
    peers, settings = job(1024, 8), Settings()
    overlay = count_descriptors(rendezvous(peers, 500), range(1024), settings)
    assert 40 <= overlay <= 64
    mesh = count_descriptors(rendezvous(peers, 500), range(1024), Settings(mesh_ranks=1024))
    assert mesh == 3 * 1023 + 9
    assert count_descriptors(rendezvous(peers, 500), range(1024), Settings(connections=4)) > overlay
