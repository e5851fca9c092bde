"""Ranks that disagree about one request: an error that names the difference, on all of them, and the job continues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks, start_ranks

REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    # what rank 0 and rank 1 submit under the name "gradient", and what the error must contain
    "shape": ({"shape": (2, 3)}, {"shape": (3, 2)}, ["shape", "[2, 3]", "[3, 2]"]),
    "number of dimensions": ({"shape": (6,)}, {"shape": (2, 3)}, ["shape", "[6]", "[2, 3]"]),
    "dtype": ({"dtype": "float32"}, {"dtype": "float64"}, ["float32", "float64"]),
    "op": ({"op": "ALLREDUCE"}, {"op": "BROADCAST"}, ["allreduce", "broadcast"]),
    "reduce op": ({"reduce_op": "SUM"}, {"reduce_op": "MAX"}, ["sum", "max"]),
    "root": ({"op": "BROADCAST", "root_rank": 0}, {"op": "BROADCAST", "root_rank": 1}, ["root", "0", "1"]),
    "prescale": ({"prescale": 0.5}, {"prescale": 0.25}, ["0.5", "0.25"]),
    "postscale": ({"postscale": 0.5}, {"postscale": 0.25}, ["0.5", "0.25"]),
    "row shape": ({"op": "ALLGATHER", "shape": (2, 3)}, {"op": "ALLGATHER", "shape": (2, 4)}, ["shape", "3", "4"]),
    "number of tensors": ({"buffers": 2}, {"buffers": 3}, ["2", "3"]),
}


def disagree(rank: int, requests: list[dict[str, Any]]) -> str:
    import numpy

    from spark_estimator._native import Op, ReduceOp
    from spark_estimator.collectives import arrays, context, ops
    from spark_estimator.errors import MismatchError

    context.init()
    mine = requests[min(rank, 1)]
    shape = mine.get("shape", (6,))
    op = Op[mine.get("op", "ALLREDUCE")]
    held = [numpy.ones(shape, mine.get("dtype", "float32")) for _ in range(mine.get("buffers", 1))]
    tensors = [
        ops.Tensor(
            array.ctypes.data, 0 if op is Op.ALLGATHER else array.ctypes.data, arrays.dtype_of(array), array.shape
        )
        for array in held
    ]
    messages = []
    for _ in range(2):  # the second time all is known already, and must fail just so
        handle = ops.submit(
            op,
            "gradient",
            tensors,
            reduce_op=ReduceOp[mine.get("reduce_op", "SUM")],
            root_rank=mine.get("root_rank", 0),
            prescale=mine.get("prescale", 1.0),
            postscale=mine.get("postscale", 1.0),
            keep=held,
        )
        try:
            handle.wait()
        except MismatchError as error:
            messages.append(str(error))
    assert len(messages) == 2, "it was not refused"
    # Under the same name and under others, the ring still works.
    for name in ("gradient", "another"):
        assert (arrays.allreduce(numpy.ones(4), ReduceOp.SUM, name) == context.size()).all()
    return messages[0]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("what", REQUESTS)
def test_every_rank_is_told_what_differs(what: str, n: int) -> None:
    first, second, expected = REQUESTS[what]
    messages = run_ranks(n, disagree, args=([first, second],))
    assert len(set(messages)) == 1, messages
    assert "gradient" in messages[0]
    for words in expected:
        assert words in messages[0].lower(), messages[0]
    for rank in ("rank 0", "1"):
        assert rank in messages[0].lower(), messages[0]


def test_different_names_are_told_and_fail_in_the_end_if_asked() -> None:
    def different(rank: int) -> str:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import HorovodInternalError

        context.init()
        with pytest.raises(HorovodInternalError) as raised:
            arrays.allreduce(numpy.ones(3), name=f"of rank {rank}")
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM, "of all") == 2).all()
        return str(raised.value)

    environ = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with start_ranks(2, different, environ=environ) as ranks:
        outcomes = ranks.wait()
    for rank, outcome in enumerate(outcomes):
        assert outcome.returned, outcome
        assert f"'of rank {rank}'" in outcome.value
        assert f"rank {1 - rank}" in outcome.value
        # The one that did not submit it gets the error, too.
        assert f"'of rank {1 - rank}' has waited" in outcome.output


def test_a_name_in_flight_is_refused_at_once_and_here_only() -> None:
    def duplicate(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context, ops
        from spark_estimator.errors import DuplicateNameError

        context.init()
        array = numpy.ones(3)
        if rank == 0:
            handle = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "twice")
            with pytest.raises(DuplicateNameError, match="twice"):
                arrays.allreduce_into(array.copy(), array.copy(), arrays.ReduceOp.SUM, "twice")
        ops.barrier()
        if rank == 1:
            handle = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "twice")
        handle.wait()
        assert (array == 2).all()
        # The name is free again.
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM, "twice") == 2).all()

    run_ranks(2, duplicate)


def test_the_callers_mistakes_are_refused_at_once() -> None:
    def mistakes(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator._native import DType, Op, ReduceOp
        from spark_estimator.collectives import arrays, context, objects, ops

        context.init()
        array = numpy.ones(4, numpy.float32)
        tensor = ops.Tensor(array.ctypes.data, array.ctypes.data, DType.FLOAT32, (4,))
        rows = tensor._replace(output=0)
        for arguments, options in [
            ((Op.ALLREDUCE, "", [tensor]), {}),
            ((Op.ALLREDUCE, "x" * 5000, [tensor]), {}),
            ((Op.ALLREDUCE, "a\x00b", [tensor]), {}),
            ((Op.ALLREDUCE, "none", []), {}),
            ((Op.ALLREDUCE, "dtype", [tensor._replace(dtype=55)]), {}),
            ((Op.ALLREDUCE, "reduce op", [tensor]), {"reduce_op": 6}),
            ((Op.ALLREDUCE, "no memory", [tensor._replace(input=0)]), {}),
            ((Op.ALLREDUCE, "shape", [tensor._replace(shape=(-1,))]), {}),
            ((Op.ALLREDUCE, "large", [tensor._replace(shape=(2**40, 2**40))]), {}),
            ((Op.ALLTOALL, "splits", [rows]), {"splits": (1, 2)}),
            ((Op.ALLTOALL, "splits", [rows]), {"splits": (5, -1)}),
            ((Op.ALLTOALL, "splits", [rows]), {"splits": (4,)}),
            ((Op.BROADCAST, "two", [tensor, tensor]), {}),
            ((Op.BROADCAST, "root", [tensor]), {"root_rank": 2}),
            ((Op.BROADCAST, "root", [tensor]), {"root_rank": -1}),
            ((Op.BARRIER, "barrier", [tensor]), {}),
            ((17, "op", [tensor]), {}),
        ]:
            for way in (ops.submit, ops.run):
                with pytest.raises(ValueError, match=r".+"):
                    way(*arguments, **options)
                    pytest.fail(f"{arguments} {options} was taken")
        for array in (numpy.ones(2, "complex64"), numpy.array(["x"]), numpy.ones(2, ">f4")):
            with pytest.raises(ValueError, match="aren't supported"):
                arrays.allreduce(array)
        with pytest.raises(ValueError, match="C-contiguous"):
            arrays.allreduce_into(numpy.ones((3, 3)).T, numpy.ones((3, 3)).T, ReduceOp.SUM, "strided")
        with pytest.raises(ValueError, match="writable output"):
            arrays.allreduce_into(numpy.ones(3), numpy.ones(4), ReduceOp.SUM, "sizes")
        for kind in (arrays.allgather, arrays.alltoall, arrays.reducescatter):
            with pytest.raises(ValueError, match="at least one dimension"):
                kind(numpy.array(1))
        for kind in (arrays.grouped_allreduce, arrays.grouped_allgather, arrays.grouped_reducescatter):
            with pytest.raises(ValueError, match="at least one array"):
                kind([])
            for wrong in (None, numpy.ones((2, 2))):
                with pytest.raises(TypeError, match="takes a list of arrays, not"):
                    kind(wrong)
        for output, array, which in (([1.0], numpy.ones(1), "output"), (numpy.ones(1), [1.0], "array")):
            with pytest.raises(TypeError, match=rf"allreduce 'x': {which} must be a numpy array, .*\[1.0\] \(list\)"):
                arrays.allreduce_into(output, array, ReduceOp.SUM, "x")
        for dims in (-3, "x", [2, 1.5]):
            with pytest.raises(ValueError, match="must be whole numbers, 0 or more"):
                arrays.shared_empty(dims)
        with pytest.raises(ValueError, match="3 rows can't be divided equally among 2 ranks; pass splits"):
            arrays.alltoall(numpy.ones(3))
        for splits in ([1, 1], [4, -1], [3], [1, 1, 1]):
            with pytest.raises(ValueError, match="must be 2 numbers, 0 or more, with the sum 3"):
                arrays.alltoall(numpy.ones(3), splits)
        for root in (2, -1, 2**40):
            with pytest.raises(ValueError, match=f"root_rank={root} must be one of the ranks 0 to 1"):
                objects.broadcast_object(1, root_rank=root)
        assert (arrays.allreduce(numpy.ones((3, 4)).T, ReduceOp.SUM) == 2).all()

    run_ranks(2, mistakes)


def test_after_shutdown_there_are_no_collectives() -> None:
    def late(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import NotInitializedError

        context.init()
        arrays.allreduce(numpy.ones(3))
        context.shutdown()
        with pytest.raises(NotInitializedError, match=r"hvd\.init\(\)"):
            arrays.allreduce(numpy.ones(3))

    run_ranks(2, late)


def wait_for_a_rank_that_leaves(rank: int) -> list[str]:
    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.errors import ShutDownError

    context.init()
    arrays.allreduce(numpy.ones(3))
    if rank == 1:
        context.shutdown()
        return []
    messages = []
    for _ in range(2):
        try:
            arrays.allreduce(numpy.ones(3), name="waits")
        except ShutDownError as error:
            messages.append(str(error))
    return messages


def test_who_waits_for_a_rank_that_has_left_is_told() -> None:
    messages, _ = run_ranks(2, wait_for_a_rank_that_leaves)
    assert len(messages) == 2
    for message in messages:
        assert "'waits'" in message
        assert "rank 1" in message
        assert "has left the job" in message


def test_all_who_wait_are_told() -> None:
    # They leave in turn because of it; each names the one that left first, in any order of the notices.
    for rank, messages in enumerate(run_ranks(4, wait_for_a_rank_that_leaves)):
        assert len(messages) == (0 if rank == 1 else 2)
        assert all("rank 1" in message and "has left the job" in message for message in messages)


def test_what_cannot_be_done_is_refused_before_the_others_hear_of_it() -> None:
    def impossible(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator._native import DType, Op, ReduceOp
        from spark_estimator.collectives import arrays, context, ops

        context.init()
        array = numpy.ones(4, numpy.uint8)
        tensor = ops.Tensor(array.ctypes.data, array.ctypes.data, DType.UINT8, (4,))
        bools = tensor._replace(dtype=DType.BOOL)
        scalar = tensor._replace(output=0, shape=())
        for arguments, options, message in [
            ((Op.ALLREDUCE, "bools", [bools]), {"reduce_op": ReduceOp.AVERAGE}, "average of bool"),
            ((Op.ALLREDUCE, "scaled", [bools]), {"prescale": 0.5}, "cannot be scaled"),
            ((Op.ALLREDUCE, "adasum", [tensor]), {"reduce_op": ReduceOp.ADASUM}, "Adasum is defined for floating"),
            ((Op.REDUCESCATTER, "max", [tensor]), {"reduce_op": ReduceOp.MAX}, "Average and Sum, not Max"),
            ((Op.ALLGATHER, "scalar", [scalar]), {}, "first dimension"),
        ]:
            for _ in range(2):
                with pytest.raises(ValueError, match=message):
                    ops.submit(*arguments, **options)
                with pytest.raises(ValueError, match=message):
                    ops.run(*arguments, **options)
        assert (arrays.allreduce(numpy.ones(3), ReduceOp.SUM) == 2).all()

    run_ranks(2, impossible)


def test_adasum_needs_a_power_of_two_of_ranks() -> None:
    def adasum(rank: int) -> str:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context

        context.init()
        with pytest.raises(ValueError) as raised:
            arrays.allreduce(numpy.ones(3), arrays.ReduceOp.ADASUM)
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 3).all()
        return str(raised.value)

    for message in run_ranks(3, adasum):
        assert "power of two" in message
        assert "3" in message


def test_ones_own_pending_requests_end_with_ones_shutdown() -> None:
    def leave(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context, ops
        from spark_estimator.errors import ShutDownError

        context.init()
        if rank == 0:
            array = numpy.ones(3)
            handle = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "alone")
            ops.barrier()
            context.shutdown()
            for _ in range(2):
                with pytest.raises(ShutDownError):
                    handle.wait()
            assert handle.done()
        else:
            ops.barrier()

    run_ranks(2, leave)
