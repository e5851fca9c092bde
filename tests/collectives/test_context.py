"""Joining and leaving: a job of one, many rounds, and the answers in between."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.collectives.rendezvous import make_local_rendezvous
from tests.ranks import Ranks, RanksFailedError, run_ranks

ROOT = str(Path(__file__).parents[2])


def alone(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a program without a launcher."""
    environment = {**os.environ, "PYTHONPATH": ROOT, **environ}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


JOB_OF_ONE = """
import numpy
from spark_estimator.collectives import arrays, context, objects, ops
for _ in range(3):
    context.init()
    context.init()
    assert context.is_initialized()
    assert (context.rank(), context.size(), context.local_rank(), context.local_size()) == (0, 1, 0, 1)
    assert (context.cross_rank(), context.cross_size(), context.is_homogeneous()) == (0, 1, True)
    assert arrays.allreduce(numpy.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert arrays.allgather(numpy.eye(2)).tolist() == [[1, 0], [0, 1]]
    assert objects.broadcast_object("x") == "x"
    assert objects.allgather_object("x") == ["x"]
    ops.barrier()
    context.shutdown()
    context.shutdown()
    assert not context.is_initialized()
context.init()
print("done")
"""


def test_without_a_launcher_it_is_a_job_of_one() -> None:
    done = alone(JOB_OF_ONE)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


QUESTIONS = """
from spark_estimator.collectives import context, ops
def refused(question):
    try:
        question()
    except ValueError as error:
        return "has not been initialized; use hvd.init()" in str(error)
questions = [context.rank, context.size, context.local_rank, context.local_size, context.cross_rank, context.cross_size,
             context.is_homogeneous, context.topology, context.engine, context.settings, ops.barrier, ops.join,
             lambda: context.add_process_set([0]), context.get_process_set_ids_and_ranks, context.stop_timeline]
assert all(map(refused, questions))
assert not context.is_initialized()
context.shutdown()
context.init()
context.shutdown()
assert all(map(refused, questions))
print("done")
"""


def test_questions_before_and_after_are_refused() -> None:
    done = alone(QUESTIONS)
    assert (done.stdout, done.stderr) == ("done\n", "")


BUILD = """
from spark_estimator.collectives import context
assert context.gloo_built() is True and context.gloo_enabled() is True
for name in ("mpi_built", "mpi_enabled", "rocm_built", "ddl_built", "ccl_built"):
    assert getattr(context, name)() is False
assert isinstance(context.cuda_built(), bool) and isinstance(context.nccl_built(), int)
try:
    context.mpi_threads_supported()
except ValueError:
    print("done")
"""


def test_what_is_built() -> None:
    assert alone(BUILD).stdout == "done\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("comm=[1, 2]", "this job always has all of its 1 ranks"),
        ("comm=object()", "pass a list of ranks, or a communicator of mpi4py"),
        ("process_sets=[object()]", "pass a list of ranks"),
        ("process_sets='static'", "pass a list of process sets, or 'dynamic'"),
        ("process_sets=[[0]]", "a process set with the ranks [0] already exists, with the id 0"),
        ("process_sets=[[1]]", "ranks must be among those of the job, which has only rank 0: [1]"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: str, expected: str) -> None:
    done = alone(f"from spark_estimator.collectives import context; context.init({arguments})")
    assert expected in done.stderr
    assert "ValueError" in done.stderr


def test_arguments_that_change_nothing_are_accepted() -> None:
    done = alone("from spark_estimator.collectives.context import *; init(comm=[0], process_sets=[]); print(size())")
    assert done.stdout == "1\n"


def test_a_bad_variable_is_named_by_init() -> None:
    done = alone("from spark_estimator.collectives import context; context.init()", HOROVOD_START_TIMEOUT="soon")
    assert "HOROVOD_START_TIMEOUT='soon'" in done.stderr


@pytest.mark.parametrize("shared_memory", ["1", "0"])
def test_sixty_rounds(shared_memory: str) -> None:
    def rounds(rank: int) -> tuple[int, int, int]:
        import os
        import threading

        import numpy

        from spark_estimator.collectives import arrays, context

        def left_open() -> int:
            return len(os.listdir("/proc/self/fd"))

        total = 0
        first = threads = 0
        for round_ in range(60):
            context.init()
            assert (context.rank(), context.size()) == (rank, 2)
            value = arrays.allreduce(numpy.full(1000, rank + round_, numpy.int64), arrays.ReduceOp.SUM)
            assert (value == 1 + 2 * round_).all()
            total += int(value[0])
            context.shutdown()
            if round_ == 2:
                first, threads = left_open(), threading.active_count()
        # Handles of the last rounds may be in the garbage collector's hands; nothing must grow with the rounds.
        assert left_open() <= first + 4, (left_open(), first)
        assert threading.active_count() <= threads + 1
        return total, first, left_open()

    results = run_ranks(2, rounds, timeout=100, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared_memory})
    assert [total for total, _, _ in results] == [60 + 2 * sum(range(60))] * 2


def test_rounds_at_different_speeds() -> None:
    def rounds(rank: int) -> int:
        import random
        import time

        import numpy

        from spark_estimator.collectives import arrays, context

        pace = random.Random(rank)
        total = 0
        for _ in range(15):
            time.sleep(pace.random() * 0.05)
            context.init()
            total += int(arrays.allreduce(numpy.ones(1, numpy.int32), arrays.ReduceOp.SUM)[0])
            time.sleep(pace.random() * 0.05)
            context.shutdown()
        return total

    assert run_ranks(3, rounds) == [45, 45, 45]


def test_calls_without_a_name_are_counted_anew_in_each_round() -> None:
    def names(_rank: int) -> list[str]:
        import numpy

        from spark_estimator.collectives import arrays, context

        made = []
        for _ in range(2):
            context.init()
            arrays.allreduce(numpy.ones(1))
            arrays.allreduce(numpy.ones(1))
            arrays.broadcast(numpy.ones(1))
            noted = [line.split()[-1] for line in context.engine().describe("flight_recorder").splitlines()]
            made += [name for name in noted if "noname" in name]
            context.shutdown()
        return made

    once = ["allreduce.noname.0", "allreduce.noname.1", "broadcast.noname.0"]
    assert run_ranks(1, names) == [once * 2]


def test_ranks_of_several_hosts() -> None:
    """The facts decide about hosts, so one machine can play three."""

    def topology(_rank: int) -> tuple[object, int]:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        total = arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM)[0]
        return context.topology(), int(total)

    job = make_local_rendezvous(3)
    peers = [dataclasses.replace(peer, host_id=host) for peer, host in zip(job[0][0].peers, "aba", strict=True)]
    changed = [(dataclasses.replace(rendezvous, peers=tuple(peers)), endpoint) for rendezvous, endpoint in job]
    with Ranks(topology, changed) as ranks:
        outcomes = ranks.wait()
    assert [outcome.trace for outcome in outcomes] == [""] * 3
    for rank, numbers in enumerate([(0, 2, 0, 2), (0, 1, 1, 2), (1, 2, 0, 1)]):
        place, total = outcomes[rank].value
        assert (place.local_rank, place.local_size, place.cross_rank, place.cross_size) == numbers
        assert not place.is_homogeneous
        assert total == 3


@pytest.mark.parametrize("encrypted", [False, True])
def test_several_data_connections_between_hosts(encrypted: bool) -> None:
    """Of three ranks, two are on one host; also in a process set, and after another init()."""

    def sums(rank: int) -> list[tuple[int, bool]]:
        import contextlib
        import os
        import socket
        from pathlib import Path

        import numpy

        from spark_estimator.collectives import arrays, context

        def tcp_connections() -> int:
            number = 0
            for path in Path("/proc/self/fd").iterdir():
                if path.is_socket():
                    with socket.socket(fileno=os.dup(int(path.name))) as sock:
                        if sock.family == socket.AF_INET:
                            with contextlib.suppress(OSError):  # the listening one
                                number += bool(sock.getpeername())
            return number

        results = []
        for _ in range(2):
            context.init(process_sets="dynamic")
            number = tcp_connections()
            pair = context.add_process_set([0, 2])
            right = True
            for count in (1, 100_003, 3_000_001):
                values = numpy.arange(count) % 1000 + rank
                total = arrays.allreduce(values, arrays.ReduceOp.SUM)
                right &= bool((total == numpy.arange(count) % 1000 * 3 + 3).all())
                if rank != 1:
                    total = arrays.allreduce(values, arrays.ReduceOp.SUM, process_set=pair)
                    right &= bool((total == numpy.arange(count) % 1000 * 2 + 2).all())
            results.append((number, right))
            context.shutdown()
        return results

    job = make_local_rendezvous(3, encrypted=encrypted)
    peers = tuple(dataclasses.replace(peer, host_id=host) for peer, host in zip(job[0][0].peers, "aab", strict=True))
    changed = [(dataclasses.replace(rendezvous, peers=peers), endpoint) for rendezvous, endpoint in job]
    with Ranks(sums, changed, environ={"SPARK_ESTIMATOR_CONNECTIONS": "3"}) as ranks:
        outcomes = ranks.wait()
    assert [outcome.trace for outcome in outcomes] == [""] * 3
    # One for control and three for data with each rank on the other host.
    assert [outcome.value for outcome in outcomes] == [[(4, True)] * 2, [(4, True)] * 2, [(8, True)] * 2]


def test_a_rank_that_never_joins_is_named() -> None:
    def join(rank: int) -> None:
        from spark_estimator.collectives import context

        if rank != 1:
            context.init()

    with pytest.raises(RanksFailedError, match=r"PeerLostError.*rank 1 \(host") as raised:
        run_ranks(3, join, environ={"HOROVOD_START_TIMEOUT": "2"})
    assert [outcome.returned for outcome in raised.value.outcomes] == [False, True, False]


def test_leaving_at_exit_needs_no_call() -> None:
    def leave(rank: int) -> None:
        from spark_estimator.collectives import context

        context.init()

    run_ranks(2, leave)


def test_ctrl_c_ends_the_wait_for_the_others() -> None:
    def interrupted(rank: int) -> str:
        import os
        import signal
        import threading
        import time

        from spark_estimator.collectives import context

        if rank == 1:
            time.sleep(3)
            return "never joined"
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            context.init()
        except KeyboardInterrupt:
            assert not context.is_initialized()
            return "interrupted"
        return "joined"

    started = {"HOROVOD_START_TIMEOUT": "1000"}
    assert run_ranks(2, interrupted, environ=started) == ["interrupted", "never joined"]
