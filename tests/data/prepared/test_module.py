"""Horovod's data modules over this package's reader."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.data.prepared.module import DataModule, PetastormDataModule
from tests.data.prepared.conftest import ROWS, values


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
