"""The tables of parameters of `KerasEstimator` and `KerasModel`."""

from __future__ import annotations

import pytest

pytest.importorskip("keras")


from spark_estimator.estimators.keras.params import ESTIMATOR, MODEL


def test_each_parameter_is_there_once_and_has_a_valid_default() -> None:
    for table in (ESTIMATOR, MODEL):
        names = [row.name for row in table]
        assert len(names) == len(set(names))
        for row in table:
            row.check(row.name, row.default)  # raises if it is not valid


def test_what_differs_from_pytorch_s_parameters_is_described_for_keras() -> None:
    docs = {row.name: row.doc for row in ESTIMATOR}
    assert docs["model"].startswith("a keras.Model") and "Keras optimizer" in docs["optimizer"]
