"""What a process decides from its cores and its place in the job."""

from __future__ import annotations

import pytest

from spark_estimator.collectives.cores import affinity_core, available_cores, decisions
from spark_estimator.collectives.rendezvous import Topology
from spark_estimator.env import Settings


def on_one_host(size: int, rank: int = 0) -> Topology:
    return Topology.of(["a"] * size, rank)


@pytest.mark.parametrize(
    ("local_size", "cores", "spins"), [(1, 1, True), (1, 2, True), (2, 2, True), (4, 3, False), (2, 1, False)]
)
def test_spinning_needs_a_core_a_rank(local_size: int, cores: int, spins: bool) -> None:
    decided = decisions(Settings(), on_one_host(local_size), cores)["spin_microseconds"]
    assert decided.value == (-1 if spins else 0)
    assert f"{cores} core" in decided.why


@pytest.mark.parametrize(
    ("hosts", "cores", "overlaps"),
    [("a", 1, False), ("a", 2, True), ("aa", 2, False), ("aaaa", 8, True), ("aaaa", 7, False), ("ab", 1, True)],
)
def test_overlap_needs_spare_cores_or_a_network(hosts: str, cores: int, overlaps: bool) -> None:
    assert decisions(Settings(), Topology.of(hosts, 0), cores)["overlap"].value == overlaps


def test_what_the_user_says_holds() -> None:
    settings = Settings.read(
        {
            "SPARK_ESTIMATOR_OVERLAP": "1",
            "SPARK_ESTIMATOR_SPIN_MICROSECONDS": "7",
            "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        }
    )
    decided = decisions(settings, on_one_host(8), 1)
    assert {name: decision.value for name, decision in decided.items()} == {
        "overlap": 1,
        "spin_microseconds": 7,
        "hierarchical_allreduce": 0,
    }
    assert {decision.why for decision in decided.values()} == {"environment"}


def test_affinity_goes_by_local_rank() -> None:
    settings = Settings.read({"HOROVOD_THREAD_AFFINITY": "4, 6"})
    assert [affinity_core(settings, on_one_host(2, rank)) for rank in range(2)] == [4, 6]
    assert affinity_core(Settings(), on_one_host(1)) == -1
    with pytest.raises(ValueError, match="HOROVOD_THREAD_AFFINITY=4,6 names 2 cores, and this host has 3 ranks"):
        affinity_core(settings, on_one_host(3, 2))


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1
