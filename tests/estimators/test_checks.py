"""The values that parameters of estimators may have, and the errors for others."""

from __future__ import annotations

import json

import numpy
import pytest

from spark_estimator import TorchEstimator
from spark_estimator.estimators import checks


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"epochs": 0}, ValueError, "epochs must be at least 1; got 0"),
        ({"epochs": 1.5}, TypeError, r"epochs must be an integer; got 1\.5"),
        ({"num_proc": True}, TypeError, "num_proc must be an integer"),
        ({"feature_cols": "x"}, TypeError, r"feature_cols must be a list of column names.*Use \['x'\]"),
        ({"feature_cols": ["x", "x"]}, ValueError, "feature_cols contains 'x' twice"),
        ({"validation": 1.0}, ValueError, "validation must be at least 0 and less than 1"),
        ({"validation": [0.1]}, ValueError, "validation must be a fraction of the rows or a column name"),
        ({"input_shapes": [[20, -1]]}, ValueError, r"shapes that start with -1.*it contains \[20, -1\]"),
        ({"nulls": "ignore"}, ValueError, "nulls must be 'error', 'drop' or a number"),
        ({"nulls": {"x": "ignore"}}, ValueError, r"nulls\['x'\] must be 'error', 'drop' or a number .*; got 'ignore'"),
        ({"nulls": {3: 0}}, TypeError, "nulls must have the names of columns as its keys; got {3: 0}"),
        ({"padding": {"x": "0"}}, TypeError, "padding must be a number that pads shorter arrays, or a dict"),
        ({"decoders": {"x": 1}}, TypeError, "decoders must be a dict from columns to functions"),
        ({"categories": ["x"]}, TypeError, r"categories must be a dict from columns to categories; got \['x'\]"),
        ({"categories": {"x": 1}}, ValueError, r"categories\['x'\] must be a number of ids from 2 to 1000000; got 1"),
        ({"categories": {"x": True}}, TypeError, r"categories\['x'\] must be an integer, the number of ids; got True"),
        ({"categories": {"x": 2.5}}, TypeError, r"must be an integer, the number of ids; got 2\.5"),
        ({"categories": {"x": {"hash": 2**31}}}, ValueError, r"categories\['x'\]\['hash'\] must be .* to 2147483647"),
        ({"categories": {"x": {"size": 9}}}, TypeError, "must be the number of ids, a list of values, {'hash'"),
        ({"categories": {"x": {"a", "b"}}}, TypeError, "must be the number of ids, a list of values, .*; got {'a"),
        ({"categories": {"x": b"ab"}}, TypeError, "a list of values, .*, or the column whose ids it shares; got b'ab'"),
        ({"categories": {"x": "ab"}}, ValueError, r"categories\['x'\] is 'ab', which has no vocabulary of its own"),
        (
            {"categories": {"x": "x"}},
            ValueError,
            "is 'x', which has no vocabulary of its own: it must be one of those",
        ),
        ({"categories": {"x": "y", "y": "x"}}, ValueError, r"categories\['x'\] is 'y', which has no vocabulary"),
        ({"categories": {"x": "y", "y": "z", "z": 9}}, ValueError, r"\['x'\] is 'y', which has .* hash: \['z'\]\.$"),
        ({"categories": {"x": "itm", "item": 9}}, ValueError, r": \['item'\]\. Did you mean 'item'\?"),
        ({"categories": {"x": []}}, ValueError, "is an empty list"),
        ({"categories": {"x": ["a", None]}}, TypeError, r"list of strings, or of integers; .*None\]\. Null has id 0"),
        ({"categories": {"x": ["a", 1]}}, TypeError, "must be a list of strings, or of integers"),
        ({"categories": {"x": ["a", "b", "a"]}}, ValueError, "contains 'a' twice"),
        ({"categories": {"x": ["a" * 1001]}}, ValueError, "contains 'aaa.*, which has more than 1000 characters"),
        ({"categories": {"x": [1 << 63]}}, ValueError, "contains 9223372036854775808, which has more than 64 bits"),
        ({"categories": {"x": range(1_000_000)}}, ValueError, "has 1000000 values; at most 999999 are possible"),
        ({"backend": 3}, TypeError, r"backend must be a SparkBackend, or another Backend with run\(\) and"),
        ({"store": 3}, TypeError, "store must be a Store or its path, for example .*; got 3"),
        ({"input_shapes": 3}, TypeError, "input_shapes must be a list of shapes .*; got 3"),
        ({"label_shapes": "ab"}, TypeError, "label_shapes must be a list of shapes .*; got 'ab'"),
        ({"label_shapes": [[-1, 1.5]]}, TypeError, r"label_shapes must be a list of shapes .* contains \[-1, 1\.5\]"),
        ({"loss_weights": 3}, TypeError, "loss_weights must be a list of numbers; got 3"),
        ({"transformation_edit_fields": 3}, TypeError, "must be a list of .name, numpy type, shape, nullable.; got 3"),
        ({"feature_cols": 3}, TypeError, "feature_cols must be a list of column names; got 3"),
        ({"loss_weights": "1"}, TypeError, "loss_weights must be a list of numbers; got '1'"),
        ({"transformation_fn": "f"}, TypeError, "transformation_fn must be a function; got 'f'"),
        ({"transformation_edit_fields": [("x", "no type")]}, ValueError, "must be a list of .name, numpy type, shape"),
        ({"shuffle": "yes"}, TypeError, "shuffle must be True or False"),
        (
            {"data_module": int},
            ValueError,
            r"data_module is not supported.*run\(train, data=df\), where data\.loader\(",
        ),
        (
            {"epoch": 3},
            TypeError,
            r"has no parameter 'epoch' \(did you mean 'epochs'\?\)\. Its parameters: .*epochs",
        ),
        ({"lr": 0.1}, TypeError, r"no parameter 'lr' \(did you mean 'learning_rate'\?\)"),
        ({"max_grad_norm": 1}, TypeError, r"did you mean 'gradient_clip_norm'\?"),
        ({"gradient_clip_val": 1}, TypeError, r"did you mean 'gradient_clip_norm'\?"),
        ({"fp16": True}, TypeError, r"did you mean 'mixed_precision'\?"),
        (
            {"gradient_clip_norm": 1, "gradient_clip_value": 0.5},
            ValueError,
            "gradient_clip_norm=1.0 and gradient_clip_value=0.5 exclude each other: set one to 0",
        ),
        ({"warmup_steps": 5, "warmup_ratio": 0.1}, ValueError, "warmup_steps=5 and warmup_ratio=0.1 exclude"),
        ({"warmup_ratio": 2}, ValueError, "warmup_ratio must be a number, 0 or more, less than 1; got 2"),
    ],
)
def test_bad_values_are_refused_at_once(parameters: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TorchEstimator(**parameters)


def test_numbers_of_numpy_are_numbers() -> None:
    parameters = {"nulls": numpy.int64(0), "padding": numpy.float32(0.5), "learning_rate": numpy.float64(0.1)}
    estimator = TorchEstimator(**parameters, validation=numpy.float32(0.25), shuffle=numpy.bool_(False))
    assert (estimator.getNulls(), estimator.getPadding(), estimator.getLearningRate()) == (0.0, 0.5, 0.1)
    assert (estimator.getValidation(), estimator.getShuffle()) == (0.25, False)


def test_categories_become_what_json_has() -> None:
    values = {
        "a": numpy.int64(9),
        "b": numpy.array([3, 1]),
        "c": numpy.array(["x", "y"]),
        "d": {"hash": numpy.int32(5)},
        "e": [True, numpy.bool_(False)],
        "f": numpy.str_("a"),
    }
    categories = TorchEstimator(categories=values).getCategories()
    assert categories == {"a": 9, "b": [3, 1], "c": ["x", "y"], "d": {"hash": 5}, "e": [1, 0], "f": "a"}
    assert json.loads(json.dumps(categories)) == categories
    assert TorchEstimator(categories={}).getCategories() is None


def test_a_shape_without_the_batch_is_that_of_a_row(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        assert checks.check_shapes("input_shapes", [[2], [-1, 3]]) == [[-1, 2], [-1, 3]]
    assert "input_shapes: [2] is taken as [-1, 2]" in caplog.text
