"""Jobs of more ranks than connect with each other at the start: real processes, over TCP and on one host."""

from __future__ import annotations

import re

import pytest

from tests.ranks import run_ranks, start_ranks

pytestmark = pytest.mark.timeout(300)
SIZE = 9


def numbers(rank: int) -> list[float]:
    import multiprocessing

    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.collectives.arrays import ReduceOp
    from tests.scenarios.collectives.programs import sums_and_rows

    results = []
    for _ in range(2):
        context.init(process_sets="dynamic")
        size = context.size()
        results += sums_and_rows()
        exchanged, _ = arrays.alltoall(numpy.full((size, 50_000), rank, numpy.float64), name="exchange")
        results.append(float(exchanged.mean()))
        child = multiprocessing.get_context("fork").Process(target=len, args=("forked",))
        child.start()
        child.join()
        assert child.exitcode == 0
        for root in range(size):
            value = arrays.broadcast(numpy.full(100_000, float(rank)), root, f"from {root}")
            results.append(float(value.mean()))
        members = [0, 1, 2, 4, 5, 6]
        some = context.add_process_set(members)
        if rank in members:
            total = arrays.allreduce(numpy.full(300_000, float(rank)), ReduceOp.SUM, "set", process_set=some)
            results.append(float(total.mean()))
        context.shutdown()
    return results


@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "encrypted"])
@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared", "tcp"])
def test_the_numbers_are_those_of_a_mesh(shared: str, encrypted: bool) -> None:
    environ = {"SPARK_ESTIMATOR_SHARED_MEMORY": shared, "SPARK_ESTIMATOR_MESH_RANKS": "4"}
    overlay = run_ranks(SIZE, numbers, environ=environ, encrypted=encrypted)
    assert overlay == run_ranks(SIZE, numbers, environ={**environ, "SPARK_ESTIMATOR_MESH_RANKS": "16"})
    assert overlay[0][0] == SIZE * (SIZE + 1) / 2


def test_a_rank_that_dies_is_named_by_all() -> None:
    def work(rank: int) -> str:
        import os
        import signal

        import numpy

        from spark_estimator.collectives import arrays, context
        from spark_estimator.collectives.arrays import ReduceOp
        from spark_estimator.errors import PeerLostError

        context.init()
        values = numpy.ones(200_000, numpy.float32)
        arrays.allreduce(values, ReduceOp.SUM, "first")
        if rank == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                arrays.allreduce(values, ReduceOp.SUM, "next")
        except PeerLostError as error:
            return str(error)

    environ = {"SPARK_ESTIMATOR_SHARED_MEMORY": "0", "SPARK_ESTIMATOR_MESH_RANKS": "4"}
    with start_ranks(SIZE, work, environ=environ) as ranks:
        for outcome in ranks.wait():
            if outcome.rank != 4:
                assert outcome.returned, outcome
                assert re.search(r"rank 4 .*is lost: its connection (ended|broke)", outcome.value), outcome
