from __future__ import annotations

import hashlib

import pytest

from spark_estimator.errors import ResultError
from spark_estimator.launch import failures
from spark_estimator.launch.failures import FailureReport
from spark_estimator.launch.outcome import Outcome
from spark_estimator.launch.results import ResultRow, manifests_of, rows_of, verified_value

VALUE = bytes(range(256)) * 10_000  # 2.4 chunks


def rows(size: int = 3, value: bytes = VALUE) -> list[ResultRow]:
    """As `size` tasks would hand them over, last partition first."""
    made = []
    for rank in reversed(range(size)):
        own = value if rank == 0 else None
        sha256 = hashlib.sha256(value).hexdigest() if rank == 0 else ""
        made += rows_of(Outcome(rank, "host", 10 + rank, 0, None, own, sha256), size - 1 - rank)
    return made


def test_a_value_in_chunks_comes_back_whole() -> None:
    assert sum(row.kind == "result" for row in rows()) == 3
    assert verified_value(rows(), 3) == VALUE


def test_an_empty_answer_points_to_the_driver_s_memory() -> None:
    with pytest.raises(ResultError, match=r"returned no rows.*spark\.driver\.memory"):
        verified_value([], 2)


def test_a_missing_rank_is_told() -> None:
    with pytest.raises(ResultError, match=r"manifests of ranks \[0, 2\]; those of ranks 0 to 2"):
        verified_value([row for row in rows() if row.rank != 1], 3)


@pytest.mark.parametrize("index", range(3))
def test_a_missing_chunk_is_told(index: int) -> None:
    kept = [row for row in rows() if not (row.kind == "result" and row.seq == index)]
    with pytest.raises(ResultError, match="did not arrive whole"):
        verified_value(kept, 3)


def test_an_altered_chunk_is_told() -> None:
    altered = [
        row._replace(data=b"x" + row.data[1:]) if row.kind == "result" and row.seq == 1 else row for row in rows()
    ]
    with pytest.raises(ResultError, match="altered"):
        verified_value(altered, 3)


def test_failures_travel_in_manifests() -> None:
    report = FailureReport(1, "host", 11, failures.KILLED, "was killed", exit_code=-9, when=3.5)
    (row,) = rows_of(Outcome(1, "host", 11, -9, report), 0)
    (manifest,) = manifests_of([row])
    assert manifest.failure == report and manifest.exit_code == -9
    with pytest.raises(ResultError, match="manifest of partition 0"):
        manifests_of([row._replace(data=b"{}")])
