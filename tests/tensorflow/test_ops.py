"""The collectives on tensors: what they compute, their gradients, all element types, and what they refuse."""

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
            given = tf.cast(tf.constant([[2], [4]]) * (rank + 1), name)
            for call in (hvd.allreduce, tf.function(hvd.allreduce)):
                reduced = call(given, op=hvd.Sum)
                assert reduced.dtype.name == name
                assert tf.cast(reduced, tf.int64).numpy().tolist() == [[6], [12]]
            got = [
                hvd.allreduce(given),
                hvd.allreduce(given, op=hvd.Min),
                hvd.allreduce(given, op=hvd.Max),
                hvd.allreduce(given, op=hvd.Product),
                hvd.allgather(given),
                hvd.broadcast(given, 1),
                hvd.alltoall(given),
                hvd.reducescatter(given, op=hvd.Sum),
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

        one = tf.constant([1.0, 2.0]) * (rank + 1)
        half = hvd.allreduce(one, compression=hvd.Compression.fp16)
        assert half.dtype == tf.float32
        whole = hvd.allreduce(tf.constant([3]), op=hvd.Sum, prescale_factor=0.5)
        group = [one, tf.constant([[rank]], tf.int64), numpy.float64(rank)]
        both = []
        for call in (hvd.grouped_allreduce, tf.function(lambda given: hvd.grouped_allreduce(given, op=hvd.Sum))):
            both.append([each.numpy().tolist() for each in call(group, **({"op": hvd.Sum} if not both else {}))])
        assert both[0] == both[1]
        gathered = hvd.grouped_allgather([tf.zeros([rank, 2]), tf.fill([1], rank)])
        scattered = hvd.grouped_reducescatter([tf.range(3.0), tf.ones([2, 2])], op=hvd.Sum)
        return [
            half.numpy().tolist(),
            whole.numpy().tolist(),
            both[0],
            [each.numpy().tolist() for each in gathered],
            [each.numpy().tolist() for each in scattered],
            hvd.allreduce(one, op=hvd.Adasum).numpy().tolist(),
            hvd.allreduce(one, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).numpy().tolist(),
        ]

    for rank, got in enumerate(two_ranks.run(values)):
        assert got[:4] == [[1.5, 3.0], [2], [[3.0, 6.0], [[1]], 1.0], [[[0.0, 0.0]], [0, 1]]]
        assert got[4] == [[[0.0, 2.0], [4.0]][rank], [[2.0, 2.0]]]
        assert got[5:] == [[1.5, 3.0], [1.5, 3.0]]


def test_slices(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        own = tf.IndexedSlices(tf.ones([rank + 1, 2]) * (rank + 1), tf.range(rank + 1), tf.constant([4, 2]))
        reduced = [hvd.allreduce(own), *tf.function(lambda s: hvd.grouped_allreduce([s, tf.ones([1])]))(own)]
        with pytest.raises(NotImplementedError, match=r"Max of tf\.IndexedSlices"):
            hvd.allreduce(own, op=hvd.Max)
        return [tf.convert_to_tensor(each).numpy().tolist() for each in reduced]

    dense = [[1.5, 1.5], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert two_ranks.run(values) == [[dense, dense, [1.0]]] * 2


def test_slices_of_whole_numbers(two_ranks: RankPool) -> None:
    """Their average has fractions, as Horovod's has; that of dense tensors is truncated there, too."""

    def values(rank: int) -> dict[str, Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        found = {}
        for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64"):
            own = tf.IndexedSlices(tf.constant([1 + rank], name), tf.constant([rank]), tf.constant([2]))
            for call in (hvd.allreduce, tf.function(hvd.allreduce)):
                slices = call(own)
                assert tf.cast(slices.values, tf.float32).numpy().tolist() == [0.5, 1.0], name
                [grouped] = hvd.grouped_allreduce([own])
                assert grouped.values.dtype == slices.values.dtype
                found[name] = slices.values.dtype.name
            summed = hvd.allreduce(own, op=hvd.Sum)
            assert (summed.values.dtype.name, summed.values.numpy().tolist()) == (name, [1, 2])
        flags = tf.IndexedSlices(tf.constant([True]), tf.constant([0]), tf.constant([2]))
        with pytest.raises(ValueError, match="truth values have no average"):
            hvd.allreduce(flags)
        assert hvd.allreduce(tf.constant([1 + rank])).numpy().tolist() == [1]
        return found

    types = dict.fromkeys(("int32", "int64", "float64"), "float64")
    types |= dict.fromkeys(("uint8", "int8", "int16"), "float32")
    assert two_ranks.run(values) == [types | {"float16": "float16", "bfloat16": "bfloat16"}] * 2


@pytest.mark.parametrize("kind", ["eager", "function", "session"])
def test_gradients(two_ranks: RankPool, kind: str) -> None:
    def values(rank: int, kind: str) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        start = [1.0, 2.0, 3.0, 4.0]

        def gradients(x: Any) -> list[Any]:
            weights = tf.constant([1.0, 2.0, 3.0, 4.0]) * (rank + 1.0)
            double = tf.concat([weights, 10 * weights], 0)
            splits = tf.constant([1, 3])
            results = []
            for forward in (
                lambda x: weights * hvd.allreduce(x),
                lambda x: weights * hvd.allreduce(x, op=hvd.Sum, name="named", postscale_factor=2.0),
                lambda x: weights * sum(hvd.grouped_allreduce([x, x], op=hvd.Sum)),
                lambda x: double * hvd.allgather(x),
                lambda x: weights * hvd.broadcast(x, 1),
                lambda x: (
                    tf.cast(tf.range(tf.shape(hvd.alltoall(x, splits)[0])[0]), tf.float32) * hvd.alltoall(x, splits)[0]
                ),
                lambda x: weights[:2] * hvd.reducescatter(x),
                lambda x: weights[:2] * hvd.reducescatter(x, op=hvd.Sum),
            ):
                if kind == "session":
                    results.append(tf.gradients(tf.reduce_sum(forward(x)), x)[0])
                    continue
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    total = tf.reduce_sum(forward(x))
                results.append(tape.gradient(total, x))
            return results

        if kind == "session":
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                return [each.tolist() for each in session.run(gradients(tf.constant(start)))]
        call = tf.function(gradients) if kind == "function" else gradients
        return [each.numpy().tolist() for each in call(tf.constant(start))]

    for rank, got in enumerate(two_ranks.run(values, kind)):
        one = [1.0, 2.0, 3.0, 4.0]
        assert got[0] == [1.5 * each for each in one]
        assert got[1] == [6.0 * each for each in one]
        assert got[2] == [6.0 * each for each in one]
        assert got[3] == [[1.5, 15.0][rank] * each for each in one]
        assert got[4] == [[0.0, 1.5][rank] * each for each in one]
        # Row 0 of each goes to rank 0, the others to rank 1, where they stand one after another.
        assert got[5] == [[0.0, 0.0, 1.0, 2.0], [1.0, 3.0, 4.0, 5.0]][rank]
        # Both halves have the first two weights, times the number of the rank that has the half.
        assert got[6] == [1.0, 2.0, 2.0, 4.0]
        assert got[7] == [2.0, 4.0, 4.0, 8.0]


def test_second_gradients(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        x = tf.constant(2.0)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = hvd.allreduce(x**3, op=hvd.Sum)
            first = inner.gradient(y, x)
        return [float(first), float(outer.gradient(first, x))]

    assert two_ranks.run(values) == [[24.0, 24.0]] * 2


def test_questions_join_objects_and_sets(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        even = hvd.add_process_set([0])
        number = even.process_set_id

        @tf.function
        def asked() -> Any:
            return (
                hvd.rank_op(),
                hvd.local_rank_op(),
                hvd.size_op(),
                hvd.local_size_op(),
                hvd.process_set_included_op(number),
                hvd.size_op(number),
            )

        answers = [int(each) for each in asked()]
        own = []
        if rank == 0:
            own = hvd.allreduce(tf.constant([5.0]), op=hvd.Sum, process_set=even).numpy().tolist()
            hvd.allreduce(tf.constant(1.0), name="alone")
        last = hvd.join()
        hvd.barrier()
        objects = hvd.allgather_object({"rank": rank}), hvd.broadcast_object_fn(1)(rank)
        return answers, own, last, objects

    for rank, got in enumerate(two_ranks.run(values)):
        objects = [{"rank": 0}, {"rank": 1}], 1
        assert got == ([rank, rank, 2, 2, 1 - rank, 1], [[5.0], []][rank], got[2], objects)


def test_refusals(two_ranks: RankPool) -> None:
    def refused(rank: int) -> bool:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        one = tf.ones([2])
        for error, text, call in (
            (ValueError, "either op", lambda: hvd.allreduce(one, True, op=hvd.Sum)),
            (ValueError, "none of hvd.Average", lambda: hvd.allreduce(one, op=77)),
            (ValueError, "type complex64", lambda: hvd.allreduce(tf.complex(one, one))),
            (ValueError, "0-dimensional", lambda: hvd.allgather(tf.constant(1))),
            (ValueError, "0-dimensional", lambda: hvd.reducescatter(tf.constant(1))),
            (ValueError, "list is empty", lambda: hvd.grouped_allreduce([])),
            (ValueError, r"root_rank=2 .* \[0, 1\]", lambda: hvd.broadcast(one, 2)),
            (ValueError, "whose sum is 2", lambda: hvd.alltoall(one, [1, 2])),
            (ValueError, "compression=7", lambda: hvd.allreduce(one, compression=7)),
            (TypeError, "name must be a string", lambda: hvd.allreduce(one, name=3)),
            (hvd.HorovodInternalError, "op=hvd.Max is not", lambda: hvd.reducescatter(one, op=hvd.Max)),
            (RuntimeError, "broadcast_variables", lambda: hvd.broadcast_global_variables(0)),
            (ValueError, "GradientTape is needed", lambda: hvd.DistributedGradientTape(1)),
            (ValueError, "an optimizer of", lambda: hvd.DistributedOptimizer(1)),
        ):
            with pytest.raises(error, match=text) as caught:
                call()
            assert len(str(caught.value)) < 300
        with pytest.warns(DeprecationWarning):
            assert hvd.allreduce(one, average=False).numpy().tolist() == [2.0, 2.0]
        return True

    assert two_ranks.run(refused) == [True, True]


def test_copies_from_gpus_are_told_once(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        from unittest import mock

        import tensorflow as tf

        from spark_estimator.tensorflow import nodes

        warnings: list[str] = []
        constant = tf.constant(1.0)
        with mock.patch.object(nodes._log, "warning", warnings.append), mock.patch.object(nodes, "_copies_told", False):
            nodes._tell_of_copies([constant])  # no GPU here, whatever comes
            assert nodes._copies_told and not warnings
            nodes._copies_told = False
            with mock.patch.object(tf.config, "get_visible_devices", lambda _: ["GPU:0"]):
                nodes._tell_of_copies([constant])  # which is on the CPU
                assert not nodes._copies_told and not warnings
                with tf.Graph().as_default():  # where it will lie nobody knows
                    for _ in range(2):
                        nodes._tell_of_copies([tf.constant(1.0)])
        assert len(warnings) == 1 and "copied through host memory" in warnings[0]

    two_ranks.run(check)
