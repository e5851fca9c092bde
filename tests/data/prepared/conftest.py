"""A small data set for the tests of data modules and loaders."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

ROWS = 12


@pytest.fixture
def folder(tmp_path: Path) -> str:
    table = pyarrow.table({"x": [float(n) for n in range(ROWS)], "y": list(range(ROWS))})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    return str(tmp_path)


def values(batches: Any, count: int) -> list[float]:
    return [value for batch in itertools.islice(iter(batches), count) for value in batch["x"].tolist()]
