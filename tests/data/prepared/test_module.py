"""Horovod's data modules and loaders over this package's reader."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from spark_estimator.data.petastorm import make_batch_reader
from spark_estimator.data.prepared import loaders
from spark_estimator.data.prepared.module import DataModule, PetastormDataModule

ROWS = 12


@pytest.fixture
def folder(tmp_path: Path) -> str:
    table = pyarrow.table({"x": [float(n) for n in range(ROWS)], "y": list(range(ROWS))})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    return str(tmp_path)


def values(batches: Any, count: int) -> list[float]:
    return [value for batch in itertools.islice(iter(batches), count) for value in batch["x"].tolist()]


def test_batches_of_a_shard_without_end(folder: str) -> None:
    arguments: Any = {"train_dir": folder, "val_dir": folder, "train_batch_size": 3, "val_batch_size": 2}
    seen = []
    for shard in range(2):
        with PetastormDataModule(cur_shard=shard, shard_count=2, random_seed=5, **arguments) as module:
            train, again = iter(module.train_data()), module.val_data()
            first, second = values(train, 2), values(train, 2)
            assert sorted(first) == sorted(second) and first != second, "another order in each epoch"
            seen += first
            held = values(again, 3)
            assert held == sorted(held)
    assert sorted(seen) == [float(n) for n in range(ROWS)]
    with PetastormDataModule(has_val=False, schema_fields=["x"], **arguments) as module:
        assert list(module.val_data()) == []
        assert set(next(iter(module.train_data()))) == {"x"}


def test_a_function_of_rows(folder: str) -> None:
    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] * 2, "pair": [row["y"], 1]}

    with PetastormDataModule(
        train_dir=folder, val_dir=folder, train_batch_size=4, shuffle=False, transform_fn=doubled
    ) as module:
        batch = next(iter(module.train_data()))
    assert batch["x"].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert [column.tolist() for column in batch["pair"]] == [[0, 1, 2, 3], [1, 1, 1, 1]]


def test_a_class_of_the_users_own() -> None:
    class Own(DataModule):
        def train_data(self) -> list[int]:
            return [self.train_batch_size]

        def val_data(self) -> list[int]:
            return []

    with Own("train", "val", train_batch_size=7, extra="ignored") as module:
        assert module.train_data() == [7] and module.short_name is None
    with pytest.raises(TypeError, match="abstract"):
        DataModule("train", "val")  # type: ignore[abstract]


@pytest.mark.parametrize("kind", [loaders.PytorchDataLoader, loaders.PytorchAsyncDataLoader])
def test_a_loader_that_begins_again(folder: str, kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reader = make_batch_reader(folder, shuffle_row_groups=False)
    loader = kind(reader=reader, batch_size=5, shuffling_queue_capacity=0, name="rows", limit_step_per_epoch=2)
    for _ in range(2):
        assert values(loader, 9) == [float(n) for n in range(10)]
    assert len(loader) == 2 and len(kind(reader=reader, batch_size=5, shuffling_queue_capacity=0)) == 0
    whole = kind(reader=reader, batch_size=5, shuffling_queue_capacity=0, name="rows", verbose=True)
    assert values(whole, 9) == [float(n) for n in range(ROWS)]
    assert "[rows]: begins a pass" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [loaders.PytorchInfiniteDataLoader, loaders.PytorchInfiniteAsyncDataLoader])
def test_a_loader_that_goes_on(folder: str, kind: Any) -> None:
    reader = make_batch_reader(folder, num_epochs=None, shuffle_row_groups=False)
    loader = kind(reader=reader, batch_size=4, shuffling_queue_capacity=0, limit_step_per_epoch=2)
    assert values(loader, 9) + values(loader, 9) == [float(n % ROWS) for n in range(16)]
    with pytest.raises(ValueError, match="num_epochs=1"):
        kind(reader=make_batch_reader(folder), batch_size=4, shuffling_queue_capacity=0)


@pytest.mark.parametrize("kind", [loaders.PytorchInmemDataLoader, loaders.PytorchInmemAsyncDataLoader])
def test_a_loader_in_memory(folder: str, kind: Any) -> None:
    reader = make_batch_reader(folder, num_epochs=None, shuffle_row_groups=False)
    torch.manual_seed(3)
    arguments: Any = {"reader": reader, "batch_size": 4, "num_epochs": 2}
    loader = kind(shuffle=True, limit_step_per_epoch=2, **arguments)
    first, second = values(loader, 9), values(loader, 9)
    assert sorted(first) == sorted(second) == [float(n) for n in range(8)] and first != second
    assert values(kind(limit_step_per_epoch=2, **arguments), 9) == [float(n) for n in range(8)]
    with pytest.raises(ValueError, match="limit_step_per_epoch=-1"):
        kind(**arguments)


def test_a_batched_loader_with_more_arguments(folder: str) -> None:
    loader = loaders.PetastormBatchedDataLoader(
        "rows", 3, True, make_batch_reader(folder, shuffle_row_groups=False), 12
    )
    assert values(loader, 1) == [float(n) for n in range(ROWS)]
