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

import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import StartTimeoutError
from spark_estimator.launch.elastic.job import Following
from spark_estimator.launch.elastic.job_entry import mark_elastic, run_elastic
from spark_estimator.launch.elastic.placement import WARNED_FOR, Placement
from spark_estimator.launch.job.attempts import Attempt
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.outcome import Relay
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.dynamic_allocation import grows_on_demand
from spark_estimator.launch.spark.elastic.decommissioning import can_warn, find_leaving_executor
from spark_estimator.launch.spark.elastic.worker import SparkJobs, SparkWorkerHandle
from spark_estimator.launch.spark.encryption_policy import decide_encryption
from spark_estimator.launch.spark.slots import count_slots
from spark_estimator.launch.spark.stage_job import make_spark_job
from spark_estimator.launch.spark.start import SAY_WAITING_AFTER, TaskReports, describe_missing_slots
from spark_estimator.launch.spark.start_turns import StartTurn
from spark_estimator.launch.worker.worker_host import WorkerHandle
from spark_estimator.observe.driver_log import announce, print_line
from spark_estimator.observe.status_line import StatusLine

_COUNT_SLOTS_EVERY = timedelta(seconds=5)
_WATCH_EXECUTORS_EVERY = timedelta(seconds=1)
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
    """Call `function` as ``stage_job.run_on_spark`` with all results, in a job that continues when it loses ranks.

    Args:
        options: its `limits` and `all_results` have no effect; `verbose` from 1 also shows which ranks are lost
            and how many the next round has. Progress is shown where the number of ranks does not change.
        attempt: of a job that is started again when it can't continue.
        following: as in ``job_entry.run_elastic``; its record and status are those of `options`.

    Returns:
        The values of the ranks that returned, in the order of their last ranks.

    Raises:
        PicklingError: the function or an argument can't be pickled.
        PreflightError: the executors can't reach the driver, or their Python can't run the job.
        StartTimeoutError: not all ranks had a slot in time.
        JobCancelledError: the job was cancelled in Spark.
        WorkerFailedError: too few ranks are left, or another limit of `terms` is exceeded; the text lists all
            lost ranks.
        ResultError: a rank's value can't be returned.
    """
    fixed = terms.size == terms.most and (terms.min_size == terms.size or terms.patience is not None)
    built = make_spark_job(spark, function, terms.size, replace(options, all_results=True))
    has_progress = fixed and built.progress
    status = StatusLine.open_on_screen(terms.size, options.progress_display) if has_progress else None
    built = replace(built, encrypted=decide_encryption(spark)[0], attempt=attempt.number)
    job = mark_elastic(built, progress=has_progress)
    run = ElasticSparkRun(spark, SparkJobs(spark, job, options.verbose), terms, attempt, options.start_timeout)
    try:
        run.wait_for_turn()
        outcomes = run_elastic(
            job,
            terms,
            show_line=options.show_line or print_line,
            report=run.jobs.report,
            make=run.make_worker,
            placement=run.placement,
            poll=run.check,
            following=replace(following, take_record=options.take_record, has_progress=has_progress, status=status),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{job.function} was interrupted; all of its ranks were stopped") from None
    finally:
        run.close()
    return load_values([outcome.pickled for outcome in outcomes], job.function)


class SparkPlacement(Placement):
    """There is one host, which is the whole session: Spark chooses the executor of a process, and replaces lost
    executors.

    Attributes:
        limit: as many slots as the session has. Never less than the job has begun with: a lost executor may be
            replaced.
        workers: the handles of its workers, by the numbers of the processes.
    """

    def __init__(self, terms: Terms) -> None:
        # Of the one host any number of slots may be taken: Spark starts a process when it has one.
        super().__init__([Host("", sys.maxsize)])
        self.limit = terms.places
        self.workers: dict[int, SparkWorkerHandle] = {}
        self._leaving: dict[int, float] = {}  # until when

    @property
    def room(self) -> int:
        """Return the number of slots; see `Placement.room`."""
        return min(self.limit, super().room)

    def note_loss(self, host: str, now: float) -> str:
        """Ignore the loss: the one host stays."""
        return ""

    def note_unreachable(self, host: str, now: float) -> str:
        """Ignore it: the one host stays."""
        return ""

    def note_warning(self, process: int, now: float) -> bool:
        """Have a process leave, and use its host no more; see `Placement.note_warning`. Spark may have other slots."""
        self._leaving[process] = now + WARNED_FOR.total_seconds()
        self.workers[process].avoid_host()
        return True

    def find_warned(self) -> list[int]:
        """Return the processes that are to leave; see `Placement.find_warned`."""
        return [*self._leaving]

    def find_surplus(self) -> list[int]:
        """Return the processes that are to leave; see `Placement.find_surplus`."""
        return [*self._leaving]

    def readmit_hosts(self, now: float) -> list[str]:
        """Drop old warnings; see `Placement.readmit_hosts`."""
        self._leaving = {process: until for process, until in self._leaving.items() if until > now}
        return []

    def note_failure(self, host: str, now: float) -> str:
        """Ignore the failure: the one host stays."""
        return ""


class ElasticSparkRun:
    """One elastic job on Spark, as the launcher follows it.

    Attributes:
        jobs: the Spark jobs of its workers.
        placement: how many of them there may be.
    """

    def __init__(
        self, spark: SparkSession, jobs: SparkJobs, terms: Terms, attempt: Attempt, start_timeout: timedelta | None
    ) -> None:
        self.jobs = jobs
        self.placement = SparkPlacement(terms)
        self._spark = spark
        self._terms = terms
        self._attempt = attempt
        self._start_timeout = start_timeout
        self._turn = StartTurn(spark, jobs.function)
        self._reports = TaskReports(
            spark, jobs.tag.text, has_rows=False, connected=lambda: jobs.started, earlier=self._turn.find_earlier
        )
        self._began = time.monotonic()
        self._all_started = False
        self._waiting_announced = False
        if terms.places > terms.size and not grows_on_demand(Configuration(spark)):
            self.placement.limit = terms.size
            threading.Thread(target=self._count_slots, name="spark_estimator slots", daemon=True).start()
        if can_warn(spark):
            threading.Thread(target=self._watch_executors, name="spark_estimator executors", daemon=True).start()

    def wait_for_turn(self) -> None:
        """Wait until no other job of this program is starting ranks one by one. Raise as `check`."""

        def check() -> bool:
            self.check(0)
            return True

        self._turn.wait(check)
        self._began = time.monotonic()

    def make_worker(self, _host: str, number: int, rank: int, relay: Relay, link: socket.socket) -> WorkerHandle:
        """Make a worker's handle, as ``process.MakeWorker``."""
        self.placement.workers[number] = SparkWorkerHandle(self.jobs, number, rank, relay, link)
        return self.placement.workers[number]

    def check(self, started: int) -> None:
        """Raise what ends the job; called now and then.

        Args:
            started: ranks that have started one after the other, from rank 0.
        """
        if self.jobs.error is not None:
            raise self.jobs.error
        size, function = self._terms.size, self.jobs.function
        self._all_started |= started == size
        begun = range(size if self._all_started else min(self.jobs.started, size))
        self._attempt.enforce_timeout(function, size, begun)
        if self._all_started:
            self._turn.end()
            return
        elapsed = timedelta(seconds=time.monotonic() - self._began)
        if self._start_timeout is not None and elapsed >= self._start_timeout:
            raise StartTimeoutError(
                describe_missing_slots(
                    self._spark, function, self.jobs.started, size, self._start_timeout, self._reports
                )
            )
        if elapsed >= SAY_WAITING_AFTER and not self._waiting_announced:
            self._waiting_announced = True
            announce(
                f"Spark has started {function} on {self.jobs.started} of {size} ranks after "
                f"{elapsed.total_seconds():.0f} seconds; {self._reports.describe_holders()}."
            )

    def close(self) -> None:
        """End the remaining Spark jobs."""
        self._turn.end()
        self.jobs.close()

    def _watch_executors(self) -> None:
        """Warn the workers of executors that Spark is about to end."""
        warned = set[int]()
        while not self.jobs.closed.wait(_WATCH_EXECUTORS_EVERY.total_seconds()):
            for number, worker in list(self.placement.workers.items()):
                if number in warned:
                    continue
                if executor := find_leaving_executor(self._spark, worker.find_stages):
                    warned.add(number)
                    self.placement.warnings[number] = f"Spark decommissions its executor {executor}"

    def _count_slots(self) -> None:
        """Count now and then how many workers there is room for."""
        while not self.jobs.closed.wait(_COUNT_SLOTS_EVERY.total_seconds()):
            count = count_slots(self._spark).count
            self.placement.limit = self._terms.places if count is None else max(self._terms.size, count)
