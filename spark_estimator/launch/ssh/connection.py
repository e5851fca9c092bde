"""The launcher's end of the connection to one host agent: starts it over ssh, sends orders, detects its end."""

from __future__ import annotations

import collections
import os
import platform
import queue
import socket
import subprocess
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from spark_estimator import __version__
from spark_estimator.errors import PreflightError, PythonEnvironmentError
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.agent import HostOrder, pack_job
from spark_estimator.launch.agent.link import AgentLink, SilentError
from spark_estimator.launch.agent.worker_handle import RemoteWorkerHandle
from spark_estimator.launch.job.outcome import Relay
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.log_relay.lines import MAX_LINE_BYTES
from spark_estimator.launch.ssh.command import SshOptions, find_remedy, make_agent_command
from spark_estimator.launch.worker.child_process import describe_end
from spark_estimator.log import get_logger
from spark_estimator.observe.driver_log import printable
from spark_estimator.peer_json import parse_object
from spark_estimator.reader_thread import ReaderThread

_log = get_logger(__name__)

# How long ssh may take to exit after the end of its standard output or input.
ENDING = timedelta(seconds=2)
_TAIL_LINES = 20
_SSH_S_OWN_FAILURE = 255


class HostConnection:
    """One host's agent, from its start over ssh to its end.

    The constructor starts it; `wait_for_greeting` and then `prepare` wait for its answers.

    Attributes:
        name: the host, as the user called it.
        pid: of ssh.
        closing: this end has been closed: that it ends now means no loss.
        address: where the host's ranks listen, once `prepare` has returned.
    """

    def __init__(self, name: str, options: SshOptions) -> None:
        self.name = name
        self.address = ""
        self._options = options
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._processes: dict[int, RemoteWorkerHandle] = {}
        self._lost = ""
        self._most_value_bytes = 0  # until there is a job
        self.closing = False
        settings = options.settings
        self._ssh = subprocess.Popen(
            make_agent_command(name, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the terminal is for the launcher, which then stops the ranks
        )
        self.pid = self._ssh.pid
        assert self._ssh.stdin and self._ssh.stdout
        sink = os.dup(self._ssh.stdin.fileno())
        self._ssh.stdin.close()
        heartbeat, silence = (timedelta(seconds=s) for s in (settings.heartbeat_seconds, settings.silence_seconds))
        self.link = AgentLink(self._ssh.stdout.fileno(), sink, heartbeat, silence, opening=frames.OPENING)
        self._reading = [
            ReaderThread(self._read_stderr, self._end_stderr, name=f"errors of host {name}"),
            ReaderThread(self._read, self._end, name=f"host {name}"),
        ]
        for thread in self._reading:
            thread.start()

    @property
    def lost(self) -> str:
        """Return why there is no contact any more; '' while there is."""
        with self._lock:
            return self._lost

    def wait_for_greeting(self, deadline: float) -> dict[str, Any]:
        """Wait for the fields of ``worker_agent.make_hello``, and check them.

        Raises PreflightError: the agent cannot run this launcher's jobs, or did not answer in time.
        """
        answer = self._wait_for_answer(deadline)
        ours = platform.python_version()
        if answer["package"] != __version__:
            raise PythonEnvironmentError(
                f"{printable(answer['executable'])} has spark_estimator {printable(answer['package'])}, but this host "
                f"has {__version__}: install the same wheel on both."
            )
        if answer["python"].split(".")[:2] != ours.split(".")[:2]:
            raise PythonEnvironmentError(
                f"{printable(answer['executable'])} is Python {printable(answer['python'])}, but this host has "
                f"{ours}: set SPARK_ESTIMATOR_REMOTE_PYTHON to a Python of that version."
            )
        return answer

    def prepare(self, job: JobSpec, slots: int, gentle: timedelta, deadline: float) -> None:
        """Give the agent the job, and wait until it has agreed. Raises as `wait_for_greeting` does."""
        order = HostOrder(
            self.name, os.getcwd(), slots, self._options.interfaces, gentle.total_seconds(), len(job.payload)
        )
        self._most_value_bytes = job.max_result_bytes
        self.link.send_json(frames.JOB, job=pack_job(job), order=asdict(order))
        answer = self._wait_for_answer(deadline)
        if answer["problem"]:
            raise PreflightError(printable(answer["problem"]))
        if answer["note"]:
            _log.warning("host %s: %s", self.name, printable(answer["note"]))
        self.address = str(answer["address"])

    def send_payload(self, payload: bytes) -> None:
        """Give the agent the pickled function; before the first worker is started."""
        self.link.send_bytes(frames.PAYLOAD, 0, payload)

    def make_worker_handle(
        self, number: int, rank: int, relay: Relay, *, link: socket.socket | None = None
    ) -> RemoteWorkerHandle:
        """Make the handle of a worker on that host; `rank` -1: not known yet.

        The data of `link`, as in `LocalWorkerHandle`, is passed to the other host and back.
        """
        made = RemoteWorkerHandle(self.name, self.link, number, rank, relay, link, lambda: self.closing)
        with self._lock:
            self._processes[number] = made
            lost = self._lost
        if lost:
            made.note_loss(lost)
        return made

    def close(self) -> None:
        """End the connection: the agent ends what still runs, and itself. Idempotent."""
        self.closing = True
        self.link.close(ENDING)
        try:
            self._ssh.wait(ENDING.total_seconds())
        except subprocess.TimeoutExpired:
            self.cut()
            self._ssh.wait()

    def cut(self) -> None:
        """End ssh at once; the agent finds its input ended."""
        self.closing = True
        self.link.give_up()
        self._ssh.kill()

    def _wait_for_answer(self, deadline: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            seconds = self._options.settings.start_timeout_seconds
            quoted = f"; its last output: {self._find_last_words()}" if self._find_last_words() else ""
            raise PreflightError(
                f"did not answer within {seconds:g} seconds{quoted}. Is the host up? "
                "Raise --start-timeout to wait longer."
            ) from None
        if answer is None:
            advice = find_remedy(self.name, self._find_last_words(), self._options)
            raise PreflightError(f"{self._lost}." + (f" To fix it: {advice}." if advice else ""))
        return answer

    def _read(self) -> None:
        """Handle the agent's frames until the stream ends."""
        for letter, content in self.link.read_frames():
            self._take(letter, content)

    def _end(self, error: BaseException | None) -> None:
        """Report all workers of the host as lost, now that nothing of them is read any more."""
        problem = "" if error is None else f"its supervisor sent invalid data: {error!r}"
        if isinstance(error, SilentError):
            problem = f"{error}: the host, or the network to it, is down"
        elif isinstance(error, MemoryError):
            problem = "the launcher has no memory for what its supervisor sent"
        self.link.give_up()
        if problem:
            self._ssh.kill()
        assert self._ssh.stdout is not None
        try:
            status: int | None = self._ssh.wait(ENDING.total_seconds())
        except subprocess.TimeoutExpired:
            status = None
            self._ssh.kill()
        self._reading[0].join(ENDING.total_seconds())  # for ssh's last words
        with self._lock:
            self._lost = problem or self._describe_end(status)
            processes = list(self._processes.values())
        for process in processes:
            process.note_loss(self._lost)
        self._answers.put(None)

    def _describe_end(self, status: int | None) -> str:
        last = self._find_last_words()
        quoted = f": {last}" if last else ""
        if status is not None and status < 0:
            return f"ssh to it was killed by {describe_end(status)}{quoted}"
        if status == _SSH_S_OWN_FAILURE or status is None:
            return f"ssh to it failed{quoted}" if quoted else "ssh to it, or its supervisor there, was killed"
        return f"its supervisor there ended with {describe_end(status)}{quoted}"

    def _find_last_words(self) -> str:
        return printable(next((line for line in reversed(list(self._tail)) if line.strip()), ""))

    def _read_stderr(self) -> None:
        assert self._ssh.stderr is not None
        while line := self._ssh.stderr.readline(MAX_LINE_BYTES):
            text = line.decode("utf-8", "replace").strip("\r\n")
            self._tail.append(text)
            _log.info("host %s: %s", self.name, printable(text))

    def _end_stderr(self, error: BaseException | None) -> None:
        if error is not None:  # ssh would wait until what it prints is read
            self._ssh.kill()

    def _take(self, letter: bytes, content: bytes) -> None:
        if letter in (frames.VALUE, frames.RELAYED):
            number, piece = frames.split_process(content)
            process = self._processes[number]
            if letter == frames.VALUE:
                process.take_value(piece, self._most_value_bytes)
            else:
                process.take_relayed(piece)
            return
        fields = parse_object(content)
        if letter in (frames.HELLO, frames.READY):
            if self._answers.qsize():
                raise ValueError("answers that were not asked for")
            self._answers.put(fields)
        else:
            self._processes[fields["process"]].take(letter, fields)
