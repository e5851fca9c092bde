from __future__ import annotations

import hashlib

import pytest

from spark_estimator.errors import ResultError
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.results import ResultRow, make_rows, read_manifests, verify_values

VALUE = bytes(range(256)) * 10_000  # 2.4 chunks


def rows(*values: bytes, size: int = 3) -> list[ResultRow]:
    """As `size` tasks would hand them over, last partition first; `values` are those of the first ranks."""
    made = []
    for rank in reversed(range(size)):
        value = values[rank] if rank < len(values) else None
        sha256 = hashlib.sha256(value).hexdigest() if value is not None else ""
        made += make_rows(Outcome(rank, "host", 10 + rank, 0, None, value, sha256), size - 1 - rank)
    return made


def test_values_in_chunks_come_back_whole() -> None:
    assert sum(row.kind == "result" for row in rows(VALUE)) == 3
    assert verify_values(rows(VALUE), 3, [0]) == [VALUE]
    values = [VALUE, b"b", VALUE[1:]]
    assert verify_values(rows(*values), 3, range(3)) == values


def test_an_empty_answer_points_to_the_driver_s_memory() -> None:
    with pytest.raises(ResultError, match=r"returned no rows.*spark\.driver\.memory"):
        verify_values([], 2, [0])


def test_a_missing_rank_is_told() -> None:
    with pytest.raises(ResultError, match=r"manifests of ranks \[0, 2\]; those of ranks 0 to 2"):
        verify_values([row for row in rows(VALUE) if row.rank != 1], 3, [0])


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("index", range(3))
def test_a_missing_chunk_is_told(rank: int, index: int) -> None:
    kept = [row for row in rows(VALUE, VALUE, VALUE) if (row.rank, row.kind, row.seq) != (rank, "result", index)]
    with pytest.raises(ResultError, match=f"rank {rank}'s value is incomplete or damaged"):
        verify_values(kept, 3, range(3))


def test_a_value_that_was_never_sent_is_told() -> None:
    with pytest.raises(ResultError, match=r"rank 2's value is incomplete or damaged: 0 of 0 bytes"):
        verify_values(rows(VALUE, VALUE), 3, range(3))


def test_an_altered_chunk_is_told() -> None:
    altered = [
        row._replace(data=b"x" + row.data[1:]) if (row.rank, row.kind, row.seq) == (1, "result", 1) else row
        for row in rows(VALUE, VALUE)
    ]
    assert verify_values(altered, 3, [0]) == [VALUE]
    with pytest.raises(ResultError, match=r"rank 1's value .* altered"):
        verify_values(altered, 3, range(2))


def test_failures_travel_in_manifests() -> None:
    report = FailureReport(1, "host", 11, failures.KILLED, "was killed", exit_code=-9, when=3.5)
    (row,) = make_rows(Outcome(1, "host", 11, -9, report), 0)
    (manifest,) = read_manifests([row])
    assert manifest.failure == report and manifest.exit_code == -9
    with pytest.raises(ResultError, match="manifest of partition 0"):
        read_manifests([row._replace(data=b"{}")])
