"""Collectives that reduce: all element types, factors, groups, slices, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool

FLOATS = ("float16", "bfloat16", "float32", "float64")
TYPES = ("uint8", "int8", "int16", "int32", "int64", *FLOATS)


def test_every_element_type(two_ranks: RankPool) -> None:
    def values(rank: int) -> dict[str, Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        results: dict[str, Any] = {}
        for name in TYPES:
            tensor = tf.cast(tf.constant([[2], [4]]) * (rank + 1), name)
            for call in (hvd.allreduce, tf.function(hvd.allreduce)):
                reduced = call(tensor, op=hvd.Sum)
                assert reduced.dtype.name == name
                assert tf.cast(reduced, tf.int64).numpy().tolist() == [[6], [12]]
            got = [
                hvd.allreduce(tensor),
                hvd.allreduce(tensor, op=hvd.Min),
                hvd.allreduce(tensor, op=hvd.Max),
                hvd.allreduce(tensor, op=hvd.Product),
                hvd.allgather(tensor),
                hvd.broadcast(tensor, 1),
                hvd.alltoall(tensor),
                hvd.reducescatter(tensor, op=hvd.Sum),
            ]
            results[name] = [tf.cast(tf.reshape(each, [-1]), tf.int64).numpy().tolist() for each in got]
        flags = tf.constant([True, rank == 1])
        results["bool"] = hvd.allreduce(flags, op=hvd.Product).numpy().tolist()
        return results

    for rank, results in enumerate(two_ranks.run(values)):
        assert results.pop("bool") == [True, False]
        assert set(results) == set(TYPES)
        for name, got in results.items():
            expected = [[3, 6], [2, 4], [4, 8], [8, 32], [2, 4, 4, 8], [4, 8]]
            assert got == [*expected, [[2, 4], [4, 8]][rank], [[6], [12]][rank]], name


def test_factors_compression_and_groups(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        tensor = tf.constant([1.0, 2.0]) * (rank + 1)
        half = hvd.allreduce(tensor, compression=hvd.Compression.fp16)
        assert half.dtype == tf.float32
        scaled = hvd.allreduce(tf.constant([3]), op=hvd.Sum, prescale_factor=0.5)
        group = [tensor, tf.constant([[rank]], tf.int64), numpy.float64(rank)]
        both = []
        for call in (hvd.grouped_allreduce, tf.function(lambda tensor: hvd.grouped_allreduce(tensor, op=hvd.Sum))):
            both.append([each.numpy().tolist() for each in call(group, **({"op": hvd.Sum} if not both else {}))])
        assert both[0] == both[1]
        gathered = hvd.grouped_allgather([tf.zeros([rank, 2]), tf.fill([1], rank)])
        scattered = hvd.grouped_reducescatter([tf.range(3.0), tf.ones([2, 2])], op=hvd.Sum)
        return [
            half.numpy().tolist(),
            scaled.numpy().tolist(),
            both[0],
            [each.numpy().tolist() for each in gathered],
            [each.numpy().tolist() for each in scattered],
            hvd.allreduce(tensor, op=hvd.Adasum).numpy().tolist(),
            hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).numpy().tolist(),
        ]

    for rank, got in enumerate(two_ranks.run(values)):
        assert got[:4] == [[1.5, 3.0], [2], [[3.0, 6.0], [[1]], 1.0], [[[0.0, 0.0]], [0, 1]]]
        assert got[4] == [[[0.0, 2.0], [4.0]][rank], [[2.0, 2.0]]]
        assert got[5:] == [[1.5, 3.0], [1.5, 3.0]]


def test_slices(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        slices = tf.IndexedSlices(tf.ones([rank + 1, 2]) * (rank + 1), tf.range(rank + 1), tf.constant([4, 2]))
        reduced = [hvd.allreduce(slices), *tf.function(lambda s: hvd.grouped_allreduce([s, tf.ones([1])]))(slices)]
        with pytest.raises(NotImplementedError, match=r"Max is not supported for tf\.IndexedSlices"):
            hvd.allreduce(slices, op=hvd.Max)
        return [tf.convert_to_tensor(each).numpy().tolist() for each in reduced]

    dense = [[1.5, 1.5], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert two_ranks.run(values) == [[dense, dense, [1.0]]] * 2


def test_slices_of_whole_numbers(two_ranks: RankPool) -> None:
    """Their average has fractions, as Horovod's has; that of dense tensors is truncated there, too."""

    def values(rank: int) -> dict[str, Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        results = {}
        for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64"):
            slices = tf.IndexedSlices(tf.constant([1 + rank], name), tf.constant([rank]), tf.constant([2]))
            for call in (hvd.allreduce, tf.function(hvd.allreduce)):
                averaged = call(slices)
                assert tf.cast(averaged.values, tf.float32).numpy().tolist() == [0.5, 1.0], name
                [grouped] = hvd.grouped_allreduce([slices])
                assert grouped.values.dtype == averaged.values.dtype
                results[name] = averaged.values.dtype.name
            summed = hvd.allreduce(slices, op=hvd.Sum)
            assert (summed.values.dtype.name, summed.values.numpy().tolist()) == (name, [1, 2])
        flags = tf.IndexedSlices(tf.constant([True]), tf.constant([0]), tf.constant([2]))
        with pytest.raises(ValueError, match="bool tensors cannot be averaged"):
            hvd.allreduce(flags)
        assert hvd.allreduce(tf.constant([1 + rank])).numpy().tolist() == [1]
        return results

    types = dict.fromkeys(("int32", "int64", "float64"), "float64")
    types |= dict.fromkeys(("uint8", "int8", "int16"), "float32")
    assert two_ranks.run(values) == [types | {"float16": "float16", "bfloat16": "bfloat16"}] * 2


def test_over_a_set_and_beside_a_rank_that_has_joined(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        first = hvd.add_process_set([0])
        sums = []
        if rank == 0:
            sums = hvd.allreduce(tf.constant([5.0]), op=hvd.Sum, process_set=first).numpy().tolist()
            hvd.allreduce(tf.constant(1.0), name="alone")
        last = hvd.join()
        hvd.barrier()
        return sums, last in (0, 1)

    assert two_ranks.run(values) == [([5.0], True), ([], True)]


def test_refusals(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        tensor = tf.ones([2])
        for error, text, call in (
            (ValueError, "either op", lambda: hvd.allreduce(tensor, True, op=hvd.Sum)),
            (ValueError, "op=77 must be", lambda: hvd.allreduce(tensor, op=77)),
            (ValueError, "type complex64", lambda: hvd.allreduce(tf.complex(tensor, tensor))),
            (ValueError, "0-dimensional", lambda: hvd.reducescatter(tf.constant(1))),
            (ValueError, "list is empty", lambda: hvd.grouped_allgather([])),
            (ValueError, "compression=7", lambda: hvd.allreduce(tensor, compression=7)),
            (TypeError, "name must be a string", lambda: hvd.allreduce(tensor, name=3)),
            (hvd.HorovodInternalError, "op=hvd.Max is not", lambda: hvd.reducescatter(tensor, op=hvd.Max)),
        ):
            with pytest.raises(error, match=text) as caught:
                call()
            assert len(str(caught.value)) < 300
        with pytest.warns(DeprecationWarning):
            assert hvd.allreduce(tensor, average=False).numpy().tolist() == [2.0, 2.0]

    two_ranks.run(check)
