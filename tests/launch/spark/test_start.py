"""The messages while ranks have not begun, and their times; `tests/spark` tests which jobs hold slots."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import StartTimeoutError
from spark_estimator.launch.spark.start import StartMonitor, TaskReports


def report(text: str) -> None:
    print(text, file=sys.stderr)


def start(spark: Any, **more: Any) -> StartMonitor:
    values = {
        "timeout": timedelta(seconds=30),
        "placed": {},
        "begun": set(),
        "connected": lambda: 0,
        "report": report,
        **more,
    }
    return StartMonitor(spark=spark, function="train()", size=3, reports=TaskReports(spark, "no job's"), **values)


def test_one_line_is_said_after_a_while(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = start(spark)
    job.report_delay(19)
    assert capsys.readouterr().err == ""
    job.report_delay(20)
    job.report_delay(29)
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1 and "has not started train() on any of 3 ranks for 20 seconds" in stderr
    assert "no other job of this application is running" in stderr
    with pytest.raises(StartTimeoutError, match=r"within 30 seconds .*This session has 2: 2 cores"):
        job.report_delay(30)


def test_who_has_slots_and_too_little_time_is_not_told_of_slots(spark: Any) -> None:
    assert "It needs 3 free slots" in start(spark).describe_hindrance()
    short = start(spark)
    short.size = 2
    assert short.describe_hindrance() == ""


def test_ranks_that_are_late_are_named(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    placed = {0: {"rank": 0, "host": "a", "pid": 1}, 1: {"rank": 2, "host": "b\x1b[0m", "pid": 2}}
    job = start(spark, placed=placed, begun={0})
    job.report_delay(29)
    assert capsys.readouterr().err == "", "some run, so slots are not what is wanting"
    with pytest.raises(StartTimeoutError, match=r"^rank 1, rank 2 \(host b\\x1b\[0m\) of 3 ranks had not started"):
        job.report_delay(30)
    with pytest.raises(StartTimeoutError, match=r"^rank 0, rank 1, rank 2 of 3"):
        start(spark, connected=lambda: 1).report_delay(30)


def test_ranks_that_start_one_by_one_are_counted(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    connected = 1
    job = start(spark, connected=lambda: connected, barrier=False)
    job.report_delay(20)
    assert "Spark has started train() on 1 of 3 ranks for 20 seconds. It needs 3 free slots" in capsys.readouterr().err
    with pytest.raises(StartTimeoutError, match=r"^Spark has started train\(\) on 1 of 3 ranks within 30 seconds"):
        job.report_delay(30)
    assert "It needs 3 free slots" in job.describe_hindrance()
    connected = 3
    assert job.describe_hindrance() == ""
    with pytest.raises(StartTimeoutError, match=r"^rank 0, rank 1, rank 2 of 3 ranks had not started"):
        job.report_delay(30)


def test_without_a_limit_nobody_is_late(spark: Any) -> None:
    start(spark, timeout=None).report_delay(1e6)


def test_ranks_that_cannot_tell_that_they_run_are_left_alone(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class Silent(TaskReports):
        def count_started(self) -> int | None:
            return None  # as Spark Connect 3.5

    job = start(spark)
    job.reports = Silent(spark, "")
    job.report_delay(20)
    job.report_delay(30)
    assert capsys.readouterr().err == ""
