"""Horovod's data module for Keras over this package's reader."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.data.prepared.keras_module import PetastormDataModule
from tests.data.prepared.conftest import ROWS


def kept(reader: Any, batch_size: int, is_batch_reader: bool, shuffle: bool, cache: bool) -> Any:
    """A `make_dataset` without TensorFlow."""
    rows = [x for row in reader for x in (row.x.tolist() if is_batch_reader else [row.x])]
    return rows, batch_size, shuffle, cache


def test_readers_of_a_shard_are_given_to_make_dataset(folder: str) -> None:
    seen = []
    for shard in range(2):
        with PetastormDataModule(
            make_dataset=kept, train_dir=folder, val_dir=folder, cur_shard=shard, shard_count=2, train_batch_size=5
        ) as module:
            rows, *rest = module.train_data()
            held, *held_rest = module.val_data()
            seen += rows
            assert rest == [5, True, False] and held_rest == [32, False, False]
            assert held == sorted(held) and sorted(rows) == held
    assert sorted(seen) == [float(n) for n in range(ROWS)]


def test_a_function_of_rows_and_no_validation(folder: str) -> None:
    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "x": row["x"] * 2}

    with PetastormDataModule(
        make_dataset=kept, train_dir=folder, val_dir=folder, has_val=False, shuffle=False, transform_fn=doubled
    ) as module:
        assert not module.is_batch_reader and module.val_data() is None
        assert module.train_data()[0] == [2.0 * n for n in range(ROWS)]


@pytest.mark.slow
def test_batches_of_tensorflow_by_default(folder: str) -> None:
    pytest.importorskip("tensorflow")
    with PetastormDataModule(
        train_dir=folder, val_dir=folder, train_batch_size=5, shuffle=False, inmemory_cache_all=True
    ) as module:
        data = module.train_data()
        for _ in range(2):
            assert [batch.x.numpy().tolist() for batch in data] == [
                [0.0, 1.0, 2.0, 3.0, 4.0],
                [5.0, 6.0, 7.0, 8.0, 9.0],
                [10.0, 11.0],
            ]
