"""Collectives without a name: they are matched by order, and repeated ones are not negotiated again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks, start_ranks

both_channels = pytest.mark.parametrize("shared", ["1", "0"], ids=["shared", "tcp"])


@both_channels
def test_what_comes_again_is_not_negotiated_again(shared: str) -> None:
    def repeated(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context, ops
        from tests.steady import check_steady

        context.init(process_sets="dynamic")
        size = context.size()
        pair = context.add_process_set([0, 1])
        engines = [context.engine(None), *([context.engine(pair)] if pair.included() else [])]

        def step(number: int) -> None:
            for count in (1, 5, 30_000):
                values = numpy.full(count, rank + number, numpy.float32)
                assert (arrays.allreduce(values, arrays.ReduceOp.SUM)[-1]) == size * number + sum(range(size))
                assert (arrays.allreduce(values, arrays.ReduceOp.MAX)[-1]) == size - 1 + number
            summed = arrays.grouped_allreduce([numpy.ones(3), numpy.ones(4, numpy.int32)], arrays.ReduceOp.SUM)
            assert [array.tolist() for array in summed] == [[size] * 3, [size] * 4]
            for root in (0, 1):
                assert arrays.broadcast(numpy.full(2, rank + number), root).tolist() == [root + number] * 2
            for factor in (1, 7):
                rows = [factor * (other + 1) for other in range(size)]
                assert len(arrays.allgather(numpy.full((rows[rank], 2), number))) == sum(rows)
            assert len(arrays.grouped_allgather([numpy.ones(1), numpy.ones(rank)])[1]) == sum(range(size))
            assert len(arrays.alltoall(numpy.ones((size, 2)))[0]) == size
            assert arrays.reducescatter(numpy.ones(size), arrays.ReduceOp.SUM).tolist() == [size]
            ops.barrier()
            if pair.included():
                got = arrays.allreduce(numpy.full(2, number), arrays.ReduceOp.SUM, process_set=pair)
                assert got.tolist() == [2 * number] * 2
                ops.barrier(pair)

        check_steady(step, 3, 20, engines)  # the third time they have become plans

    run_ranks(3, repeated, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


@both_channels
def test_many_in_flight_keep_their_order(shared: str) -> None:
    def many(rank: int) -> None:
        import numpy

        from spark_estimator._native import DType, Op
        from spark_estimator.collectives import arrays, context, ops
        from tests.steady import check_steady

        context.init()
        kind = ops.kind_of_unnamed("allreduce")

        def step(turn: int) -> None:
            held = [numpy.full(4 + (number % 5 == 2), number, numpy.float32) for number in range(60)]
            handles = []
            for number, array in enumerate(held):
                place = ops.Tensor(array.ctypes.data, array.ctypes.data, DType.FLOAT32, array.shape)
                handles.append(ops.submit(Op.ALLREDUCE, kind, [place], keep=array, unnamed=True))
                if number % 20 == 7:  # while others are in flight, of the same kind and of another
                    got = arrays.allreduce(numpy.full(3, number, numpy.float32), arrays.ReduceOp.SUM)
                    assert got.tolist() == [2 * number] * 3
                    assert arrays.broadcast(numpy.full(3, rank + number)).tolist() == [number] * 3
            for handle in handles if (rank + turn) % 2 else reversed(handles):
                handle.wait()
            for number, array in enumerate(held):
                assert (array == 2 * number).all()

        check_steady(step, 2, 6)

    run_ranks(2, many, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


@both_channels
def test_what_differs_is_told_with_its_number(shared: str) -> None:
    def differ(rank: int) -> list[str]:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import MismatchError

        context.init()
        messages = []
        for _ in range(4):  # from the third time on, both forms are plans
            for count in (2, 3):
                assert (arrays.allreduce(numpy.ones(count), arrays.ReduceOp.SUM) == 2).all()
            with pytest.raises(MismatchError) as raised:
                arrays.allreduce(numpy.ones(2 + rank))
            messages.append(str(raised.value))
        with pytest.raises(MismatchError) as raised:
            arrays.broadcast(numpy.ones(2), root_rank=rank)
        messages.append(str(raised.value))
        assert (arrays.allreduce(numpy.ones(2), arrays.ReduceOp.SUM) == 2).all()
        return messages

    first, second = run_ranks(2, differ, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})
    assert first == second
    for turn, message in enumerate(first[:4]):
        assert "tensor shapes: rank 0 has [2]; rank 1 has [3]" in message
        assert f"'allreduce.noname.{3 * turn + 2}'" in message
    assert "root ranks: rank 0 has 0; rank 1 has 1" in first[4]
    assert "'broadcast.noname.0'" in first[4]


def test_a_call_that_is_refused_here_is_not_counted() -> None:
    def refused(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator._native import DType, Op
        from spark_estimator.collectives import arrays, context, ops

        context.init()
        for _ in range(3):
            if rank == 1:
                with pytest.raises(ValueError, match="complex64"):
                    arrays.allreduce(numpy.ones(2, "complex64"))
                nowhere = ops.Tensor(0, 0, DType.FLOAT32, (2,))
                for way in (ops.run, ops.submit):
                    with pytest.raises(ValueError, match="null"):
                        way(Op.ALLREDUCE, ops.kind_of_unnamed("allreduce"), [nowhere], unnamed=True)
            assert (arrays.allreduce(numpy.ones(2), arrays.ReduceOp.SUM) == 2).all()

    run_ranks(2, refused)


def test_a_stall_is_told_with_its_number_and_who_comes_late_fails_as_well() -> None:
    def late(rank: int) -> str:
        import time

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import MismatchError

        context.init()
        for _ in range(7):
            arrays.allreduce(numpy.ones(3))
        began = time.monotonic()
        if rank == 1:
            time.sleep(7)
        with pytest.raises(MismatchError) as raised:
            arrays.allreduce(numpy.ones(3))
        time.sleep(max(0.0, began + 7 - time.monotonic()))
        for number in range(5):
            assert (arrays.allreduce(numpy.full(3, number), arrays.ReduceOp.SUM) == 2 * number).all()
        return str(raised.value)

    environ = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with start_ranks(2, late, environ=environ) as ranks:
        outcomes = ranks.wait()
    for outcome in outcomes:
        assert outcome.returned, outcome
        assert "'allreduce.noname.7' has waited" in outcome.value
        assert "rank 1" in outcome.value
        assert "'allreduce.noname.7' has waited" in outcome.output


def test_more_forms_than_are_remembered() -> None:
    def forms(rank: int) -> int:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        for _ in range(4):
            for count in range(1, 40):
                for dtype in (numpy.float32, numpy.int64):
                    got = arrays.allreduce(numpy.full(count, rank + count, dtype), arrays.ReduceOp.SUM)
                    assert got.tolist() == [1 + 2 * count] * count
        return len(context.engine().plans)

    for capacity in ("0", "7", "1024"):
        assert max(run_ranks(2, forms, environ={"HOROVOD_CACHE_CAPACITY": capacity})) <= 513


def test_threads_each_with_a_kind_of_its_own() -> None:
    def threads(rank: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        import numpy

        from spark_estimator.collectives import arrays, context, ops

        context.init()

        def reduced(count: int) -> None:
            for number in range(200):
                got = arrays.allreduce(numpy.full(count, number), arrays.ReduceOp.SUM)
                assert got.tolist() == [2 * number] * count

        def sent(count: int) -> None:
            for number in range(200):
                assert arrays.broadcast(numpy.full(count, rank + number), 1).tolist() == [1 + number] * count

        def met(_count: int) -> None:
            for _ in range(200):
                ops.barrier()

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work, 3) for work in (reduced, sent, met)]:
                done.result()

    run_ranks(2, threads)


def test_the_names_of_unnamed_calls_are_refused_to_named_ones() -> None:
    def named_so(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        with pytest.raises(ValueError, match=r"'allreduce\.noname\.12'.*to operations without a name"):
            arrays.allreduce(numpy.ones(1), name="allreduce.noname.12")
        assert arrays.allreduce(numpy.ones(1), name="allreduce.noname.12.gradient").tolist() == [1]

    run_ranks(2, named_so)


@both_channels
def test_a_rank_that_has_looked_once_and_computes_does_not_hold_up_the_others(shared: str, tmp_path: Path) -> None:
    def one_computes(rank: int, done: Path) -> None:
        import time

        import numpy

        from spark_estimator._native import DType, Op, ReduceOp
        from spark_estimator.collectives import context, ops

        context.init()
        plans = [ops.plan(Op.ALLREDUCE, f"p{k}", [(DType.FLOAT64, (4,))], reduce_op=ReduceOp.SUM) for k in range(2)]
        values = [numpy.ones(4) for _ in plans]

        def give(k: int, defer: bool) -> Any:
            address = values[k].ctypes.data
            return plans[k].submit([address], [address], values[k], defer=defer)

        for k in (0, 1, 0, 1):
            give(k, False).wait()
        ops.barrier()
        if rank == 1:
            first = give(0, True)
            first.done()  # its proposal, with the data, is out
            second = give(1, True)
            while not done.exists():  # "computes" until rank 0 has both
                time.sleep(0.01)
            first.wait()
            second.wait()
        else:
            time.sleep(0.2)
            give(0, False).wait()
            give(1, False).wait()
            done.touch()
        assert values[0].tolist() == values[1].tolist() == [8.0] * 4

    environ = {"SPARK_ESTIMATOR_SHARED_MEMORY": shared, "SPARK_ESTIMATOR_OVERLAP": "0"}
    run_ranks(2, one_computes, args=(tmp_path / "done",), environ=environ)
