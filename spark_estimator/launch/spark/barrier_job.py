"""Runs the ranks of a job in the tasks of one barrier stage, in classic Spark and over Spark Connect alike.

This is the driver's half; `barrier_task` is what Spark runs in each task: the supervisor of one worker.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_estimator.collectives.rendezvous import host_id, new_job_id
from spark_estimator.env import Settings
from spark_estimator.errors import JobFailedError
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.attempts import Attempt, Limits, run_attempts
from spark_estimator.launch.job.environment import OMP, undecided
from spark_estimator.launch.job.failures import FailureReport, find_marked, first_failure, job_error
from spark_estimator.launch.job.monitor import (
    Begun,
    Event,
    Failed,
    Finished,
    JobMonitor,
    Lines,
    Message,
    ProgressReported,
)
from spark_estimator.launch.job.pickling import dump_function, load_values, name_of
from spark_estimator.launch.job.results import SCHEMA, ResultRow, manifests_of, verified_values
from spark_estimator.launch.job.spec import (
    MAX_RESULT_BYTES,
    ChannelAddress,
    JobSpec,
    checked_environment,
    driver_sys_path,
    forwarded_environment,
    modules_to_preload,
)
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.barrier_task import BarrierTask
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.late_lines import LateLines
from spark_estimator.launch.spark.rank_registration import RankRegistration
from spark_estimator.launch.spark.resource_profile import profile_of
from spark_estimator.launch.spark.row_writer import Feed, Rows
from spark_estimator.launch.spark.session_thread import session_thread
from spark_estimator.launch.spark.slots import Configuration, require_slots, wanted_gpus
from spark_estimator.launch.spark.start import StartMonitor, TaskReports
from spark_estimator.launch.spark.task_secrecy import large_payload_apart, unlogged
from spark_estimator.log import logger
from spark_estimator.observe import channel, frames
from spark_estimator.observe.driver_address import driver_address
from spark_estimator.observe.driver_log import coloured, print_line, printable
from spark_estimator.observe.progress import Progress
from spark_estimator.observe.status_line import StatusLine, screen

_log = logger(__name__)

# After the job's end: for lines that are not printed yet, and for supervisors of a job that Spark has ended.
_LAST_LINES = timedelta(seconds=30)
_LAST_REPORTS = timedelta(seconds=1)
# A job that was to end before Spark had heard of it.
_LATE = timedelta(seconds=60)
# After a failure that took an executor along, Spark has started another one within so long, or there is none to come.
_NEW_EXECUTOR = timedelta(seconds=30)
_NO_LIMITS = Limits()


def run_on_spark(
    spark: SparkSession,
    function: Callable[..., Any],
    size: int,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    environment_if_unset: Mapping[str, str] | None = None,
    all_results: bool = False,
    show_line: Callable[[int, str, str], None] | None = None,
    show_status: bool = False,
    say: Callable[[str], None] | None = None,
    start_timeout: timedelta | None = None,
    rows: Rows | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
    limits: Limits = _NO_LIMITS,
) -> list[Any]:
    """Calls ``function(*args, **kwargs)`` in `size` tasks that start together, each in a process with collectives.

    Args:
        spark: a classic or Connect session with at least `size` slots.
        environment: variables for the processes, beside the driver's settings of ours (`forwarded_environment`).
        environment_if_unset: the same, for those that an executor has not set otherwise.
        all_results: every rank's value is wanted, not only rank 0's.
        show_line: is given (rank, "stdout" or "stderr", text) of each line that a rank prints; None: lines go to the
            executors' logs. Where these do not reach the driver, see ``kept_lines``.
        show_status: a status line is shown where somebody looks on, if the executors reach the driver.
        say: is told where each rank runs.
        start_timeout: all ranks must have begun within so long; None: Spark may take its time.
        rows: of a DataFrame, that the ranks get; None: none.
        max_result_bytes: a larger value of a rank is refused.
        limits: whether, and until when, it is started anew when it fails.

    Returns:
        The return values that are wanted, in rank order.

    Raises:
        PicklingError: the function or an argument cannot travel.
        PythonEnvironmentError: the workers' Python cannot run the job.
        WorkerFailedError: a rank failed; its traceback is the cause.
        ResultError: a value that is wanted cannot be had.
        StartTimeoutError: it took longer than `start_timeout`.
        JobTimeoutError: it took longer than `limits` allow.
        JobCancelledError: somebody cancelled it.
        JobFailedError: Spark ended the job for another reason.
    """
    payload = dump_function(function, args, kwargs or {})
    job = JobSpec(
        job_id=new_job_id(),
        size=size,
        function=name_of(function),
        payload=payload,
        environment={
            **forwarded_environment(os.environ),
            **threads_said_here(spark),
            **checked_environment(environment),
        },
        environment_if_unset=environment_if_unset or {},
        preload=modules_to_preload(payload),
        all_results=all_results,
        forward_lines=show_line is not None,
        progress=show_status and screen() is not None,
        log_folder=Settings.read().log_folder,
        driver_host_id=host_id(),
        driver_sys_path=driver_sys_path(),
        max_result_bytes=max_result_bytes,
        gpus_per_rank=None if Configuration(spark).is_local else wanted_gpus(Configuration(spark)),
    )
    frame = spark.range(0, size, 1, size) if rows is None else rows.frame.repartition(size, *rows.by)
    feed = None if rows is None else rows.feed

    def run(attempt: Attempt) -> list[ResultRow]:
        again = replace(job, job_id=new_job_id(), attempt=attempt.number)
        return _Run(spark, again, show_line or print_line, say, start_timeout, frame, feed, attempt).run()

    def recover(attempt: Attempt) -> None:
        require_slots(spark, size, attempt.at_most(_NEW_EXECUTOR))

    results = run_attempts(run, limits, job.function, recover=recover)
    return load_values(verified_values(results, size, job.wanted_ranks), job.function)


class _Run:
    """One start of all ranks, as the driver sees it."""

    def __init__(
        self,
        spark: SparkSession,
        job: JobSpec,
        show_line: Callable[[int, str, str], None],
        say: Callable[[str], None] | None,
        start_timeout: timedelta | None,
        frame: DataFrame,
        feed: Feed | None,
        attempt: Attempt,
    ) -> None:
        self._spark = spark
        self._job = job
        self._frame = frame
        self._feed = feed
        self._tag = JobTag(spark, f"spark_estimator-{job.job_id}")
        self._rows: list[ResultRow] | None = None
        self._error: BaseException | None = None
        self._say = say
        self._watch = JobMonitor(
            stop=self._stop,
            cancel=self._cancel,
            show_line=show_line,
            show_begun=self._say_begun if say else None,
            size=job.size,
            waiting=self._look_at_the_clock,
            clock=lambda: attempt.look_at_the_clock(job.function, job.size, self._watch.begun, self._start.hindrance),
        )
        self._over = False
        self._stopping = False
        self._stopping_by_itself = False
        self._placed: dict[int, dict[str, Any]] = {}  # by partition
        self._vanished: list[int] = []  # partitions
        self._gathering = RankRegistration(job.size, self._answer)
        self._server = self._listen() if Settings.read().driver_channel else None
        self._late = LateLines(job, self._put, connected=self._server is not None)
        if job.progress and self._server is not None:
            self._watch.status = StatusLine.on_screen(job.size)
        self._reports = TaskReports(spark, self._tag.text)
        self._start = StartMonitor(
            spark=spark,
            function=job.function,
            size=job.size,
            timeout=start_timeout,
            reports=self._reports,
            placed=self._placed,
            begun=self._watch.begun,
            connected=lambda: 0 if self._server is None else self._server.connected,
            say=self._watch.say,
        )

    def run(self) -> list[ResultRow]:
        """Runs the stage to its end. Returns its rows when every rank ended well."""
        address, thread = None, None
        if self._server is not None:
            address = ChannelAddress(self._server.address, self._server.port, self._server.token)
        try:
            with large_payload_apart(self._spark, replace(self._job, channel=address)) as (job, payload):
                frame = self._frame_of(BarrierTask(job, self._feed, payload))
                thread = session_thread(self._spark, lambda: self._collect(frame))
                thread.start()
                self._watch.follow()
        finally:
            self._over = True
            if thread is not None and thread.is_alive():
                threading.Thread(
                    target=self._cancel_late, args=(thread,), name="spark_estimator late end", daemon=True
                ).start()
            self._late.end()
            if self._server is not None:
                self._server.close()
        return self._verdict()

    def _frame_of(self, task: BarrierTask) -> DataFrame:
        """What runs the task once it is collected."""
        with warnings.catch_warnings(), unlogged():
            # PySpark tells at each call which pandas it would rather have.
            warnings.filterwarnings("ignore", message=".*PySpark does not yet fully support pandas")
            profile = profile_of(self._spark)
            # Spark 3.5's frames take no profile.
            more = {} if profile is None else {"profile": profile}
            return self._frame.mapInArrow(task, SCHEMA, barrier=True, **more)

    def _verdict(self) -> list[ResultRow]:
        for manifest in manifests_of(self._rows or []):
            if manifest.failure is not None:
                self._watch.note(manifest.failure)
        if self._error is not None:
            for report in find_marked(str(self._error)):
                self._watch.note(report)
            self._note_lost_executor(str(self._error))
        reports = self._watch.reports
        cause = first_failure(reports)
        if self._error is not None and not self._stopping_by_itself and (cause is None or cause.kind == failures.LOST):
            # Before a rank that Spark took away: it did so because it was told to.
            cancelled = spark_errors.cancelled(str(self._error), self._job.function)
            if cancelled is not None:
                raise cancelled
        if cause is not None:
            raise job_error(cause, reports, self._job.size, self._job.function)
        if self._error is not None:
            explained = spark_errors.explain(str(self._error))
            if explained is not None:
                _log.debug("Spark's own words: %s", self._error)
                raise explained  # without Spark's forty lines of Java, which say less
            raise spark_errors.ended_by_spark(self._error, self._job.function)
        if self._rows is None:
            raise JobFailedError(f"the Spark job {self._tag.text} was cancelled and has not ended; see the Spark UI.")
        return self._rows

    def _note_lost_executor(self, text: str) -> None:
        """What Spark tells of an executor that died, when that came sooner than the end of its connections."""
        lost = spark_errors.lost_executor(text)
        if lost is None or lost[0] not in self._placed:
            return
        self._watch.note(self._lost(lost[0], lost[1]))
        for partition in self._vanished:
            message = "was lost with it, or ended by Spark"
            self._watch.note(replace(self._lost(partition), kind=failures.STOPPED, message=message))

    def _listen(self) -> channel.DriverServer | None:
        host = Configuration(self._spark).get("spark.driver.host") or ""
        try:
            address = driver_address(host)
            return channel.DriverServer(address, self._job.job_id, self._job.size, self._receive)
        except OSError as error:
            _log.info("no driver channel: %s", error)
            return None

    def _receive(self, partition: int, frame: dict[str, Any]) -> None:
        """Takes what a supervisor sends; in the server's thread."""
        event: Event | None = None
        if frame["kind"] == frames.FACTS:
            self._gathering.add(partition, frame["facts"])
        elif frame["kind"] == frames.GATHER:
            self._gathering.give_up(f"partition {partition} could not reach the driver in time")
        elif frame["kind"] == frames.LINE:
            event = Lines(frame["rank"], frame["stream"], [coloured(frame["text"])])
        elif frame["kind"] == frames.LOG:
            event = Message(frame["rank"], printable(frame["text"]))
        elif frame["kind"] == frames.PROGRESS:
            event = ProgressReported(frame["rank"], Progress.from_dict(frame["report"]))
        elif frame["kind"] == frames.PLACED:
            self._placed[partition] = frame
        elif frame["kind"] == frames.BEGUN:
            self._placed[partition] = frame
            event = Begun(frame["rank"], frame["pid"])
        elif frame["kind"] == frames.GONE:
            self._vanished.append(partition)
            event = None if self._stopping else Failed(self._lost(partition))
        elif frame["kind"] == frames.FAILURE:
            try:
                event = Failed(FailureReport.from_dict(frame["report"]))
            except TypeError as error:
                raise ValueError(f"a failure report with other fields: {error}") from error
        if event is not None:
            self._put(event)

    def _put(self, event: Event) -> None:
        """Hands an event to the main thread. While that is slow to print, the supervisors are slowed down in turn."""
        while not self._over:
            with contextlib.suppress(queue.Full):
                self._watch.events.put(event, timeout=0.2)
                return

    def _answer(self, partition: int, kind: str, fields: dict[str, Any]) -> None:
        if self._server is not None:
            self._server.send(partition, kind, fields)

    def _lost(self, partition: int, why: str = "") -> FailureReport:
        """What is known of a rank whose supervisor has vanished; and why, in Spark's words, if it says so."""
        known = self._placed.get(partition, {"rank": -1, "host": "unknown", "pid": 0})
        message = "is out of contact: its Spark executor, or its host, has died or was cut off"
        message += f" ({why})" if why else ""
        return FailureReport(known["rank"], known["host"], known["pid"], failures.LOST, message, when=time.time())

    def _cancel_late(self, collecting: threading.Thread) -> None:
        """Ends a job that Spark had not heard of when it was cancelled: after Ctrl-C in that very moment."""
        deadline = time.monotonic() + _LATE.total_seconds()
        while collecting.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self._tag.cancel()
            collecting.join(1)

    def _collect(self, frame: Any) -> None:
        """Runs the Spark job; in a thread of its own, so that the main one can be interrupted."""
        try:
            self._tag.add(f"{self._job.function} on {self._job.size} ranks")
            if self._over:  # by Ctrl-C, before Spark has heard of it
                return
            with self._reports.kept(), unlogged():
                self._rows = [ResultRow(*row) for row in frame.collect()]
        except BaseException as error:
            self._error = error
        finally:
            self._let_supervisors_finish()
            self._late.finish(self._rows)
            self._watch.events.put(Finished())

    def _let_supervisors_finish(self) -> None:
        """Waits for what is still on its way to the driver. Supervisors of tasks that Spark has to end take longer."""
        if self._server is None:
            return
        patience = _LAST_LINES
        if self._error is not None:
            self._stopping = True
            self._server.stop("because Spark ended the job")
            patience = _LAST_REPORTS
        deadline = time.monotonic() + patience.total_seconds()
        while self._server.connected and time.monotonic() < deadline:
            time.sleep(0.01)

    def _stop(self, reason: str) -> None:
        self._stopping = self._stopping_by_itself = True
        if self._server is not None:
            self._server.stop(reason)
        if self._server is None or not self._server.connected:
            self._cancel()

    def _cancel(self) -> None:
        self._tag.cancel()

    def _look_at_the_clock(self, seconds: float) -> None:
        self._gathering.look_at_the_clock()
        self._start.look(seconds)

    def _say_begun(self, rank: int, pid: int) -> None:
        assert self._say is not None
        host = next((frame["host"] for frame in list(self._placed.values()) if frame["rank"] == rank), "unknown")
        self._say(f"rank {rank} runs on host {printable(host)}, pid {pid}")


def threads_said_here(spark: SparkSession) -> dict[str, str]:
    """The user's OMP_NUM_THREADS where the tasks run in this process's environment: Spark puts its own in its place."""
    if type(spark).__module__.startswith("pyspark.sql.connect") or not Configuration(spark).is_local:
        return {}
    said = undecided(os.environ).get(OMP)
    return {OMP: said} if said else {}
