"""Loaders of tensors over a reader, as in ``horovod.spark.data_loaders.pytorch_data_loaders``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spark_estimator.data.petastorm import TransformSpec, make_batch_reader
from spark_estimator.data.prepared import loaders
from spark_estimator.errors import DataError
from tests.data.prepared.conftest import ROWS, values


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


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
def test_a_pass_has_at_most_the_batches_of_its_limit(folder: str, limit: int) -> None:
    reader = make_batch_reader(folder, shuffle_row_groups=False)
    loader = loaders.PytorchDataLoader(reader, 5, 0, limit_step_per_epoch=limit)
    assert [len(batch["x"]) for batch in loader] == [5, 5, 2][:limit]
    assert len(loader) == limit


def test_a_loader_in_memory_keeps_a_last_batch_that_is_shorter(folder: str) -> None:
    loader = loaders.PytorchInmemDataLoader(
        make_batch_reader(folder, shuffle_row_groups=False), 5, None, limit_step_per_epoch=3
    )
    for _ in range(2):
        assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert next(iter(loader))["y"].dtype == torch.int64


@pytest.mark.parametrize("limit", [0, -2])
def test_a_loader_in_memory_needs_a_batch_to_keep(folder: str, limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit_step_per_epoch={limit}: give the number of batches"):
        loaders.PytorchInmemDataLoader(make_batch_reader(folder), 5, None, limit_step_per_epoch=limit)


def test_a_transform_that_drops_all_rows_leaves_nothing_to_keep(folder: str) -> None:
    reader = make_batch_reader(folder, transform_spec=TransformSpec(lambda frame: frame[frame.x < 0]))
    with pytest.raises(DataError, match="the reader of 'rows' has no row to keep in memory"):
        loaders.PytorchInmemDataLoader(reader, 5, None, name="rows", limit_step_per_epoch=3)
