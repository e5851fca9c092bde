"""What an estimator's parameters ask of the rows."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator import DataError, TorchEstimator
from spark_estimator.data.columns import Readable
from spark_estimator.estimators.rows.request import RowRequest


def request_of(marker: str | None = None, **parameters: Any) -> RowRequest:
    return RowRequest.from_parameters(TorchEstimator(label_cols=["y"], **parameters)._value, marker)


def test_parameters_become_a_request() -> None:
    request = request_of(
        "held", feature_cols=["a", "b"], sample_weight_col="w", nulls="drop", padding=1, decoders={"a": len}
    )
    assert (request.features, request.labels, request.weight, request.marker) == (("a", "b"), ("y",), "w", "held")
    assert (request.nulls, request.ragged.padding, request.transformation) == ("drop", 1.0, None)
    assert list(request.decoders) == ["a"]
    assert request_of().features is None


def test_fields_of_a_function_need_the_function() -> None:
    for parameters in ({"transformation_removed_fields": ["a"]}, {"transformation_edit_fields": [("a", "f4", (), 0)]}):
        with pytest.raises(ValueError, match="need transformation_fn, which is None"):
            request_of(**parameters)
    transformation = request_of(transformation_fn=list, transformation_removed_fields=["a"]).transformation
    assert transformation is not None and transformation.removed == ("a",)


@pytest.mark.parametrize("nulls", [0.5, 1e30])
def test_a_replacement_fits_the_columns(nulls: float) -> None:
    whole, real = (Readable(f"of {dtype}", False, dtype, None, "some") for dtype in ("int64", "float32"))
    request = request_of(nulls=nulls)
    request.check_nulls([real])
    with pytest.raises(DataError, match=r"isn't valid for integer column 'of int64' \(some\)"):
        request.check_nulls([real, whole])
    request_of(nulls=3).check_nulls([whole])
    request_of(nulls="drop").check_nulls([whole])


def test_policies_of_columns() -> None:
    whole, real = (Readable(f"of {dtype}", False, dtype, None, "some") for dtype in ("int64", "float32"))
    request_of(nulls={"of int64": 3, "of float32": 0.5}).check_nulls([whole, real])
    with pytest.raises(DataError, match=r"nulls=0\.5 isn't valid for integer column 'of int64'"):
        request_of(nulls={"of int64": 0.5, "of float32": "drop"}).check_nulls([whole, real])
    with pytest.raises(DataError, match=r"nulls refers to 'Of int64', which isn't a feature, .* mean 'of int64'"):
        request_of(nulls={"Of int64": 3}).check_nulls([whole, real])
