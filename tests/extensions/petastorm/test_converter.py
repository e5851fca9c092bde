"""`make_spark_converter`: converters of files and of other DataFrames, on Spark and in a job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.petastorm import (
    InMemBatchedDataLoader,
    Reader,
    SparkDatasetConverter,
    make_spark_converter,
)
from spark_estimator.errors import DataError
from tests.ranks import run_ranks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_converter_of_files_and_of_any_other_plan(spark: SparkSession, numbers: str, tmp_path: Path) -> None:
    from pyspark.ml.feature import VectorAssembler

    files = make_spark_converter(spark.read.parquet(numbers))
    assert (len(files), files.dataset_size, files.cache_dir_url) == (25, 25, numbers)
    assert files.file_urls == [f"{numbers}/0.parquet", f"{numbers}/11.parquet"]
    with files.make_torch_dataloader(25, 1, schema_fields=["n", "name"]) as loader:
        (batch,) = loader
    assert batch["name"] == list(map(str, batch["n"].tolist()))
    with files.make_torch_dataloader(25, 1, schema_fields=["half", "n"]) as loader:
        (batch,) = loader
    assert (batch["half"].dtype, sorted(batch["n"].tolist())) == (torch.float32, list(range(25)))
    files.delete()
    assert len(list(Path(numbers.removeprefix("file://")).glob("*.parquet"))) == 2, "the user's files stay"

    frame: DataFrame = VectorAssembler(inputCols=["n", "half"], outputCol="both").transform(
        spark.read.parquet(numbers).where("n < 20").select("n", "half")
    )
    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
    with pytest.raises(DataError, match=r"spark\.conf\.set\('petastorm\.spark\.converter\.parentCacheDirUrl'"):
        make_spark_converter(frame)
    parent = tmp_path / "cache"
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{parent}")
    written = make_spark_converter(frame)
    assert written.written is not None and Path(written.written).parent == parent and len(written) == 20
    assert make_spark_converter(frame).cache_dir_url == written.cache_dir_url, "the same plan is not written again"
    wide = make_spark_converter(frame, dtype="float64")
    assert wide.cache_dir_url != written.cache_dir_url
    travelled = cloudpickle.loads(cloudpickle.dumps(written))
    for converter, dtype in ((travelled, torch.float32), (wide, torch.float64)):
        with converter.make_torch_dataloader(20, 1, workers_count=None, seed=1) as loader:
            (batch,) = loader
        assert batch["half"].dtype == batch["both"].dtype == dtype and batch["n"].dtype == torch.int32
        assert torch.equal(batch["both"], torch.stack([batch["n"].to(dtype), batch["half"]], 1))
    written.delete()
    wide.delete()
    assert not list(parent.iterdir())
    assert len(make_spark_converter(frame)) == 20, "what was deleted is written again"


def test_names_with_dots_and_backticks_are_written(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    frame = spark.range(5).selectExpr("id as `a.b`", "id * 2 as `c``d`", "id * 3 as a")
    converter = make_spark_converter(frame)
    with converter.make_torch_dataloader(5, 1) as loader:
        (batch,) = loader
    assert {name: sum(values.tolist()) for name, values in batch.items()} == {"a.b": 10, "c`d": 20, "a": 30}
    converter.delete()


def test_ranks_read_a_converter_s_shares(numbers: str) -> None:
    def work(rank: int, converter: SparkDatasetConverter) -> tuple[int, list[int]]:
        import spark_estimator.torch as hvd

        hvd.init()
        shard = {"cur_shard": hvd.rank(), "shard_count": hvd.size()}
        with converter.make_torch_dataloader(4, 1, schema_fields=["n"], **shard) as loader:
            batches = [batch["n"].tolist() for batch in loader]
            total = hvd.allreduce(torch.tensor(sum(map(sum, batches))), op=hvd.Sum).item()
        converter.make_torch_dataloader(4, 1, schema_fields=["n"])
        hvd.shutdown()
        return int(total), [len(batch) for batch in batches]

    results = run_ranks(2, work, args=(make_spark_converter(numbers),))
    # 13 rows and 12: the second rank's fourth batch is its first row, 13, once more.
    assert results == [(300 + 13, [4, 4, 4, 1])] * 2


def test_arguments_of_a_converter(numbers: str) -> None:
    with pytest.raises(ValueError, match="dtype must be 'float32', 'float64' or None; got 'float16'"):
        make_spark_converter(numbers, dtype="float16")
    with pytest.raises(ValueError, match=r"compression_codec must be one of uncompressed, .*; got 'zip'"):
        make_spark_converter(numbers, compression_codec="zip")
    for call in (SparkDatasetConverter.make_torch_dataloader, SparkDatasetConverter.make_tf_dataset):
        with pytest.raises(TypeError, match=rf"{call.__name__}\(\) got an unexpected keyword argument 'preproc_fn'"):
            call(make_spark_converter(numbers), schema_fields=["n"], preproc_fn=print)


def test_a_loader_of_the_users_own(numbers: str) -> None:
    def own(reader: Reader, batch_size: int, shuffling_queue_capacity: int) -> list[int]:
        assert (batch_size, shuffling_queue_capacity) == (7, 3)
        return [len(batch.n) for batch in reader]

    converter = make_spark_converter(numbers)
    with converter.make_torch_dataloader(7, 1, shuffling_queue_capacity=3, data_loader_fn=own) as loader:
        assert sum(loader) == 25
    memory = partial(InMemBatchedDataLoader, rows_capacity=20, num_epochs=2)
    columns = {"schema_fields": ["n"], "shuffle_row_groups": False}
    with converter.make_torch_dataloader(
        8, data_loader_fn=lambda reader, batch_size, **_: memory(reader, batch_size), **columns
    ) as loader:
        assert [len(batch["n"]) for batch in loader] == [8, 8, 4] * 2 and len(loader) == 6
        with pytest.raises(RuntimeError, match="is iterated once"):
            iter(loader)
