"""Frames of the driver channel become events; ranks that vanish are reported with what is known of them."""

from __future__ import annotations

import json
import os
import queue
import time
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.events import Begun, EventRelay, Failed, LauncherMessage, Lines, Message
from spark_estimator.launch.job.failures import FailureReport, find_first_failure
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.log_relay.worker_output import WorkerIdentity, WorkerOutput
from spark_estimator.launch.spark.rank_events import RankEvents
from spark_estimator.launch.worker.child_process import MemoryBaseline
from spark_estimator.launch.worker.state import TRANSITIONS, WorkerEvent, WorkerState
from spark_estimator.launch.worker.worker_report import WorkerReport
from spark_estimator.observe import frames
from spark_estimator.state_machine import StateMachine

PLACED = {"kind": frames.PLACED, "rank": 3, "host": "h\x1b", "pid": 7}


def test_frames_become_events() -> None:
    ranks = RankEvents()
    assert ranks.take(0, PLACED) is None
    assert ranks.find_host(3) == "h\\x1b" and ranks.find_host(4) == "unknown"
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
    assert ranks.report_executor_loss("an error without an executor") == []


def test_a_frozen_supervisor_is_named() -> None:
    ranks = RankEvents()
    ranks.take(1, PLACED)
    silent = ranks.take(1, {"kind": frames.SILENT, "seconds": 10, "limit": 60})
    assert silent == LauncherMessage(
        "the supervisor of rank 3 (host h\\x1b, pid 7) has sent no heartbeat for 10 s: it, its Spark executor or "
        "its host is frozen or out of contact. After 60 s the rank is lost ("
        "SPARK_ESTIMATOR_SILENCE_SECONDS)."
    )
    assert ranks.take(1, {"kind": frames.HEARD}) == LauncherMessage(
        "the supervisor of rank 3 (host h\\x1b, pid 7) sends heartbeats again."
    )
    event = ranks.take(1, {"kind": frames.GONE, "silent_seconds": 60})
    assert isinstance(event, Failed) and (event.report.kind, event.report.rank) == (failures.LOST, 3)
    assert event.report.message.startswith("is out of contact: its supervisor has sent no heartbeat for 60 s (it")


def reported(rank: int, clocks: float) -> dict[str, Any]:
    """The frame of a rank that fails now, on a host whose clocks differ from this one's by some seconds."""
    events: queue.Queue[Any] = queue.Queue()
    state = StateMachine(WorkerState.NEW, TRANSITIONS)
    state.fire(WorkerEvent.START)
    identity, relay = WorkerIdentity(rank, f"host{rank}", 10), EventRelay(events)
    with pytest.MonkeyPatch.context() as patch, open(os.devnull, "rb") as nothing:
        for name, clock in (("time", time.time), ("monotonic", time.monotonic)):
            patch.setattr(time, name, lambda clock=clock: clock() + clocks)
        output = WorkerOutput(nothing, nothing, identity, relay, {})
        report = WorkerReport(JobSpec("job", 3, "train()"), identity, state, output, relay, MemoryBaseline.take())
        report.conclude(1, 0)
        failed = next(event for event in iter(events.get_nowait, None) if isinstance(event, Failed))
        return {"kind": frames.FAILURE, "report": json.loads(json.dumps(failed.report.to_dict()))}


@pytest.mark.parametrize("clocks", [(3600.0, 0.0, -3600.0), (-3600.0, 0.0, 3600.0), (0.0, -5.0, 7.0), (0.0, 0.0, 0.0)])
def test_the_clocks_of_the_hosts_do_not_choose_the_cause(clocks: tuple[float, ...]) -> None:
    ranks = RankEvents()
    reports = []
    for rank, difference in enumerate(clocks):
        event = ranks.take(rank, reported(rank, difference))
        assert isinstance(event, Failed)
        reports.append(event.report)
    cause = find_first_failure(reports[::-1])
    assert cause is not None and cause.rank == 0, "it failed first"


def test_no_rank_can_claim_to_have_failed_long_ago() -> None:
    ranks = RankEvents()
    before = time.monotonic()
    for age in (1e9, -1e9, float("nan"), float("inf")):
        report = {**FailureReport(3, "h", 7, failures.RAISED, "raised", when=before).to_dict(), "age": age}
        event = ranks.take(0, {"kind": frames.FAILURE, "report": report})
        assert isinstance(event, Failed)
        assert before - failures.MAX_AGE_SECONDS <= event.report.when <= time.monotonic()
