"""Collectives on numpy arrays, op by op; the numbers of random ones are compared in test_properties."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks

both_channels = pytest.mark.parametrize("shared", ["1", "0"], ids=["shared", "tcp"])


@both_channels
@pytest.mark.parametrize("n", [1, 2, 3])
def test_groups_of_mixed_types(n: int, shared: str) -> None:
    def groups(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        size = context.size()
        inputs = [
            numpy.full((3, 2), rank + 1, numpy.float32),
            numpy.full((), rank, numpy.int64),
            numpy.zeros((0, 4), numpy.int8),
            numpy.full(5, rank % 2 == 0),
            numpy.arange(12).reshape(3, 4).T * (rank + 1),
        ]
        total = size * (size + 1) // 2
        for name in (None, "group", "group", "group", "group"):
            summed = arrays.grouped_allreduce(inputs, arrays.ReduceOp.SUM, name)
            assert [(array.shape, array.dtype) for array in summed] == [(array.shape, array.dtype) for array in inputs]
            assert (summed[0] == total).all()
            assert summed[1] == total - size
            assert summed[3].all()
            assert (summed[4] == numpy.arange(12).reshape(3, 4).T * total).all()
        for name in (None, "rows", "rows", "rows", "rows"):
            rows = [numpy.full((rank, 2), rank, numpy.float64), numpy.full(size - rank, rank, numpy.uint8)]
            first, second = arrays.grouped_allgather(rows, name)
            assert first.shape == (total - size, 2)
            assert first[:, 0].tolist() == [r for r in range(size) for _ in range(r)]
            assert second.tolist() == [r for r in range(size) for _ in range(size - r)]
        for name in (None, "shares", "shares", "shares", "shares"):
            whole = [numpy.arange(7 * 3, dtype=numpy.int32).reshape(7, 3), numpy.ones(size - 1, numpy.float16)]
            mine, half = arrays.grouped_reducescatter(whole, arrays.ReduceOp.SUM, name)
            share = 7 // size + (rank < 7 % size)
            start = sum(7 // size + (r < 7 % size) for r in range(rank))
            assert (mine == whole[0][start : start + share] * size).all()
            assert mine.shape == (share, 3)
            assert half.tolist() == ([] if rank == size - 1 else [size])

    run_ranks(n, groups, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


def test_results_begin_where_frameworks_take_them_without_a_copy() -> None:
    def reduce(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        for form in ("uint8", "int16", "float32", "float64", "bool"):
            for count in (4096, 5001, 70001):
                array = numpy.ones(count, form)
                whole = arrays.allreduce(array, arrays.ReduceOp.MAX)
                share = arrays.reducescatter(array, arrays.ReduceOp.SUM)
                assert whole.tolist() == array.tolist() and len(share) in (count // 2, count - count // 2)
                for result in (whole, share):
                    if result.nbytes >= 4096:
                        assert result.ctypes.data % 64 == 0 and result.flags.c_contiguous and result.flags.writeable

    run_ranks(2, reduce)


@both_channels
def test_memory_of_large_results_is_used_again_once_nobody_holds_them(shared: str) -> None:
    def gather(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        rows = 600_000  # of 8 bytes: 9.6 MB from two ranks
        held = []
        places = set()
        for turn in range(8):
            result = arrays.allgather(numpy.full(rows, 10.0 * turn + rank), "rows")
            assert result.reshape(2, rows).tolist() == [[10.0 * turn] * rows, [10.0 * turn + 1] * rows]
            places.add(result.ctypes.data)
            if turn in (2, 5):
                held.append((turn, result[1:], result.ctypes.data))
        for turn, result, _ in held:
            assert result[0] == 10.0 * turn
            assert result[-1] == 10.0 * turn + 1
        assert len({address for _, _, address in held}) == 2
        assert len(places) < 8, places

    run_ranks(2, gather, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


@both_channels
@pytest.mark.parametrize("n", [1, 2, 3])
def test_alltoall(n: int, shared: str) -> None:
    def alltoalls(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        size = context.size()
        for name in (None, "all", "all", "all"):
            # Rank r sends r * 10 + to, (to + 1) times, to each.
            splits = [to + 1 for to in range(size)]
            array = numpy.concatenate([numpy.full((to + 1, 2), rank * 10 + to, numpy.int16) for to in range(size)])
            got, received = arrays.alltoall(array, splits, name)
            assert received == (rank + 1,) * size
            assert got.shape == ((rank + 1) * size, 2)
            assert got[:, 1].tolist() == [r * 10 + rank for r in range(size) for _ in range(rank + 1)]
        even, received = arrays.alltoall(numpy.arange(2 * size) + 100 * rank)
        assert received == (2,) * size
        assert even.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
        nothing, received = arrays.alltoall(numpy.ones((0, 3)))
        assert (nothing.shape, received) == ((0, 3), (0,) * size)

    run_ranks(n, alltoalls, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


@both_channels
def test_reducescatter_of_fewer_rows_than_ranks(shared: str) -> None:
    def scatters(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        for name in (None, "few", "few", "few"):
            got = arrays.reducescatter(numpy.full((2, 3), rank, numpy.float32), name=name)
            assert got.tolist() == ([[1.0] * 3] if rank < 2 else [])
            assert got.shape == (int(rank < 2), 3)
        scaled = arrays.reducescatter(numpy.full(3, 2.0), arrays.ReduceOp.SUM, prescale=0.5, postscale=4.0)
        assert scaled.tolist() == [12.0]

    run_ranks(3, scatters, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


@both_channels
def test_adasum(shared: str) -> None:
    def adasum(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        inputs = [numpy.random.default_rng(r).standard_normal(5000) for r in range(2)]

        def combined(left: numpy.ndarray, right: numpy.ndarray) -> numpy.ndarray:
            """Of two gradients: arXiv 2006.02924, section 3."""
            dot = (left * right).sum()
            return (1 - dot / (2 * (left * left).sum())) * left + (1 - dot / (2 * (right * right).sum())) * right

        for dtype, tolerance in ((numpy.float64, 1e-12), (numpy.float32, 1e-5), (numpy.float16, 1e-2)):
            got = arrays.allreduce(inputs[rank].astype(dtype), arrays.ReduceOp.ADASUM)
            numpy.testing.assert_allclose(got, combined(*inputs), rtol=tolerance, atol=tolerance)
        # Parallel gradients are averaged, orthogonal ones added.
        assert arrays.allreduce(numpy.array([3.0, 0.0]), arrays.ReduceOp.ADASUM).tolist() == [3.0, 0.0]
        got = arrays.allreduce(numpy.eye(2)[rank], arrays.ReduceOp.ADASUM)
        assert got.tolist() == [1.0, 1.0]
        # Each tensor of a group has its own coefficients.
        first, second = arrays.grouped_allreduce([numpy.eye(2)[rank], numpy.array([3.0])], arrays.ReduceOp.ADASUM)
        assert (first.tolist(), second.tolist()) == ([1.0, 1.0], [3.0])

    run_ranks(2, adasum, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


def test_a_group_is_done_whole_or_not_at_all() -> None:
    def differs(rank: int) -> str:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import MismatchError

        context.init()
        group = [numpy.ones(3), numpy.ones(4 + rank)]
        with pytest.raises(MismatchError) as raised:
            arrays.grouped_allreduce(group, arrays.ReduceOp.SUM, "group")
        assert all((array == 1).all() for array in group)
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 2).all()
        return str(raised.value)

    first, second = run_ranks(2, differs)
    assert first == second
    assert "[4]" in first
    assert "[5]" in first


def test_arrays_in_shared_memory() -> None:
    def shares(rank: int) -> None:
        import gc
        import os

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import NotInitializedError

        def held() -> int:
            """Bytes of all anonymous files of this process."""
            files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            return sum(
                os.stat(file).st_blocks * 512
                for file in files
                if os.path.lexists(file) and os.readlink(file).startswith("/memfd:")
            )

        context.init()
        kept = arrays.shared_empty((1000, 300))
        assert (kept.shape, kept.dtype, kept.any()) == ((1000, 300), numpy.float32, False)
        for _ in range(4):
            kept[:] = rank + 1
            arrays.allreduce_into(kept, kept, arrays.ReduceOp.SUM, "in place").wait()
            assert (kept == 3).all()
        # Beside a private one, on one rank; and for every other op.
        other = kept if rank else numpy.full_like(kept, 3)
        assert (arrays.allreduce(other) == 3).all()
        assert (arrays.allgather(kept[:1]) == 3).all()
        assert arrays.shared_empty(0).shape == (0,)
        assert arrays.shared_empty(7, "int8").dtype == numpy.int8
        # A view keeps the memory, also beyond the job; unreferenced memory is freed.
        view = kept[10]
        del kept, other
        gc.collect()
        before = held()
        for _ in range(10):
            arrays.shared_empty(10_000_000, "uint8")
        assert held() < before + 10_000_000
        context.shutdown()
        gc.collect()
        assert (view == 3).all()
        del view
        with pytest.raises(NotInitializedError):
            arrays.shared_empty(3)

    run_ranks(2, shares)


@pytest.mark.parametrize(
    ("size", "environ"), [(1, {}), (2, {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"})], ids=["alone", "tcp"]
)
def test_without_shared_memory_shared_arrays_are_ordinary_ones(size: int, environ: dict[str, str]) -> None:
    def reduces(rank: int) -> None:
        from spark_estimator.collectives import arrays, context

        context.init()
        array = arrays.shared_empty((2, 3), "float64")
        assert (array.shape, array.any()) == ((2, 3), False)
        array += rank + 1
        arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "in place").wait()
        assert (array == sum(range(1, context.size() + 1))).all()

    run_ranks(size, reduces, environ=environ)


def test_arguments_of_other_types_are_refused_in_words() -> None:
    def refuses(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context

        context.init()
        some = numpy.ones((4, 2))
        for function, arguments, options, message in [
            (arrays.allreduce, (some,), {"name": 5}, "name of a collective must be a string, not 5"),
            (arrays.allreduce, (some,), {"name": ["a"]}, r"must be a string, not \['a'\]"),
            (arrays.allreduce, (some,), {"name": b"a"}, "must be a string, not b'a'"),
            (arrays.allreduce, (some, "sum"), {}, "op must be one of ReduceOp.AVERAGE, .*not 'sum'"),
            (arrays.allreduce, (some, ["sum"]), {}, r"op must be one of .*not \['sum'\]"),
            (arrays.allreduce, (some,), {"prescale": "2x"}, "prescale_factor must be a number, not '2x'"),
            (arrays.allreduce, (some,), {"postscale": None}, "postscale_factor must be a number, not None"),
            (
                arrays.allreduce,
                (some,),
                {"process_set": [0]},
                r"process_set must be a registered ProcessSet, not \[0\]",
            ),
            (arrays.allreduce, (None,), {}, "arrays of object aren't supported"),
            (arrays.allreduce, ("text",), {}, "arrays of <U4 aren't supported"),
            (arrays.broadcast, (some, None), {}, "root_rank=None must be one of the ranks 0 to 1"),
            (arrays.broadcast, (some, 2), {}, "root_rank=2 must be one of the ranks 0 to 1"),
            (arrays.alltoall, (some, [2.0, 2.0]), {}, r"splits must be whole numbers.*\[2.0, 2.0\]"),
            (arrays.alltoall, (some, 4), {}, "splits must be whole numbers.*4"),
            (arrays.alltoall, (some, [4]), {}, "must be 2 numbers"),
        ]:
            with pytest.raises((TypeError, ValueError), match=message):
                function(*arguments, **options)
        handle = arrays.allreduce_into(some, some, arrays.ReduceOp.SUM, "waits")
        with pytest.raises(TypeError, match=r"datetime.timedelta.*not 1.0"):
            handle.wait(1.0)
        handle.wait()
        # Nothing of it was sent. What is close enough to a number is one.
        halves = arrays.allreduce([1, 2], arrays.ReduceOp.SUM, prescale=numpy.float32(2), postscale=numpy.int8(1))
        assert (halves == [4, 8]).all()

    run_ranks(2, refuses)


def test_more_names_than_are_remembered() -> None:
    def many(rank: int) -> int:
        import numpy

        from spark_estimator.collectives import arrays, context, requests

        vars(requests)["_REMEMBERED"] = 512
        context.init()
        for _ in range(4):
            for number in range(600):
                got = arrays.allreduce(numpy.full(1, rank + number), arrays.ReduceOp.SUM, f"name {number}")
                assert got == 1 + 2 * number
        return len(context.engine().plans)

    assert max(run_ranks(2, many)) <= 513


def test_one_name_for_calls_of_several_forms() -> None:
    def forms(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        for _ in range(5):
            for count in (1, 2):
                for dtype in (numpy.float32, numpy.int64):
                    for op, right in ((arrays.ReduceOp.SUM, 3), (arrays.ReduceOp.MAX, 2)):
                        got = arrays.allreduce(numpy.full(count, rank + 1, dtype), op, "one name")
                        assert got.tolist() == [right] * count
            assert arrays.broadcast(numpy.full(3, rank), 1, "one name").tolist() == [1] * 3

    run_ranks(2, forms)


def test_threads_meet_under_different_names_and_refuse_the_same() -> None:
    def threads(rank: int) -> None:
        import time
        from concurrent.futures import ThreadPoolExecutor

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import DuplicateNameError

        context.init()

        def work(thread: int) -> None:
            for number in range(200):
                got = arrays.allreduce(numpy.full(10, number), arrays.ReduceOp.SUM, f"thread {thread}")
                assert (got == 2 * number).all()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        # While one thread waits under a name that is known, another cannot use it.
        if rank == 0:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(arrays.allreduce, numpy.ones(10, int), arrays.ReduceOp.SUM, "thread 0")
                time.sleep(0.5)
                array = numpy.ones(10, int)
                with pytest.raises(DuplicateNameError, match="thread 0"):
                    arrays.allreduce(array, arrays.ReduceOp.SUM, "thread 0")
                with pytest.raises(DuplicateNameError, match="thread 0"):
                    arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "thread 0")
                arrays.allreduce(numpy.ones(1), name="rank 1 may come")
                assert (waiting.result(60) == 2).all()
        else:
            arrays.allreduce(numpy.ones(1), name="rank 1 may come")
            assert (arrays.allreduce(numpy.ones(10, int), arrays.ReduceOp.SUM, "thread 0") == 2).all()

    run_ranks(2, threads)


def test_ctrl_c_ends_a_wait_under_a_known_name_and_harms_nothing() -> None:
    def interrupted(rank: int) -> str:
        import os
        import signal
        import threading

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        for _ in range(5):
            arrays.allreduce(numpy.ones(1000), name="known")
        outcome = "not interrupted"
        if rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                arrays.allreduce(numpy.ones(1000), name="known")
            except KeyboardInterrupt:
                outcome = "interrupted"
            arrays.allreduce(numpy.ones(1), name="it is over")
        else:
            arrays.allreduce(numpy.ones(1), name="it is over")
            arrays.allreduce(numpy.ones(1000), name="known")  # matches the interrupted one
        for _ in range(5):
            assert (arrays.allreduce(numpy.ones(1000), arrays.ReduceOp.SUM, "known afterwards") == 2).all()
        return outcome

    assert run_ranks(2, interrupted) == ["interrupted", "not interrupted"]
