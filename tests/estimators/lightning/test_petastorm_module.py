"""Horovod's data module for Lightning over this package's reader."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from spark_estimator.estimators.data_modules import takes_folders
from spark_estimator.estimators.lightning.petastorm_module import data_module_class

ROWS = 12
Module = data_module_class("lightning.pytorch")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    table = pyarrow.table({"x": [float(n) for n in range(ROWS)], "y": list(range(ROWS))})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    return str(tmp_path)


def values(loader: Any) -> list[float]:
    return [value for batch in itertools.islice(iter(loader), 99) for value in batch["x"].tolist()]


@pytest.mark.parametrize("in_memory", [False, True])
def test_passes_of_so_many_batches(folder: str, in_memory: bool) -> None:
    module = Module(
        folder,
        folder,
        train_batch_size=3,
        val_batch_size=2,
        cur_shard=1,
        shard_count=2,
        steps_per_epoch_train=2,
        steps_per_epoch_val=3,
        inmemory_cache_all=in_memory,
        verbose=False,
    )
    module.setup("fit")
    train, held = module.train_dataloader(), module.val_dataloader()
    passes = [sorted(values(train)) for _ in range(2)]
    assert len(train) == 2 and passes == [[float(n) for n in range(6, 12)]] * 2
    assert values(held) == [float(n) for n in range(6, 12)]
    module.teardown("fit")


def test_a_function_of_rows_and_no_validation(folder: str) -> None:
    module = Module(
        folder,
        folder,
        has_val=False,
        train_batch_size=4,
        shuffle_size=0,
        steps_per_epoch_train=3,
        transform_spec=lambda row: {**row, "x": row["x"] * 2},
        verbose=False,
    )
    module.setup()
    assert values(module.train_dataloader()) == [2.0 * n for n in range(ROWS)] and module.val_dataloader() == []
    module.teardown()


def test_ranks_find_the_class_of_the_drivers_package() -> None:
    for flavour in ("lightning.pytorch", "pytorch_lightning"):
        kind = data_module_class(flavour)
        assert pickle.loads(pickle.dumps(kind)) is kind and takes_folders(kind)
