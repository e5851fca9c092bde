"""`ShardBatches`: batches of one shard as numpy arrays."""

from __future__ import annotations

from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.extensions.petastorm.batches import ShardBatches

N = Field(("n",), ("c0",), (1,), "int64")
PAIR = Field(("pair",), ("c1",), (2,), "float32", (2,))


@pytest.fixture
def rows(tmp_path: Path) -> FileRows:
    """11 rows: n = 0, 1, ... and pairs [n, -n]."""
    table = pyarrow.table({"n": range(11), "pair": [[float(n), -float(n)] for n in range(11)]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    return FileRows(find_files(str(tmp_path)), RowEncoder(("n", "pair")))


def test_batches_run_on_into_the_next_epoch(rows: FileRows) -> None:
    batches = ShardBatches(rows, (N, PAIR), 0, 1, num_epochs=2, seed=None, batch_size=4)
    arrays = list(batches)
    assert [batch["n"].tolist() for batch in arrays] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 0],
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10],
    ]
    assert len(batches) == len(arrays)
    assert all(numpy.array_equal(batch["pair"][:, 0], batch["n"]) for batch in arrays)


def test_a_smaller_shard_repeats_a_row_to_have_as_many_batches(rows: FileRows) -> None:
    shards = [ShardBatches(rows, (N,), shard, 2, 1, None, batch_size=5) for shard in range(2)]
    assert [[batch["n"].tolist() for batch in shard] for shard in shards] == [
        [[0, 1, 2, 3, 4], [5]],
        [[6, 7, 8, 9, 10], [6]],
    ]


def test_a_batch_larger_than_several_epochs(rows: FileRows) -> None:
    (batch,) = ShardBatches(rows, (N,), 0, 1, num_epochs=3, seed=1, batch_size=64)
    assert sorted(batch["n"].tolist()) == sorted(list(range(11)) * 3)


def test_orders_differ_and_are_repeated_by_the_seed(rows: FileRows) -> None:
    def two_iterations(seed: int) -> list[list[int]]:
        batches = ShardBatches(rows, (N,), 0, 1, num_epochs=1, seed=seed, batch_size=11)
        return [batch["n"].tolist() for _ in range(2) for batch in batches]

    first, second = two_iterations(3)
    assert first != second and sorted(first) == sorted(second) == list(range(11))
    assert two_iterations(3) == [first, second] != two_iterations(4)


def test_rows_are_read_once_until_they_are_released(rows: FileRows) -> None:
    batches = ShardBatches(rows, (N,), 0, 1, num_epochs=1, seed=None, batch_size=11)
    (batch,) = batches
    batch["n"] += 100  # a copy
    path = Path(rows.files.files[0].path)
    content = path.read_bytes()
    path.unlink()
    assert next(iter(batches))["n"].tolist() == list(range(11))
    batches.release()
    path.write_bytes(content)
    assert next(iter(batches))["n"].tolist() == list(range(11))


def test_no_length_without_an_end(rows: FileRows) -> None:
    with pytest.raises(TypeError, match="with num_epochs=None there is no end"):
        len(ShardBatches(rows, (N,), 0, 1, num_epochs=None, seed=1, batch_size=4))
