"""A rank's end of its writer: slots, reports, and a writer that dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from spark_estimator.checkpoint import orphan_limit
from spark_estimator.checkpoint.shared_control import SlotState
from spark_estimator.checkpoint.writer import WriteFile
from spark_estimator.checkpoint.writer_link import Report, WriterLink

MOST = timedelta(seconds=60)


def write(path: str, content: bytes) -> None:
    if Path(path).name == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    if Path(path).name == "hangs":
        orphan_limit.GRACE = timedelta(seconds=0.2)  # in the writer
        Path(path).touch()
        threading.Event().wait()
    Path(path).write_bytes(content)


@pytest.fixture(scope="module")
def shared() -> Iterator[WriterLink]:
    link = WriterLink(WriteFile(write))
    yield link
    link.close(MOST)


@pytest.fixture
def link(shared: WriterLink) -> WriterLink:
    """All slots are free."""
    await_free(shared)
    return shared


def await_free(link: WriterLink) -> None:
    """Wait until all slots are free: the writer reports before it frees one."""
    deadline = time.monotonic() + MOST.total_seconds()
    while True:
        with link.control.hold_lock():
            if link.control.find_slots(SlotState.FREE) == [0, 1]:
                return
        assert time.monotonic() < deadline, "a slot stays taken"
        time.sleep(0.001)


def fill(link: WriterLink, number: int, path: Path, content: bytes = b"content") -> tuple[int, int]:
    job = json.dumps({"path": str(path), "end": len(content)}).encode()
    link.slots[number].put(0, content + job)
    return len(content), len(job)


def next_report(link: WriterLink) -> Report:
    reports: list[Report] = []
    while not reports:
        reports = link.read_reports(MOST)
    (report,) = reports
    return report


def test_a_copy_is_written_and_reported_once(link: WriterLink, tmp_path: Path) -> None:
    number, replaced = link.take_slot(replaces=SlotState.GO)
    assert replaced is None
    link.submit(number, 4, fill(link, number, tmp_path / "a"), now=True)
    report = next_report(link)
    assert (report.ticket, report.path, report.error, report.bytes) == (4, str(tmp_path / "a"), "", 7)
    assert (tmp_path / "a").read_bytes().startswith(b"content")
    await_free(link)
    assert link.read_reports() == [] and link.control.completed == 4


def test_a_copy_on_standby_waits_and_may_be_replaced(link: WriterLink, tmp_path: Path) -> None:
    assert not link.begin_standby()
    number, _ = link.take_slot(replaces=SlotState.STANDBY)
    link.submit(number, 5, fill(link, number, tmp_path / "old"), now=False)
    again, replaced = link.take_slot(replaces=SlotState.STANDBY)
    assert (again, replaced) == (number, 5)
    link.submit(again, 6, fill(link, again, tmp_path / "new"), now=False)
    assert link.control.find_slots(SlotState.STANDBY) == [again] and not link.control.is_busy
    assert link.begin_standby()
    assert next_report(link).ticket == 6
    assert (tmp_path / "new").exists() and not (tmp_path / "old").exists()


def test_failures_are_counted(link: WriterLink) -> None:
    before = link.control.failed
    link.note_failure(before + 3)
    link.note_failure(before + 1)
    assert link.control.failed == before + 3
    link.give_up(before + 2)
    assert link.control.given_up == before + 2


@pytest.mark.slow
def test_a_writer_that_dies_is_started_again(link: WriterLink, tmp_path: Path) -> None:
    before = link.pid
    number, _ = link.take_slot(replaces=SlotState.GO)
    link.submit(number, 70, fill(link, number, tmp_path / "deadly"), now=True)
    lost = next_report(link)
    assert lost.ticket == 70 and lost.error.startswith("the writer's process ended with signal 9; another one")
    assert link.pid != before and link.control.failed == 70 and not link.control.is_busy
    number, _ = link.take_slot(replaces=SlotState.GO)
    link.submit(number, 71, fill(link, number, tmp_path / "b"), now=True)
    assert next_report(link).ticket == 71


@pytest.mark.slow
def test_a_writer_that_dies_without_work_is_noted(link: WriterLink) -> None:
    os.kill(link.pid, signal.SIGKILL)
    report = next_report(link)
    assert (report.ticket, report.error) == (-1, "") and "signal 9; another one was started" in report.note


def test_a_writer_whose_store_hangs_ends_after_its_rank(tmp_path: Path) -> None:
    """Else it, and the memory of its copies, would stay for as long as the machine runs."""
    link = WriterLink(WriteFile(write))
    writer = link._process
    link.submit(0, 1, fill(link, 0, tmp_path / "hangs"), now=True)
    while not (tmp_path / "hangs").exists():
        time.sleep(0.01)
    assert writer.poll() is None
    link.close(None)
    assert writer.wait(60) == -signal.SIGALRM
