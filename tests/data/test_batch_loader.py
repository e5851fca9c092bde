"""Base classes for loaders of batches, with and without a thread that reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_estimator.data.batch_loader import AsyncDataLoaderMixin, BaseDataLoader


class Numbers(BaseDataLoader):
    def __init__(self, count: int, failing: bool = False) -> None:
        self.count = count
        self.failing = failing

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        yield from range(self.count)
        if self.failing:
            raise OSError("the disk is gone")

    def _process_batch(self, batch: Any) -> Any:
        return batch * 10


class Ahead(AsyncDataLoaderMixin, Numbers):
    pass


@pytest.mark.parametrize("queue_size", [0, 1, 64])
def test_every_pass_has_all_batches_processed(queue_size: int) -> None:
    loader = Ahead(queue_size, count=5)
    assert [list(loader), list(loader), list(Numbers(5))] == [[0, 10, 20, 30, 40]] * 3
    assert len(loader) == 5


def test_an_error_is_raised_where_the_batch_was_expected() -> None:
    loader = iter(Ahead(count=1, failing=True))
    assert next(loader) == 0
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader)


def test_a_pass_that_is_given_up_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    loader = Ahead(1, count=1000)
    for _ in loader:
        loader.close_async_loader()
    assert set(threading.enumerate()) <= before


def test_what_a_subclass_has_to_define() -> None:
    with pytest.raises(NotImplementedError, match="BaseDataLoader has no _iterate"):
        next(iter(BaseDataLoader()))
    with pytest.raises(NotImplementedError, match="BaseDataLoader has no __len__"):
        len(BaseDataLoader())
