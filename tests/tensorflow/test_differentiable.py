"""Gradients by Horovod's definition at 1, 2 and 3 ranks: eagerly, in functions and in graphs of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


@pytest.mark.parametrize("kind", ["eager", "function", "function under a tape", "session"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_by_horovods_definition(ranks_of: Any, size: int, kind: str) -> None:
    def check(rank: int, size: int, kind: str) -> list[str]:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from tests.gradient_table import ELEMENTS, TABLE, forms, sets_of

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
                found, expected = gradient(form, process_set, ranks).tolist(), TABLE[line](rank, ranks)
                if found != pytest.approx(expected):
                    wrong.append(f"{line} over {ranks}: {found} is not {expected}")
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
        with pytest.raises((NotImplementedError, tf.errors.InvalidArgumentError), match="allreduce with Max has no"):
            tape.gradient(largest, x)
        return [hvd.barrier()]

    two_ranks.run(check, kind)


def test_a_gradient_that_is_taken_twice_in_one_graph(two_ranks: RankPool) -> None:
    """Both are in flight at once, under names of their own."""

    def check(rank: int) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        @tf.function
        def twice(x: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = hvd.allreduce(x, op=hvd.Sum, name="of a name")
                one, other = y * 1.0, y * 10.0
            return tape.gradient(one, x), tape.gradient(other, x)

        for _ in range(20):
            found = [float(each) for each in twice(tf.constant(1.0))]
        return found

    assert two_ranks.run(check) == [[2.0, 20.0]] * 2
