"""The tables of parameters of `TorchEstimator` and `TorchModel`."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from spark_estimator import TorchEstimator
from spark_estimator.estimators import checks
from spark_estimator.estimators.params import Row
from spark_estimator.estimators.torch.params import ESTIMATOR, MODEL, TYPES, set_types


def test_rows_get_a_framework_s_types() -> None:
    rows = [Row("a", None, checks.check_str, "doc", "str"), Row("b", None, checks.check_str, "doc", "str")]
    first, second = set_types(rows, {"a": ("int", "float")})
    assert (first.type, first.returns, first.name, first.doc) == ("int", "float", "a", "doc")
    assert second is rows[1]


def test_each_parameter_is_there_once_and_has_a_valid_default() -> None:
    for table in (ESTIMATOR, MODEL):
        names = [row.name for row in table]
        assert len(names) == len(set(names))
        for row in table:
            row.check(row.name, row.default)  # raises if it is not valid
    assert TYPES.keys() <= {row.name for row in ESTIMATOR}


def test_a_loss_that_is_no_mean_is_refused_when_it_is_set() -> None:
    """The stages of a Pipeline that come before the estimator have not run then."""
    for loss in (nn.MSELoss(reduction="none"), functools.partial(nn.functional.mse_loss, reduction="none")):
        with pytest.raises(ValueError, match=r"reduction='none'; a loss has to be a mean over the rows"):
            TorchEstimator(loss=[nn.L1Loss(), loss])
        with pytest.raises(ValueError, match=r"reduction='none'"):
            TorchEstimator().setLoss(loss)
