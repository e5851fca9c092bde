"""Copies of what each rank alone has, in the memory of another: three ranks, of which one is replaced."""

from __future__ import annotations

import logging

import pytest

from spark_estimator.elastic.peer_copies import PeerCopies, choose_ring_target, select_smallest
from spark_estimator.elastic.resumption import Facts, RecoveryState, Resumption
from tests.ranks import run_ranks


@pytest.mark.parametrize(("size", "host_ranks"), [(2, 2), (5, 1), (8, 4), (3, 2), (4, 4)])
def test_each_rank_keeps_one_other_s_copy_and_where_it_can_another_host_s(size: int, host_ranks: int) -> None:
    targets = [choose_ring_target(rank, size, host_ranks) for rank in range(size)]
    assert sorted(targets) == list(range(size)) and all(rank != target for rank, target in enumerate(targets))
    if host_ranks < size and size % host_ranks == 0:
        assert all(rank // host_ranks != target // host_ranks for rank, target in enumerate(targets))


def content(rank: int, step: int) -> bytes:
    return f"rank {rank} at step {step}".encode()


def replaced(rank: int) -> list[object]:
    """What rank 1 gets in the place of a lost process, at several steps; other ranks: None."""
    from spark_estimator.collectives import context

    context.init()
    results: list[object] = []
    lost = [
        Facts(RecoveryState.LOST, 0, 0, 3),
        Facts(RecoveryState.FRESH, 0, -1, -1),
        Facts(RecoveryState.LOST, 0, 2, 3),
    ]
    peers = PeerCopies()
    peers.begin(content(rank, 4), 4)
    assert peers.agree(content(rank, 5), 4, announced=rank == 2)
    for step in (4, 5, 6):  # of the last commit, of the step that was agreed on, and of a later one
        results.append(peers.recover(lost, Resumption(0, step, from_full=False, spread=True)))
    peers.carry_over(6)
    results.append(peers.recover(lost, Resumption(0, 6, from_full=False, spread=True)))
    moved = [Facts(RecoveryState.LOST, 0, 2, 3), *lost[1:]]
    results.append(peers.recover(moved, Resumption(0, 6, from_full=False, spread=True)))
    results.append((peers.rank, peers.size))
    return results


def test_a_new_process_gets_what_the_lost_one_had(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    results = run_ranks(3, replaced, 60)
    nothing = [None] * 5
    assert results[0] == [*nothing, (0, 3)] and results[2] == [*nothing, (2, 3)]
    assert results[1] == [content(1, 4), content(1, 5), None, content(1, 5), None, (1, 3)]


def test_one_rank_has_no_peer() -> None:
    assert PeerCopies().agree(b"not sent", 0, announced=True)


def test_the_largest_are_left_out() -> None:
    assert select_smallest([50, 10, 41, 0], 51) == {1, 2, 3}
    assert select_smallest([], 0) == set()
