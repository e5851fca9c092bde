"""Runs an elastic job on Spark: each of its processes in a separate small Spark job, so that it starts and ends alone.

``spark_estimator.elastic`` documents the guarantees of elastic jobs; ``launch.elastic`` runs this one as any other, on
workers that are tasks (`worker`). What differs on Spark:

- No process depends on another's task, nor on ``spark.task.maxFailures``: an executor that is lost costs the processes
  that it had. A new process is a new Spark job, which waits until there is a slot for it.
- The driver must be within the executors' reach. Each task connects to it and follows its orders: `task`.
- A host on which `FAILURES` processes have ended badly, other than by an exception, is not used again, as long as there
  is another. Spark does not let a job choose hosts. So a task that Spark starts there nevertheless only holds its slot,
  and another task is started.
- Cancelling one of its Spark jobs, by job group, tag or web page, cancels the whole job.
- A rank sees the GPUs that Spark gave its task, the first as ``cuda:0``: ``local_rank`` changes from round to round,
  and what a process sees cannot. Without such GPUs it sees what its executor sees.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from spark_estimator.collectives.rendezvous import PeerFacts
from spark_estimator.elastic.decisions import Terms
from spark_estimator.env import Settings
from spark_estimator.errors import PreflightError, PythonEnvironmentError, StartTimeoutError
from spark_estimator.launch.elastic.job import Following
from spark_estimator.launch.elastic.job_entry import elastic, run_elastic
from spark_estimator.launch.elastic.placement import FAILURES, Placement
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.attempts import Attempt
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.outcome import Relay
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.results import manifests_of
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.driver_reach import address_for_executors
from spark_estimator.launch.spark.dynamic_allocation import on_demand
from spark_estimator.launch.spark.elastic.server import Over, SparkTask, TaskServer, link_over
from spark_estimator.launch.spark.elastic.worker import SparkWorkerHandle
from spark_estimator.launch.spark.encryption_policy import encryption_of
from spark_estimator.launch.spark.executor_losses import lost_executor
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.slots import count_slots
from spark_estimator.launch.spark.stage_job import spark_job
from spark_estimator.launch.spark.start import SAY_WAITING_AFTER, TaskReports, slots_wanting
from spark_estimator.launch.spark.start_turns import StartTurn
from spark_estimator.launch.spark.task_secrecy import packed
from spark_estimator.launch.worker.worker_host import WorkerHandle
from spark_estimator.observe.driver_log import announce, print_line
from spark_estimator.observe.status_line import StatusLine

_COUNT_SLOTS_EVERY = timedelta(seconds=5)
# After the job's end: how long to wait for Spark to end its tasks; Spark ends the others later.
_CLEAN_UP = timedelta(seconds=5)
_FIRST = Attempt()
_PLAIN = Following()


def run_elastic_on_spark(
    spark: SparkSession,
    function: Callable[..., Any],
    terms: Terms,
    options: JobOptions,
    *,
    attempt: Attempt = _FIRST,
    following: Following = _PLAIN,
) -> list[Any]:
    """As ``stage_job.run_on_spark`` with all results, in a job that continues when it loses ranks.

    Args:
        options: its `limits` and `all_results` have no effect; `verbose` from 1 also shows which ranks are lost and
            how many the next round has. Progress is shown where the number of ranks does not change.
        attempt: of a job that is started again when it can't continue.
        following: as in ``elastic.run_elastic``; its record and status are those of `options`.

    Returns:
        The values of the ranks that returned, in the order of their last ranks.

    Raises:
        PicklingError: the function or an argument can't be pickled.
        PreflightError: the executors can't reach the driver, or their Python can't run the job.
        StartTimeoutError: not all ranks had a slot in time.
        JobCancelledError: the job was cancelled in Spark.
        WorkerFailedError: too few ranks are left, or another limit of `terms` is exceeded; the text lists all lost
            ranks.
        ResultError: a rank's value can't be returned.
    """
    fixed = terms.size == terms.most and (terms.min_size == terms.size or terms.patience is not None)
    built = spark_job(spark, function, terms.size, replace(options, all_results=True))
    status = StatusLine.on_screen(terms.size, options.progress_display) if fixed and built.progress else None
    built = replace(built, encrypted=encryption_of(spark)[0], attempt=attempt.number)
    job = elastic(built, progress=status is not None)
    turn = StartTurn(spark, job.function)
    jobs = _Jobs(spark, job, terms, options, attempt, turn)
    try:
        jobs.wait_for_turn()
        outcomes = run_elastic(
            job,
            terms,
            show_line=options.show_line or print_line,
            report=jobs.report,
            make=jobs.make,
            placement=jobs.placement,
            look=jobs.look,
            following=replace(following, take_record=options.take_record, status=status),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{job.function} was interrupted; all of its ranks were stopped") from None
    finally:
        jobs.close()
    return load_values([outcome.pickled for outcome in outcomes], job.function)


class Record:
    """Which hosts a job has seen, and how its processes fared there. Pure."""

    def __init__(self) -> None:
        self._bad_ends: collections.Counter[str] = collections.Counter()
        self._seen: set[str] = set()

    def seen(self, host: str) -> None:
        """A process has started there."""
        self._seen.add(host)

    def ended_badly(self, host: str) -> bool:
        """A process has. Whether it is the one after which the host is not used again."""
        before = self.is_used(host)
        self._bad_ends[host] += 1
        return before and not self.is_used(host)

    def is_used(self, host: str) -> bool:
        """Whether processes may start there; on the only host that is left they may."""
        if self._bad_ends[host] < FAILURES:
            return True
        return not any(self._bad_ends[other] < FAILURES for other in self._seen - {host})


class SparkPlacement(Placement):
    """There is one host, which is the whole session: Spark chooses the executor of a process, and replaces lost
    executors.

    Attributes:
        limit: as many slots as the session has. Never less than the job has begun with: a lost executor may be
            replaced.
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__([Host("", terms.places)])
        self.limit = terms.places

    @property
    def room(self) -> int:
        """As in `Placement`."""
        return min(self.limit, super().room)

    def lose(self, host: str, now: float) -> str:
        """As in `Placement`."""
        return ""

    def unreachable(self, host: str, now: float) -> str:
        """As in `Placement`."""
        return ""

    def failed(self, host: str, now: float) -> str:
        """As in `Placement`."""
        return ""


class _Jobs:
    """The Spark jobs of one elastic job; for its workers, `SparkJobs`."""

    def __init__(
        self,
        spark: SparkSession,
        job: JobSpec,
        terms: Terms,
        options: JobOptions,
        attempt: Attempt,
        turn: StartTurn,
    ) -> None:
        self._spark = spark
        self._attempt = attempt
        self._turn = turn
        self._terms = terms
        self._start_timeout = options.start_timeout
        self._verbose = options.verbose
        self._tag = JobTag(spark, f"spark_estimator-{job.job_id}")
        self._reports = TaskReports(
            spark, self._tag.text, has_rows=False, connected=lambda: self._started, earlier=turn.earlier
        )
        self._settings = Settings.read(job.environment)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tasks: list[SparkTask] = []
        self._hosts = Record()
        self._error: Exception | None = None
        self._began = time.monotonic()
        self._started = 0
        self._all_started = False
        self._waiting_announced = False
        self._over = threading.Event()
        self.placement = SparkPlacement(terms)
        address = address_for_executors(spark, "an elastic job")
        assert address is not None
        self._server = TaskServer(address, job)
        self._until_closed = contextlib.ExitStack()
        try:
            self._sent_job, self._parcels = self._until_closed.enter_context(packed(spark, self._server.job))
        except BaseException:
            self._server.close()
            raise
        if terms.places > terms.size and not on_demand(Configuration(spark)):
            self.placement.limit = terms.size
            threading.Thread(target=self._count_slots, name="spark_estimator slots", daemon=True).start()

    def wait_for_turn(self) -> None:
        """Returns when no other job of this program is starting ranks one by one. Raises as `look`."""

        def look() -> bool:
            self.look(0)
            return True

        self._turn.wait(look)
        self._began = time.monotonic()

    # --- what the launcher asks ---

    def make(self, _host: str, number: int, rank: int, relay: Relay, link: socket.socket) -> WorkerHandle:
        """As ``process.MakeWorker``."""
        return SparkWorkerHandle(self, number, rank, relay, link)

    def look(self, started: int) -> None:
        """Called now and then; ends the job by raising."""
        if self._error is not None:
            raise self._error
        self._all_started |= started == self._terms.size
        size = self._terms.size
        begun = range(size if self._all_started else min(self._started, size))
        self._attempt.look_at_the_clock(self._server.job.function, size, begun)
        if self._all_started:
            self._turn.end()
            return
        seconds = time.monotonic() - self._began
        late = self._start_timeout is not None and seconds >= self._start_timeout.total_seconds()
        function = self._server.job.function
        if late:
            assert self._start_timeout is not None
            raise StartTimeoutError(
                slots_wanting(self._spark, function, self._started, size, self._start_timeout, self._reports)
            )
        if seconds >= SAY_WAITING_AFTER.total_seconds() and not self._waiting_announced:
            self._waiting_announced = True
            announce(
                f"Spark has started {function} on {self._started} of {size} ranks after {seconds:.0f} seconds; "
                f"{self._reports.holders()}."
            )

    def report(self, text: str) -> None:
        """As the argument of that name. What is lost once Spark itself has ended the job is no news."""
        if self._error is None and self._verbose >= 1:
            announce(text)

    # --- what the workers ask ---

    def new_task(self) -> SparkTask:
        """As in `SparkJobs`."""
        times = (self._settings.heartbeat_seconds, self._settings.silence_seconds)
        heartbeat, silence = (timedelta(seconds=seconds) for seconds in times)
        with self._lock:
            task = SparkTask(
                self._spark,
                next(self._numbers),
                self._sent_job,
                self._parcels,
                self._tag,
                lambda sock: link_over(sock, heartbeat, silence),
            )
            self._tasks.append(task)
        self._server.expect(task)
        return task

    def is_used(self, host: str) -> bool:
        """As in `SparkJobs`."""
        with self._lock:
            return self._hosts.is_used(host)

    def set_aside(self, task: SparkTask) -> None:
        """As in `SparkJobs`."""

    def started(self, rank: int, facts: PeerFacts) -> None:
        """As in `SparkJobs`."""
        with self._lock:
            self._started += 1
            self._hosts.seen(facts.host)
        if self._verbose >= 2:
            name = f"rank {rank}" if rank >= 0 else "a new process"
            self.report(f"{name} runs on host {facts.host}, pid {facts.pid}")

    def ended(self, host: str, failure: FailureReport | None) -> None:
        """As in `SparkJobs`."""
        if failure is None or failure.kind in (failures.RAISED, failures.STOPPED):
            return
        with self._lock:
            last = self._hosts.ended_badly(host)
        if last and not self._over.is_set():
            self.report(f"host {host} will not be used again: {FAILURES} processes have failed there")

    def ended_by_spark(self, over: Over, connected: bool) -> None:
        """As in `SparkJobs`. What would befall all other tasks, too, ends the job."""
        error: Exception | None = None
        if over.error is not None:
            text = str(over.error)
            function = self._server.job.function
            error = spark_errors.cancelled(text, function)
            # A lost executor is one process less, whenever it is lost.
            if error is None and not connected and lost_executor(text) is None:
                error = spark_errors.explain(text) or spark_errors.ended_by_spark(over.error, function)
        else:
            for manifest in manifests_of(over.rows):
                if manifest.failure is not None and not connected:
                    kind = PythonEnvironmentError if manifest.failure.kind == failures.ENVIRONMENT else PreflightError
                    error = kind(f"an executor on host {manifest.host} {manifest.failure.message}")
        self._error = self._error or error

    # --- its own ---

    def close(self) -> None:
        """Ends the remaining Spark jobs."""
        self._over.set()
        self._turn.end()
        self._server.close()
        with self._lock:
            tasks = list(self._tasks)
        deadline = time.monotonic() + _CLEAN_UP.total_seconds()
        for task in tasks:
            task.hang_up()
        remaining = [task for task in tasks if task.wait(timedelta(seconds=1)) is None and task.submitted]
        while remaining and time.monotonic() < deadline:
            for task in remaining:
                task.give_up(timedelta(seconds=0.2))
            remaining = [task for task in remaining if task.over is None]
        for task in tasks:
            task.close()
        self._until_closed.close()

    def _count_slots(self) -> None:
        """Looks now and then whether there is room for more."""
        while not self._over.wait(_COUNT_SLOTS_EVERY.total_seconds()):
            count = count_slots(self._spark).count
            self.placement.limit = self._terms.places if count is None else max(self._terms.size, count)
