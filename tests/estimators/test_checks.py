"""The values that parameters of estimators may have, and the errors for others."""

from __future__ import annotations

import numpy
import pytest

from spark_estimator import TorchEstimator


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
        ({"input_shapes": [[20]]}, ValueError, r"shapes that start with -1.*it contains \[20\]"),
        ({"nulls": "ignore"}, ValueError, "nulls must be 'error', 'drop' or a number"),
        ({"padding": {"x": "0"}}, TypeError, "padding must be a number that pads shorter arrays, or a dict"),
        ({"decoders": {"x": 1}}, TypeError, "decoders must be a dict from columns to functions"),
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
            {"epoch": 3},
            TypeError,
            r"has no parameter 'epoch' \(did you mean 'epochs'\?\)\. Its parameters: .*epochs",
        ),
        ({"lr": 0.1}, TypeError, r"no parameter 'lr' \(did you mean 'learning_rate'\?\)"),
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
