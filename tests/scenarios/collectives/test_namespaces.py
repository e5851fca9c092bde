"""Ranks on several hosts (network namespaces), and what silence means: a cut link, a stopped process, a slow one.

A fault is injected, and removed after the time in which it must have been detected: a rank that has not detected it by
then never will. So no test measures a time.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.namespaces import Network, UnavailableError
from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives.rendezvous import make_local_rendezvous
from tests.ranks import Outcome, Ranks
from tests.scenarios.collectives.programs import Step

# The guarantees in seconds: until a silent peer is named; and the pause that is harmless.
SILENCE_NAMED_WITHIN = 8
HARMLESS_PAUSE = 3

pytestmark = pytest.mark.timeout(150)


class Layout(NamedTuple):
    """How many hosts with how many ranks each; 0 hosts: this one, without a network between its ranks."""

    hosts: int
    ranks_per_host: int

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks_per_host}" if self.hosts else f"one host x{self.ranks_per_host}"

    @property
    def size(self) -> int:
        return max(1, self.hosts) * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host


class Job(NamedTuple):
    """A job that runs, and the network that it runs in; None for one host."""

    layout: Layout
    ranks: Ranks
    network: Network | None

    def cut(self, host: int) -> None:
        assert self.network is not None
        self.network.hosts[host].cut()

    def mend(self, host: int) -> None:
        assert self.network is not None
        self.network.hosts[host].mend()

    def await_all(self, text: str) -> None:
        for rank in range(self.layout.size):
            self.ranks.await_output(rank, text)


def layouts(*choices: tuple[int, int]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("layout", [Layout(*choice) for choice in choices], ids=str)


@contextmanager
def started(layout: Layout, function: Callable[..., Any], *args: Any, limit: int | None = None) -> Iterator[Job]:
    """A job of that layout whose ranks run a function; `limit` in bits a second for every host's link."""
    with ExitStack() as closing:
        if not layout.hosts:
            ranks = closing.enter_context(Ranks(function, make_local_rendezvous(layout.size), args=args))
            yield Job(layout, ranks, None)
            return
        try:
            network = closing.enter_context(Network.open(layout.hosts))
            for host in network.hosts:
                if limit is not None:
                    host.limit(limit)
        except UnavailableError as error:
            pytest.skip(str(error))
        rendezvous = network.rendezvous(layout.ranks_per_host)
        hosts = [network.hosts[layout.host_of(rank)] for rank in range(layout.size)]
        ranks = Ranks(function, rendezvous, args=args, place=lambda rank: hosts[rank].entered())
        yield Job(layout, closing.enter_context(ranks), network)


def returned(outcomes: list[Outcome]) -> list[Any]:
    for outcome in outcomes:
        assert outcome.returned, outcome
    return [outcome.value for outcome in outcomes]


# --- what the ranks do -----------------------------------------------------------------------------------------------


def work_until_a_peer_is_lost(rank: int, elements: int) -> tuple[float, str]:
    """Exact allreduces of `elements` elements until one fails: when (on the clock of the machine) and with what."""
    import time

    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.errors import PeerLostError

    context.init()
    values = numpy.full(elements, rank + 1, numpy.float32)
    total = context.size() * (context.size() + 1) / 2
    for number in range(1_000_000):
        try:
            result = arrays.allreduce(values, arrays.ReduceOp.SUM, "work")
        except PeerLostError as error:
            return time.monotonic(), str(error)
        assert (result == total).all()
        if number == 3:
            print("working", flush=True)
    raise AssertionError("nobody was lost")


def idle_until_told(rank: int, go: str) -> str:
    """One allreduce, then nothing until a file appears, then another one. Gives its error; '' if it succeeds."""
    import time
    from pathlib import Path

    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.errors import PeerLostError

    context.init()
    arrays.allreduce(numpy.ones(5))
    print("idle", flush=True)
    while not Path(go).exists():
        time.sleep(0.05)
    try:
        arrays.allreduce(numpy.ones(5))
    except PeerLostError as error:
        return str(error)
    return ""


def work_until_told(rank: int, elements: int, go: str) -> int:
    """Allreduces until a file appears for rank 0; all stop after the same one. Every result is checked."""
    from pathlib import Path

    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    count = 0
    while True:
        values = numpy.full(elements, rank + 1 + count % 100, numpy.float32)
        values[0] = rank == 0 and Path(go).exists()
        result = arrays.allreduce(values, arrays.ReduceOp.SUM, "work")
        size = context.size()
        assert (result[1:] == size * (size + 1) / 2 + size * (count % 100)).all()
        count += 1
        if count == 3:
            print("working", flush=True)
        if result[0]:
            return count


def hold_pythons_lock(rank: int, seconds: int) -> float:
    """Rank 1 computes without releasing Python's lock while the others wait for it."""
    import ctypes

    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    arrays.allreduce(numpy.ones(5))
    if rank == 1:
        ctypes.PyDLL(None).sleep(seconds)
    return float(arrays.allreduce(numpy.ones(5), arrays.ReduceOp.SUM)[0])


def work_slowly(rank: int, elements: int, times: int) -> None:
    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    for number in range(times):
        values = numpy.arange(elements, dtype=numpy.float32) % 1000 + rank + number
        size = context.size()
        right = (numpy.arange(elements, dtype=numpy.float32) % 1000 + number) * size + size * (size - 1) / 2
        assert (arrays.allreduce(values, arrays.ReduceOp.SUM, "work") == right).all()


def run_steps(rank: int, steps: list[Step]) -> None:
    """Twice over: the first time names are new, the second time they are known."""
    from spark_estimator.collectives import context
    from tests.scenarios.collectives import programs

    context.init()
    everyone = {tuple(range(context.size())): None}
    programs.run_one_after_another(rank, steps, everyone, times=2)
    programs.run_in_orders_of_their_own(rank, steps, everyone, order_seed=5)


def all_ops(size: int) -> list[Step]:
    """Every op, small and large, of several types; what it must give is known exactly."""
    everyone = tuple(range(size))
    small, medium, large = (3,), (120, 101), (1_000_003,)
    steps = []
    for number, (dtype, shape) in enumerate(
        [(DType.FLOAT32, small), (DType.BFLOAT16, medium), (DType.FLOAT32, large), (DType.INT64, medium)]
    ):

        def step(op: Op, number: int = number, dtype: DType = dtype, **fields: Any) -> Step:
            return Step(op, f"{op.name} {number}", everyone, dtypes=(dtype,), seed=number, **fields)

        steps += [
            step(Op.ALLREDUCE, shapes=(shape,), reduce_op=ReduceOp.AVERAGE, in_place=number % 2 == 0),
            step(Op.BROADCAST, shapes=(shape,), root=size - 1),
            step(Op.REDUCESCATTER, shapes=(shape,)),
            step(Op.ALLGATHER, shapes=(shape[1:],), rows=(tuple(shape[0] // (rank + 1) for rank in everyone),)),
            step(
                Op.ALLTOALL,
                shapes=(shape[1:],),
                splits=tuple(tuple((rank + to) % 3 * shape[0] // size for to in everyone) for rank in everyone),
            ),
        ]
    steps.append(Step(Op.BARRIER, "barrier", everyone))
    return steps


# --- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [Layout(2, 2), *(pytest.param(Layout(*few), marks=pytest.mark.slow) for few in ((2, 1), (4, 1), (3, 2)))],
    ids=str,
)
def test_all_ops_are_right_across_hosts(layout: Layout) -> None:
    with started(layout, run_steps, all_ops(layout.size)) as job:
        returned(job.ranks.wait(timeout=100))


@pytest.mark.parametrize(
    ("layout", "elements"),
    [
        pytest.param(Layout(2, 1), 1, marks=pytest.mark.slow),
        (Layout(2, 2), 3_000_000),
        pytest.param(Layout(4, 1), 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_host_that_is_cut_off_at_work_is_named_on_both_sides(layout: Layout, elements: int) -> None:
    victim = layout.hosts - 1
    with started(layout, work_until_a_peer_is_lost, elements) as job:
        job.await_all("working")
        job.cut(victim)
        time.sleep(SILENCE_NAMED_WITHIN)
        mended = time.monotonic()
        job.mend(victim)
        outcomes = job.ranks.wait(timeout=60)
    for rank, (when, message) in enumerate(returned(outcomes)):
        assert when < mended, f"rank {rank}: {message}"
        if layout.host_of(rank) != victim:
            assert names_a_rank_of(layout, victim, message), f"rank {rank}: {message}"
        else:
            others = [host for host in range(layout.hosts) if host != victim]
            assert any(names_a_rank_of(layout, host, message) for host in others), f"rank {rank}: {message}"


def names_a_rank_of(layout: Layout, host: int, message: str) -> bool:
    ranks = [rank for rank in range(layout.size) if layout.host_of(rank) == host]
    return any(f"rank {rank} on host{host} (pid " in message for rank in ranks)


@pytest.mark.slow
def test_a_host_that_is_cut_off_at_rest_is_named_on_both_sides(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with ExitStack() as running:
        jobs = [
            running.enter_context(started(layout, idle_until_told, str(go))) for layout in (Layout(2, 1), Layout(2, 2))
        ]
        for job in jobs:
            job.await_all("idle")
            job.cut(1)
        time.sleep(SILENCE_NAMED_WITHIN)
        for job in jobs:
            job.mend(1)
        go.touch()
        for job in jobs:
            for rank, message in enumerate(returned(job.ranks.wait(timeout=60))):
                cut_off = 1 - job.layout.host_of(rank)
                assert names_a_rank_of(job.layout, cut_off, message), f"rank {rank}: {message}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "elements"), [(Layout(0, 2), 3_000_000), (Layout(2, 2), 1), (Layout(4, 1), 3_000_000)], ids=str
)
def test_a_pause_does_no_harm(layout: Layout, elements: int, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with started(layout, work_until_told, elements + 1, str(go)) as job:
        job.await_all("working")
        for rank in (layout.size - 1, 0):
            job.ranks.kill(rank, signal.SIGSTOP)
            time.sleep(HARMLESS_PAUSE)
            job.ranks.kill(rank, signal.SIGCONT)
            time.sleep(0.5)
        go.touch()
        counts = returned(job.ranks.wait(timeout=60))
    assert len(set(counts)) == 1


@pytest.mark.slow
def test_all_ranks_may_pause_for_long(tmp_path: Path) -> None:
    """Longer than the silence that a peer is allowed: the machines slept."""
    go = tmp_path / "go"
    layout = Layout(2, 2)
    with started(layout, work_until_told, 1000, str(go)) as job:
        job.await_all("working")
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for rank in range(layout.size):
                job.ranks.kill(rank, number)
            time.sleep(SILENCE_NAMED_WITHIN)
        go.touch()
        returned(job.ranks.wait(timeout=60))


@pytest.mark.parametrize(("layout", "elements"), [(Layout(0, 2), 3_000_000), (Layout(2, 2), 1)], ids=str)
@pytest.mark.slow
def test_a_rank_that_is_stopped_for_good_is_named(layout: Layout, elements: int) -> None:
    with started(layout, work_until_a_peer_is_lost, elements) as job:
        job.await_all("working")
        job.ranks.kill(1, signal.SIGSTOP)
        time.sleep(SILENCE_NAMED_WITHIN)
        ended = time.monotonic()
        job.ranks.kill(1, signal.SIGKILL)
        outcomes = job.ranks.wait(timeout=60)
    for outcome in outcomes:
        if outcome.rank != 1:
            when, message = returned([outcome])[0]
            assert when < ended, message
            assert f"rank 1 on {'host0' if layout.hosts else socket.gethostname()} (pid " in message


@layouts((0, 2), (2, 1), (4, 1))
def test_a_killed_rank_is_named_by_its_end_and_not_by_its_silence(layout: Layout) -> None:
    with started(layout, work_until_a_peer_is_lost, 1000) as job:
        job.await_all("working")
        job.ranks.kill(layout.size - 1, signal.SIGKILL)
        outcomes = job.ranks.wait(timeout=60)
    for outcome in outcomes[:-1]:
        _, message = returned([outcome])[0]
        assert f"rank {layout.size - 1} on " in message and "is lost: its connection " in message, message


@pytest.mark.slow
@layouts((2, 1))
def test_a_rank_that_computes_for_long_is_waited_for(layout: Layout) -> None:
    with started(layout, hold_pythons_lock, SILENCE_NAMED_WITHIN + 1) as job:
        assert returned(job.ranks.wait(timeout=60)) == [layout.size] * layout.size


@pytest.mark.slow
@layouts((2, 1))
def test_a_link_that_is_slow_is_waited_for(layout: Layout) -> None:
    """One allreduce takes longer than the silence that a peer is allowed."""
    with started(layout, work_slowly, 2_000_000, 2, limit=8_000_000) as job:
        returned(job.ranks.wait(timeout=120))
