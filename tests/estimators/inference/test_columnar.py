"""Parquet files with Spark ML's vectors, which Spark cannot give to a Python function as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import nn

pytest.importorskip("pyspark")

from pyspark.ml.linalg import Vectors

from spark_estimator import TorchModel
from spark_estimator.estimators.inference.columnar import prepare_for_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = [(float(n), Vectors.dense([n, 2.0 * n])) for n in range(5)]


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("vectors") / "rows")
    spark.createDataFrame(ROWS, ["x", "v"]).coalesce(1).write.parquet(path)
    return spark.read.parquet(path)


@pytest.mark.parametrize("column", ["v", "x"])
def test_a_model_predicts_on_parquet_files_with_vectors(parquet: DataFrame, column: str) -> None:
    """It takes the vectors, or another column beside them."""
    net = nn.Linear(2 if column == "v" else 1, 1, bias=False)
    nn.init.ones_(net.weight)
    model = TorchModel(model=net, feature_columns=[column], label_columns=["y"])
    result = model.transform(parquet).orderBy("x").collect()
    assert [row.v for row in result] == [vector for _, vector in ROWS]
    factor = 3 if column == "v" else 1
    assert [row.y__output for row in result] == pytest.approx([factor * x for x, _ in ROWS])


def test_other_dataframes_are_left_alone(spark: SparkSession, parquet: DataFrame) -> None:
    plain = spark.range(3)
    assert prepare_for_python(plain) is plain
    assert prepare_for_python(parquet).count() == 5
    nested = parquet.selectExpr("array(v) AS several", "x")
    assert prepare_for_python(nested) is not nested
