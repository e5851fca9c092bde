"""What a process decides from its cores and its place in the job."""

from __future__ import annotations

import os

import numpy
import pytest

from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.cores import count_available_cores, decide_settings, find_affinity_core
from spark_estimator.collectives.rendezvous import Topology
from spark_estimator.env import Settings
from tests.ranks import run_ranks


def on_one_host(size: int, rank: int = 0) -> Topology:
    return Topology.of(["a"] * size, rank)


@pytest.mark.parametrize(
    ("local_size", "cores", "spins"), [(1, 1, True), (1, 2, True), (2, 2, True), (4, 3, False), (2, 1, False)]
)
def test_spinning_needs_a_core_a_rank(local_size: int, cores: int, spins: bool) -> None:
    decided = decide_settings(Settings(), on_one_host(local_size), cores)["spin_microseconds"]
    assert decided.value == (-1 if spins else 0)
    assert f"{cores} core" in decided.why


@pytest.mark.parametrize(
    ("hosts", "cores", "overlaps"),
    [("a", 1, False), ("a", 2, True), ("aa", 2, False), ("aaaa", 8, True), ("aaaa", 7, False), ("ab", 1, True)],
)
def test_overlap_needs_spare_cores_or_a_network(hosts: str, cores: int, overlaps: bool) -> None:
    assert decide_settings(Settings(), Topology.of(hosts, 0), cores)["overlap"].value == overlaps


def test_what_the_user_says_holds() -> None:
    settings = Settings.read(
        {
            "SPARK_ESTIMATOR_OVERLAP": "1",
            "SPARK_ESTIMATOR_SPIN_MICROSECONDS": "7",
            "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        }
    )
    decided = decide_settings(settings, on_one_host(8), 1)
    assert {name: decision.value for name, decision in decided.items()} == {
        "overlap": 1,
        "spin_microseconds": 7,
        "hierarchical_allreduce": 0,
    }
    assert {decision.why for decision in decided.values()} == {"environment"}


def test_affinity_goes_by_local_rank() -> None:
    settings = Settings.read({"HOROVOD_THREAD_AFFINITY": "4, 6"})
    assert [find_affinity_core(settings, on_one_host(2, rank)) for rank in range(2)] == [4, 6]
    assert find_affinity_core(Settings(), on_one_host(1)) == -1
    with pytest.raises(ValueError, match="HOROVOD_THREAD_AFFINITY=4,6 has 2 cores, but this host has 3 ranks"):
        find_affinity_core(settings, on_one_host(3, 2))


def test_there_is_at_least_one_core() -> None:
    assert count_available_cores() >= 1


def sums_on_its_own_cores(rank: int, cores: tuple[int, int]) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: cores[rank]])
    context.init()
    for count in (3000, 100_000):
        for turn in range(5):
            mine = numpy.arange(count) * (rank + 1) + turn
            total = arrays.allreduce(mine, arrays.ReduceOp.SUM, name=f"x{count}")
            numpy.testing.assert_array_equal(total, numpy.arange(count) * 3 + 2 * turn)
    context.shutdown()


@pytest.mark.skipif(count_available_cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("cores", [(1, 2), (2, 1)])
def test_ranks_that_may_use_different_numbers_of_cores_agree_all_the_same(cores: tuple[int, int]) -> None:
    run_ranks(2, sums_on_its_own_cores, args=(cores,))
