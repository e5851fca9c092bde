"""Rows that a rank keeps on its disk: which ranges fit, when they are used, and a disk that fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank import spool
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.stream.cache import DiskCache
from spark_estimator.env import IN_MEMORY, SPOOL_VARIABLE
from spark_estimator.errors import DataError
from spark_estimator.log import ROOT

#: 8 and 4 bytes: of a row 12.
FIELDS = (Field(("x",), ("c0",), (1,), "int64"), Field(("v",), ("c1",), (2,), "float32", (2,), stored="int16"))
RANGES = (Range(0, 0, 4), Range(1, 0, 10), Range(2, 0, 3))


def rows(start: int, stop: int) -> tuple[Array, Array]:
    x = numpy.arange(start, stop)
    # Of another memory layout than the file's.
    return x[:, None], numpy.asfortranarray(numpy.stack([x, -x], 1).astype(numpy.int16))


def batches(start: int, stop: int, size: int) -> Iterator[tuple[Array, Array]]:
    return (rows(first, min(first + size, stop)) for first in range(start, stop, size))


def numbers(result: Iterator[tuple[Array, ...]] | None) -> list[list[int]]:
    assert result is not None
    held = []
    for x, v in result:
        assert numpy.array_equal(v, numpy.concatenate([x, -x], 1))
        held.append(x.ravel().tolist())
    return held


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path))
    return DiskCache.from_ranges(RANGES, FIELDS, 12 * 17)


@pytest.mark.parametrize(("rows_of_room", "held"), [(0, 0), (3, 3), (4, 4), (6, 4), (7, 7), (16, 14), (17, 17)])
def test_the_first_ranges_that_fit_have_room(rows_of_room: int, held: int) -> None:
    assert DiskCache.from_ranges(RANGES, FIELDS, 12 * rows_of_room + 11).rows == held


def test_ranges_come_back_once_they_are_whole(cache: DiskCache, tmp_path: Path) -> None:
    assert cache.read(0, 0, 4, 2) is None
    assert numbers(cache.keep(1, batches(100, 110, 4))) == [
        [100, 101, 102, 103],
        [104, 105, 106, 107],
        [108, 109],
    ]
    assert cache.read(0, 0, 4, 2) is None, "the other range is not there yet"
    assert numbers(cache.keep(0, batches(0, 4, 3))) == [[0, 1, 2], [3]]
    assert numbers(cache.read(0, 0, 4, 3)) == [[0, 1, 2], [3]]
    assert numbers(cache.read(1, 3, 5, 2)) == [[103, 104], [105, 106], [107]]
    assert numbers(cache.read(1, 9, 0, 2)) == []
    assert cache.read(7, 0, 1, 1) is None, "a range without room"
    assert not list(tmp_path.iterdir()), "files without names"


def test_two_ranges_are_written_side_by_side(cache: DiskCache) -> None:
    first, second = cache.keep(0, batches(0, 4, 1)), cache.keep(2, batches(20, 23, 1))
    for _ in range(3):
        next(first), next(second)
    assert list(second) == [] and cache.read(0, 0, 1, 1) is None
    assert numbers(first) == [[3]]
    assert numbers(cache.read(0, 0, 4, 9)) == [[0, 1, 2, 3]]
    assert numbers(cache.read(2, 0, 3, 9)) == [[20, 21, 22]]


def test_a_range_that_was_read_in_part_is_written_again(cache: DiskCache) -> None:
    partial = cache.keep(0, batches(0, 4, 1))
    next(partial)
    again = cache.keep(0, batches(0, 4, 2))
    assert numbers(again) == [[0, 1], [2, 3]], "another reader of the same range does not write"
    assert cache.read(0, 0, 4, 4) is None
    partial.close()  # type: ignore[attr-defined]
    assert cache.read(0, 0, 4, 4) is None
    list(cache.keep(0, batches(0, 4, 3)))
    assert numbers(cache.read(0, 0, 4, 4)) == [[0, 1, 2, 3]]


def test_an_error_of_the_reader_leaves_the_range_uncached(cache: DiskCache) -> None:
    def failing() -> Iterator[tuple[Array, Array]]:
        yield rows(0, 2)
        raise ValueError("broken file")

    with pytest.raises(ValueError, match="broken file"):
        list(cache.keep(0, failing()))
    assert cache.read(0, 0, 4, 4) is None
    list(cache.keep(0, batches(0, 4, 3)))
    assert numbers(cache.read(0, 0, 4, 4)) == [[0, 1, 2, 3]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log = logging.getLogger(ROOT)
    log.addHandler(caplog.handler)
    yield caplog
    log.removeHandler(caplog.handler)


def test_a_folder_that_is_gone_costs_speed_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setenv(SPOOL_VARIABLE, str(folder))
    cache = DiskCache.from_ranges(RANGES, FIELDS, 12 * 17)
    os.rmdir(folder)
    for _ in range(2):
        assert numbers(cache.keep(0, batches(0, 4, 2))) == [[0, 1], [2, 3]]
        assert cache.read(0, 0, 4, 4) is None
    (warning,) = {record.getMessage() for record in lines.records}
    assert warning.startswith(f"rows cannot be kept in {folder} (") and "read from their files in each epoch" in warning


def test_memory_that_is_full_costs_speed_and_no_error(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SPOOL_VARIABLE, IN_MEMORY)
    cache = DiskCache.from_ranges(RANGES, FIELDS, 12 * 17)
    assert numbers(cache.keep(0, batches(0, 4, 2))) == [[0, 1], [2, 3]]
    kept = cache.read(0, 0, 4, 4)
    assert kept is not None and numbers(kept) == [[0, 1, 2, 3]]
    monkeypatch.setattr(spool, "get_free_memory", lambda: 0)
    assert numbers(cache.keep(1, batches(4, 7, 3))) == [[4, 5, 6]]
    (warning,) = {record.getMessage() for record in lines.records}
    assert warning.startswith("rows cannot be kept in memory (") and "0 bytes are free" in warning


def test_a_configured_folder_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPOOL_VARIABLE, "/nowhere")
    with pytest.raises(DataError, match="SPARK_ESTIMATOR_SPOOL_FOLDER='/nowhere' is no folder on host"):
        DiskCache.from_ranges(RANGES, FIELDS, 12 * 17)
    assert DiskCache.from_ranges(RANGES, FIELDS, 0).rows == 0, "nothing is kept there"
