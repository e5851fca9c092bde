"""The small Spark jobs of an elastic job, and the handle of a worker, whose supervisor runs in an executor."""

from __future__ import annotations

import collections
import contextlib
import functools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import SparkSession

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import PreflightError, PythonEnvironmentError, ResultError
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink, SilentError
from spark_estimator.launch.agent.worker_handle import RemoteWorkerHandle
from spark_estimator.launch.elastic.placement import FAILURES
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.results import read_manifests, verify_value
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.driver_channel import address_for_executors
from spark_estimator.launch.spark.elastic.server import Connected, Over, SparkTask, TaskServer, open_link
from spark_estimator.launch.spark.executor_losses import describe_loss, find_lost_executor
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.task_secrecy import pack_parcels
from spark_estimator.observe.driver_log import announce, printable
from spark_estimator.peer_json import parse_object
from spark_estimator.posix import SIGKILL
from spark_estimator.reader_thread import ReaderThread

# How long a task may take to return its rows to Spark after it has reported its worker's end.
_ROWS = timedelta(seconds=30)
# How long a task whose worker has failed may take to end on its own. The task of a lost executor has ended already, but
# Spark starts it again; it then ends because it is not expected, unless it waits for a slot.
_FAREWELL = timedelta(seconds=4)
# After the end of a connection: how long Spark may take to report whether a user has cancelled the task.
_SPARK_SAYS = timedelta(seconds=0.5)
# After that: for the reason why the executor was lost. The next round begins later by as much.
_REASON = timedelta(seconds=2)
# After the job's end: how long to wait for Spark to end its tasks; Spark ends the others later.
_CLEAN_UP = timedelta(seconds=5)


class HostRecord:
    """The hosts on which a job's processes have started, and how many of them failed there. Pure."""

    def __init__(self) -> None:
        self._failures: collections.Counter[str] = collections.Counter()
        self._seen: set[str] = set()

    def note_start(self, host: str) -> None:
        """Note that a process has started there."""
        self._seen.add(host)

    def note_failure(self, host: str) -> bool:
        """Note that a process has failed there. Return whether the host is not used again because of this one."""
        before = self.is_used(host)
        self._failures[host] += 1
        return before and not self.is_used(host)

    def avoid(self, host: str) -> None:
        """Have no process start there any more."""
        self._failures[host] = FAILURES

    def is_used(self, host: str) -> bool:
        """Return whether processes may start there; on the only host that is left they may."""
        if self._failures[host] < FAILURES:
            return True
        return not any(self._failures[other] < FAILURES for other in self._seen - {host})


class SparkJobs:
    """The small Spark jobs of one elastic job, one for each of its workers. Used by any thread.

    Args:
        job: what the workers run.
        verbose: as in `JobOptions`.

    Attributes:
        function: what the job runs, for messages.
        tag: of all of the Spark jobs.
        error: what ends the elastic job; None: nothing has.
        started: how many workers have started.
        closed: set at the end of the elastic job.
    """

    def __init__(self, spark: SparkSession, job: JobSpec, verbose: int) -> None:
        self.function = job.function
        self.tag = JobTag(spark, f"spark_estimator-{job.job_id}")
        self.error: Exception | None = None
        self.started = 0
        self.closed = threading.Event()
        self._spark = spark
        self._verbose = verbose
        settings = Settings.read(job.environment)
        self._link_to = functools.partial(
            open_link,
            heartbeat=timedelta(seconds=settings.heartbeat_seconds),
            silence=timedelta(seconds=settings.silence_seconds),
        )
        self._lock = threading.Lock()
        self._tasks: list[SparkTask] = []
        self._hosts = HostRecord()
        address = address_for_executors(spark, "an elastic job")
        assert address is not None
        self._server = TaskServer(address, job)
        self._until_closed = contextlib.ExitStack()
        try:
            self._sent_job, self._parcels = self._until_closed.enter_context(pack_parcels(spark, self._server.job))
        except BaseException:
            self._server.close()
            raise

    def make_task(self) -> SparkTask:
        """Make a task that may connect. It has the job group and tags of the thread that calls this."""
        with self._lock:
            task = SparkTask(self._spark, len(self._tasks), self._sent_job, self._parcels, self.tag, self._link_to)
            self._tasks.append(task)
        self._server.expect(task)
        return task

    def avoid(self, host: str) -> None:
        """Start no more workers on a host, as long as there is another."""
        with self._lock:
            self._hosts.avoid(host)

    def is_used(self, host: str) -> bool:
        """Return whether workers are started on a host."""
        with self._lock:
            return self._hosts.is_used(host)

    def report(self, text: str) -> None:
        """Print news of the job. What is lost once Spark itself has ended the job is no news."""
        if self.error is None and self._verbose >= 1:
            announce(text)

    def note_start(self, rank: int, facts: PeerFacts) -> None:
        """Note that a worker has started."""
        with self._lock:
            self.started += 1
            self._hosts.note_start(facts.host)
        if self._verbose >= 2:
            name = f"rank {rank}" if rank >= 0 else "a new process"
            self.report(f"{name} runs on host {facts.host}, pid {facts.pid}")

    def note_end(self, host: str, failure: FailureReport | None) -> None:
        """Note that a worker has ended."""
        if failure is None or failure.kind in (failures.RAISED, failures.STOPPED):
            return
        with self._lock:
            is_last = self._hosts.note_failure(host)
        if is_last and not self.closed.is_set():
            self.report(f"host {host} will not be used again: {FAILURES} processes have failed there")

    def note_spark_end(self, over: Over, connected: bool) -> None:
        """Note that Spark has ended a task that was needed; `error` is what would end all other tasks, too."""
        error: Exception | None = None
        if over.error is not None:
            text = str(over.error)
            error = spark_errors.find_cancellation(text, self.function)
            # A lost executor is one process less, whenever it is lost.
            if error is None and not connected and find_lost_executor(text) is None:
                error = spark_errors.explain(text) or spark_errors.make_spark_error(over.error, self.function)
        else:
            for manifest in read_manifests(over.rows):
                if manifest.failure is not None and not connected:
                    kind = PythonEnvironmentError if manifest.failure.kind == failures.ENVIRONMENT else PreflightError
                    error = kind(f"an executor on host {manifest.host} {manifest.failure.message}")
        self.error = self.error or error

    def close(self) -> None:
        """End the remaining Spark jobs."""
        self.closed.set()
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


class SparkWorkerHandle:
    """A `WorkerHandle` in a separate Spark job of one task; to be made in the thread that has called for the job.

    The arguments are those of `RemoteWorkerHandle`.
    """

    def __init__(self, jobs: SparkJobs, number: int, rank: int, relay: Relay, link: socket.socket) -> None:
        self._jobs = jobs
        self._number = number
        self._rank = rank
        self._relay = relay
        self._worker_link = link
        self._task = jobs.make_task()
        self._remote: RemoteWorkerHandle | None = None
        self._host = "unknown"
        self._lock = threading.Lock()
        self._stopped = ""

    @property
    def pid(self) -> int:
        return 0 if self._remote is None else self._remote.pid

    def start(self) -> PeerFacts | Outcome:
        """Implement `WorkerHandle.start`. Waits for a slot for as long as it takes."""
        while True:
            self._task.submit()
            event = self._task.events.get()
            if isinstance(event, Connected):
                talk = event.link.read_frames()
                with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
                    self._host = printable(_read_host_name(talk))
            if not isinstance(event, Connected) or self._jobs.is_used(self._host):
                break
            # The task keeps its slot until the job's end, so that no other gets it.
            with self._lock:
                self._task = self._jobs.make_task()
                if self._stopped:
                    self._task.wake()
        if isinstance(event, Over):
            self._jobs.note_spark_end(event, connected=False)
            return self._make_failed_outcome(failures.NOT_STARTED, "could not be started: Spark has ended its task")
        with self._lock:
            if isinstance(event, Connected) and not self._stopped:
                self._remote = RemoteWorkerHandle(
                    self._host,
                    event.link,
                    self._number,
                    self._rank,
                    self._relay,
                    self._worker_link,
                    lambda: self._task.given_up,
                )
        if self._remote is None or not isinstance(event, Connected):
            self._task.give_up()
            return self._make_failed_outcome(failures.STOPPED, f"was stopped {self._stopped}")
        self._read_on(event.link, talk, self._remote)
        started = self._remote.start()
        if isinstance(started, PeerFacts):
            self._jobs.note_start(self._rank, started)
            return started
        return self._conclude(started)

    def run(self, rendezvous: Rendezvous) -> Outcome:
        """Implement `WorkerHandle.run`. The value of a worker that has succeeded is returned through Spark."""
        assert self._remote is not None
        self._rank = rendezvous.rank
        return self._conclude(self._remote.run(rendezvous))

    def set_rank(self, rank: int) -> None:
        self._rank = rank
        if self._remote is not None:
            self._remote.set_rank(rank)

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        with self._lock:
            self._stopped = self._stopped or reason
            self._task.wake()
            remote = self._remote
        if remote is not None:
            remote.stop(reason, at_once=at_once)

    def discard(self) -> None:
        if self._remote is not None:
            self._remote.discard()
        self._task.give_up()

    def avoid_host(self) -> None:
        """Have no other worker start on this one's host, which is about to be taken back."""
        self._jobs.avoid(self._host)

    def find_stages(self) -> set[int]:
        """Return the stages of its task, in a classic session."""
        return self._task.find_stages()

    def _read_on(self, link: AgentLink, talk: Iterator[tuple[bytes, bytes]], remote: RemoteWorkerHandle) -> None:
        """Have a thread handle the frames of the task's agent until the stream ends."""

        def read() -> None:
            for letter, content in talk:
                if letter == frames.RELAYED:
                    remote.take_relayed(frames.split_process(content)[1])
                else:
                    remote.take(letter, parse_object(content))

        def end(error: BaseException | None) -> None:
            reason = f"its supervisor sent invalid data: {error!r}"
            if isinstance(error, SilentError):
                reason = f"{error}: its host, or the network to it, is down"
            elif error is None or isinstance(error, OSError):
                reason = "its Spark executor, or its host, has died or was cut off"
            elif isinstance(error, MemoryError):
                reason = "the driver has no memory for what its supervisor sent"
            link.give_up()
            if not remote.over and not self._task.given_up:
                over = self._task.wait(_SPARK_SAYS)
                if over is not None:
                    self._jobs.note_spark_end(over, connected=True)
                elif error is None or isinstance(error, OSError):
                    happened = describe_loss(self._task.wait_for_loss_reason(_REASON))
                    reason = f"its Spark executor {happened}" if happened else reason
            remote.note_loss(reason)
            self._task.hang_up()

        ReaderThread(read, end, name=f"task of process {self._number}").start()

    def _conclude(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, with the value that it has; nothing of the task is left."""
        failure = outcome.failure
        if failure is None:
            self._task.hang_up()  # the agent ends when the connection ends
            over = self._task.wait(_ROWS)
            try:
                outcome = replace(outcome, value=verify_value([] if over is None else over.rows))
            except ResultError as error:
                failure = self._make_report(failures.LOST, f"succeeded, but its value was lost: {error}")
                outcome = replace(outcome, failure=failure)
        if failure is not None:
            threading.Thread(target=self._task.give_up, args=(_FAREWELL,), daemon=True).start()
        self._jobs.note_end(self._host, failure)
        return outcome

    def _make_failed_outcome(self, kind: str, message: str) -> Outcome:
        self._worker_link.close()
        report = self._make_report(kind, message)
        return Outcome(self._rank, self._host, 0, -SIGKILL, report)

    def _make_report(self, kind: str, message: str) -> FailureReport:
        return FailureReport(self._rank, self._host, self.pid, kind, message, when=time.monotonic())


def _read_host_name(talk: Iterator[tuple[bytes, bytes]]) -> str:
    """Return the host name in an agent's first frame, or raise ValueError, KeyError, StopIteration, OSError."""
    letter, content = next(talk)
    if letter != frames.HELLO:
        raise ValueError(f"a frame before the hello: {letter!r}")
    fields = parse_object(content)
    return str(fields["hostname"])
