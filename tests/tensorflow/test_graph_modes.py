"""Horovod's helpers for eager execution and graphs: values that are remembered, references to variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from spark_estimator.tensorflow import graph_modes


def test_whether_operations_run_at_once() -> None:
    assert graph_modes._executing_eagerly() is True
    with tf.Graph().as_default():
        assert graph_modes._executing_eagerly() is False


def test_values_are_remembered_by_arguments_and_by_mode() -> None:
    calls: list[Any] = []

    @graph_modes._cache
    def called(*args: Any) -> int:
        calls.append(args)
        return len(calls)

    assert [called(1), called(1), called(2)] == [1, 1, 2]
    with tf.Graph().as_default():
        assert [called(1), called(1)] == [3, 3]
    assert called(1) == 1 and calls == [(1,), (2,), (1,)]


def test_a_function_becomes_a_graph() -> None:
    modes: list[bool] = []

    def noted(x: Any) -> Any:
        modes.append(tf.executing_eagerly())
        return 2 * x

    assert int(graph_modes._make_subgraph(noted)(tf.constant(3))) == 6
    assert modes == [False]


def test_references_are_hashable_and_lead_back() -> None:
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    references = graph_modes.vars_to_refs([first, (second, first)])
    assert hash(references) == hash(graph_modes.vars_to_refs((first, [second, first])))
    back = graph_modes.refs_to_vars(references)
    assert back[0] is first and back[1][0] is second and isinstance(back[1], list)
