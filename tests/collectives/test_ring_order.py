"""The order of hosts in rings: computed from costs, and measured by ranks as if on several hosts."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from benchmarks.namespaces import Network, UnavailableError
from spark_estimator.collectives import arrays, context, ring_order
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.reductions import Sum
from spark_estimator.collectives.ring_order import Pair, find_order, plan_pair_rounds, sum_costs
from spark_estimator.env import Settings
from spark_estimator.errors import HorovodInternalError
from tests.ranks import Outcome, Ranks, on_hosts

MEASURED = {"SPARK_ESTIMATOR_RING_ORDER": "measured", "HOROVOD_LOG_LEVEL": "info"}


def costs_of(hosts: int, cost: Callable[[int, int], float]) -> dict[Pair, float]:
    return {(low, high): cost(low, high) for low, high in itertools.combinations(range(hosts), 2)}


@pytest.mark.parametrize("hosts", [1, 2, 3, 8, 9, 64])
def test_each_pair_is_in_one_round_and_each_host_once_in_it(hosts: int) -> None:
    rounds = plan_pair_rounds(hosts)
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(hosts), 2))
    assert all(len(set(itertools.chain(*pairs))) == 2 * len(pairs) for pairs in rounds)


@pytest.mark.parametrize(("hosts", "racks"), [(4, 2), (16, 2), (12, 4), (64, 8), (9, 2)])
def test_hosts_of_a_rack_are_side_by_side(hosts: int, racks: int) -> None:
    noise = random.Random(hosts)
    costs = costs_of(hosts, lambda low, high: (1 if low % racks == high % racks else 4) * noise.uniform(0.95, 1.05))
    order = find_order(costs, hosts)
    assert sorted(order) == list(range(hosts)) and order[0] == 0
    assert sum(order[place - 1] % racks != order[place] % racks for place in range(hosts)) == racks


def test_a_slow_link_is_avoided() -> None:
    order = find_order(costs_of(6, lambda low, high: 10.0 if (low, high) == (2, 3) else 1.0), 6)
    assert sorted(order) == list(range(6))
    assert abs(order.index(2) - order.index(3)) not in (1, 5)


@pytest.mark.parametrize("hosts", [0, 1, 2, 3, 4, 7, 20])
def test_equal_links_and_noise_leave_the_order_of_ranks(hosts: int) -> None:
    noise = random.Random(1)
    assert find_order(costs_of(hosts, lambda low, high: 1.0), hosts) == list(range(hosts))
    costs = costs_of(hosts, lambda low, high: noise.uniform(1, 1.08))
    assert find_order(costs, hosts) == list(range(hosts))


def test_a_slow_host_leaves_the_order_of_ranks() -> None:
    """Each ring uses two of its links."""
    assert find_order(costs_of(8, lambda low, high: 10.0 if 3 in (low, high) else 1.0), 8) == list(range(8))


def test_the_order_is_near_the_best() -> None:
    for seed in range(40):
        numbers = random.Random(seed)
        costs = costs_of(7, lambda low, high, numbers=numbers: numbers.uniform(1, 10))  # type: ignore[misc]
        best = min(sum_costs([0, *rest], costs) for rest in itertools.permutations(range(1, 7)))
        assert sum_costs(find_order(costs, 7), costs) <= 1.25 * best, seed


# --- with ranks ------------------------------------------------------------------------------------------------------


def outcomes_of(
    function: Callable[..., Any], hosts: Sequence[str], environ: dict[str, str], *args: object
) -> list[Outcome]:
    with Ranks(function, on_hosts(hosts), args=args, environ=environ) as ranks:
        outcomes = ranks.wait(100)
    assert all(outcome.returned for outcome in outcomes), outcomes
    return outcomes


def sums_in_order(rank: int, order: Sequence[int], hierarchical: bool) -> list[float]:
    """What collectives of all kinds give with measured links whose speeds are replaced by `order`."""
    costs = {}
    for low, high in itertools.combinations(range(len(order)), 2):
        apart = abs(order.index(low) - order.index(high))
        costs[low, high] = 1.0 if apart in (1, len(order) - 1) else 5.0
    measure = ring_order.measure_costs
    ring_order.measure_costs = lambda job, leaders: measure(job, leaders) and costs
    ring_order.LEAST_SAVED = -100.0  # on one machine no order is faster
    evens = ProcessSet(range(0, 6, 2))
    context.init(process_sets="dynamic")
    context.add_process_set(evens)
    results: list[Any] = []
    for count, dtype in (
        (1, numpy.float32),
        (5_000, numpy.float32),
        (2_000_000, numpy.float32),
        (2_000_000, numpy.float16),
    ):
        values = numpy.full(count, float(rank), dtype)
        results.append(arrays.allreduce(values, Sum, f"sum.{count}.{dtype}"))
        if rank % 2 == 0:
            results.append(arrays.allreduce(values, Sum, f"evens.{count}.{dtype}", process_set=evens))
        for root in (0, 3):
            results.append(arrays.broadcast(values, root, f"root.{root}.{count}.{dtype}"))
    results.append(arrays.allgather(numpy.full((rank + 1, 40_000), rank, numpy.float32), "rows"))
    size = context.size()
    described = context.engine(None).describe("algorithms")
    context.shutdown()
    assert size == 6
    assert not hierarchical or "hierarchical" in described
    return [float(result.sum(dtype=numpy.float64)) for result in results]


@pytest.mark.parametrize(
    ("hosts", "environ"),
    [
        ("abcdef", {}),
        ("abcdef", {"SPARK_ESTIMATOR_MESH_RANKS": "2"}),
        ("aabcde", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}),
        ("abcdab", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        ("abcdef", {"SPARK_ESTIMATOR_CONNECTIONS": "2"}),
    ],
)
def test_collectives_are_right_in_the_measured_order(hosts: str, environ: dict[str, str]) -> None:
    number = len(set(hosts))
    order = [0, *range(2, number, 2), *range(1, number, 2)]
    hierarchical = environ.get("HOROVOD_HIERARCHICAL_ALLREDUCE") == "1"
    outcomes = outcomes_of(sums_in_order, hosts, MEASURED | environ, order, hierarchical)
    for rank, outcome in enumerate(outcomes):
        expected = []
        for count in (1, 5_000, 2_000_000, 2_000_000):
            expected += [15.0 * count, *([6.0 * count] if rank % 2 == 0 else []), 0.0, 3.0 * count]
        expected.append(40_000.0 * sum(number * (number + 1) for number in range(6)))
        assert outcome.value == expected
    names = ", ".join(sorted(set(hosts))[host] for host in order)
    assert f"rings pass through the hosts in the order {names}: allreduces take " in outcomes[0].output
    connects_late = "SPARK_ESTIMATOR_MESH_RANKS" in environ
    assert ("with 16-bit floats, which take " in outcomes[0].output) is not connects_late
    assert "rings pass" not in outcomes[1].output


def job_of_own_wish(rank: int, wishes: Sequence[str], most_hosts: int) -> float:
    os.environ["SPARK_ESTIMATOR_RING_ORDER"] = wishes[rank]
    ring_order.MOST_HOSTS = most_hosts
    context.init()
    return float(arrays.allreduce(numpy.ones(1_000_000), Sum, "x")[0])


@pytest.mark.parametrize(
    ("hosts", "wishes", "most_hosts", "message"),
    [
        ("abcd", ["rank", "measured", "rank", "measured"], 64, ""),
        ("abcd", ["measured", "rank", "measured", "rank"], 64, "rings pass through the hosts"),
        ("aabc", ["measured"] * 4, 64, ""),
        (
            "abcde",
            ["measured"] * 5,
            4,
            "has no effect: this job is on 5 hosts, and it measures the links of 4 at most.",
        ),
    ],
)
def test_the_wish_of_rank_0_counts(hosts: str, wishes: list[str], most_hosts: int, message: str) -> None:
    outcomes = outcomes_of(job_of_own_wish, hosts, {"HOROVOD_LOG_LEVEL": "info"}, wishes, most_hosts)
    assert [outcome.value for outcome in outcomes] == [len(hosts)] * len(hosts)
    output = "".join(outcome.output for outcome in outcomes)
    assert message in output and (message or "rings pass" not in output)


def job_with_few_descriptors(rank: int) -> float:
    if rank == 3:  # enough of them to connect, but no more
        few = SimpleNamespace(find_shortage=lambda count: descriptors.find_shortage(count + 10**6))
        ring_order.descriptors = few  # type: ignore[assignment]
    context.init()
    return float(arrays.allreduce(numpy.ones(1_000_000), Sum, "x")[0])


def test_without_descriptors_nothing_is_measured() -> None:
    environ = MEASURED | {"SPARK_ESTIMATOR_MESH_RANKS": "2"}
    outcomes = outcomes_of(job_with_few_descriptors, "abcd", environ)
    assert [outcome.value for outcome in outcomes] == [4.0] * 4
    assert "=measured has no effect: on rank 3 this process has too few file descriptors" in outcomes[0].output
    assert "rings pass" not in outcomes[0].output


def job_that_loses_rank_2(rank: int) -> str:
    exchange = ring_order._exchange
    calls = itertools.count()

    def exchange_or_end(*arguments: Any) -> float:
        if rank == 2 and next(calls) == 5:
            os._exit(7)
        return exchange(*arguments)

    ring_order._exchange = exchange_or_end
    try:
        context.init()
    except HorovodInternalError as error:
        return str(error)
    return "init() has returned"


def test_a_rank_that_is_lost_meanwhile_is_named() -> None:
    with Ranks(job_that_loses_rank_2, on_hosts("abcd"), environ=MEASURED) as ranks:
        outcomes = ranks.wait(100)
    assert outcomes[2].exit_code == 7
    for outcome in (outcome for outcome in outcomes if outcome.rank != 2):
        assert outcome.returned and "rank 2" in outcome.value, outcome


def test_the_order_of_an_engine_is_checked() -> None:
    context.init()
    try:
        engine = context.engine(None)
        engine.order_ring([0])
        with pytest.raises(ValueError, match="not 2 ranks"):
            engine.order_ring([0, 1])
        with pytest.raises(ValueError, match="rank 7 is there twice or does not exist"):
            engine.order_ring([7])
    finally:
        context.shutdown()


def test_other_values_are_refused() -> None:
    assert Settings.read({"SPARK_ESTIMATOR_RING_ORDER": "Measured"}).ring_order == "measured"
    with pytest.raises(ValueError, match="SPARK_ESTIMATOR_RING_ORDER='fast': expected one of rank, measured"):
        Settings.read({"SPARK_ESTIMATOR_RING_ORDER": "fast"})


def test_racks_with_a_narrow_link_are_passed_one_after_the_other() -> None:
    try:
        opened = Network.open(6, uplink_bits_per_second=200 * 10**6)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened as network:
        for host in network.hosts:
            host.limit(10**9)
        with Ranks(
            job_of_own_wish,
            network.rendezvous(1),
            args=[["measured"] * 6, 64],
            environ={"HOROVOD_LOG_LEVEL": "info"},
            place=lambda rank: network.hosts[rank].entered(),
        ) as ranks:
            outcomes = ranks.wait(100)
    assert all(outcome.returned and outcome.value == 6 for outcome in outcomes), outcomes
    message = re.search(r"in the order (.*?):", outcomes[0].output)
    assert message is not None, outcomes[0].output
    racks = [int(name[-1]) % 2 for name in re.findall(r"host\d", message[1])]
    assert sum(racks[place - 1] != racks[place] for place in range(6)) == 2, message[0]
