"""What surrounds a rank misbehaves: its clock jumps, its interpreter is held, its system has no threads left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks import wrong_clock
from tests.ranks import run_ranks

LIMITS = {
    "SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.2",
    "SPARK_ESTIMATOR_SILENCE_SECONDS": "2",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
}


@pytest.mark.parametrize("shared", ["0", "1"])
def test_a_clock_that_jumps_matters_to_nothing(tmp_path: Path, shared: str) -> None:
    def reduce(rank: int) -> float:
        import time

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        first = time.time()
        for number in range(6):
            if rank == 0:
                time.sleep(0.3)
            total = arrays.allreduce(numpy.full(1000, number), arrays.ReduceOp.SUM, f"n{number}")
            assert (total == 2 * number).all()
        context.shutdown()
        return abs(time.time() - first)

    environ = {**LIMITS, **wrong_clock(tmp_path), "SPARK_ESTIMATOR_SHARED_MEMORY": shared}
    assert all(jumped > 1000 for jumped in run_ranks(2, reduce, environ=environ))


def test_a_rank_whose_interpreter_is_held_for_long_is_waited_for_and_named() -> None:
    """Longer than the silence that makes a rank lost: its engine, which needs no interpreter, lives on."""

    def hold(rank: int) -> None:
        import ctypes

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        arrays.barrier()
        if rank == 1:
            ctypes.PyDLL(None).usleep(5_000_000)
        assert (arrays.allreduce(numpy.ones(10), arrays.ReduceOp.SUM, "held") == 2).all()
        context.shutdown()
        print("right", flush=True)

    from tests.ranks import start_ranks

    with start_ranks(2, hold, environ=LIMITS) as ranks:
        outcomes = ranks.wait(timeout=60)
    assert all(outcome.returned for outcome in outcomes), outcomes
    assert "allreduce 'held' has waited" in outcomes[0].output and "for rank 1" in outcomes[0].output, outcomes[0]


def test_a_rank_without_threads_says_so() -> None:
    def start(rank: int) -> str:
        import os
        import resource

        from spark_estimator.collectives import context
        from spark_estimator.errors import HorovodInternalError

        if rank == 0:
            if os.getuid() == 0:
                os.setresuid(65_533, 65_533, 65_533)  # the limit does not hold for root
            resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
        try:
            context.init()
        except HorovodInternalError as error:
            return str(error)
        return "joined"

    message, other = run_ranks(2, start, environ={"HOROVOD_START_TIMEOUT": "5", **LIMITS})
    assert "thread" in message and "init() on rank 0" in message, message
    assert "rank 0" in other, other
