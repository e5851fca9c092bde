"""Errors of collectives that are TensorFlow's as well, and the element types that TensorFlow's tensors may have."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


def test_an_error_is_of_both_kinds_and_travels_as_ours() -> None:
    tf = pytest.importorskip("tensorflow")
    from spark_estimator import errors
    from spark_estimator._native import Status
    from spark_estimator.tensorflow.failures import find_status, raise_as_tensorflow, to_tensorflow_error

    for error, kind, status in (
        (errors.MismatchError("a"), tf.errors.FailedPreconditionError, Status.MISMATCH),
        (errors.NotInitializedError(), tf.errors.FailedPreconditionError, Status.MISMATCH),
        (errors.DuplicateNameError("b"), tf.errors.InvalidArgumentError, Status.INVALID_ARGUMENT),
        (ValueError("c"), tf.errors.InvalidArgumentError, Status.INVALID_ARGUMENT),
        (errors.PeerLostError("d"), tf.errors.UnknownError, Status.INTERNAL),
    ):
        with pytest.raises(kind) as caught, raise_as_tensorflow():
            raise error
        assert isinstance(caught.value, type(error)) and str(caught.value) == str(error)
        assert find_status(error) is status
        opened = pickle.loads(pickle.dumps(caught.value))
        assert type(opened) is type(error) and str(opened) == str(error)
    assert type(to_tensorflow_error(KeyError("e"))) is KeyError
    assert find_status(KeyError("e")) is Status.INTERNAL


def test_what_each_mistake_raises(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        here: Any = tf.constant([1.0, 2.0])
        mistakes: list[tuple[Callable[[], Any], type, type]] = [
            (
                lambda: hvd.allreduce(tf.zeros([2 + rank]), name="a"),
                hvd.HorovodInternalError,
                tf.errors.FailedPreconditionError,
            ),
            (
                lambda: hvd.allgather(tf.zeros([1, 2 + rank]), name="b"),
                hvd.HorovodInternalError,
                tf.errors.FailedPreconditionError,
            ),
            (
                lambda: hvd.broadcast(tf.zeros([2], tf.float64 if rank else tf.int32), 0, name="c"),
                hvd.HorovodInternalError,
                tf.errors.FailedPreconditionError,
            ),
            (lambda: hvd.broadcast(here, 7), ValueError, tf.errors.InvalidArgumentError),
            (lambda: hvd.allgather(tf.constant(1.0)), ValueError, tf.errors.FailedPreconditionError),
            (lambda: hvd.alltoall(here, [2, 2]), ValueError, tf.errors.InvalidArgumentError),
            (lambda: hvd.allreduce(tf.constant(1j)), ValueError, tf.errors.InvalidArgumentError),
            (lambda: hvd.reducescatter(here, op=hvd.Max), hvd.HorovodInternalError, tf.errors.AbortedError),
        ]
        for call, ours, of_tensorflow in mistakes:
            for kind in (ours, of_tensorflow):
                with pytest.raises(kind):
                    call()
        for kind, shape in (
            (tf.errors.FailedPreconditionError, lambda: tf.zeros([4 + rank])),
            (tf.errors.InvalidArgumentError, lambda: tf.zeros([3])),
        ):
            graph = tf.function(lambda x: hvd.allreduce(x) if x.shape[0] != 3 else hvd.alltoall(x, [1, 1]))
            with pytest.raises(kind):
                graph(shape())
        assert float(hvd.allreduce(1.0)) == 1.0  # the job continues

    two_ranks.run(check)


def test_every_type_of_horovods_operations(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        reduced = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
        moved = [*reduced, "uint16", "int16", "bool"]

        def all_of(tensor: Any) -> list[Any]:
            calls = [hvd.allgather(tensor), hvd.broadcast(tensor, 1), hvd.alltoall(tensor)]
            if tensor.dtype.name in [*reduced, "uint16", "int16", "bfloat16"]:
                calls += [hvd.allreduce(tensor, op=hvd.Sum), hvd.reducescatter(tensor, op=hvd.Sum)]
            return calls

        for name in [*moved, "bfloat16"]:
            tensor = tf.cast(tf.constant([rank, 1]), name)
            for results in (all_of(tensor), tf.function(all_of)(tensor)):
                assert {result.dtype.name for result in results} == {name}
                values = [tf.cast(result, tf.int32).numpy().tolist() for result in results]
                assert values[:3] == [[0, 1, 1, 1], [1, 1], [[0, 1], [1, 1]][rank]], (name, values)
                assert values[3:] in ([], [[1, 2], [1 + rank]]), (name, values)
        large = tf.constant([60000 + rank], tf.uint16)
        assert hvd.allreduce(large, op=hvd.Max).numpy().tolist() == [60001]
        assert hvd.allreduce(large).numpy().tolist() == [60000]
        variable = tf.Variable(large)
        [value] = hvd.broadcast_([variable], 1)
        assert isinstance(value, tf.Tensor) and variable.numpy().tolist() == value.numpy().tolist() == [60001]
        assert hvd.grouped_allreduce([]) == hvd.grouped_reducescatter([]) == []

    two_ranks.run(check)


def test_autograph_raises_an_error_as_it_is() -> None:
    tf = pytest.importorskip("tensorflow")
    from spark_estimator.tensorflow.failures import to_tensorflow_error

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def refused(x: Any) -> Any:
        if x.shape.rank == 1:
            raise to_tensorflow_error(ValueError("root_rank=7"))
        return x

    for kind in (ValueError, tf.errors.InvalidArgumentError):
        with pytest.raises(kind, match=r"^root_rank=7$"):
            refused(tf.ones(2))
