"""The exchange of gradients of one optimizer: requests, names, and what the ranks compare first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from spark_estimator._native import ReduceOp
from spark_estimator.keras import exchange
from spark_estimator.keras.compression import Compression
from spark_estimator.keras.exchange import KerasExchange, StepWeight
from tests.keras.conftest import RankPool


def exchange_with(**settings: Any) -> KerasExchange:
    """An exchange with these settings and the defaults of `DistributedOptimizer`."""
    return KerasExchange("adam", **{**DEFAULTS, **settings})


DEFAULTS: dict[str, Any] = {
    "op": ReduceOp.AVERAGE,
    "compression": Compression.none,
    "predivide": 1.0,
    "groups": None,
    "sparse_as_dense": False,
    "process_set": None,
}
VARIABLES = [SimpleNamespace(path=f"w{name}", dtype="float32", shape=(2,)) for name in "abcde"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, [[0, 1, 2, 3, 4]]),
        (2, [[0, 1], [2, 3, 4]]),
        (9, [[0], [1], [2], [3], [4]]),
        ([[3, 0]], [[3, 0], [1, 2, 4]]),
        ([[1], [], [0, 2, 3, 4]], [[1], [0, 2, 3, 4]]),
    ],
)
def test_which_gradients_travel_in_one_request(groups: Any, expected: list[list[int]]) -> None:
    if isinstance(groups, list):
        groups = [[VARIABLES[index] for index in group] for group in groups]
    settings = exchange_with(groups=groups)
    assert settings.split_parts(VARIABLES) == expected
    assert settings.split_parts([]) == []
    if isinstance(groups, list):  # a group has variables without a gradient
        assert settings.split_parts(VARIABLES[:1]) == [[0]]


def test_requests_have_numbers_where_there_are_several() -> None:
    settings = exchange_with()
    assert settings.number_names("name", [[0]]) == ["name"]
    assert settings.number_names("name", [[0], [1]]) == ["name.0", "name.1"]


def test_what_the_ranks_compare() -> None:
    settings = exchange_with(predivide=2.0, accumulates=3)
    lines, subject = settings.make_statement(VARIABLES[:2], VARIABLES[1:2])
    assert lines == [
        "op=AVERAGE, gradient_predivide_factor=2.0, 3 passes",
        "wa float32 (2,), without a gradient to exchange",
        "wb float32 (2,)",
    ]
    assert subject == "the variables of optimizer 'adam'"
    digest = settings.digest(VARIABLES[:2], VARIABLES[1:2])
    assert digest == exchange_with(predivide=2.0, accumulates=3).digest(VARIABLES[:2], VARIABLES[1:2])
    others = [settings.digest(VARIABLES[:2], VARIABLES[:2]), settings.digest(VARIABLES[1:2], VARIABLES[1:2])]
    others.append(exchange_with(accumulates=3).digest(VARIABLES[:2], VARIABLES[1:2]))
    assert len({digest, *others}) == 4
    assert settings.scale_op() == (ReduceOp.AVERAGE, 0.5, 2.0)


def test_a_variable_of_the_step_follows_the_factor() -> None:
    weight, assigned = StepWeight(), []
    weight.set(2.0)
    weight.follower = SimpleNamespace(assign=assigned.append)
    weight.set(3.0)
    assert (weight.value, assigned) == (3.0, [3.0])


def test_failures_are_kept_for_backends_that_wrap_them() -> None:
    failure = KeyboardInterrupt()
    try:
        with pytest.raises(KeyboardInterrupt), exchange_with().keep_failures():
            raise failure
        assert exchange.failures == [failure]
    finally:
        exchange.failures.clear()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 2.0),
        ({"weight": StepWeight(True, 3.0)}, 6.0),
        ({"weight": StepWeight(False, 3.0)}, 2.0),
        ({"weight": StepWeight(True, 3.0), "accumulates": 2}, 2.0),  # each pass has been weighed before
    ],
)
def test_gradients_are_weighed_once(settings: dict[str, Any], expected: float) -> None:
    weighed = exchange_with(**settings)._weigh(numpy.full(1, 2.0, "float16"))
    assert (weighed.dtype.name, weighed.tolist()) == ("float16", [expected])


def test_variables_that_differ_are_named(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from spark_estimator.errors import MismatchError

        def step(names: list[str], rows: int = 2) -> str:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
            variables = [keras.Variable(numpy.zeros(rows, "float32"), name=name) for name in names]
            try:
                optimizer.apply([keras.ops.ones((rows,)) for _ in variables], variables)
            except MismatchError as error:
                return str(error)
            except Exception as error:  # as TensorFlow and JAX hand it on
                return str(error)
            return ""

        assert step(["a", "b"] if rank else ["a_7", "b_9"]) == ""
        assert "Only rank 1 has: b float32 (2,)" in step(["a", "b"] if rank else ["a"])
        messages = step(["a"], rows=2 + rank)
        assert "Rank 0 has: a float32 (2,). Rank 1 has: a float32 (3,)." in messages, messages
        assert step(["a"]) == ""

    two_ranks.run(check)
