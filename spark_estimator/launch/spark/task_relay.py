"""The relay of a supervisor in a Spark task: sends its events on the driver channel, or else by `UnsentLines`."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.rendezvous import host_id
from spark_estimator.errors import AuthenticationError
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.spec import JobSpec, TaskFacts
from spark_estimator.launch.log_relay.without_channel import UnsentLines
from spark_estimator.observe import channel, frames
from spark_estimator.observe.progress import Progress

# How long the driver may take to read a piece of a file.
_FILE_PATIENCE = timedelta(seconds=30)


class TaskRelay:
    """A supervisor's `Relay` in a Spark task."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._channel: channel.SupervisorChannel | None = None
        self._unsent = UnsentLines(job)
        self._rank = -1
        self._went_to_spark = False  # with its facts, because no channel was there in time

    @property
    def connected(self) -> bool:
        """Return whether the driver listens."""
        return self._channel is not None and self._channel.usable

    @property
    def stopped(self) -> bool:
        """Return whether the driver has ordered to stop."""
        return self._channel is not None and self._channel.stopped

    def to_manifest(self) -> dict[str, Any]:
        """Return the manifest's part about lines that were not sent to the driver; after `close`."""
        return self._unsent.to_manifest()

    def connect(self, partition: int, on_stop: Callable[[str], None]) -> None:
        """Connect to the driver, if it can be reached."""
        address = self._job.channel
        if address is None:
            return
        try:
            connected = channel.SupervisorChannel.connect(
                (address.host, address.port),
                address.token,
                self._job.job_id,
                partition,
                on_stop,
                encrypted=self._job.encrypted,
            )
        except (OSError, AuthenticationError) as error:
            self._note(f"spark_estimator: no connection to the driver at {address.host}:{address.port}: {error}")
            return
        self.attach(connected)

    def attach(self, connected: channel.SupervisorChannel) -> None:
        """Report on this connection from now on."""
        with self._lock:
            self._channel = connected
            if self._went_to_spark:
                connected.send(frames.GATHER)

    def gather_facts(self, own_facts: TaskFacts) -> list[TaskFacts] | None:
        """Send the driver this supervisor's facts. Return those of all; None: they are to go through Spark.

        Raises ConnectionError: the driver has the facts, but has disconnected or asks this supervisor to stop.
        """
        with self._lock:
            if not self._send(frames.FACTS, facts=own_facts.to_json()):
                self._went_to_spark = True
                return None
        assert self._channel is not None
        facts: list[TaskFacts] = []
        while len(facts) < self._job.size:
            answer = self._channel.wait_for_answer()
            if answer is None:
                raise ConnectionError("the driver ended the job while addresses were exchanged")
            if answer["kind"] == frames.GATHER:
                return None
            facts += map(TaskFacts.from_json, answer["facts"])
        return facts

    def report_placement(self, rank: int, pid: int) -> None:
        """Report which rank this task's worker is, before that can run user code.

        On return the driver receives it even if this process ends at once.
        """
        if self._send(frames.PLACED, rank=rank, host=socket.gethostname(), pid=pid):
            assert self._channel is not None
            self._channel.flush(channel.CONNECT_TIMEOUT)

    def note_begin(self, rank: int, pid: int) -> None:
        self._send(frames.BEGUN, rank=rank, host=socket.gethostname(), pid=pid)

    def pass_lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        for text in texts:
            if not self._job.forward_lines:
                self._note_line(rank, stream, text)
            elif not self._send(frames.LINE, rank=rank, stream=stream, text=text):
                self._keep(rank, stream, text)

    def log(self, rank: int, message: str) -> None:
        if not self._send(frames.LOG, rank=rank, text=message):
            self._keep(rank, "", message)

    def note_progress(self, rank: int, progress: Progress) -> None:
        self._send(frames.PROGRESS, rank=rank, report=progress.to_dict())

    def record(self, rank: int, record: Mapping[str, Any]) -> None:
        """Pass on a record of an estimator's training; it is dropped where the driver does not listen."""
        self._send(frames.RECORD, rank=rank, record=dict(record))

    def pass_file(self, rank: int, name: str, piece: str) -> bool:
        """Pass on a piece of a file; wait until the kernel has it, so that this process's memory has one at most."""
        if not self._send(frames.FILE, rank=rank, name=name, piece=piece):
            return False
        assert self._channel is not None
        return self._channel.flush(_FILE_PATIENCE)

    def note_failure(self, report: FailureReport) -> None:
        sent = self._send(frames.FAILURE, report=report.to_dict())
        if sent and self._job.driver_host_id == host_id():
            return  # the executor's log would most likely be the same screen
        self._note(f"{report.where} {report.message}\n{report.traceback}".rstrip())

    def close(self) -> None:
        """Send the queued messages and disconnect."""
        for stream, text in self._unsent.close():
            self._note_line(self._rank, stream, text)
        if self._channel is not None:
            self._channel.close()

    def _send(self, kind: str, **fields: Any) -> bool:
        return self._channel is not None and self._channel.send(kind, **fields)

    def _keep(self, rank: int, stream: str, text: str) -> None:
        """Keep a line for a driver that does not listen."""
        self._rank = rank
        for line in self._unsent.take(rank, stream, text):
            self._note_line(rank, *line)

    def _note_line(self, rank: int, stream: str, text: str) -> None:
        self._note(f"[{rank}]<{stream}>:{text}" if stream else f"[{rank}] {text}")

    @staticmethod
    def _note(text: str) -> None:
        """Write to the executor's log."""
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
