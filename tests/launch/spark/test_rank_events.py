"""Frames of the driver channel become events; ranks that vanish are reported with what is known of them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.monitor import Begun, Failed, Lines, Message
from spark_estimator.launch.spark.rank_events import RankEvents
from spark_estimator.observe import frames

PLACED = {"kind": frames.PLACED, "rank": 3, "host": "h\x1b", "pid": 7}


def test_frames_become_events() -> None:
    ranks = RankEvents()
    assert ranks.take(0, PLACED) is None
    assert ranks.host_of(3) == "h\\x1b" and ranks.host_of(4) == "unknown"
    assert ranks.take(0, {**PLACED, "kind": frames.BEGUN}) == Begun(3, 7)
    line = {"kind": frames.LINE, "rank": 3, "stream": "stderr", "text": "a\x07"}
    assert ranks.take(0, line) == Lines(3, "stderr", ["a\\x07"])
    assert ranks.take(0, {"kind": frames.LOG, "rank": 3, "text": "\x1b[31m"}) == Message(3, "\\x1b[31m")
    report = FailureReport(3, "h", 7, failures.RAISED, "raised", when=1.0)
    assert ranks.take(0, {"kind": frames.FAILURE, "report": report.to_dict()}) == Failed(report)
    with pytest.raises(ValueError):
        ranks.take(0, {"kind": frames.FAILURE, "report": {"weather": "fine"}})


def test_a_rank_that_vanishes_is_lost() -> None:
    ranks = RankEvents()
    ranks.take(1, PLACED)
    event = ranks.take(1, {"kind": frames.GONE})
    assert isinstance(event, Failed)
    assert (event.report.kind, event.report.rank, event.report.pid) == (failures.LOST, 3, 7)
    event = ranks.take(2, {"kind": frames.GONE})
    assert isinstance(event, Failed) and (event.report.rank, event.report.host) == (-1, "unknown")
    assert ranks.lost_with_executor("an error without an executor") == []
