"""Runs the ranks of a job in the tasks of one stage, in classic Spark and over Spark Connect alike.

This is the driver's half; `stage_task` is what Spark runs in each task: the supervisor of one worker. It is a barrier
stage, which Spark starts as a whole and never restarts in part. If Spark refuses barrier stages, it is a plain stage:
each task starts once there is a slot for it, and its supervisor waits until all are registered at the driver
(`DriverRegistration`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_estimator.collectives.rendezvous import make_job_id
from spark_estimator.env import Settings
from spark_estimator.errors import JobFailedError, find_task_error
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.attempts import Attempt, run_attempts
from spark_estimator.launch.job.environment import OMP, remove_choices, select_forwarded_variables
from spark_estimator.launch.job.events import Event, Failed, Finished
from spark_estimator.launch.job.failures import find_first_failure, find_marked, make_job_error
from spark_estimator.launch.job.monitor import EventDisplay, JobMonitor
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.rank_files import DriverFiles
from spark_estimator.launch.job.results import SCHEMA, ResultRow, read_manifests, verify_values
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.log_relay.without_channel import LateLines
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.configuration import Configuration, get_gpus_per_rank
from spark_estimator.launch.spark.driver_channel import DriverChannel
from spark_estimator.launch.spark.dynamic_allocation import uses_barrier
from spark_estimator.launch.spark.encryption_policy import choose_spool_variables, decide_encryption
from spark_estimator.launch.spark.executor_losses import REASON_PATIENCE, FailedTasks
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.rank_stage import make_rank_stage, profile_of
from spark_estimator.launch.spark.row_writer import Feed, Rows
from spark_estimator.launch.spark.run_state import TRANSITIONS, RunEvent, RunState
from spark_estimator.launch.spark.session import make_session_thread
from spark_estimator.launch.spark.slots import require_slots
from spark_estimator.launch.spark.stage_task import StageTask
from spark_estimator.launch.spark.start import StartMonitor, TaskReports
from spark_estimator.launch.spark.start_turns import StartTurn
from spark_estimator.launch.spark.task_secrecy import pack_parcels, suppress_logs
from spark_estimator.log import get_logger
from spark_estimator.observe.driver_log import announce, print_line
from spark_estimator.observe.status_line import StatusLine
from spark_estimator.observe.stragglers import StragglerWatch
from spark_estimator.state_machine import StateMachine

_log = get_logger(__name__)

# After the job's end: for lines that are not printed yet, and for supervisors of a job that Spark has ended.
_LAST_LINES = timedelta(seconds=30)
_LAST_REPORTS = timedelta(seconds=1)
# How long to try to cancel a job that was stopped before Spark knew it.
_LATE = timedelta(seconds=60)
#: How long to wait for another executor after a failure that ended one.
NEW_EXECUTOR = timedelta(seconds=30)
_DEFAULTS = JobOptions()
_CLOSED = (RunState.CLOSED, RunState.CLOSED_AFTER_STOP)


def run_on_spark(
    spark: SparkSession,
    function: Callable[..., Any],
    size: int,
    options: JobOptions = _DEFAULTS,
    *,
    rows: Rows | None = None,
) -> list[Any]:
    """Call `function` in `size` tasks, each in a process with collectives, once all of them have started.

    Args:
        spark: a classic or Connect session in which `size` ranks can run, see ``slots.require_slots``.
        options: lines that can't be sent to the driver while the job runs are sent later, see
            ``without_channel``; the status line needs that connection, too.
        rows: of a DataFrame, for the ranks; None: none.

    Returns:
        Rank 0's value, or all ranks' values in rank order.

    Raises:
        PicklingError: the function or an argument can't be pickled.
        PythonEnvironmentError: the workers' Python can't run the job.
        PreflightError: Spark starts no barrier stage here, and the executors can't reach the driver.
        WorkerFailedError: a rank failed; its traceback is the cause.
        ResultError: a rank's value can't be returned.
        StartTimeoutError: it took longer than `options.start_timeout`.
        JobTimeoutError: it took longer than `options.limits` allow.
        JobCancelledError: the job was cancelled in Spark.
        JobFailedError: Spark ended the job for another reason.
    """
    job = replace(
        make_spark_job(spark, function, size, options),
        log_folder=Settings.read().log_folder,
        gpus_per_rank=None if Configuration(spark).is_local else get_gpus_per_rank(Configuration(spark)),
        encrypted=decide_encryption(spark)[0],
    )
    frame = spark.range(0, size, 1, size) if rows is None else rows.frame.repartition(size, *rows.by)
    feed = None if rows is None else rows.feed

    def run(attempt: Attempt) -> list[ResultRow]:
        again = replace(job, job_id=make_job_id(), attempt=attempt.number)
        return _Run(spark, again, options, frame, feed, attempt).run()

    def recover(attempt: Attempt) -> None:
        require_slots(spark, size, attempt.limit_wait(NEW_EXECUTOR))

    results = run_attempts(run, options.limits, job.function, recover=recover)
    return load_values(verify_values(results, size, job.result_ranks), job.function)


class _Run:
    """One start of all ranks, as the driver sees it."""

    def __init__(
        self,
        spark: SparkSession,
        job: JobSpec,
        options: JobOptions,
        frame: DataFrame,
        feed: Feed | None,
        attempt: Attempt,
    ) -> None:
        self._spark = spark
        self._job = job
        self._frame = frame
        self._feed = feed
        self._tag = JobTag(spark, f"spark_estimator-{job.job_id}")
        self._outcome: list[ResultRow] | BaseException | None = None  # of the Spark job; None until it has ended
        self._state = StateMachine(RunState.RUNNING, TRANSITIONS)
        self._display = EventDisplay(
            show_line=options.show_line or print_line,
            files=DriverFiles(job),
            show_begun=self._announce_begin if options.verbose >= 2 else None,
            take_record=options.take_record,
        )
        self._monitor = JobMonitor(
            stop=self._stop,
            cancel=self._tag.cancel,
            display=self._display,
            size=job.size,
            waiting=self._follow_start,
            clock=lambda: self._enforce_limits(attempt),
            awaits_more=self._awaits_reason,
        )
        self._barrier = uses_barrier(Configuration(spark))
        self._channel = DriverChannel(spark, job, barrier=self._barrier, put=self._put, is_running=self._is_running)
        self._late = LateLines(job, self._put, connected=self._channel.address is not None)
        if job.progress and self._channel.address is not None:
            self._display.status = StatusLine.open_on_screen(job.size, options.progress_display)
            self._display.stragglers = StragglerWatch(job.size)
        self._turn = StartTurn(spark, job.function)
        reports = TaskReports(
            spark,
            self._tag.text,
            has_rows=feed is not None,
            connected=None if self._barrier else self._channel.count_connected,
            earlier=self._turn.find_earlier,
        )
        self._failed_tasks = FailedTasks(spark, reports.find_own_stages)
        self._start = StartMonitor(
            spark=spark,
            function=job.function,
            size=job.size,
            timeout=options.start_timeout,
            reports=reports,
            placed=self._channel.ranks.placed,
            begun=self._display.begun,
            connected=self._channel.count_connected,
            barrier=self._barrier,
            report=self._display.report,
        )

    def run(self) -> list[ResultRow]:
        """Run the stage to its end. Return its rows when every rank ended well."""
        thread = None
        try:
            sent_job = replace(self._job, channel=self._channel.address)
            files = self._display.files or contextlib.nullcontext()
            with files, pack_parcels(self._spark, sent_job, self._feed) as (job, parcels):
                frame = self._make_frame(StageTask(job, parcels, self._barrier))
                thread = make_session_thread(self._spark, lambda: self._collect(frame))
                thread.start()
                self._monitor.follow()
        finally:
            self._state.fire(RunEvent.CLOSE)
            if thread is not None and thread.is_alive():
                threading.Thread(
                    target=self._cancel_late, args=(thread,), name="spark_estimator late end", daemon=True
                ).start()
            self._late.end()
            self._channel.close()
        return self._conclude()

    def _make_frame(self, task: StageTask) -> Any:
        """Make the frame that runs the task once it is collected."""
        with suppress_logs():
            profile = profile_of(self._spark)
            return make_rank_stage(self._frame, task, SCHEMA, barrier=self._barrier, profile=profile)

    def _conclude(self) -> list[ResultRow]:
        rows = self._outcome if isinstance(self._outcome, list) else None
        error = self._outcome if isinstance(self._outcome, BaseException) else None
        for manifest in read_manifests(rows or []):
            if manifest.failure is not None:
                self._monitor.note(manifest.failure)
        if error is not None:
            for report in [*find_marked(str(error)), *self._channel.ranks.report_executor_loss(str(error))]:
                self._monitor.note(report)
        reports = self._monitor.reports
        cause = find_first_failure(reports)
        own_stop = self._state.state is RunState.CLOSED_AFTER_STOP
        if error is not None and not own_stop and (cause is None or cause.kind == failures.LOST):
            # A rank that is lost then was ended by Spark, as the user asked for.
            cancelled = spark_errors.find_cancellation(str(error), self._job.function)
            if cancelled is not None:
                raise cancelled
            of_task = find_task_error(error)  # of a function that makes the rows
            if of_task is not None:
                raise of_task from error
        if cause is not None:
            raise make_job_error(cause, reports, self._job.size, self._job.function)
        if error is not None:
            explained = spark_errors.explain(str(error))
            if explained is not None:
                _log.debug("Spark's error: %s", error)
                raise explained  # without Spark's forty lines of Java, which are less clear
            raise spark_errors.make_spark_error(error, self._job.function)
        if rows is None:
            raise JobFailedError(f"the Spark job {self._tag.text} was cancelled and has not ended; see the Spark UI.")
        return rows

    def _put(self, event: Event) -> None:
        """Hand an event to the main thread. While that is slow to print, the supervisors are slowed down in turn."""
        while self._state.state not in _CLOSED:
            with contextlib.suppress(queue.Full):
                self._display.events.put(event, timeout=0.2)
                return

    def _cancel_late(self, collecting: threading.Thread) -> None:
        """End a job that Spark did not know yet when it was cancelled: after Ctrl-C in just that moment."""
        deadline = time.monotonic() + _LATE.total_seconds()
        while collecting.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self._tag.cancel()
            collecting.join(1)

    def _collect(self, frame: Any) -> None:
        """Run the Spark job; in a separate thread, so that the main thread can be interrupted."""
        rows: list[ResultRow] | None = None
        try:
            self._tag.add(f"{self._job.function} on {self._job.size} ranks")
            if not self._barrier and not self._turn.wait(self._is_running):
                return
            if self._state.state in _CLOSED:  # by Ctrl-C, before Spark knows the job
                return
            with self._start.reports.receive_progress(), suppress_logs():
                self._outcome = rows = [ResultRow(*row) for row in frame.collect()]
        except BaseException as error:
            self._outcome = error
            self._state.fire(RunEvent.SPARK_ERROR)
        finally:
            self._turn.end()
            has_failed = isinstance(self._outcome, BaseException)
            if has_failed:
                self._channel.stop("because Spark ended the job")
            self._channel.wait_for_disconnection(_LAST_REPORTS if has_failed else _LAST_LINES)
            self._late.finish(rows)
            self._display.events.put(Finished())

    def _is_running(self) -> bool:
        return self._state.state is RunState.RUNNING

    def _stop(self, reason: str) -> None:
        self._state.fire(RunEvent.STOP)
        self._channel.stop(reason)
        if not self._channel.count_connected():
            self._tag.cancel()

    def _enforce_limits(self, attempt: Attempt) -> None:
        """End a job that takes too long, or whose results Spark has lost."""
        if self._start.has_started_all():
            self._turn.end()
        attempt.enforce_timeout(self._job.function, self._job.size, self._display.begun, self._start.describe_hindrance)
        for report in self._channel.find_repeated():
            with contextlib.suppress(queue.Full):  # it is found again; this thread empties the queue
                self._display.events.put_nowait(Failed(report))

    def _awaits_reason(self) -> bool:
        """Return whether Spark may yet give the reason for the loss of a rank.

        It ends a barrier stage with the reason. Of another stage it starts the task again, and notes the reason.
        """
        ranks = self._channel.ranks
        cause = find_first_failure(self._monitor.reports)
        if cause is None or cause.kind != failures.LOST or not ranks.vanished:
            return False
        partition, when = next(iter(ranks.vanished.items()))
        if not self._barrier:
            reason = self._failed_tasks.find_reason(partition)
            if reason:
                self._monitor.note(ranks.report_loss(partition, reason))
            if reason is not None or not self._failed_tasks.answers:
                return False
        return time.monotonic() - when < REASON_PATIENCE.total_seconds()

    def _follow_start(self, seconds: float) -> None:
        self._channel.registration.expire()
        self._start.report_delay(seconds)

    def _announce_begin(self, rank: int, pid: int) -> None:
        announce(f"rank {rank} runs on host {self._channel.ranks.find_host(rank)}, pid {pid}")


def make_spark_job(spark: SparkSession, function: Callable[..., Any], size: int, options: JobOptions) -> JobSpec:
    """Make a job whose workers have the variables that this session demands. Raises PicklingError."""
    defaults = {**choose_spool_variables(spark), **options.environment_if_unset}
    return JobSpec.build(
        function, size, replace(options, environment_if_unset=defaults), make_spark_environment(spark, options)
    )


def make_spark_environment(spark: SparkSession, options: JobOptions) -> dict[str, str]:
    """Return the variables of a job's workers, beside those that their executors have."""
    return {**select_forwarded_variables(os.environ), **_keep_own_threads(spark), **options.variables}


def _keep_own_threads(spark: SparkSession) -> dict[str, str]:
    """Return the user's OMP_NUM_THREADS if the tasks run in this process's environment, where Spark overrides it."""
    if type(spark).__module__.startswith("pyspark.sql.connect") or not Configuration(spark).is_local:
        return {}
    threads = remove_choices(os.environ).get(OMP)
    return {OMP: threads} if threads else {}
