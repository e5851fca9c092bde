"""Measures what the ranks of a job reach: the links between all pairs of hosts, allreduce, and a model's
gradients.

All of it is measured with the engine's own collectives, as a training would use them: encrypted where a job
encrypts, through the memory of a host where its ranks share it. Pairs of hosts are measured in rounds, in
which each host is in one pair, so that a round takes as long as its slowest pair; see `choose_rounds`.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.reductions import Min, Sum
from spark_estimator.collectives.ring_order import Pair, plan_pair_rounds
from spark_estimator.env import CONNECTIONS_VARIABLE, Settings
from spark_estimator.errors import HorovodInternalError
from spark_estimator.log import get_logger

_log = get_logger(__name__)

MIB = 1 << 20
#: More rounds would take longer than a user waits: of more than 16 hosts, only some of the pairs are measured.
MOST_ROUNDS = 15
#: The sizes of the allreduce of all ranks, in bytes.
SIZES = (4, 64 << 10, MIB, 16 * MIB)
#: The most bytes of an exchange, of a link or of gradients: those of a bucket. Of more gradients the time is computed.
MOST_BYTES = 64 * MIB
# How long an exchange shall take on a slow link: fewer bytes are enough there.
_SECONDS = 0.25
#: Data connections between two ranks, with which some links are measured again.
CONNECTIONS = 4
_LATENCY_CALLS = 50


@dataclass(frozen=True)
class Link:
    """What the first ranks of two hosts reach between them.

    Attributes:
        first, second: the hosts.
        gigabits: a second, in each of both directions at the same time.
        microseconds: an allreduce of 4 bytes takes: there and back, with the engine's own work.
    """

    first: str
    second: str
    gigabits: float
    microseconds: float


@dataclass(frozen=True)
class Speed:
    """The result of a measurement.

    Attributes:
        ranks: of the job.
        hosts: names, in the order of their lowest ranks.
        links: of the pairs of hosts that were measured.
        pairs: how many pairs of hosts there are.
        allreduce: seconds that all ranks take to sum float32 values, by their number of bytes.
        parameters: of the model whose gradients were exchanged.
        gradients: seconds to exchange these, by their format: "float32", and with several hosts "float16" (bfloat16 has
            as many bytes; without the casts) and "int8".
        striped: some of the links again, with `CONNECTIONS` data connections instead of one; none where the job has
            several already, or its ranks have too few file descriptors.
    """

    ranks: int
    hosts: tuple[str, ...]
    links: tuple[Link, ...]
    pairs: int
    allreduce: dict[int, float]
    parameters: int
    gradients: dict[str, float]
    striped: tuple[Link, ...] = ()


def choose_rounds(hosts: int) -> list[list[Pair]]:
    """Return the rounds of ``plan_pair_rounds``; of more than `MOST_ROUNDS`, that many, evenly spread."""
    rounds = plan_pair_rounds(hosts)
    if len(rounds) <= MOST_ROUNDS:
        return rounds
    return [rounds[number * len(rounds) // MOST_ROUNDS] for number in range(MOST_ROUNDS)]


def measure(parameters: int) -> Speed | None:
    """Measure on the ranks of a job, which call it together, a model's gradients, too. Return it on rank 0."""
    context.init(process_sets="dynamic")
    locations = allgather_object((context.local_rank(), socket.gethostname()), name="speed.places")
    leaders = [rank for rank, (local_rank, _) in enumerate(locations) if local_rank == 0]
    hosts = _make_distinct([locations[rank][1] for rank in leaders])
    measured: dict[tuple[int, int], tuple[float, float]] = {}
    for pairs in choose_rounds(len(hosts)):
        measured |= _measure_links(pairs, leaders)
    links = _make_links(hosts, measured)
    allreduce = {count: _measure_seconds(count) for count in SIZES}
    rate = SIZES[-1] / allreduce[SIZES[-1]]
    gradients = {"float32": _measure_gradients(parameters, rate, numpy.float32)}
    if len(hosts) > 1:  # within a host, casts take the time that fewer bytes save
        gradients["float16"] = _measure_gradients(parameters, rate, numpy.float16)
        gradients["int8"] = _measure_gradients(parameters, rate, numpy.float32, int8=True)
    rank = context.rank()
    striped = _make_links(hosts, _measure_striped(leaders)) if len(hosts) > 1 else ()
    if rank:
        return None
    return Speed(
        len(locations), tuple(hosts), links, math.comb(len(hosts), 2), allreduce, parameters, gradients, striped
    )


def _make_links(hosts: Sequence[str], measured: dict[tuple[int, int], tuple[float, float]]) -> tuple[Link, ...]:
    return tuple(Link(hosts[first], hosts[second], *measured[first, second]) for first, second in sorted(measured))


def _measure_striped(leaders: Sequence[int]) -> dict[tuple[int, int], tuple[float, float]]:
    """Measure one round of pairs, with `CONNECTIONS` data connections between ranks. A collective.

    Nothing if some ranks have several already or lack file descriptors, or if anything fails: the rest is worth more.
    """
    more = descriptors.count_for_ranks(context.size()) + (CONNECTIONS - 1) * context.size()
    possible = Settings.read().connections == 1 and not descriptors.find_shortage(more)
    if not all(allgather_object(possible, name="speed.possible")):
        return {}
    context.shutdown()
    before = os.environ.get(CONNECTIONS_VARIABLE)
    os.environ[CONNECTIONS_VARIABLE] = str(CONNECTIONS)
    try:
        context.init(process_sets="dynamic")
        return _measure_links(choose_rounds(len(leaders))[0], leaders)
    except HorovodInternalError as error:
        _log.warning("links were not measured with several connections: %s", error)
        return {}
    finally:
        if before is None:
            del os.environ[CONNECTIONS_VARIABLE]
        else:
            os.environ[CONNECTIONS_VARIABLE] = before


def _make_distinct(names: Sequence[str]) -> list[str]:
    """Return the names; those that several hosts have, as containers may, with the host's number."""
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def _measure_links(
    pairs: Sequence[tuple[int, int]], leaders: Sequence[int]
) -> dict[tuple[int, int], tuple[float, float]]:
    """Measure Gbit/s and microseconds of a round of pairs of hosts, by their first ranks, at once. A collective."""
    sets = {}
    for pair in pairs:
        ranks = [leaders[host] for host in pair]
        sets[pair] = None if len(ranks) == context.size() else context.add_process_set(ranks)
    own_figures = {
        pair: _measure_link(process_set)
        for pair, process_set in sets.items()
        if process_set is None or process_set.included()
    }
    figures: dict[tuple[int, int], tuple[float, float]] = {}
    for theirs in reversed(allgather_object(own_figures, name="speed.links")):
        figures |= theirs  # of a pair, those of its first rank
    for process_set in sets.values():
        if process_set is not None:
            context.remove_process_set(process_set)
    return figures


def _measure_link(pair: ProcessSet | None) -> tuple[float, float]:
    """Measure a `Link`. A collective of the pair. Each of two ranks sends and receives as many bytes as it reduces."""
    latency = _measure_seconds(4, pair, calls=_LATENCY_CALLS)
    rate = MIB / _measure_seconds(MIB, pair)
    count = _agree_on_bytes(rate, pair)
    return count * 8 / _measure_seconds(count, pair) / 1e9, latency * 1e6


def _agree_on_bytes(rate: float, process_set: ProcessSet | None = None) -> int:
    """Return how many bytes to exchange at `rate` bytes a second: at least 4 KiB, equal on all ranks. A collective."""
    count = max(min(int(rate * _SECONDS), MOST_BYTES), 4096)
    return int(arrays.allreduce(numpy.array([count]), Min, "speed.bytes", process_set=process_set)[0])


def _measure_seconds(
    count: int, process_set: ProcessSet | None = None, *, dtype: Any = numpy.float32, int8: bool = False, calls: int = 5
) -> float:
    """Return the median seconds of an allreduce of `count` bytes. A collective of the set."""
    values: NDArray[Any] = numpy.ones(max(count // numpy.dtype(dtype).itemsize, 1), dtype)
    seconds = []
    for _ in range(calls + 1):  # the first one touches new memory
        arrays.barrier(process_set)
        began = time.perf_counter()
        arrays.grouped_allreduce(
            [values],
            Sum,
            f"speed.{count}.{int8}",
            process_set=process_set,
            residues=(f"speed.{count}",) if int8 else (),
        )
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _measure_gradients(parameters: int, rate: float, dtype: Any, *, int8: bool = False) -> float:
    """Return the seconds to exchange a model's gradients, by a part of many; `rate`: of float32, in bytes a second."""
    itemsize = numpy.dtype(dtype).itemsize
    sample = min(parameters, _agree_on_bytes(rate) // 4)
    return _measure_seconds(sample * itemsize, dtype=dtype, int8=int8) * parameters / sample
