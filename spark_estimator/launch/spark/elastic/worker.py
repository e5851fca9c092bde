"""The handle of a worker in a Spark job of one task, whose supervisor runs in the executor."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.errors import ResultError
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink, SilentError
from spark_estimator.launch.agent.worker_handle import RemoteWorkerHandle
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.results import verified_value
from spark_estimator.launch.spark.elastic.server import Connected, Over, SparkTask
from spark_estimator.launch.spark.executor_losses import describe_loss
from spark_estimator.observe.driver_log import printable
from spark_estimator.peer_json import parse_object
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


class SparkJobs(Protocol):
    """The calls of a worker to its job, in any thread."""

    def new_task(self) -> SparkTask:
        """A task that may connect."""

    def is_used(self, host: str) -> bool:
        """Whether workers are started on a host."""

    def set_aside(self, task: SparkTask) -> None:
        """A task on a host that is not used: it keeps its slot until the job's end, so that no other gets it."""

    def ended_by_spark(self, over: Over, connected: bool) -> None:
        """Spark has ended a task that the job still needed."""

    def started(self, rank: int, facts: PeerFacts) -> None:
        """A worker has started."""

    def ended(self, host: str, failure: FailureReport | None) -> None:
        """A worker has ended."""


class SparkWorkerHandle:
    """A `WorkerHandle` in a separate Spark job of one task; to be made in the thread that has called for the job.

    Args:
        jobs: that it belongs to.
        number: of the process, unique in the job.
        rank: which it will be; -1 when that is not known.
        relay, link: as in `LocalWorkerHandle`.
    """

    def __init__(self, jobs: SparkJobs, number: int, rank: int, relay: Relay, link: socket.socket) -> None:
        self._jobs = jobs
        self._number = number
        self._rank = rank
        self._relay = relay
        self._worker_link = link
        self._task = jobs.new_task()
        self._there: RemoteWorkerHandle | None = None
        self._host = "unknown"
        self._lock = threading.Lock()
        self._stopped = ""

    @property
    def pid(self) -> int:
        """As in `WorkerHandle`."""
        return 0 if self._there is None else self._there.pid

    def start(self) -> PeerFacts | Outcome:
        """As in `WorkerHandle`. Waits for a slot for as long as it takes."""
        while True:
            self._task.submit()
            event = self._task.events.get()
            if isinstance(event, Connected):
                talk = event.link.frames()
                with suppress(OSError, ValueError, KeyError, StopIteration):
                    self._host = printable(_hello(talk))
            if not isinstance(event, Connected) or self._jobs.is_used(self._host):
                break
            self._jobs.set_aside(self._task)
            with self._lock:
                self._task = self._jobs.new_task()
                if self._stopped:
                    self._task.wake()
        if isinstance(event, Over):
            self._jobs.ended_by_spark(event, connected=False)
            return self._failed(failures.NOT_STARTED, "could not be started: Spark has ended its task")
        with self._lock:
            if isinstance(event, Connected) and not self._stopped:
                self._there = RemoteWorkerHandle(
                    self._host,
                    event.link,
                    self._number,
                    self._rank,
                    self._relay,
                    self._worker_link,
                    lambda: self._task.given_up,
                )
        if self._there is None or not isinstance(event, Connected):
            self._task.give_up()
            return self._failed(failures.STOPPED, f"was stopped {self._stopped}")
        self._read_on(event.link, talk, self._there)
        started = self._there.start()
        if isinstance(started, PeerFacts):
            self._jobs.started(self._rank, started)
            return started
        return self._ended(started)

    def run(self, rendezvous: Rendezvous) -> Outcome:
        """As in `WorkerHandle`. The value of a worker that has succeeded is returned through Spark."""
        assert self._there is not None
        self._rank = rendezvous.rank
        return self._ended(self._there.run(rendezvous))

    def become(self, rank: int) -> None:
        """As in `WorkerHandle`."""
        self._rank = rank
        if self._there is not None:
            self._there.become(rank)

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """As in `WorkerHandle`."""
        with self._lock:
            self._stopped = self._stopped or reason
            self._task.wake()
            there = self._there
        if there is not None:
            there.stop(reason, at_once=at_once)

    def discard(self) -> None:
        """As in `WorkerHandle`."""
        if self._there is not None:
            self._there.discard()
        self._task.give_up()

    def _read_on(self, link: AgentLink, talk: Iterator[tuple[bytes, bytes]], there: RemoteWorkerHandle) -> None:
        """Has a thread handle the frames of the task's agent until the stream ends."""

        def read() -> None:
            for letter, content in talk:
                if letter == frames.RELAYED:
                    there.take_relayed(frames.of_process(content)[1])
                else:
                    there.take(letter, parse_object(content))

        def end(error: BaseException | None) -> None:
            why = f"its supervisor sent invalid data: {error!r}"
            if isinstance(error, SilentError):
                why = f"{error}: its host, or the network to it, is down"
            elif error is None or isinstance(error, OSError):
                why = "its Spark executor, or its host, has died or was cut off"
            elif isinstance(error, MemoryError):
                why = "the driver has no memory for what its supervisor sent"
            link.give_up()
            if not there.over and not self._task.given_up:
                over = self._task.wait(_SPARK_SAYS)
                if over is not None:
                    self._jobs.ended_by_spark(over, connected=True)
                elif error is None or isinstance(error, OSError):
                    happened = describe_loss(self._task.reason_of_loss(_REASON))
                    why = f"its Spark executor {happened}" if happened else why
            there.lost(why)
            self._task.hang_up()

        ReaderThread(read, end, name=f"task of process {self._number}").start()

    def _ended(self, outcome: Outcome) -> Outcome:
        """`outcome`, with the value that it has; nothing of the task is left."""
        failure = outcome.failure
        if failure is None:
            self._task.hang_up()  # the agent ends when the connection ends
            over = self._task.wait(_ROWS)
            try:
                outcome = replace(outcome, value=verified_value([] if over is None else over.rows))
            except ResultError as error:
                failure = self._report(failures.LOST, f"succeeded, but its value was lost: {error}")
                outcome = replace(outcome, failure=failure)
        if failure is not None:
            threading.Thread(target=self._task.give_up, args=(_FAREWELL,), daemon=True).start()
        self._jobs.ended(self._host, failure)
        return outcome

    def _failed(self, kind: str, message: str) -> Outcome:
        self._worker_link.close()
        report = self._report(kind, message)
        return Outcome(self._rank, self._host, 0, -signal.SIGKILL, report)

    def _report(self, kind: str, message: str) -> FailureReport:
        return FailureReport(self._rank, self._host, self.pid, kind, message, when=time.monotonic())


def _hello(talk: Iterator[tuple[bytes, bytes]]) -> str:
    """The host name in an agent's hello frame.

    Raises:
        ValueError, KeyError, StopIteration, OSError: the agent sent no valid hello frame.
    """
    letter, content = next(talk)
    if letter != frames.HELLO:
        raise ValueError(f"a frame before the hello: {letter!r}")
    fields = parse_object(content)
    return str(fields["hostname"])
