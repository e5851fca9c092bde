"""Follows a job on Spark until its ranks run: shows what it waits for and which jobs hold the slots; has a timeout.

The ranks' supervisors report their progress, if they reach the driver; Spark reports whether tasks run at all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import StartTimeoutError
from spark_estimator.launch.spark.job_tag import has_job_tags
from spark_estimator.launch.spark.slots import count_slots
from spark_estimator.log import get_logger
from spark_estimator.observe.driver_log import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAY_WAITING_AFTER = timedelta(seconds=20)
_MOST_HOLDERS = 5
# Spark writes down what tasks do when the next of them does something, or with its executors' heartbeat every 10 s.
_OLD = timedelta(seconds=12)
_log = get_logger(__name__)


class TaskReports:
    """Spark's reports on one job's tasks: a classic session's status tracker, or Spark Connect's progress reports.

    Args:
        tag: of the job.
        has_rows: Spark computes rows for the ranks before these start.
        connected: how many of the job's tasks have reached the driver, where those do so first of all; None: Spark is
            asked for the tasks of its barrier stage.
        earlier: the function of a job of this program that starts before this one; empty: there is none.
    """

    def __init__(
        self,
        spark: SparkSession,
        tag: str,
        *,
        has_rows: bool = False,
        connected: Callable[[], int] | None = None,
        earlier: Callable[[], str] = str,
    ) -> None:
        self._spark: Any = spark
        self._tag = tag
        self._has_rows = has_rows
        self._connected = connected
        self._earlier = earlier
        self._is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
        self._reported: int | None = None
        self._thread = 0

    @contextlib.contextmanager
    def receive_progress(self) -> Iterator[None]:
        """Receive reports while the calling thread runs the job: Connect reports in the thread that waits for rows."""
        self._thread = threading.get_ident()
        register = getattr(self._spark, "registerProgressHandler", None) if self._is_connect else None
        if register is None:  # Spark 3.5 reports nothing
            yield
            return
        register(self._take)
        try:
            yield
        finally:
            self._spark.removeProgressHandler(self._take)

    def _take(self, inflight_tasks: int = 0, **_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._reported = inflight_tasks

    def count_started(self) -> int | None:
        """Return how many tasks of the job run, or have run; None if Spark doesn't report it. May be `_OLD` behind."""
        if self._connected is not None:
            return self._connected()
        if self._is_connect:
            return self._reported
        try:
            # If there are a DataFrame's rows, stages that compute them run first; they start no ranks.
            stages = [
                self._tracker.getStageInfo(stage) for stage in self.find_own_stages() if self._starts_ranks(stage)
            ]
        except Exception:  # a stopped session, or one that forbids Java
            return None
        return sum(int(stage.numActiveTasks + stage.numCompletedTasks) for stage in stages if stage is not None)

    def find_other_stages(self) -> list[Any] | None:
        """Return the other stages of this session's application that have tasks to do; None: unknown."""
        if self._is_connect:
            return None
        try:
            own_stages = self.find_own_stages()
            active = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        except Exception:
            return None
        # Every stage that is not complete counts: the numbers of running tasks may be old.
        return [
            stage
            for stage in active
            if stage is not None and stage.stageId not in own_stages and stage.numCompletedTasks < stage.numTasks
        ]

    def describe_holders(self) -> str:
        """Describe what runs in this session's application beside the job."""
        earlier = self._earlier()
        if earlier:
            return (
                f"it waits for another job of this program, {earlier}, which has not started all of its ranks: jobs "
                "whose ranks start one by one start one after the other"
            )
        stages = self.find_other_stages()
        if stages is None:
            kind = "Spark Connect" if self._is_connect else "this session"
            return f"{kind} doesn't show what uses them: see the Spark UI"
        if not stages and self.computes_rows():
            return "Spark is still computing the DataFrame's rows"
        if not stages:
            return "no other job of this application is running: its executors may be lost, or not started yet"
        texts = [
            f"stage {stage.stageId} ({self._describe_stage(stage)!r}; {stage.numActiveTasks} of {stage.numTasks} tasks "
            f"running, {stage.numCompletedTasks} done)"
            for stage in stages
        ]
        more = f" and {len(texts) - _MOST_HOLDERS} more stages" if len(texts) > _MOST_HOLDERS else ""
        return f"other jobs of this application are running: {', '.join(texts[:_MOST_HOLDERS])}{more}"

    def _describe_stage(self, stage: Any) -> str:
        """Return the description of a stage's job, if it has one; else the call site that Spark recorded for it."""
        with contextlib.suppress(Exception):  # Spark's store is a moment behind, or this session forbids Java
            description = self._spark.sparkContext._jsc.sc().statusStore().lastStageAttempt(stage.stageId).description()
            if description.isDefined() and description.get().strip():
                return printable(str(description.get()).strip().splitlines()[0])
        return printable(str(stage.name).splitlines()[0])

    def computes_rows(self) -> bool:
        """Return whether a stage of the job is at work that starts no ranks."""
        if not self._has_rows:
            return False
        try:
            active = set(self._tracker.getActiveStageIds()) & self.find_own_stages()
            if self._connected is None:
                return any(not self._starts_ranks(stage) for stage in active)
            stages = map(self._tracker.getStageInfo, active)
            return not self._connected() and any(stage is not None and stage.numActiveTasks for stage in stages)
        except Exception:  # Spark Connect, a stopped session, or one that forbids Java
            return False

    def _starts_ranks(self, stage: int) -> bool:
        """Return whether it is a barrier stage, or nothing is known of it."""
        try:
            if not has_job_tags(self._spark.sparkContext):  # Spark 3.4 shows no barrier in Python's stages
                info = self._tracker.getStageInfo(stage)
                return info is None or not str(info.name).startswith("javaToPython")
            graph = self._spark.sparkContext._jsc.sc().statusStore().operationGraphForStage(stage)
            return bool(graph.rootCluster().getBarrierClusters().size())
        except Exception:  # Spark's store is a moment behind, or has dropped it
            return True

    @property
    def _tracker(self) -> Any:
        return self._spark.sparkContext.statusTracker()

    def find_own_stages(self) -> set[int]:
        """Return the numbers of the job's stages, in a classic session."""
        # By the tag: PySpark's own tracker knows job groups only, and a job group of this package would replace the
        # notebook's.
        if has_job_tags(self._spark.sparkContext):
            jobs = list(self._spark.sparkContext._jsc.sc().statusTracker().getJobIdsForTag(self._tag))
        else:  # as in `JobTag`
            jobs = list(self._tracker.getJobIdsForGroup(self._tag))
        infos = [self._tracker.getJobInfo(job) for job in jobs]
        return {int(stage) for info in infos if info is not None for stage in info.stageIds}


def describe_missing_slots(
    spark: SparkSession, function: str, started: int, size: int, timeout: timedelta, reports: TaskReports
) -> str:
    """Return the message if Spark has not started all ranks of a job in time; `started`: how many it has."""
    slots = count_slots(spark)
    count = f"has {slots.count}: {slots.arithmetic}" if slots.count is not None else slots.arithmetic
    return (
        f"Spark {_describe_start(function, started, size)} within {timeout.total_seconds():g} seconds (start_timeout). "
        f"It needs {size} free slots at the same time. This session {count}; {reports.describe_holders()}. Wait until "
        "they are free, use a session with more slots or fewer ranks, or raise start_timeout (or "
        "HOROVOD_SPARK_START_TIMEOUT)."
    )


def _describe_start(function: str, started: int, size: int) -> str:
    if started:
        return f"has started {function} on {started} of {size} ranks"
    return f"has not started {function} on any of {size} ranks"


@dataclass
class StartMonitor:
    """The time from a job's submission until user code has begun on all of its ranks.

    Attributes:
        function: what is run, for messages.
        size: number of ranks.
        timeout: how long it may take; None: for ever.
        reports: what Spark reports.
        placed: by partition, the rank, host and pid of the workers whose supervisors have reported them.
        begun: the ranks whose user code has begun.
        connected: returns how many supervisors are connected to the driver.
        barrier: whether all tasks start together; else they start one by one, and each connects when it starts.
        report: prints a line at the driver.
    """

    spark: SparkSession
    function: str
    size: int
    timeout: timedelta | None
    reports: TaskReports
    placed: Mapping[int, Mapping[str, Any]]
    begun: Collection[int]
    connected: Callable[[], int]
    report: Callable[[str], None]
    barrier: bool = True
    _waiting_announced: bool = field(default=False, init=False)
    _runs_unseen: bool = field(default=False, init=False)

    def report_delay(self, seconds: float) -> None:
        """Say once what the ranks wait for. Called until all have begun. Raises StartTimeoutError: too long."""
        if self._runs_unseen:
            return
        late = self.timeout is not None and seconds >= self.timeout.total_seconds()
        quiet = seconds < SAY_WAITING_AFTER.total_seconds() or self._waiting_announced
        if not late and (quiet or self.begun):
            return
        if self.barrier and not self.has_started_all():
            started = self.reports.count_started()
            waits = self.reports.find_other_stages() or self.reports.computes_rows()
            if not started and seconds < _OLD.total_seconds() and not waits:
                return  # nothing blocks them: they may already run, and Spark has not reported it yet
            if started != 0:
                # Tasks run, or Spark does not report whether they do; they cannot reach the driver. The job is left to
                # run.
                self._runs_unseen = True
                _log.info("%s: its ranks can't report their start to the driver", self.function)
                return
        if late:
            raise StartTimeoutError(
                self._describe_stuck() if self.has_started_all() else self._describe_missing_slots()
            )
        if not self.has_started_all():
            self._waiting_announced = True
            self.report(self._describe_wait(seconds))

    def describe_hindrance(self) -> str:
        """Return a sentence on what Spark waits for; '' if it doesn't wait or report it, or had too little time."""
        if self.has_started_all() or (self.barrier and self.reports.count_started() != 0):
            return ""
        if self.reports.find_other_stages() == [] and (count_slots(self.spark).count or 0) >= self.size:
            return ""
        return f"It needs {self.size} free slots at the same time; {self.reports.describe_holders()}."

    def has_started_all(self) -> bool:
        """Return whether the driver knows that all tasks run."""
        least = 1 if self.barrier else self.size
        return bool(self.begun or self.placed or self.connected() >= least)

    def _describe_wait(self, seconds: float) -> str:
        started = 0 if self.barrier else self.connected()
        return (
            f"Spark {_describe_start(self.function, started, self.size)} for {seconds:.0f} seconds. It needs "
            f"{self.size} free slots at the same time; {self.reports.describe_holders()}."
        )

    def _describe_missing_slots(self) -> str:
        assert self.timeout is not None
        started = 0 if self.barrier else self.connected()
        return describe_missing_slots(self.spark, self.function, started, self.size, self.timeout, self.reports)

    def _describe_stuck(self) -> str:
        assert self.timeout is not None
        names_by_rank = {
            frame["rank"]: f"rank {frame['rank']} (host {printable(frame['host'])})"
            for frame in list(self.placed.values())
        }
        missing = [rank for rank in range(self.size) if rank not in self.begun]
        names = ", ".join(names_by_rank.get(rank, f"rank {rank}") for rank in missing[:_MOST_HOLDERS])
        more = f" and {len(missing) - _MOST_HOLDERS} more" if len(missing) > _MOST_HOLDERS else ""
        return (
            f"{names}{more} of {self.size} ranks had not started {self.function} within "
            f"{self.timeout.total_seconds():g} seconds (start_timeout), although Spark started their tasks: Python "
            "starts slowly there, or the host is overloaded (see that executor's log). Raise start_timeout "
            "(or HOROVOD_SPARK_START_TIMEOUT) if this is expected."
        )
