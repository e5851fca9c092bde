"""Petastorm itself, where it works (`make test-petastorm`): our batches are the same, and it reads for us."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

pytest.importorskip("petastorm")
pytest.importorskip("torch")

import petastorm
import torch
from petastorm import codecs
from petastorm.etl.dataset_metadata import materialize_dataset
from petastorm.pytorch import BatchedDataLoader, DataLoader
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row

from spark_estimator.data import petastorm as ours
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")


def sorted_rows(loader: Any, by: str = "id") -> dict[str, torch.Tensor]:
    """All batches as one, in the order of a column."""
    batches = list(loader)
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    order = whole[by].argsort(stable=True)
    return {name: values[order] for name, values in whole.items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(theirs)
    for name, values in theirs.items():
        assert ours[name].dtype == values.dtype, name
        assert torch.equal(ours[name], values), name


def test_a_data_set_is_read_as_petastorm_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import types

    schema = Unischema(
        "Numbers",
        [
            UnischemaField("id", numpy.int64, (), codecs.ScalarCodec(types.LongType()), False),
            UnischemaField("small", numpy.int8, (), codecs.ScalarCodec(types.ByteType()), False),
            UnischemaField("true", numpy.bool_, (), codecs.ScalarCodec(types.BooleanType()), False),
            UnischemaField("exact", numpy.float64, (), None, False),
            UnischemaField("matrix", numpy.float32, (2, None), codecs.NdarrayCodec(), False),
            UnischemaField("mask", numpy.bool_, (3,), codecs.NdarrayCodec(), False),
            UnischemaField("packed", numpy.uint16, (4,), codecs.CompressedNdarrayCodec(), False),
            UnischemaField("grey", numpy.uint8, (5, 6), codecs.CompressedImageCodec("png"), False),
            UnischemaField("deep", numpy.uint16, (5, 6), codecs.CompressedImageCodec("png"), False),
            UnischemaField("colours", numpy.uint8, (5, 6, 3), codecs.CompressedImageCodec("png"), False),
        ],
    )
    chance = numpy.random.default_rng(0)
    rows = [
        {
            "id": number,
            "small": number % 100 - 50,
            "true": number % 3 == 0,
            "exact": chance.random(),
            "matrix": chance.random((2, 3), numpy.float32),
            "mask": chance.random(3) > 0.5,
            "packed": chance.integers(0, 1 << 16, 4, numpy.uint16),
            "grey": chance.integers(0, 256, (5, 6), numpy.uint8),
            "deep": chance.integers(0, 1 << 16, (5, 6), numpy.uint16),
            "colours": chance.integers(0, 256, (5, 6, 3), numpy.uint8),
        }
        for number in range(40)
    ]
    url = f"file://{tmp_path}/set"
    with materialize_dataset(spark, url, schema, 1):
        encoded = spark.sparkContext.parallelize(rows, 3).map(lambda row: dict_to_spark_row(schema, row))
        spark.createDataFrame(encoded, schema.as_spark_schema()).write.parquet(url)
    with DataLoader(petastorm.make_reader(url, reader_pool_type="dummy"), 7) as loader:
        theirs = sorted_rows(loader)
    with ours.DataLoader(ours.make_reader(url, trust=True), 7) as loader:
        assert_same(sorted_rows(loader), theirs)


def test_a_converter_gives_what_petastorm_s_gives(spark: SparkSession, tmp_path: Path) -> None:
    from petastorm.spark import make_spark_converter
    from pyspark.ml.feature import VectorAssembler

    spark.conf.set(ours.SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    columns = ["id", "cast(id as int) count", "cast(id as smallint) few", "id % 2 = 0 even", "sqrt(id) root"]
    frame = spark.range(100).selectExpr(*columns, "array(cast(id as float), 0.5F) pair")
    frame = VectorAssembler(inputCols=["root", "few"], outputCol="vector").transform(frame)
    with make_spark_converter(frame).make_torch_dataloader(16, 1, reader_pool_type="dummy") as loader:
        theirs = sorted_rows(loader)
    converter = ours.make_spark_converter(frame)
    for reader in ("native", "petastorm"):
        with converter.make_torch_dataloader(16, 2, reader=reader) as loader:
            batches = list(loader)
        assert [len(batch["id"]) for batch in batches] == [16] * 12 + [8], reader
        rows = sorted_rows(batches)
        assert_same({name: values[::2] for name, values in rows.items()}, theirs)
    with converter.make_torch_dataloader(16, 1, data_loader_fn=BatchedDataLoader, reader="petastorm") as loader:
        assert_same(sorted_rows(loader), theirs)
    shards = []
    for shard in range(2):
        # Shards of petastorm's are row groups.
        with converter.make_torch_dataloader(
            16, 1, cur_shard=shard, shard_count=2, schema_fields=["id"], reader="petastorm"
        ) as loader:
            shards += sorted_rows(loader)["id"].tolist()
    assert sorted(shards) == list(range(100))


def test_files_in_other_types_than_were_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).selectExpr("id", "sqrt(id) root").write.parquet(f"{tmp_path}/set")
    converter = ours.make_spark_converter(spark.read.parquet(f"{tmp_path}/set"))
    with pytest.raises(DataError, match=r"petastorm reads the DataFrame's files as they are.*read_files=False"):
        converter.make_torch_dataloader(reader="petastorm")
    with converter.make_torch_dataloader(10, 1, reader="petastorm", schema_fields=["id"]) as loader:
        assert sorted_rows(loader)["id"].tolist() == list(range(10))
