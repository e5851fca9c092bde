"""`prepare_data` on a real session, and what it knows of the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest
from pyspark.ml.linalg import DenseVector, Vectors
from pyspark.sql.types import DoubleType, LongType

from spark_estimator.data.prepared import data_sets
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    rows = [(Vectors.dense([float(n), 1.0]), n % 3, float(n), n % 4 == 0, n % 5) for n in range(40)]
    return spark.createDataFrame(rows, ["v", "y", "w", "held", "mark"])


def test_rows_metadata_and_numbers_of_data_sets(frame: DataFrame, tmp_path: Path) -> None:
    store: Any = Store.create(str(tmp_path))
    data_sets.clear_training_cache()
    with data_sets.prepare_data(2, store, frame, ["y"], ["v"], "held", "w", partitions_per_process=1) as first:
        train_rows, val_rows, metadata, row_bytes = data_sets.get_dataset_properties(first)
        assert (first, train_rows, val_rows) == (0, 30, 10)
        assert row_bytes > 8
        assert {name: facts["spark_data_type"] for name, facts in metadata.items()} == {
            "v": DenseVector,
            "y": LongType,
            "w": DoubleType,
        }
        assert metadata["v"]["intermediate_format"] == "nochange" and metadata["v"]["shape"] is None
        held = pyarrow.parquet.read_table(store.get_val_data_path(0))
        assert held.column_names == ["v", "y", "w"]
        assert sorted(held["v"].to_pylist()) == [[float(n), 1.0] for n in range(0, 40, 4)]
        with data_sets.prepare_data(2, store, frame, ["y"], ["v"], "held", "w") as same:
            assert same == first, "it is in use, and not written again"
        with data_sets.prepare_data(1, store, frame, ["y"], None, 0.25, partitions_per_process=1) as second:
            assert second == 1
            rows, val_rows, metadata, _ = data_sets.get_dataset_properties(second)
            assert (rows + val_rows, set(metadata)) == (40, {"v", "w", "held", "mark", "y"})
    with data_sets.prepare_data(1, store, frame, ["y"], ["w"], "mark", partitions_per_process=1) as third:
        assert third == 0, "the number is free again"
        assert data_sets.get_dataset_properties(third)[:2] == (8, 32)
    assert data_sets.get_simple_meta_from_parquet(store, ["y"], ["w"], None, 0)[:2] == (8, 32)
    data_sets.clear_training_cache()
    with pytest.raises(KeyError):
        data_sets.get_dataset_properties(0)


def test_what_is_refused(frame: DataFrame, tmp_path: Path) -> None:
    store: Any = Store.create(str(tmp_path))

    def prepared(*args: Any, **more: Any) -> None:
        with data_sets.prepare_data(*args, **more):
            pytest.fail("it was accepted")

    with pytest.raises(ValueError, match="num_proc=0"):
        prepared(0, store, frame, ["y"], ["v"])
    with pytest.raises(ValueError, match="label_columns is required"):
        prepared(1, store, frame, [], ["v"])
    with pytest.raises(ValueError, match=r"label column 'Y' doesn't exist.*Did you mean 'y'"):
        prepared(1, store, frame, ["Y"], ["v"])
    with pytest.raises(ValueError, match="feature column 'x' doesn't exist"):
        prepared(1, store, frame, ["y"], ["x"])
    for validation, words in ((1.5, "less than 1"), ("gone", "column 'gone' doesn't exist"), (3, "float or a column")):
        with pytest.raises(ValueError, match=words):
            prepared(1, store, frame, ["y"], ["v"], validation)
    with pytest.raises(ValueError, match="leaves no rows for validation"):
        prepared(1, store, frame.filter("not held"), ["y"], ["v"], "held", partitions_per_process=1)
    with pytest.raises(ValueError, match="doesn't exist in the store"):
        data_sets.get_simple_meta_from_parquet(store, ["y"], ["v"], None, 7)
