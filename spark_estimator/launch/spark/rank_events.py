"""Turns ranks' messages on the driver channel into events, and makes the reports of ranks that vanish."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.events import (
    Begun,
    Event,
    Failed,
    FilePiece,
    LauncherMessage,
    Lines,
    Message,
    ProgressReported,
    RecordReceived,
)
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.spark.executor_losses import describe_loss, find_lost_executor
from spark_estimator.observe import frames
from spark_estimator.observe.driver_log import coloured, printable
from spark_estimator.observe.progress import Progress

_UNKNOWN = {"rank": -1, "host": "unknown", "pid": 0}


class RankEvents:
    """The ranks of one start of all ranks.

    Attributes:
        placed: partition -> the last frame with the rank and host of its worker.
        vanished: partition -> when its connection ended without a farewell, by `time.monotonic`, in this order.
    """

    def __init__(self) -> None:
        self.placed: dict[int, dict[str, Any]] = {}
        self.vanished: dict[int, float] = {}

    def take(self, partition: int, frame: Mapping[str, Any]) -> Event | None:
        """Return the event of a supervisor's frame, if it shows any. Raises ValueError: another version's frame."""
        kind = frame["kind"]
        if kind == frames.LINE:
            return Lines(frame["rank"], frame["stream"], [coloured(frame["text"])])
        if kind == frames.LOG:
            return Message(frame["rank"], printable(frame["text"]))
        if kind == frames.PROGRESS:
            return ProgressReported(frame["rank"], Progress.from_dict(frame["report"]))
        if kind == frames.RECORD:
            return RecordReceived(frame["rank"], frame["record"])
        if kind == frames.FILE:
            return FilePiece(frame["rank"], frame["name"], frame["piece"])
        if kind in (frames.PLACED, frames.BEGUN):
            self.placed[partition] = dict(frame)
            return Begun(frame["rank"], frame["pid"]) if kind == frames.BEGUN else None
        if kind == frames.GONE:
            silent_seconds = frame.get("silent_seconds", 0)
            if not silent_seconds:
                self.vanished[partition] = time.monotonic()
            return Failed(self._make_report(partition, silent_seconds=silent_seconds))
        if kind == frames.SILENT:
            return LauncherMessage(
                f"the supervisor of {self._make_report(partition).where} has sent no heartbeat for {frame['seconds']} "
                f"s: it, its Spark executor or its host is frozen or out of contact. After {frame['limit']} s the rank "
                "is lost (SPARK_ESTIMATOR_SILENCE_SECONDS)."
            )
        if kind == frames.HEARD:
            return LauncherMessage(f"the supervisor of {self._make_report(partition).where} sends heartbeats again.")
        if kind == frames.FAILURE:
            try:
                return Failed(FailureReport.from_dict(frame["report"]))
            except TypeError as error:
                raise ValueError(f"a failure report with unknown fields: {error}") from error
        return None

    def find_host(self, rank: int) -> str:
        """Return the host of a rank, safe to print."""
        hosts = (frame["host"] for frame in list(self.placed.values()) if frame["rank"] == rank)
        return printable(next(hosts, "unknown"))

    def report_executor_loss(self, text: str) -> list[FailureReport]:
        """Return the reports of Spark's error on a lost executor, which may precede the end of its connections."""
        lost = find_lost_executor(text)
        if lost is None or lost[0] not in self.placed:
            return []
        message = "was lost with it, or ended by Spark"
        others = [
            replace(self._make_report(other), kind=failures.STOPPED, message=message) for other in list(self.vanished)
        ]
        return [self.report_loss(lost[0], lost[1]), *others]

    def report_loss(self, partition: int, reason: str) -> FailureReport:
        """Return the report on a rank whose executor Spark lost; it precedes those on ranks that vanished, too."""
        report = self._make_report(partition, describe_loss(reason))
        return replace(report, when=min([report.when, *list(self.vanished.values())]))

    def report_repeated(self, partition: int) -> FailureReport:
        """Return the report on a rank that has ended, and whose task Spark has started again."""
        return replace(
            self._make_report(partition),
            message="ended, but its result is lost: Spark has started its task again, as the executor died before it "
            "had handed the result over. A rank does not run twice.",
        )

    def _make_report(self, partition: int, why: str = "", silent_seconds: int = 0) -> FailureReport:
        """Return the report on a rank whose supervisor has vanished; `why`: what happened to its executor."""
        placement = self.placed.get(partition, _UNKNOWN)
        message = "is out of contact: its Spark executor, or its host, has died or was cut off"
        if why:
            message = f"is out of contact: its Spark executor {why}"
        if silent_seconds:
            message = f"is out of contact: its supervisor has sent no heartbeat for {silent_seconds} s (it, its Spark "
            message += "executor or its host is frozen or was cut off)"
        return FailureReport(
            placement["rank"],
            printable(placement["host"]),
            placement["pid"],
            failures.LOST,
            message,
            when=time.monotonic(),
        )
