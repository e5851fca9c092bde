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

from spark_estimator.collectives.rendezvous import new_job_id
from spark_estimator.env import Settings
from spark_estimator.errors import JobFailedError, PreflightError, error_of_task
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.attempts import Attempt, run_attempts
from spark_estimator.launch.job.environment import OMP, forwarded_environment, undecided
from spark_estimator.launch.job.failures import find_marked, first_failure, job_error
from spark_estimator.launch.job.monitor import Event, Failed, Finished, JobMonitor
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.results import SCHEMA, ResultRow, manifests_of, verified_values
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec
from spark_estimator.launch.log_relay.without_channel import LateLines
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.configuration import Configuration, wanted_gpus
from spark_estimator.launch.spark.driver_reach import address_for_executors
from spark_estimator.launch.spark.dynamic_allocation import uses_barrier
from spark_estimator.launch.spark.encryption_policy import encryption_of, spool_variables
from spark_estimator.launch.spark.executor_losses import REASON_PATIENCE, FailedTasks
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.rank_events import RankEvents
from spark_estimator.launch.spark.rank_registration import DriverRegistration, RankRegistration
from spark_estimator.launch.spark.rank_stage import rank_stage
from spark_estimator.launch.spark.resource_profile import profile_of
from spark_estimator.launch.spark.row_writer import Feed, Rows
from spark_estimator.launch.spark.run_state import TRANSITIONS, RunEvent, RunState
from spark_estimator.launch.spark.session import session_thread
from spark_estimator.launch.spark.slots import require_slots
from spark_estimator.launch.spark.stage_task import StageTask
from spark_estimator.launch.spark.start import StartMonitor, TaskReports
from spark_estimator.launch.spark.start_turns import StartTurn
from spark_estimator.launch.spark.task_secrecy import packed, unlogged
from spark_estimator.log import logger
from spark_estimator.observe import channel, frames
from spark_estimator.observe.driver_log import announce, print_line
from spark_estimator.observe.silence import lost_after
from spark_estimator.observe.status_line import StatusLine
from spark_estimator.state_machine import StateMachine

_log = logger(__name__)

# After the job's end: for lines that are not printed yet, and for supervisors of a job that Spark has ended.
_LAST_LINES = timedelta(seconds=30)
_LAST_REPORTS = timedelta(seconds=1)
# How long to try to cancel a job that was stopped before Spark knew it.
_LATE = timedelta(seconds=60)
#: How long to wait for another executor after a failure that ended one.
NEW_EXECUTOR = timedelta(seconds=30)
_DEFAULTS = JobOptions()
_OF_LOSSES = (frames.SILENT, frames.HEARD, frames.GONE)
_CLOSED = (RunState.CLOSED, RunState.CLOSED_AFTER_STOP)


def run_on_spark(
    spark: SparkSession,
    function: Callable[..., Any],
    size: int,
    options: JobOptions = _DEFAULTS,
    *,
    rows: Rows | None = None,
) -> list[Any]:
    """Calls `function` in `size` tasks, each in a process with collectives, once all of them are there.

    Args:
        spark: a classic or Connect session in which `size` ranks can run, see ``slots.require_slots``.
        options: lines that can't be sent to the driver while the job runs are sent later, see ``without_channel``; the
            status line needs that connection, too.
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
        spark_job(spark, function, size, options),
        log_folder=Settings.read().log_folder,
        gpus_per_rank=None if Configuration(spark).is_local else wanted_gpus(Configuration(spark)),
        encrypted=encryption_of(spark)[0],
    )
    frame = spark.range(0, size, 1, size) if rows is None else rows.frame.repartition(size, *rows.by)
    feed = None if rows is None else rows.feed

    def run(attempt: Attempt) -> list[ResultRow]:
        again = replace(job, job_id=new_job_id(), attempt=attempt.number)
        return _Run(spark, again, options, frame, feed, attempt).run()

    def recover(attempt: Attempt) -> None:
        require_slots(spark, size, attempt.at_most(NEW_EXECUTOR))

    results = run_attempts(run, options.limits, job.function, recover=recover)
    return load_values(verified_values(results, size, job.result_ranks), job.function)


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
        self._rows: list[ResultRow] | None = None
        self._error: BaseException | None = None
        self._monitor = JobMonitor(
            stop=self._stop,
            cancel=self._cancel,
            show_line=options.show_line or print_line,
            show_begun=self._say_begun if options.verbose >= 2 else None,
            take_record=options.take_record,
            size=job.size,
            waiting=self._look_at_the_clock,
            clock=lambda: self._look_at_the_job(attempt),
            awaits_more=self._awaits_reason,
        )
        self._state = StateMachine(RunState.RUNNING, TRANSITIONS)
        self._ranks = RankEvents()
        self._barrier = uses_barrier(Configuration(spark))
        self._registration = (RankRegistration if self._barrier else DriverRegistration)(job.size, self._answer)
        self._server = self._listen()
        self._late = LateLines(job, self._put, connected=self._server is not None)
        if job.progress and self._server is not None:
            self._monitor.status = StatusLine.on_screen(job.size, options.progress_display)
        self._turn = StartTurn(spark, job.function)
        self._reports = TaskReports(
            spark,
            self._tag.text,
            has_rows=feed is not None,
            connected=None if self._barrier else self._connected,
            earlier=self._turn.earlier,
        )
        self._failed_tasks = FailedTasks(spark, self._reports.own_stages)
        self._start = StartMonitor(
            spark=spark,
            function=job.function,
            size=job.size,
            timeout=options.start_timeout,
            reports=self._reports,
            placed=self._ranks.placed,
            begun=self._monitor.begun,
            connected=self._connected,
            barrier=self._barrier,
            report=self._monitor.report,
        )

    def run(self) -> list[ResultRow]:
        """Runs the stage to its end. Returns its rows when every rank ended well."""
        address, thread = None, None
        if self._server is not None:
            address = ChannelAddress(self._server.address, self._server.port, self._server.token)
        try:
            with packed(self._spark, replace(self._job, channel=address), self._feed) as (job, parcels):
                frame = self._frame_of(StageTask(job, parcels, self._barrier))
                thread = session_thread(self._spark, lambda: self._collect(frame))
                thread.start()
                self._monitor.follow()
        finally:
            self._state.fire(RunEvent.CLOSE)
            if thread is not None and thread.is_alive():
                threading.Thread(
                    target=self._cancel_late, args=(thread,), name="spark_estimator late end", daemon=True
                ).start()
            self._late.end()
            if self._server is not None:
                self._server.close()
        return self._verdict()

    def _frame_of(self, task: StageTask) -> Any:
        """The frame that runs the task once it is collected."""
        with unlogged():
            profile = profile_of(self._spark)
            return rank_stage(self._frame, task, SCHEMA, barrier=self._barrier, profile=profile)

    def _verdict(self) -> list[ResultRow]:
        for manifest in manifests_of(self._rows or []):
            if manifest.failure is not None:
                self._monitor.note(manifest.failure)
        if self._error is not None:
            for report in find_marked(str(self._error)):
                self._monitor.note(report)
            for report in self._ranks.lost_with_executor(str(self._error)):
                self._monitor.note(report)
        reports = self._monitor.reports
        cause = first_failure(reports)
        own_stop = self._state.state is RunState.CLOSED_AFTER_STOP
        if self._error is not None and not own_stop and (cause is None or cause.kind == failures.LOST):
            # A rank that is lost then was ended by Spark, as the user asked for.
            cancelled = spark_errors.cancelled(str(self._error), self._job.function)
            if cancelled is not None:
                raise cancelled
            of_task = error_of_task(self._error)  # of a function that makes the rows
            if of_task is not None:
                raise of_task from self._error
        if cause is not None:
            raise job_error(cause, reports, self._job.size, self._job.function)
        if self._error is not None:
            explained = spark_errors.explain(str(self._error))
            if explained is not None:
                _log.debug("Spark's error: %s", self._error)
                raise explained  # without Spark's forty lines of Java, which are less clear
            raise spark_errors.ended_by_spark(self._error, self._job.function)
        if self._rows is None:
            raise JobFailedError(f"the Spark job {self._tag.text} was cancelled and has not ended; see the Spark UI.")
        return self._rows

    def _listen(self) -> channel.DriverServer | None:
        """The driver channel; None where the job can do without it, and has none."""
        address = address_for_executors(self._spark, "" if self._barrier else "a job without a barrier stage")
        if address is None:
            return None
        try:
            return channel.DriverServer(
                address,
                self._job.job_id,
                self._job.size,
                self._receive,
                lost_after(Settings.read()),
                encrypted=self._job.encrypted,
                approve=self._registration.approve,
            )
        except OSError as error:
            if not self._barrier:
                raise PreflightError(f"this process can't listen for its executors at {address}: {error}") from error
            _log.info("no driver channel: %s", error)
            return None

    def _connected(self) -> int:
        """How many supervisors are connected to the driver."""
        return 0 if self._server is None else self._server.connected

    def _receive(self, partition: int, frame: dict[str, Any]) -> None:
        """Takes what a supervisor sends; in the server's thread."""
        if frame["kind"] == frames.FACTS:
            self._registration.add(partition, frame["facts"])
        elif frame["kind"] == frames.GATHER:
            self._registration.give_up(f"partition {partition} could not reach the driver in time")
        elif frame["kind"] != frames.GONE or not self._registration.gone(partition):
            event = self._ranks.take(partition, frame)
            # Once the job is being ended, its ranks vanish as they should.
            if event is not None and (frame["kind"] not in _OF_LOSSES or self._state.state is RunState.RUNNING):
                self._put(event)

    def _put(self, event: Event) -> None:
        """Hands an event to the main thread. While that is slow to print, the supervisors are slowed down in turn."""
        while self._state.state not in _CLOSED:
            with contextlib.suppress(queue.Full):
                self._monitor.events.put(event, timeout=0.2)
                return

    def _answer(self, partition: int, kind: str, fields: dict[str, Any]) -> None:
        if self._server is not None:
            self._server.send(partition, kind, fields)

    def _cancel_late(self, collecting: threading.Thread) -> None:
        """Ends a job that Spark did not know yet when it was cancelled: after Ctrl-C in just that moment."""
        deadline = time.monotonic() + _LATE.total_seconds()
        while collecting.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self._tag.cancel()
            collecting.join(1)

    def _collect(self, frame: Any) -> None:
        """Runs the Spark job; in a separate thread, so that the main thread can be interrupted."""
        try:
            self._tag.add(f"{self._job.function} on {self._job.size} ranks")
            if not self._barrier and not self._turn.wait(self._is_wanted):
                return
            if self._state.state in _CLOSED:  # by Ctrl-C, before Spark knows the job
                return
            with self._reports.kept(), unlogged():
                self._rows = [ResultRow(*row) for row in frame.collect()]
        except BaseException as error:
            self._error = error
            self._state.fire(RunEvent.SPARK_ERROR)
        finally:
            self._turn.end()
            self._let_supervisors_finish()
            self._late.finish(self._rows)
            self._monitor.events.put(Finished())

    def _is_wanted(self) -> bool:
        return self._state.state is RunState.RUNNING

    def _let_supervisors_finish(self) -> None:
        """Waits for the last lines and reports to the driver.

        Supervisors of tasks that Spark has to end take longer.
        """
        if self._server is None:
            return
        patience = _LAST_LINES
        if self._error is not None:
            self._server.stop("because Spark ended the job")
            patience = _LAST_REPORTS
        deadline = time.monotonic() + patience.total_seconds()
        while self._server.connected and time.monotonic() < deadline:
            time.sleep(0.01)

    def _stop(self, reason: str) -> None:
        self._state.fire(RunEvent.STOP)
        if self._server is not None:
            self._server.stop(reason)
        if self._server is None or not self._server.connected:
            self._cancel()

    def _cancel(self) -> None:
        self._tag.cancel()

    def _look_at_the_job(self, attempt: Attempt) -> None:
        """Ends a job that takes too long, or whose results Spark has lost."""
        if self._start.all_started():
            self._turn.end()
        attempt.look_at_the_clock(self._job.function, self._job.size, self._monitor.begun, self._start.hindrance)
        for partition in self._registration.repeated(self._connected()):
            with contextlib.suppress(queue.Full):  # it is found again; this thread empties the queue
                self._monitor.events.put_nowait(Failed(self._ranks.repeated(partition)))

    def _awaits_reason(self) -> bool:
        """Whether Spark may yet give the reason for the loss of a rank.

        It ends a barrier stage with the reason. Of another stage it starts the task again, and notes the reason.
        """
        cause = first_failure(self._monitor.reports)
        if cause is None or cause.kind != failures.LOST or not self._ranks.vanished:
            return False
        partition, when = next(iter(self._ranks.vanished.items()))
        if not self._barrier:
            reason = self._failed_tasks.reason(partition)
            if reason:
                self._monitor.note(self._ranks.lost(partition, reason))
            if reason is not None or not self._failed_tasks.answers:
                return False
        return time.monotonic() - when < REASON_PATIENCE.total_seconds()

    def _look_at_the_clock(self, seconds: float) -> None:
        self._registration.look_at_the_clock()
        self._start.look(seconds)

    def _say_begun(self, rank: int, pid: int) -> None:
        announce(f"rank {rank} runs on host {self._ranks.host_of(rank)}, pid {pid}")


def spark_job(spark: SparkSession, function: Callable[..., Any], size: int, options: JobOptions) -> JobSpec:
    """A job whose workers have the variables that this session demands.

    Raises:
        PicklingError: the function or an argument can't be pickled.
    """
    defaults = {**spool_variables(spark), **options.environment_if_unset}
    return JobSpec.build(
        function, size, replace(options, environment_if_unset=defaults), spark_environment(spark, options)
    )


def spark_environment(spark: SparkSession, options: JobOptions) -> dict[str, str]:
    """The variables of a job's workers, beside those that their executors have."""
    return {**forwarded_environment(os.environ), **_own_threads(spark), **options.variables}


def _own_threads(spark: SparkSession) -> dict[str, str]:
    """The user's OMP_NUM_THREADS if the tasks run in this process's environment, where Spark overrides it."""
    if type(spark).__module__.startswith("pyspark.sql.connect") or not Configuration(spark).is_local:
        return {}
    threads = undecided(os.environ).get(OMP)
    return {OMP: threads} if threads else {}
