"""A rank's writer, run in this process: files, failures and ranks that have ended."""

from __future__ import annotations

import json
import os

import pytest

from spark_estimator.checkpoint.writer import WriteFile
from spark_estimator.errors import DataError
from spark_estimator.store.digests import find_flaw, remove_seal
from tests.checkpoint.writer_memory import Rank


def test_a_rank_that_has_ended_without_copies_has_none_to_write() -> None:
    written: dict[str, bytes] = {}
    rank = Rank(WriteFile(written.__setitem__))
    assert rank.run() == [] and not written
    rank.close()


def file_job(rank: Rank, path: str, content: bytes) -> tuple[int, int]:
    job = json.dumps({"path": path, "end": len(content)}).encode()
    rank.slots[0].put(0, content + job)
    return len(content), len(job)


@pytest.mark.parametrize("content", [b"", b"content", bytes(3_000_000)])
def test_a_file_is_sealed(content: bytes) -> None:
    written: dict[str, bytes] = {}
    rank = Rank(WriteFile(written.__setitem__))
    rank.submit(0, 3, file_job(rank, "a/b", content))
    (report,) = rank.run()
    assert (report["ticket"], report["error"], report["bytes"]) == (3, "", len(content))
    assert find_flaw(written["a/b"]) == "" and remove_seal(written["a/b"]) == content
    rank.close()


def test_a_file_that_cannot_be_written() -> None:
    def write(path: str, content: bytes) -> None:
        raise DataError(f"{path}: no space left")

    rank = Rank(WriteFile(write))
    rank.submit(0, 3, file_job(rank, "a/b", b"content"))
    (report,) = rank.run()
    assert (report["raised"], report["path"]) == ("DataError", "a/b") and "a/b: no space left" in report["error"]
    assert rank.control.failed == 3
    rank.close()


def test_a_rank_that_does_not_read_its_reports_is_not_waited_for() -> None:
    rank = Rank(WriteFile(lambda path, content: None))
    os.set_blocking(rank.writer._report, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(rank.writer._report, b"x" * 4096)
    rank.submit(0, 3, file_job(rank, "a/b", b"content"))
    os.close(rank.wake)
    rank.writer.run()
    assert rank.control.completed == 3
    rank.close()
