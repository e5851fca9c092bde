"""``data_module=``: classes of the user's with Horovod's keywords."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow.parquet
import pytest
import torch

from spark_estimator import DataError, TorchEstimator
from spark_estimator.data.fields import Field
from spark_estimator.data.prepared import keras_module
from spark_estimator.data.prepared.module import DataModule, PetastormDataModule
from spark_estimator.estimators import data_modules
from spark_estimator.estimators.data_modules import ModuleBatches, ModulePlan, ModuleRows, opened
from tests.estimators.conftest import TRUTH
from tests.estimators.specs import spec_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


pytestmark = pytest.mark.timeout(240)


class Halves(DataModule):
    """Every rank takes each `shard_count`-th row. Labels are separate from the features, as in NVTabular."""

    def _batches(self, folder: str, size: int) -> Iterator[Any]:
        table = pyarrow.parquet.read_table(folder, columns=self.schema_fields)
        columns = {
            name: torch.tensor(numpy.stack(table[name].to_numpy()))[self.cur_shard :: self.shard_count]
            for name in table.column_names
        }
        label = columns.pop("y")
        while True:
            for part in torch.arange(len(label)).split(size):
                yield {name: column[part] for name, column in columns.items()}, label[part]

    def train_data(self) -> Iterator[Any]:
        assert self.train_dir.startswith("file://") and self.steps_per_epoch_train > 1
        return self._batches(self.train_dir, self.train_batch_size)

    def val_data(self) -> Iterator[Any]:
        return self._batches(self.val_dir, self.val_batch_size)


def test_a_class_of_the_users_brings_the_rows(
    line: DataFrame, estimator: Callable[..., TorchEstimator], tmp_path: Path
) -> None:
    made = estimator(data_module=Halves, store=str(tmp_path), validation="held", epochs=6, batch_size=10)
    made._set(partitions_per_process=1)
    model = made.fit(line.select("features", "y", "held"))
    weight = model.getModel().weight.detach().ravel()  # type: ignore[union-attr, operator]
    assert numpy.allclose(weight, TRUTH, atol=0.1)
    assert [set(entry) for entry in model.getHistory()] == [{"epoch", "train", "validation"}] * 6
    assert model.getHistory()[-1]["validation"]["loss"] < 0.1
    with pytest.raises(ValueError, match="data_module= needs a store"):
        estimator(data_module=Halves).fit(line)
    with pytest.raises(ValueError, match="transformation_fn and data_module=Halves"):
        estimator(data_module=Halves, store=str(tmp_path), transformation_fn=dict).fit(line)


def test_which_classes_are_taken() -> None:
    for value in (None, PetastormDataModule, keras_module.PetastormDataModule, Halves):
        assert data_modules.checked("data_module", value) is value
    for other in (dict, Halves("train", "val"), "petastorm"):
        with pytest.raises(TypeError, match="data_module must be a class derived from"):
            data_modules.checked("data_module", other)

    class WithKeywords:
        def __init__(self, train_dir: str, val_dir: str) -> None:
            self.folders = train_dir, val_dir

    assert data_modules.takes_folders(WithKeywords) and not data_modules.takes_folders(PetastormDataModule)
    keywords = {"train_dir": "t", "val_dir": "v", "train_batch_size": 4, "val_batch_size": 4, "verbose": True}
    plan = ModulePlan(WithKeywords, keywords, 21, 9)
    assert plan.made(0, 2, None, None).folders == ("t", "v")
    assert (plan.train_steps(2, None), plan.validation_steps(2, None), plan.train_steps(2, 7)) == (2, 2, 7)
    assert replace(plan, rounds_up=True).train_steps(2, None) == 3


def test_batches_of_a_rank() -> None:
    x = Field(("a", "b"), ("c0", "c1"), (1, 2), "float32", (3,))
    y = Field(("y",), ("c2",), (1,), "int64", ())
    spec = spec_of(inputs=(x,), labels=(y,), batch_size=2)
    batch = {"a": torch.tensor([1, 2]), "b": torch.tensor([[3.0, 4.0], [5.0, 6.0]]), "y": numpy.array([7.0, 8.0])}
    pair = ({"a": batch["a"], "b": batch["b"]}, batch["y"])
    rows = ModuleRows.of(iter([batch, pair, {"a": batch["a"]}]), spec, "Mine.train_data()", 0, 2, 2, 2)
    assert rows.plan(2).steps == 2 and rows.total == 8
    for each in rows.batches(2):
        assert (each.factor, each.rows) == (1.0, 2)
        features, labels = each.matrices
        assert (features.dtype, features.tolist()) == ("float32", [[1, 3, 4], [2, 5, 6]])
        assert (labels.dtype, labels.tolist()) == ("int64", [[7], [8]])
    with pytest.raises(DataError, match=r"a batch of Mine.train_data\(\) has the columns \['a'\], and no 'b'"):
        next(rows.batches(2))
    with pytest.raises(DataError, match=r"Mine.train_data\(\) ended after 0 batches of an epoch on rank 0"):
        next(rows.batches(2))
    with pytest.raises(DataError, match=r"Mine.train_data\(\) has no batches on rank 0"):
        rows.sample()
    with opened(spec_of(), 0, 1) as nothing:
        assert nothing is None


def test_forms_of_batches() -> None:
    x = Field(("a", "b"), ("c0", "c1"), (1, 2), "float32", (3,))
    y, z = (Field((name,), (name,), (1,), "float32", ()) for name in "yz")
    weight = Field(("w",), ("c4",), (1,), "float32", ())
    a, b, ones, twos = numpy.array([1, 2]), numpy.array([[3, 4], [5, 6]]), numpy.ones(2), numpy.full((2, 1), 2)
    row = collections.namedtuple("row", "a b y z w")  # as petastorm makes them
    forms = [
        row(a, b, ones, twos, ones),
        ((a, b), (ones, twos), ({"first": ones, "second": ones},)),
        ({"a": a, "b": b}, {"z": twos, "y": ones}, ones),
        (numpy.array([[1, 3, 4], [2, 5, 6]]), numpy.array([[1, 2], [1, 2]]), (ones, ones)),
    ]
    spec = spec_of(inputs=(x,), labels=(y, z), weight=weight)
    rows = ModuleRows.of(forms, spec, "Mine.train_data()", 0, 1, len(forms), 2)
    assert rows.sample().rows == 2
    for batch in rows.batches(2):
        assert [matrix.tolist() for matrix in batch.matrices] == [
            *([[1, 3, 4], [2, 5, 6]], [[1], [1]], [[2], [2]], [[1], [1]])
        ]
    for wrong, message in [
        ((a,), "a batch of Mine is a tuple of 1: features and labels"),
        ((a, (ones, twos), ones), r"a batch of Mine has 1 arrays for the columns \['a', 'b'\]"),
        (((a, b), (ones, twos)), r"has the columns \['y', 'z', 'a', 'b'\], and no 'w'"),
    ]:
        with pytest.raises(DataError, match=message):
            ModuleRows.of([wrong], spec, "Mine", 0, 1, 1, 2).sample()


def test_batches_begin_again() -> None:
    def taken(batches: Any, count: int) -> list[int]:
        source = ModuleBatches(batches)
        assert source.first() == source.first()
        return [source.next() for _ in range(count)]

    class Sequence:
        """As keras.utils.PyDataset, which has no iterator."""

        def __len__(self) -> int:
            return 2

        def __getitem__(self, place: int) -> int:
            return place + 1  # of any place

    assert taken([1, 2], 5) == taken(Sequence(), 5) == [1, 2, 1, 2, 1]
    assert taken(iter([1, 2]), 2) == [1, 2]
    with pytest.raises(StopIteration):
        taken(iter([1, 2]), 3)
    with pytest.raises(StopIteration):
        ModuleBatches([]).first()
