"""Orders the hosts of a job so that its rings avoid slow links: measures the links, and computes the order.

A ring sends each byte over the link from each host to the next, so that the slowest of these links limits it, and hosts
of two racks that alternate load the connection between the racks many times.

The first ranks of each two hosts exchange bytes by the engine's own alltoall, over the connections that a training
uses. All pairs of a round do so at the same time, so that a connection that several of them share shows its limit. The
order that follows from these costs is used only if an allreduce is faster in it: where the processors are the limit,
measurements of single pairs differ by chance.

16-bit floats go round the ring, with partial sums in float32, or from each rank to each other, which are fewer bytes,
but more between racks. The faster way is used; with more ranks than connect in ``init()``, the ring if its order has
changed.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_estimator._native import DType, Op
from spark_estimator.collectives.call import Call, Tensor
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.connections.plan import is_overlay
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.rendezvous import PeerFacts
from spark_estimator.collectives.requests import gather_bytes, run
from spark_estimator.env import RING_ORDER_VARIABLE, Settings
from spark_estimator.log import get_logger
from spark_estimator.peer_json import parse_json

_log = get_logger(__name__)

#: In a ring of three hosts all pairs are neighbours, in any order.
LEAST_HOSTS = 4
#: The first ranks of more hosts would take too long, and need too many connections.
MOST_HOSTS = 64

_NAME = "spark_estimator.ring_order"
# Of each pair: one exchange that fills TCP's window and gives an estimate, then some of about this time.
_FIRST_BYTES = 1 << 20
_SECONDS = 0.03
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 8 << 20
_CALLS = 3
# Of the allreduce with which two orders are compared.
_RING_SECONDS = 0.1
_MOST_RING_BYTES = 64 << 20
_RING_BYTES_PER_RANK = 128 << 10  # shorter ones use other algorithms; in a larger job, all up to the most do
_LONG_SECONDS = 0.5  # longer ones are done once
# Another order must save this part of a ring's time: measurements differ by some percent from time to time.
LEAST_SAVED = 0.1

Pair = tuple[int, int]


class Ring(NamedTuple):
    """How rings pass through the ranks of a group.

    Attributes:
        ranks: each rank once; the first one follows the last one.
        halves: whether long allreduces of 16-bit floats go round the ring, too.
    """

    ranks: tuple[int, ...]
    halves: bool = False

    def of(self, ranks: Sequence[int]) -> Ring:
        """Return the ring of some of these ranks, by their indices in `ranks`."""
        position = {rank: position for position, rank in enumerate(self.ranks)}
        return Ring(tuple(sorted(range(len(ranks)), key=lambda index: position[ranks[index]])), self.halves)


def plan_pair_rounds(hosts: int) -> list[list[Pair]]:
    """Return all pairs of hosts, in rounds in which each host is in one pair at most, by the circle method."""
    slots = hosts + hosts % 2  # an odd number of hosts has one more place, whose partner pauses
    rounds = []
    for turn in range(slots - 1):
        circle = [0, *((turn + slot) % (slots - 1) + 1 for slot in range(slots - 1))]
        pairs = [sorted((circle[slot], circle[-1 - slot])) for slot in range(slots // 2)]
        rounds.append([(low, high) for low, high in pairs if high < hosts])
    return rounds


def agree_on_ring(job: Engine, peers: Sequence[PeerFacts], settings: Settings) -> Ring | None:
    """Set how rings pass through the ranks of an idle job, as rank 0's settings ask. All ranks call it.

    Return that ring, a host's ranks side by side; None: the order of the ranks, as every engine has at first.

    Raises HorovodInternalError: another rank was lost meanwhile, or has left.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, peer in enumerate(peers):
        ranks_of.setdefault(peer.host_id, []).append(rank)
    hosts = list(ranks_of.values())
    if len(hosts) < LEAST_HOSTS:
        return None
    wishes = gather_bytes(job, _NAME, settings.ring_order.encode())
    if bytes(wishes[0]) != b"measured":
        return None
    leaders = [ranks[0] for ranks in hosts]
    connects_late = is_overlay(range(job.size), settings)
    obstacle = _find_obstacle(job, leaders, settings, connects_late=connects_late)
    if obstacle:
        if job.rank == 0:
            _log.warning("%s=measured has no effect: %s", RING_ORDER_VARIABLE, obstacle)
        return None
    costs = measure_costs(job, leaders)
    slowest = max(costs.values())
    order = find_order(costs, len(hosts))
    by_rank, ordered = Ring(tuple(range(job.size))), Ring(tuple(rank for host in order for rank in hosts[host]))
    ring, reasons = by_rank, []
    if ordered != by_rank:
        ring, ratio = _choose_faster(job, by_rank, ordered, slowest)
        if ring == ordered:
            reasons.append(f"allreduces take {ratio:.0%} of their time in the order of ranks")
    if connects_late:
        # Without the ring, the comparison would connect each rank with each other one.
        ring = ring._replace(halves=ring == ordered and ordered != by_rank)
    else:
        ring, ratio = _choose_faster(job, ring, ring._replace(halves=True), slowest)
        if ring.halves:
            reasons.append(f"with 16-bit floats, which take {ratio:.0%} of their time without")
    job.order_ring(ring.ranks, ring.halves)
    if job.rank == 0:
        host_order = sorted(range(len(hosts)), key=lambda host: ring.ranks.index(leaders[host]))
        names = ", ".join(peers[leaders[host]].host for host in host_order)
        reason = ", ".join(reasons) or "no other is clearly faster"
        _log.info("rings pass through the hosts in the order %s: %s", names, reason)
    return None if ring == by_rank else ring


def _find_obstacle(job: Engine, leaders: Sequence[int], settings: Settings, *, connects_late: bool) -> str:
    """Return why the links cannot be measured, a sentence; '' if they can. All ranks call it, and get the same."""
    if len(leaders) > MOST_HOSTS:
        return f"this job is on {len(leaders)} hosts, and it measures the links of {MOST_HOSTS} at most."
    # Each rank has neighbours in two rings, and the first one of a host exchanges bytes with those of the others.
    links = 4 + (len(leaders) - 1 if job.rank in leaders else 0)
    lacking = descriptors.find_shortage(links * settings.connections) if connects_late else ""
    texts = [bytes(text).decode() for text in gather_bytes(job, _NAME, lacking.encode())]
    return next((f"on rank {rank} {text}" for rank, text in enumerate(texts) if text), "")


def _choose_faster(job: Engine, first: Ring, second: Ring, slowest: float) -> tuple[Ring, float]:
    """Return the first of two rings, unless an allreduce in the second is clearly faster, and the ratio of their times.

    All ranks call it. It is of float32, or of 16-bit floats if the second ring adds these.
    """
    count = min(_MOST_RING_BYTES, max(job.size * _RING_BYTES_PER_RANK, int(_RING_SECONDS / 2 / slowest)))
    calls = _CALLS if 2 * count * slowest < _LONG_SECONDS else 1
    values = ctypes.create_string_buffer(count)
    dtype, itemsize = (DType.BFLOAT16, 2) if second.halves else (DType.FLOAT32, 4)
    tensor = Tensor(ctypes.addressof(values), ctypes.addressof(values), dtype, (count // itemsize,))
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(1 + calls):  # the first ones connect the neighbours
        for ring, times in zip((first, second), seconds, strict=True):
            job.order_ring(ring.ranks, ring.halves)
            gather_bytes(job, _NAME, b"")  # all begin at the same time
            began = time.perf_counter()
            run(job, Call(Op.ALLREDUCE, f"{_NAME}.{dtype.name}"), [tensor], values, repeats=False)
            times.append(time.perf_counter() - began)
    texts = gather_bytes(job, _NAME, json.dumps([statistics.median(times[1:]) for times in seconds]).encode())
    before, after = (max(times) for times in zip(*(parse_json(bytes(text)) for text in texts), strict=True))
    return (second if after <= (1 - LEAST_SAVED) * before else first), after / before


def measure_costs(job: Engine, leaders: Sequence[int]) -> dict[Pair, float]:
    """Measure how long each pair of hosts takes for a byte, in seconds; the same on all ranks, which all call it."""
    own_host = leaders.index(job.rank) if job.rank in leaders else -1
    measured = {}
    for pairs in plan_pair_rounds(len(leaders)):
        pair = next((pair for pair in pairs if own_host in pair), None)
        partner = None if pair is None else leaders[pair[0] + pair[1] - own_host]
        first = _exchange(job, partner, _FIRST_BYTES)
        count = max(_LEAST_BYTES, min(_MOST_BYTES, int(_SECONDS / first)))
        seconds = min(_exchange(job, partner, count) for _ in range(_CALLS))
        if pair is not None:
            measured[pair] = seconds
    texts = gather_bytes(job, _NAME, json.dumps([[*pair, seconds] for pair, seconds in measured.items()]).encode())
    costs: dict[Pair, float] = {}
    for text in texts:
        for low, high, seconds in parse_json(bytes(text)):
            costs[low, high] = max(seconds, costs.get((low, high), 0.0))  # the pair is as slow as its slower direction
    return costs


def _exchange(job: Engine, partner: int | None, count: int) -> float:
    """Exchange `count` bytes with the partner, if any; return the slower direction's seconds a byte. Collective."""
    splits = tuple(count if rank == partner else 0 for rank in range(job.size))
    source = ctypes.create_string_buffer(sum(splits) or 1)
    tensor = Tensor(ctypes.addressof(source), 0, DType.UINT8, (sum(splits),))
    gather_bytes(job, _NAME, b"")  # all begin at the same time
    began = time.perf_counter()
    handle = run(job, Call(Op.ALLTOALL, f"{_NAME}.links", splits=splits), [tensor], source, repeats=False)
    assert handle is not None
    rows = handle.gathered().rows
    return (time.perf_counter() - began) / max(count, *rows)


def find_order(costs: Mapping[Pair, float], hosts: int) -> list[int]:
    """Return a short tour of all hosts, by costs of pairs; 0, 1, 2... if none that is found saves a tenth. Pure.

    From a greedy tour, and from the hosts' own order, parts are reversed as long as that saves something (2-opt:
    Croes, "A method for solving traveling-salesman problems", 1958).
    """
    natural = list(range(hosts))
    if hosts < LEAST_HOSTS:
        return natural
    tours = [_improve(tour, costs) for tour in (natural, _find_greedy_tour(costs, hosts))]
    best = min(tours, key=lambda tour: sum_costs(tour, costs))
    if sum_costs(best, costs) > (1 - LEAST_SAVED) * sum_costs(natural, costs):
        return natural
    return best if best[1] < best[-1] else [best[0], *reversed(best[1:])]


def sum_costs(order: Sequence[int], costs: Mapping[Pair, float]) -> float:
    """Return the cost of all links together: from each host to the next, and from the last to the first."""
    return sum(_find_cost(costs, order[position - 1], order[position]) for position in range(len(order)))


def _find_cost(costs: Mapping[Pair, float], host: int, other: int) -> float:
    return costs[min(host, other), max(host, other)]


def _find_greedy_tour(costs: Mapping[Pair, float], hosts: int) -> list[int]:
    """Return the tour from host 0 that always goes to the nearest host that is left, the lowest of equal ones."""
    tour, left = [0], list(range(1, hosts))
    while left:
        nearest = min(left, key=lambda host: _find_cost(costs, tour[-1], host))
        tour.append(nearest)
        left.remove(nearest)
    return tour


def _improve(tour: list[int], costs: Mapping[Pair, float]) -> list[int]:
    """Reverses parts of a tour until that saves nothing. Host 0 stays the first."""
    tour = list(tour)
    least = 1e-9 * sum_costs(tour, costs)  # rounding is no saving
    improved = True
    while improved:
        improved = False
        for low in range(1, len(tour) - 1):
            for high in range(low + 1, len(tour)):
                before, after = tour[low - 1], tour[(high + 1) % len(tour)]
                now = _find_cost(costs, before, tour[low]) + _find_cost(costs, tour[high], after)
                if now - _find_cost(costs, before, tour[high]) - _find_cost(costs, tour[low], after) > least:
                    tour[low : high + 1] = reversed(tour[low : high + 1])
                    improved = True
    return tour
