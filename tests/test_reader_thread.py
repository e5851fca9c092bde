"""A thread that serves a connection reports its end, for any reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator.reader_thread import ReaderThread


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def exhaust() -> bytearray:
    return bytearray(1 << 62)


def stop() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("serve", "reason"),
    [(lambda: "all read", type(None)), (recurse, RecursionError), (exhaust, MemoryError), (stop, SystemExit)],
)
def test_the_end_is_reported_once(serve: object, reason: type) -> None:
    ends: list[BaseException | None] = []
    thread = ReaderThread(serve, ends.append, name="test")  # type: ignore[arg-type]
    assert thread.daemon and thread.name == "spark_estimator test"
    thread.start()
    thread.join(60)
    assert [type(end) for end in ends] == [reason]
    assert ends[0] is None or ends[0].__traceback__ is None


# Threads that serve no connection, and why no code waits for ever if one of them ends early.
OTHERS = {
    "extensions/checkpoint/copying.py": "its end is reported in any case",
    "extensions/checkpoint/step_clock.py": "suppresses any error; nothing waits for it",
    "extensions/checkpoint/layout.py": "what it has not made is made by who needs it",
    "checkpoint/orphan_limit.py": "only waits for the end of a pipe",
    "checkpoint/writer_link.py": "waits for a process",
    "collectives/preemption.py": "nothing waits for it",
    "launch/agent/agent.py": "nothing waits for it",
    "collectives/connections/descriptors.py": "only shows that threads can be started",
    "collectives/connections/late.py": "continues after any error",
    "collectives/connections/outgoing.py": "passes any error on",
    "data/batch_loader.py": "passes any error on",
    "doctor/__init__.py": "is waited for within a time",
    "doctor/meeting.py": "has a time-out",
    "estimators/persistence/run_lease.py": "a lease that is not renewed ends",
    "estimators/tracking/mlflow_thread.py": "continues after any error, and is waited for within a time",
    "estimators/tracking/rank_tracking.py": "logs any error; nothing waits for it",
    "estimators/tracking/run.py": "is waited for, with any result",
    "launch/agent/worker_agent.py": "passes any error on",
    "launch/elastic/discovery.py": "continues after any error",
    "launch/elastic/process.py": "waits for an event; passes any error on",
    "launch/job/monitor.py": "waits for other threads",
    "launch/local.py": "passes any error on",
    "launch/log_relay/log_files.py": "passes any error on",
    "launch/log_relay/without_channel.py": "is waited for within a time; the rest is read after that",
    "launch/spark/elastic/job.py": "continues after any error of Spark; nothing waits for it",
    "launch/spark/elastic/worker.py": "ends a task; nothing waits for it",
    "launch/spark/meeting.py": "is waited for, with any result",
    "launch/spark/row_writer.py": "passes any error on",
    "launch/spark/session.py": "the caller's function passes any error on",
    "launch/spark/stage_job.py": "ends a job; nothing waits for it",
    "launch/ssh/hosts.py": "passes any error on",
    "launch/worker/warm_start.py": "passes any error on",
    "observe/progress.py": "nothing waits for it",
    "observe/stacks.py": "nothing waits for it",
    "extensions/process_group/messages.py": "passes any error on",
    "extensions/process_group/work.py": "passes any error on",
    "store/hdfs_client.py": "passes any error on, and is waited for within a time",
}


def test_other_threads_are_known() -> None:
    package = Path(spark_estimator.__file__).parent
    users = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"\bthreading\.Thread\(\s*target|\bThread\(\s*target", file.read_text())
    }
    assert users == set(OTHERS)
