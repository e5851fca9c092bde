"""Collectives between real processes: exact numbers, in any order, over both channels."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.ranks import run_ranks

CHANNELS = [{"SPARK_ESTIMATOR_SHARED_MEMORY": "1"}, {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"}]
both_channels = pytest.mark.parametrize("environ", CHANNELS, ids=["shared", "tcp"])


def random_allreduces(rank: int, seed: int, total: int) -> dict[str, int]:
    """Submits `total` random allreduces in an order of this rank's own, and checks every element of every result."""
    import random

    import numpy

    from spark_estimator._native import DType, Op, ReduceOp
    from spark_estimator.collectives import context, ops

    context.init()
    size = context.size()
    specs = random.Random(seed)  # the same on all ranks
    work = []
    for number in range(total):
        dtype = specs.choice(list(DType))
        op = specs.choice(
            [op for op in ReduceOp if op is not ReduceOp.ADASUM and (dtype, op) != (DType.BOOL, ReduceOp.AVERAGE)]
        )
        buckets = specs.choice([1, 1, 1, specs.randint(2, 5)])
        counts = [specs.choice([0, 1, specs.randint(2, 100), specs.randint(100, 5000)]) for _ in range(buckets)]
        if number % 50 == 0:
            counts[0] = specs.randint(100_000, 300_000)
        work.append(
            (f"tensor {specs.random()} {number}", dtype, op, counts, specs.random() < 0.5, specs.randrange(2**32))
        )
    order = list(range(total))
    random.Random(f"{seed} {rank}").shuffle(order)

    def values(of_rank: int, op: ReduceOp, dtype: DType, count: int, value_seed: int) -> numpy.ndarray:
        """Small whole numbers, of which every result is exact in every type."""
        generator = numpy.random.default_rng([value_seed, of_rank])
        if dtype is DType.BOOL:
            return generator.integers(0, 2, count)
        if op is ReduceOp.PRODUCT:
            return generator.integers(1, 3, count)
        numbers = generator.integers(0, 5, count)
        return numbers * size if op is ReduceOp.AVERAGE else numbers

    def expected(op: ReduceOp, dtype: DType, count: int, value_seed: int) -> numpy.ndarray:
        stacked = numpy.stack([values(of_rank, op, dtype, count, value_seed) for of_rank in range(size)])
        if dtype is DType.BOOL:
            return stacked.max(0) if op in (ReduceOp.SUM, ReduceOp.MAX) else stacked.min(0)
        reduced = {
            ReduceOp.AVERAGE: lambda: stacked.sum(0) // size,
            ReduceOp.SUM: lambda: stacked.sum(0),
            ReduceOp.MIN: lambda: stacked.min(0),
            ReduceOp.MAX: lambda: stacked.max(0),
            ReduceOp.PRODUCT: lambda: stacked.prod(0),
        }
        return reduced[op]()

    def stored(numbers: numpy.ndarray, dtype: DType) -> numpy.ndarray:
        if dtype is DType.BFLOAT16:  # numpy has none: the upper half of a float32
            return (numbers.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
        return numbers.astype(dtype.name.lower())

    pending = []
    for number in order:
        name, dtype, op, counts, in_place, value_seed = work[number]
        inputs = [stored(values(rank, op, dtype, count, value_seed + i), dtype) for i, count in enumerate(counts)]
        outputs = inputs if in_place else [numpy.empty_like(array) for array in inputs]
        tensors = [
            ops.Tensor(source.ctypes.data, target.ctypes.data, dtype, source.shape)
            for source, target in zip(inputs, outputs, strict=True)
        ]
        handle = ops.submit(Op.ALLREDUCE, name, tensors, reduce_op=op, keep=(inputs, outputs))
        pending.append((handle, number, outputs))
    for handle, number, outputs in pending:
        handle.wait()
        assert handle.done()
        name, dtype, op, counts, _, value_seed = work[number]
        for i, count in enumerate(counts):
            right = stored(expected(op, dtype, count, value_seed + i), dtype)
            assert numpy.array_equal(outputs[i], right), (name, dtype, op, count, outputs[i], right)
    return {
        name: context.engine().read_counter(name)
        for name in ("requests", "shared_memory", "stream_bytes", "fused_requests")
    }


@both_channels
@pytest.mark.parametrize("n", [2, 3])
def test_a_thousand_random_allreduces_in_different_orders(n: int, environ: dict[str, str]) -> None:
    for counters in run_ranks(n, random_allreduces, timeout=110, args=(n, 1000), environ=environ):
        assert counters["requests"] == 1001  # and one by which init() compares process sets
        assert counters["shared_memory"] == int(environ["SPARK_ESTIMATOR_SHARED_MEMORY"])
        assert counters["fused_requests"] > 0


def test_without_fusion() -> None:
    for counters in run_ranks(2, random_allreduces, args=(7, 200), environ={"HOROVOD_FUSION_THRESHOLD": "0"}):
        assert counters["fused_requests"] == 0


def channels_agree(rank: int) -> list[bytes]:
    """Results of floating-point sums, whose last bits depend on the order of addition."""
    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    generator = numpy.random.default_rng(rank)
    results = []
    for count in (1, 1000, 100_003, 1_000_000):
        for dtype in (numpy.float32, numpy.float64, numpy.float16):
            array = generator.standard_normal(count).astype(dtype)
            results.append(arrays.allreduce(array, prescale=0.5, postscale=3).tobytes())
    return results


@pytest.mark.parametrize("n", [2, 3])
def test_all_ranks_get_the_same_bits_and_both_channels_the_same_numbers(n: int) -> None:
    by_channel = []
    for environ in CHANNELS:
        results = run_ranks(n, channels_agree, environ=environ)
        assert all(result == results[0] for result in results)
        by_channel.append(results[0])
    for number, (shared, tcp) in enumerate(zip(*by_channel, strict=True)):
        dtype = (numpy.float32, numpy.float64, numpy.float16)[number % 3]
        numpy.testing.assert_allclose(
            numpy.frombuffer(shared, dtype),
            numpy.frombuffer(tcp, dtype),
            rtol=1e-2 if number % 3 == 2 else 1e-5,
            atol=1e-2,
        )


@both_channels
def test_prescale_and_postscale(environ: dict[str, str]) -> None:
    def scaled(rank: int) -> tuple[list[float], list[int]]:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        array = numpy.full(3, rank + 1, numpy.float32)
        scaled = arrays.allreduce(array, arrays.ReduceOp.SUM, prescale=2, postscale=0.5)
        average = arrays.allreduce(numpy.full(2, rank * 2 + 5, numpy.int32))
        return scaled.tolist(), average.tolist()

    assert run_ranks(2, scaled, environ=environ) == [([3.0] * 3, [6, 6])] * 2


@both_channels
@pytest.mark.parametrize("n", [2, 3])
def test_allgather(n: int, environ: dict[str, str]) -> None:
    def gathers(rank: int) -> None:
        import gc

        import numpy

        from spark_estimator._native import DType, Op
        from spark_estimator.collectives import arrays, context, ops

        context.init()
        size = context.size()
        # Ragged, with rows of zero ranks among them.
        for rows in (
            [3] * size,
            [rank_ * 2 for rank_ in range(size)],
            [0] * size,
            [50_000 * (size - r) for r in range(size)],
        ):
            array = numpy.full((rows[rank], 2, 3), rank, numpy.float32)
            gathered = arrays.allgather(array)
            assert gathered.shape == (sum(rows), 2, 3)
            right = numpy.concatenate([numpy.full((count, 2, 3), r, numpy.float32) for r, count in enumerate(rows)])
            assert numpy.array_equal(gathered, right)
            gathered += 1  # the memory is the caller's own
        array = numpy.arange(4, dtype=numpy.int64) + rank
        tensor = ops.Tensor(array.ctypes.data, 0, DType.INT64, (4,))
        handle = ops.submit(Op.ALLGATHER, "kept", [tensor], keep=array)
        data, counts = handle.gathered()
        assert handle.gathered()[0] is data
        assert counts == (4,) * size
        view = numpy.frombuffer(data, numpy.int64)
        del data, handle, array
        gc.collect()
        context.shutdown()
        gc.collect()
        assert view.tolist() == [value + r for r in range(size) for value in range(4)]

    run_ranks(n, gathers, environ=environ)


@both_channels
@pytest.mark.parametrize("n", [2, 3])
def test_broadcast_from_every_root(n: int, environ: dict[str, str]) -> None:
    def broadcasts(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        for root in range(context.size()):
            for count in (0, 1, 7, 100_001):
                for dtype in ("bool", "uint8", "int16", "float16", "float64"):
                    array = (numpy.arange(count) % 100 + rank).astype(dtype)
                    right = (numpy.arange(count) % 100 + root).astype(dtype)
                    assert numpy.array_equal(arrays.broadcast(array, root), right)
        scalar = arrays.broadcast(numpy.array(rank + 0.5), 1)
        assert scalar.shape == ()
        assert scalar == 1.5

    run_ranks(n, broadcasts, environ=environ)


def test_barrier_holds_until_all_are_there(tmp_path: Any) -> None:
    def barriers(rank: int, folder: str) -> bool:
        import pathlib
        import time

        from spark_estimator.collectives import context, ops

        context.init()
        mark = pathlib.Path(folder, "rank 1 came")
        if rank == 1:
            time.sleep(0.5)
            mark.touch()
        ops.barrier()
        return mark.exists()

    assert run_ranks(2, barriers, args=(str(tmp_path),)) == [True, True]


def test_threads_may_submit_at_once() -> None:
    def threads(rank: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()

        def work(thread: int) -> None:
            for number in range(50):
                array = numpy.full(thread * 100 + number, rank, numpy.int64)
                assert (arrays.allreduce(array, arrays.ReduceOp.SUM, f"{thread}/{number}") == 1).all()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))

    run_ranks(2, threads)


def test_a_handle_dropped_unfinished_keeps_its_tensors_until_the_end() -> None:
    def drops(rank: int) -> None:
        import gc
        import time
        import weakref

        import numpy

        from spark_estimator.collectives import arrays, context, ops

        context.init()
        array = numpy.ones(1000)
        gone = weakref.ref(array)
        if rank == 0:
            arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "dropped")
            del array
            gc.collect()
            time.sleep(0.3)
            assert gone() is not None, "the engine may still write into it"
            ops.barrier()
            for _ in range(100):  # the next submissions find that it is done
                ops.barrier()
            gc.collect()
            assert gone() is None
        else:
            time.sleep(0.5)
            assert (arrays.allreduce(array, arrays.ReduceOp.SUM, "dropped") == 2).all()
            for _ in range(101):
                ops.barrier()

    run_ranks(2, drops)


def test_waiting_can_end_early_and_go_on() -> None:
    def waits(rank: int) -> None:
        import datetime
        import time

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context

        context.init()
        array = numpy.ones(10)
        if rank == 1:
            time.sleep(1)
        handle = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "late")
        if rank == 0:
            assert not handle.done()
            with pytest.raises(TimeoutError, match=r"allreduce 'late' did not complete on rank 0 within 0\.2 seconds"):
                handle.wait(datetime.timedelta(seconds=0.2))
            assert "in progress" in repr(handle)
        handle.wait()
        handle.wait()
        assert (array == 2).all()
        assert repr(handle) == "<Handle allreduce 'late': ok>"
        with pytest.raises(TypeError, match="no rows are gathered"):
            handle.gathered()

    run_ranks(2, waits)


def test_ctrl_c_ends_a_wait() -> None:
    def interrupted(rank: int) -> str:
        import os
        import signal
        import threading

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        if rank == 1:
            arrays.allreduce(numpy.ones(1), name="together")
            return "done"
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            arrays.allreduce(numpy.ones(1), name="alone")
        except KeyboardInterrupt:
            arrays.allreduce(numpy.ones(1), name="together")
            return "interrupted"
        return "not interrupted"

    assert run_ranks(2, interrupted) == ["interrupted", "done"]
