"""A rank's rows: read in an order that does not depend on their arrival, if requested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from spark_estimator.collectives import context
from spark_estimator.data.rank.rank_rows import RankRows, balance, sort_by_value


@dataclass
class Rows:
    """As a spool."""

    matrices: list[Any]

    @property
    def rows(self) -> int:
        return len(self.matrices[0])


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


def some(count: int) -> list[Any]:
    draw = numpy.random.default_rng(3)
    numbers = draw.normal(size=(count, 3)).astype(numpy.float32)
    numbers[: count // 2, 0] = 0  # rows that begin alike
    return [numbers, draw.integers(0, 3, (count, 1)), draw.integers(0, 255, (count, 5), numpy.uint8)]


def read(rows: RankRows) -> list[bytes]:
    return [
        b"".join(matrix.tobytes() for matrix in batch.matrices)
        for batch in rows.read_batches(7, order=(5, 1))
        if batch.rows
    ]


def test_rows_are_read_in_the_same_order_however_they_have_come() -> None:
    first = some(20_011)  # of several blocks
    mixed = numpy.random.default_rng(4).permutation(len(first[0]))
    other = [matrix[mixed] for matrix in first]
    ones, others = (balance(Rows(matrices), "test", by_value=True) for matrices in (first, other))  # type: ignore[arg-type]
    assert ones.compute_checksums() == others.compute_checksums() and ones.compute_spread() == others.compute_spread()
    assert read(ones) == read(others)
    parts = [rows.split(0.3, 9) for rows in (ones, others)]
    for first_part, other_part in zip(*parts, strict=True):
        assert read(first_part) == read(other_part)
        assert first_part.compute_spread() == other_part.compute_spread()
    as_they_lie = balance(Rows(other), "test")  # type: ignore[arg-type]
    assert as_they_lie.compute_checksums() == ones.compute_checksums()
    assert as_they_lie.compute_spread() != ones.compute_spread() and read(as_they_lie) != read(ones)


def test_an_order_by_value_has_each_row_once() -> None:
    for count in (1, 2, 500):
        assert sorted(sort_by_value(some(count)).tolist()) == list(range(count))
    alike = [numpy.zeros((40, 2)), numpy.ones((40, 1), numpy.int64)]
    assert sorted(sort_by_value(alike).tolist()) == list(range(40))
