"""`import petastorm` where petastorm is not installed: the names that notebooks use, and what they lead to."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_estimator import compat
from spark_estimator.compat import shims_path
from spark_estimator.compat.unavailable import UNAVAILABLE
from spark_estimator.extensions.petastorm.cache import PARENT_CACHE_DIR_URL_CONF
from tests.compat.interpreter import ROOT, fresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(
    any(package.metadata["Name"] == "petastorm" for package in importlib.metadata.distributions()),
    reason="petastorm itself is installed here",
)

IMPORTS = """
import petastorm
from petastorm import make_batch_reader, make_reader, TransformSpec
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from petastorm.errors import NoDataAvailableError
from petastorm.etl.dataset_metadata import PetastormMetadataError, materialize_dataset
from petastorm.ngram import NGram
from petastorm.predicates import in_intersection, in_lambda, in_negate, in_pseudorandom_split, in_reduce, in_set
from petastorm.reader import Reader
from petastorm.spark import SparkDatasetConverter, make_spark_converter
from petastorm.spark.spark_dataset_converter import make_spark_converter as same
from petastorm.transform import TransformSpec, edit_field, transform_schema
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
from petastorm.weighted_sampling_reader import WeightedSamplingReader
assert petastorm.__version__ == "0.13.1" and same is make_spark_converter
import spark_estimator.data.petastorm as ours
assert ours.make_spark_converter is make_spark_converter and ours.Reader is Reader
assert ours.TransformSpec is TransformSpec and make_reader is ours.make_reader
"""


def test_names_by_install_and_by_the_shims() -> None:
    pytest.importorskip("torch")
    loaders = """
from petastorm.pytorch import BatchedDataLoader, DataLoader, InMemBatchedDataLoader, decimal_friendly_collate
assert ours.DataLoader is DataLoader
"""
    fresh("from spark_estimator import compat\ncompat.install()\n" + IMPORTS + loaders)
    assert fresh(IMPORTS + "print('good')", path=(ROOT, shims_path())) == "good"


def test_an_installed_petastorm_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "petastorm").mkdir()
    (tmp_path / "petastorm" / "__init__.py").write_text("__version__ = 'real'\n")
    program = "import petastorm\nassert petastorm.__version__ == 'real'"
    fresh("from spark_estimator import compat\ncompat.install()\n" + program, path=(ROOT, tmp_path))
    fresh(program, path=(ROOT, shims_path(), tmp_path))
    forced = "from spark_estimator import compat\ncompat.install(force=True)\nimport petastorm\n"
    fresh(forced + "assert petastorm.__version__ == '0.13.1'", path=(ROOT, tmp_path))


def test_what_is_not_available_says_what_to_use() -> None:
    sentences = {
        "petastorm.ngram": ("NGram", "make windows of rows where the data set is written"),
        "petastorm.weighted_sampling_reader": ("WeightedSamplingReader", "draw from their batches"),
        "petastorm.etl.dataset_metadata": ("materialize_dataset", "df.write.parquet()"),
    }
    for module, (name, sentence) in sentences.items():
        assert sentence in UNAVAILABLE[module][name]
    answer = fresh(
        """
        from spark_estimator import compat
        compat.install()
        from petastorm.etl.dataset_metadata import materialize_dataset
        try:
            with materialize_dataset(None, "file:///x", None, 256):
                pass
        except NotImplementedError as error:
            print(error)
        try:
            import petastorm.benchmark
        except ModuleNotFoundError as error:
            print(error)
        """
    )
    assert "materialize_dataset is not available: data sets with a Unischema are read, and not written" in answer
    assert "No module named 'petastorm.benchmark': use `spark_estimator.data.petastorm`" in answer


NOTEBOOK = """
import io
import numpy as np
import torch
from petastorm import TransformSpec
from petastorm.spark import SparkDatasetConverter, make_spark_converter
from pyspark.sql import SparkSession
from sparkdl import HorovodRunner

spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file://FOLDER/cache")
rows = [(bytes([n % 7] * 12), n % 7) for n in range(41)]
frame = spark.createDataFrame(rows, "content binary, label long").where("label < 100")
converter = make_spark_converter(frame)
assert len(converter) == 41

def transform(batch):
    batch["features"] = batch["content"].map(lambda content: np.frombuffer(content, np.uint8).reshape(3, 2, 2) / 255)
    batch["features"] = batch["features"].map(lambda image: image.astype(np.float32))
    return batch.drop(labels=["content"], axis=1)

spec = TransformSpec(
    transform, edit_fields=[("features", np.float32, (3, 2, 2), False)], selected_fields=["features", "label"]
)

def train():
    import horovod.torch as hvd
    import petastorm.pytorch

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 7))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    labels = []
    with converter.make_torch_dataloader(
        transform_spec=spec, cur_shard=hvd.rank(), shard_count=hvd.size(), batch_size=8, num_epochs=1, workers_count=2
    ) as loader:
        assert isinstance(loader, petastorm.pytorch.DataLoader)
        for batch in loader:
            labels += batch["label"].tolist()
            assert torch.allclose(batch["features"][:, 0, 0, 0] * 255, batch["label"].float())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch["features"]), batch["label"]).backward()
            optimizer.step()
    return hvd.allgather_object(labels)

first, second = HorovodRunner(np=2).run(train)
# 21 rows and 20, which are three batches of 8 each.
assert (len(first), len(second)) == (21, 20), (first, second)
assert sorted(first + second) == sorted(n % 7 for n in range(41))
converter.delete()
"""


@pytest.mark.timeout(240)
def test_a_notebook_trains_on_two_ranks_without_a_change(spark: SparkSession, tmp_path: Path) -> None:
    """In the shape of the public notebooks: images as bytes, a TransformSpec, a shard for each rank."""
    pytest.importorskip("torch")
    before = spark.conf.get(PARENT_CACHE_DIR_URL_CONF, None)
    compat.install()
    try:
        program = compile(NOTEBOOK.replace("FOLDER", str(tmp_path)), "notebook.py", "exec")
        exec(program, {"__name__": "__main__"})
    finally:
        compat.uninstall()
        spark.conf.unset(PARENT_CACHE_DIR_URL_CONF)
        if before is not None:
            spark.conf.set(PARENT_CACHE_DIR_URL_CONF, before)
    assert not list((tmp_path / "cache").iterdir())
