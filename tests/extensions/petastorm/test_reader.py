"""`make_reader` and `make_batch_reader`: rows of each shard, a data set that petastorm wrote, and what is refused."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.petastorm import BatchedDataLoader, DataLoader, TransformSpec, make_batch_reader, make_reader
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.reader import Reader, choose_columns

# Ten rows by petastorm 0.13.1 on PySpark 3.5.9: id and y = id / 2; matrix [2, 3] (.npy) and packed [2] (.npz) of id;
# image [3, 4, 3] (PNG).
WRITTEN = Path(__file__).parent / "petastorm_written"


def test_a_reader_gives_rows_and_one_of_batches_many_at_a_time(numbers: str) -> None:
    """Each shard its own rows, once for each epoch, in the types of batches."""
    columns = {"schema_fields": ["n", "half", "pair"], "seed": 1, "num_epochs": 2}
    numbers_read = []
    for shard in range(2):
        reader = make_reader(numbers, cur_shard=shard, shard_count=2, **columns)
        rows = list(reader)
        assert len(rows) == 2 * reader.rows and reader.last_row_consumed and not list(reader)
        reader.reset()
        assert len(list(reader)) == len(rows), "from the start again"
        assert all(row.half == row.n / 2 and row.pair.tolist() == [row.n, -row.n] for row in rows)
        numbers_read += [row.n.item() for row in rows]
    assert sorted(numbers_read) == sorted(list(range(25)) * 2)
    assert (type(rows[0].n), type(rows[0].half), rows[0].pair.dtype) == (numpy.int32, numpy.float64, numpy.float32)
    batches = list(make_batch_reader(numbers, **columns))
    assert sorted(n for batch in batches for n in batch.n.tolist()) == sorted(numbers_read)
    assert sorted(batch.pair.shape for batch in batches) == sorted(
        [(4, 2), (4, 2), (3, 2), (4, 2), (4, 2), (4, 2), (2, 2)] * 2
    )
    endless = iter(make_reader(numbers, ["n"], num_epochs=None))
    assert len([next(endless) for _ in range(60)]) == 60


def test_what_is_refused(numbers: str) -> None:
    def refused(kind: type[Exception], text: str, **arguments: Any) -> None:
        with pytest.raises(kind, match=text):
            make_reader(numbers, ["n"], **arguments)

    refused(ValueError, "cur_shard=1 and shard_count=None: give both", cur_shard=1)
    refused(ValueError, "cur_shard=2: shards are numbered from 0", cur_shard=2, shard_count=2)
    refused(ValueError, "num_epochs must be at least 1", num_epochs=0)
    refused(DataError, "25 rows cannot be shared out among 26 shards", cur_shard=0, shard_count=26)
    refused(
        ValueError, "predicate must be an object of petastorm.predicates.PredicateBase; got <built-in", predicate=len
    )
    refused(ValueError, "rowgroup_selector is not supported; petastorm's indexes", rowgroup_selector=len)
    refused(ValueError, "transform_spec must be an object of petastorm.transform.TransformSpec", transform_spec=len)
    refused(ValueError, "reader_pool_type must be 'thread', 'process' or 'dummy'; got 'x'", reader_pool_type="x")
    refused(ValueError, "workers_count must be at least 1; got 0", workers_count=0)
    refused(TypeError, "unexpected keyword argument 'num_epoch'", num_epoch=1)
    for url in (None, 7, [None], Path("/a")):
        with pytest.raises(ValueError, match="a data set's URL must be a str, or a list of them; got"):
            make_batch_reader(url)
    with pytest.raises(ValueError, match="schema_fields is an empty list"):
        make_batch_reader(numbers, [])
    refused(DataError, "transform_spec removes all", transform_spec=TransformSpec(selected_fields=[]))
    with pytest.raises(DataError, match=r"schema_fields: 'x' is no column of 'n', 'small'"):
        make_reader(numbers, ["x"])
    with pytest.raises(DataError, match=r"schema_fields: 'N' is no column of .*Did you mean 'n'\?"):
        make_reader(numbers, ["N"])
    with pytest.raises(DataError, match=r"'name' holds texts, which PyTorch tensors can't hold"):
        BatchedDataLoader(make_reader(numbers), 4)
    with pytest.warns(UserWarning, match="hdfs_driver, results_queue_size: petastorm's, and without effect"):
        make_reader(numbers, ["n"], hdfs_driver="libhdfs", results_queue_size=3, cache_type=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_reader(numbers, ["n"], hdfs_driver="libhdfs")
    assert choose_columns(["a.b", "axb"], ["a.b"]) == ["a.b", "axb"], "a regular expression, as in petastorm"


def test_a_data_set_that_petastorm_wrote() -> None:
    folder = str(WRITTEN)
    with DataLoader(make_reader(folder, ["id", "y"], seed=3), 10) as loader:
        (batch,) = loader
    assert sorted(batch["id"].tolist()) == list(range(10)) and torch.equal(batch["y"], batch["id"] / 2)
    with pytest.raises(DataError, match=r"binary columns of 'matrix', 'packed', .*trust=True"):
        make_reader(folder, ["id", "matrix", "packed"])
    reader = make_reader(folder, ["id", "matrix", "packed"], trust=True, cur_shard=1, shard_count=2)
    (batch,) = DataLoader(pickle.loads(pickle.dumps(reader)), 10)
    assert (batch["matrix"].shape, batch["matrix"].dtype) == ((5, 2, 3), torch.float32)
    for n, matrix, packed in zip(batch["id"], batch["matrix"], batch["packed"], strict=True):
        assert torch.equal(matrix, torch.arange(6).reshape(2, 3) + n) and packed.tolist() == [n, -n]
    assert batch["packed"].dtype == torch.int64


def test_a_reader_is_what_petastorm_s_callers_expect(numbers: str) -> None:
    with make_reader(numbers, ["n"]) as reader:
        assert isinstance(reader, Reader) and reader.num_epochs == 1 and reader.diagnostics["threads"] >= 1
        assert not (reader.is_batched_reader or reader.batched_output) and reader.schema is reader.transformed_schema
        first = next(reader)
        with pytest.raises(NotImplementedError, match="a reader is reset when all its rows have been read"):
            reader.reset()
        assert not reader.last_row_consumed and first.n.dtype == numpy.int32
        reader.stop()
        reader.join()
    with pytest.raises(RuntimeError, match="the reader was stopped"):
        next(reader)


def test_threads_are_at_most_one_for_each_core(numbers: str) -> None:
    def count(**arguments: Any) -> int:
        return int(make_reader(numbers, ["n"], **arguments).diagnostics["threads"])

    assert count(reader_pool_type="dummy") == 0 and count(reader_pool_type="process", workers_count=1) == 1
    assert 1 <= count(workers_count=None) <= (os.cpu_count() or 1)
