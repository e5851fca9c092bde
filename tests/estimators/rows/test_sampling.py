"""The first rows of a training's columns, from Parquet files without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator import DataError, TorchEstimator
from spark_estimator.data.parquet import DataFiles, find_files
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.sampling import RowSample, sample_files


@pytest.fixture
def files(tmp_path: Path) -> DataFiles:
    columns = {
        "a": [1, 2, 3],
        "v": [[1.0], [1.0, 2.0], [3.0]],
        "y": [0.5, 1.5, 2.5],
        "text": ["a", "b", "c"],
        "held": [True, False, False],
        "fold": [0, 1, 2],
        "CrossValidator_0a1b_rand": [0.1, 0.2, 0.3],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    return find_files(str(tmp_path / "rows.parquet"))


def sample(files: DataFiles, marker: str | None = None, **parameters: Any) -> RowSample:
    return sample_files(
        files, RowRequest.from_parameters(TorchEstimator(label_cols=["y"], **parameters)._value, marker)
    )


def test_columns_have_roles_types_and_first_rows(files: DataFiles) -> None:
    result = sample(files, "held", feature_cols=["a", "v"], sample_weight_col="y", padding=-1)
    columns = result.columns
    assert [column.name for column in columns.fed] == ["a", "v", "y", "y"]
    assert columns.features[0].dtype == "int64"
    assert columns.weight is not None and columns.marker is not None and columns.marker.name == "held"
    assert (result.widths, result.padding) == ((1, 2, 1, 1), (None, -1.0, None, None))
    assert result.rows.schema.names == ["c0", "c1", "c2", "c3"] and result.rows.num_rows == 3


@pytest.mark.parametrize(
    ("marker", "parameters", "words"),
    [
        (None, {"feature_cols": ["nothing"]}, "no column 'nothing'"),
        (None, {"feature_cols": ["text"]}, "column 'text' has type string"),
        (None, {}, "'text' has type string.*feature_cols is not set, so every column"),
        (None, {"feature_cols": ["v"]}, "'v' has arrays of different lengths"),
        ("y", {"feature_cols": ["a"]}, "validation='y': the column has type double. It must be boolean"),
        ("fold", {"feature_cols": ["a"]}, "the column 'fold' of validation marks holds null, or a number that is"),
        (None, {"feature_cols": ["a"], "decoders": {"v": len}}, "decoders refers to 'v', which isn't a column that"),
        (None, {"feature_cols": []}, "there are no feature columns"),
    ],
)
def test_columns_that_cannot_be_trained_on(
    files: DataFiles, marker: str | None, parameters: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        sample(files, marker, **parameters)


def test_columns_of_tuning_are_no_features_by_default(tmp_path: Path) -> None:
    columns = {"a": [1.0], "y": [0.5], "CrossValidator_0a1b_rand": [0.1], "TrainValidationSplit_9_rand": [0.1]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    result = sample(find_files(str(tmp_path / "rows.parquet")))
    assert [column.name for column in result.columns.features] == ["a"]


def test_files_without_rows(tmp_path: Path) -> None:
    empty = pyarrow.table({"a": pyarrow.array([], pyarrow.float32()), "y": pyarrow.array([], pyarrow.float32())})
    pyarrow.parquet.write_table(empty, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"the DataFrame has no rows\."):
        sample(find_files(str(tmp_path / "rows.parquet")))
