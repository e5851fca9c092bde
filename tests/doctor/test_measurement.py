"""What ``doctor --cluster --speed`` measures, on ranks as if on several hosts."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.namespaces import Network, UnavailableError
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous
from spark_estimator.doctor.measurement import MOST_ROUNDS, SIZES, Speed, choose_rounds, measure
from tests.ranks import Ranks, on_hosts, run_ranks

PARAMETERS = 5_000_000


def test_of_many_hosts_each_meets_some_others() -> None:
    rounds = choose_rounds(101)
    assert len(rounds) == MOST_ROUNDS
    pairs = list(itertools.chain(*rounds))
    assert len(set(pairs)) == len(pairs) == MOST_ROUNDS * 50
    assert min(Counter(itertools.chain(*pairs)).values()) >= MOST_ROUNDS - 1


def speed_of(job: Sequence[tuple[Rendezvous, Endpoint]], network: Network | None = None) -> Speed:
    def place(rank: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if network is None else network.hosts[rank].entered()

    with Ranks(lambda _rank: measure(PARAMETERS), job, place=place) as ranks:
        outcomes = ranks.wait(100)
    assert all(outcome.returned for outcome in outcomes), outcomes
    first, *others = (outcome.value for outcome in outcomes)
    assert isinstance(first, Speed) and others == [None] * len(others)
    return first


@pytest.mark.parametrize("hosts", ["aabc", "ab"])
def test_all_pairs_of_hosts_and_all_formats(hosts: str) -> None:
    speed = speed_of(on_hosts(hosts, share_memory=False))
    number = len(set(hosts))
    assert (speed.ranks, len(speed.hosts), len(set(speed.hosts)), speed.pairs) == (
        len(hosts),
        number,
        number,
        number * (number - 1) // 2,
    )
    assert {frozenset((link.first, link.second)) for link in speed.links} == {
        frozenset(pair) for pair in itertools.combinations(speed.hosts, 2)
    }
    assert all(link.gigabits > 0 and link.microseconds > 0 for link in speed.links)
    assert list(speed.allreduce) == list(SIZES) and min(speed.allreduce.values()) > 0
    assert set(speed.gradients) == {"float32", "float16", "int8"} and min(speed.gradients.values()) > 0
    assert speed.parameters == PARAMETERS
    assert len(speed.striped) == len(choose_rounds(number)[0])
    assert {(link.first, link.second) for link in speed.striped} <= {(link.first, link.second) for link in speed.links}
    assert all(link.gigabits > 0 for link in speed.striped)


def test_on_one_host_there_are_no_links() -> None:
    for size in (2, 1):
        speed = run_ranks(size, lambda _rank: measure(1))[0]
        assert (speed.ranks, speed.links, speed.pairs, len(speed.hosts)) == (size, (), 0, 1)
        assert speed.striped == ()
        assert set(speed.gradients) == {"float32"}


@pytest.mark.slow
def test_a_slow_link_is_measured_as_one() -> None:
    try:
        opened = Network.open(3)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened as network:
        for host, megabits in zip(network.hosts, (1000, 1000, 100), strict=True):
            host.limit(megabits * 10**6)
        speed = speed_of(network.rendezvous(1), network)
    fast, *slow = sorted(speed.links, key=lambda link: -link.gigabits)
    assert [link.gigabits < 0.11 for link in slow] == [True, True]
    assert fast.gigabits < 1.1
    assert {fast.first, fast.second} == set(speed.hosts[:2]), speed
