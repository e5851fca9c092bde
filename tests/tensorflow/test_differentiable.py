"""Gradients by Horovod's definition at 1, 2 and 3 ranks, and second ones: eagerly, in functions and in graphs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


@pytest.mark.parametrize("kind", ["eager", "function", "function under a tape", "session"])
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))])
def test_by_horovods_definition(ranks_of: Any, size: int, kind: str) -> None:
    def check(rank: int, size: int, kind: str) -> list[str]:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from tests.support.gradient_table import ELEMENTS, TABLE, forms, sets_of

        everyone, *some = sets_of(size)
        sets = [(hvd.global_process_set, everyone), *((hvd.add_process_set(ranks), ranks) for ranks in some)]
        start = numpy.arange(1.0, ELEMENTS + 1)

        def gradient(form: Any, process_set: Any, ranks: list[int]) -> Any:
            def loss(x: Any) -> Any:
                return tf.reduce_sum(form(x, process_set, ranks)) * (rank + 1.0)

            if kind == "session":
                with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                    x = tf.constant(start)
                    return session.run(tf.gradients(loss(x), x)[0])

            def taped(x: Any, call: Any) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    value = call(x)
                return tape.gradient(value, x)

            x = tf.constant(start)
            if kind == "function":
                return tf.function(lambda x: taped(x, loss))(x).numpy()
            return taped(x, loss if kind == "eager" else tf.function(loss)).numpy()

        wrong = []
        for line, form in forms(hvd, lambda parts: tf.concat(parts, 0)).items():
            for process_set, ranks in sets:
                if rank not in ranks or ("Adasum" in line and len(ranks) == 3):
                    continue
                actual, expected = gradient(form, process_set, ranks).tolist(), TABLE[line](rank, ranks)
                if actual != pytest.approx(expected):
                    wrong.append(f"{line} over {ranks}: {actual} is not {expected}")
        return wrong

    assert ranks_of(size).run(check, size, kind, timeout=110) == [[]] * size


@pytest.mark.parametrize("kind", ["eager", "function"])
def test_what_has_no_gradient(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int, kind: str) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        def both(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Max), hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(tf.cast(x, tf.int32))

        call = tf.function(both) if kind == "function" else both
        with tf.GradientTape(persistent=True) as tape:
            x = tf.constant(rank + 1.0)
            tape.watch(x)
            largest, total, number = call(x)
        assert (float(largest), float(total), int(number)) == (2.0, 3.0, 1)
        assert float(tape.gradient(total, x)) == 2.0
        with pytest.raises((NotImplementedError, tf.errors.InvalidArgumentError), match="Max is not differentiable"):
            tape.gradient(largest, x)
        return [hvd.barrier()]

    two_ranks.run(check, kind)


def test_a_gradient_that_is_taken_twice_in_one_graph(two_ranks: RankPool) -> None:
    """Both are in flight at once, under different names."""

    def check(rank: int) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        @tf.function
        def twice(x: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = hvd.allreduce(x, op=hvd.Sum, name="of a name")
                first, second = y * 1.0, y * 10.0
            return tape.gradient(first, x), tape.gradient(second, x)

        for _ in range(20):
            actual = [float(each) for each in twice(tf.constant(1.0))]
        return actual

    assert two_ranks.run(check) == [[2.0, 20.0]] * 2


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
        expected = [1.0, 2.0, 3.0, 4.0]
        assert got[0] == [1.5 * each for each in expected]
        assert got[1] == [6.0 * each for each in expected]
        assert got[2] == [6.0 * each for each in expected]
        assert got[3] == [[1.5, 15.0][rank] * each for each in expected]
        assert got[4] == [[0.0, 1.5][rank] * each for each in expected]
        # Row 0 of each is sent to rank 0, the others to rank 1, in order.
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
