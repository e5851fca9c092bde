"""Limits on disk and memory, and the sizes that a rank's reader derives from them."""

from __future__ import annotations

import pickle

import pytest

from spark_estimator.data.fields import Field
from spark_estimator.data.stream.limits import BUFFER_BYTES, Buffers, Mixing, RowLimits

SCALAR = Field(("x",), ("c0",), (1,), "float32")
IMAGE = Field(("image",), ("c0",), (3 << 20,), "uint8", (1024, 1024, 3))


def test_limits_of_two_parameters() -> None:
    assert RowLimits.from_parameters(None, None) is None
    assert RowLimits.from_parameters(0, None) == RowLimits(0, BUFFER_BYTES)
    limits = RowLimits.from_parameters(7, 1)
    assert limits == RowLimits(7, 1) and pickle.loads(pickle.dumps(limits)) == limits


@pytest.mark.parametrize(
    ("cache_bytes", "buffer_bytes", "message"),
    [
        (None, 5, "buffer_bytes=5 needs cache_bytes"),
        (-1, None, "cache_bytes must be 0 or more; got -1"),
        (0, 0, "buffer_bytes must be at least 1; got 0"),
    ],
)
def test_limits_that_are_refused(cache_bytes: int | None, buffer_bytes: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowLimits.from_parameters(cache_bytes, buffer_bytes)


@pytest.mark.parametrize("fields", [[], [SCALAR], [SCALAR, SCALAR], [IMAGE]])
@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 20, BUFFER_BYTES, 1 << 40])
@pytest.mark.parametrize("columns", [0, 1, 1000])
def test_each_size_is_at_least_one_and_the_windows_fit_into_the_memory(
    fields: list[Field], buffer_bytes: int, columns: int
) -> None:
    buffers = Buffers.from_limit(buffer_bytes, fields, columns)
    mixing = buffers.mixing
    assert 1 <= mixing.streams <= min(8, mixing.window_rows)
    assert buffers.decoded_rows >= 1 and buffers.column_bytes >= 1 << 14
    row_bytes = sum(field.row_bytes for field in fields)
    if mixing.window_rows > 1:  # one row is held even where it is larger than the limit
        assert 2 * mixing.window_rows * row_bytes <= buffer_bytes * 3 / 4
    if buffers.decoded_rows > 1:
        assert mixing.streams * buffers.decoded_rows * row_bytes <= buffer_bytes / 8
        assert buffers.decoded_rows * row_bytes <= max(1 << 20, columns << 17), "it fits into a core's cache"


def test_more_memory_reads_more_row_groups_side_by_side() -> None:
    small, large = (Buffers.from_limit(size, [SCALAR], 4) for size in (1 << 20, 1 << 30))
    assert (small.mixing.streams, large.mixing.streams) == (1, 8)
    assert small.mixing.window_rows < large.mixing.window_rows
    assert Buffers.from_limit(1 << 30, [SCALAR], 1000).mixing.streams == 1, "a wide table has a page for each column"


def test_a_share_of_few_rows_makes_several_windows() -> None:
    buffers = Buffers(Mixing.from_window(1000, 4), 50, 1 << 16)
    assert buffers.fit_to_share(1_000_000) == buffers
    assert buffers.fit_to_share(160).mixing == Mixing(10, 4, 1)
    assert buffers.fit_to_share(17).mixing == Mixing(2, 2, 1)
    assert buffers.fit_to_share(1).mixing == buffers.fit_to_share(0).mixing == Mixing(1, 1, 1)
