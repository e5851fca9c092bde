"""Data sets for the tests of petastorm's names."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """25 rows in two files: n = 0, 1, ... of each width, their halves, and pairs of them."""
    for start, stop in ((0, 11), (11, 25)):
        n = list(range(start, stop))
        table = pyarrow.table(
            {
                "n": pyarrow.array(n, pyarrow.int32()),
                "small": pyarrow.array(n, pyarrow.int8()),
                "even": [number % 2 == 0 for number in n],
                "half": [number / 2 for number in n],
                "pair": pyarrow.array([[number, -number] for number in n], pyarrow.list_(pyarrow.float32())),
                "name": [str(number) for number in n],
            }
        )
        pyarrow.parquet.write_table(table, tmp_path / f"{start}.parquet", row_group_size=4)
    return f"file://{tmp_path}"
