"""Gradients of several passes: eagerly and in a graph of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from spark_estimator.tensorflow.aggregation import Aggregation


@pytest.mark.parametrize(("average", "expected"), [(False, 3.0), (True, 1.5)])
def test_the_last_pass_of_a_step_reduces_and_applies(average: bool, expected: float) -> None:
    aggregation = Aggregation(2, average)
    variables = [tf.Variable([0.0]), tf.Variable(0.0), tf.Variable(0.0)]
    reduced: list[Any] = []
    applied: list[float] = []

    def reduce(sums: list[Any]) -> list[Any]:
        reduced.append([None if total is None else float(tf.reduce_sum(total)) for total in sums])
        return [None if total is None else 10 * total for total in sums]

    for step in range(2):
        for number in (1.0, 2.0):
            gradients = [tf.constant([number]), None, tf.constant(2 * number)]
            results = aggregation.add_gradients(gradients, variables, reduce)
            assert results[1] is None
            aggregation.apply(lambda results=results: applied.append(float(results[2])))
        assert reduced == [[expected, None, 2 * expected]] * (step + 1), "one reduction in each step"
    assert applied == [20 * expected] * 2


def test_between_the_steps_it_gives_the_sums_so_far() -> None:
    aggregation = Aggregation(3, average=True)
    variable = tf.Variable(0.0)
    results = [aggregation.add_gradients([tf.constant(1.0)], [variable], lambda sums: sums) for _ in range(3)]
    assert [float(result) for [result] in results] == [1.0, 2.0, 1.0]


def test_gradients_that_it_did_not_add_up_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"backward_passes_per_step=2 got gradients .* did not compute"):
        Aggregation(2, average=False).apply(lambda: None)


def test_in_a_graph() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        aggregation = Aggregation(2, average=False)
        weight = v1.get_variable("weight", initializer=0.0, use_resource=True)
        x = v1.placeholder(tf.float32, [])
        [gradient] = aggregation.add_gradients([x], [weight], lambda sums: [10 * total for total in sums])
        step = aggregation.apply(lambda: weight.assign_add(gradient).op)
        session.run(v1.global_variables_initializer())
        seen = []
        for number in (1.0, 2.0, 3.0, 4.0):
            session.run(step, {x: number})
            seen.append(float(session.run(weight)))
    assert seen == [0.0, 30.0, 30.0, 100.0]
