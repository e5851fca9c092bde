"""One file that is replaced repeatedly, in this process or by a process beside it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from spark_estimator.checkpoint.file_saver import DirectSaver, FileSaver, is_in_memory, make_saver
from spark_estimator.errors import DataError
from spark_estimator.store import Store
from spark_estimator.store.digests import find_flaw, remove_seal


def write(path: str, content: bytes) -> None:
    """Called in the writer's process."""
    if Path(path).name == "refused":
        raise DataError(f"no place for {path}")
    Path(path).write_bytes(content)


@pytest.mark.parametrize("content", [b"", b"content"])
def test_a_file_is_written_before_put_returns(tmp_path: Path, content: bytes) -> None:
    saver = DirectSaver(write)
    path = str(tmp_path / "file")
    assert not saver.put(path, memoryview(content))
    written = (tmp_path / "file").read_bytes()
    assert find_flaw(written) == "" and remove_seal(written) == content
    (report,) = saver.wait()
    assert (report.path, report.error, report.bytes) == (path, "", len(content))
    assert saver.read_reports() == [], "each once"
    saver.close()


def test_errors_are_reported_and_not_raised(tmp_path: Path) -> None:
    saver = DirectSaver(write)
    for name in ("refused", "no/folder", "file"):
        saver.put(str(tmp_path / name), memoryview(b"x"))
    refused, missing, written = saver.read_reports()
    assert (refused.raised, missing.raised, written.raised) == ("DataError", "FileNotFoundError", "")
    assert refused.error == f"DataError: no place for {tmp_path}/refused" and refused.path == f"{tmp_path}/refused"


def test_stores_that_another_process_does_not_see(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    assert is_in_memory(Store.create("memory://bucket/run"))
    assert not is_in_memory(Store.create(str(tmp_path)))
    assert isinstance(make_saver(Store.create("memory://bucket/run"), write), DirectSaver)


def test_a_process_beside_this_one_writes_the_newest_content(tmp_path: Path) -> None:
    saver = make_saver(Store.create(str(tmp_path)), write)
    assert isinstance(saver, FileSaver)
    try:
        contents = [bytes([number]) * 100_000 for number in range(20)]
        replaced = [saver.put(str(tmp_path / "file"), memoryview(content)) for content in contents]
        reports = saver.wait(timedelta(seconds=60))
        assert not replaced[0] and len(reports) == len(contents) - sum(replaced)
        assert {(report.error, report.bytes) for report in reports} == {("", 100_000)}
        written = (tmp_path / "file").read_bytes()
        assert find_flaw(written) == "" and remove_seal(written) == contents[-1]
        saver.put(str(tmp_path / "refused"), memoryview(b""))
        (report,) = saver.wait()
        assert (report.raised, report.path) == ("DataError", str(tmp_path / "refused"))
        assert saver.wait(timedelta(0)) == []
    finally:
        saver.close()
