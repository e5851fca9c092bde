"""How a list of gradients is reduced: the arguments, the groups, and the buckets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.process_set import global_process_set
from spark_estimator.tensorflow import gradients
from spark_estimator.tensorflow.compression import Compression
from tests.tensorflow.rank_pool import RankPool

FIRST = tf.Variable(1.0)


def checked(**arguments: Any) -> gradients.GradientOptions:
    """What `exchange_of` makes of these arguments and the defaults."""
    defaults: dict[str, Any] = {
        "compression": Compression.none,
        "sparse_as_dense": False,
        "op": ReduceOp.AVERAGE,
        "gradient_predivide_factor": 1.0,
        "num_groups": 0,
        "groups": None,
        "process_set": global_process_set,
        "scale_local_gradients": True,
    }
    return gradients.make_options("the tape", **{**defaults, **arguments})


def test_a_tape_s_gradients_go_as_one_on_one_host_and_in_buckets_between_hosts(two_ranks: RankPool) -> None:
    def nodes(rank: int) -> list[int]:
        import os
        from unittest import mock

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.collectives import context

        os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"] = "800"
        hvd.shutdown()
        hvd.init()
        del os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"]
        variables = [tf.Variable(tf.ones(100)) for _ in range(6)]
        actual = []
        for hosts in (1, 2):  # the ranks are on one host; the graph is made as if they were not

            @tf.function
            def step() -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.add_n([tf.reduce_sum(each * (rank + 1.0)) for each in variables])
                return hvd.DistributedGradientTape(tape).gradient(loss, variables)

            with mock.patch.object(context, "cross_size", lambda hosts=hosts: hosts):
                operations = step.get_concrete_function().graph.get_operations()
            assert all((gradient.numpy() == 1.5).all() for gradient in step())
            actual.append([node.type for node in operations].count("SparkEstimatorAllreduce"))
        return actual

    assert two_ranks.run(nodes) == [[1, 3], [1, 3]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": ReduceOp.MAX}, "must be hvd"),
        ({"op": True}, "op=True must be hvd"),
        ({"gradient_predivide_factor": 0}, "greater than 0"),
        ({"gradient_predivide_factor": 2.0, "op": ReduceOp.SUM}, r"requires op=hvd\.Average"),
        ({"groups": [[FIRST], [FIRST]]}, "a variable twice"),
        ({"groups": 0.5}, "an integer greater than 0"),
        ({"process_set": 1}, "must be a ProcessSet"),
        ({"compression": 7}, "compression=7"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"the tape.*{text}"):
        checked(**arguments)


def test_num_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use groups="):
        assert checked(num_groups=3).groups == 3
    with pytest.warns(DeprecationWarning, match="use groups="):
        assert checked(num_groups=3, groups=2).groups == 2


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (1, [[0, 1, 2, 3, 4]]),
        (2, [[0, 1, 2], [3, 4]]),
        (7, [[0], [1], [2], [3], [4]]),
        ([[3, 0]], [[0, 3], [4, 2, 1]]),
        ([[1], [0, 2, 3, 4]], [[1], [0, 2, 3, 4]]),
    ],
)
def test_groups_are_reduced_as_one(groups: Any, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_choose_bucket_bytes", lambda: math.inf)
    variables = [tf.Variable([1.0]) for _ in range(5)]
    if not isinstance(groups, int):
        groups = [[variables[number] for number in group] for group in groups]
    dense = [(number, tf.constant([1.0]), None) for number in range(5)]
    buckets = checked(groups=groups)._plan_buckets(dense, variables)
    assert [[number for number, _, _ in bucket] for bucket in buckets] == expected


def test_buckets_are_filled_from_the_last_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_choose_bucket_bytes", lambda: 12.0)
    variables = [tf.Variable([1.0]) for _ in range(5)]
    dense = [(number, tf.ones([count]), None) for number, count in enumerate((1, 2, 9, 1, 2))]
    buckets = checked()._plan_buckets(dense, variables)
    assert [[number for number, _, _ in bucket] for bucket in buckets] == [[4, 3], [2], [1, 0]]


def test_a_keras_variable_is_the_same_as_its_inner_variable() -> None:
    class Wrapper:
        def __init__(self, value: Any) -> None:
            self.value = value

    assert gradients.identify(Wrapper(FIRST)) == gradients.identify(FIRST) != gradients.identify(tf.Variable(1.0))
