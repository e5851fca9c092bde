"""Starts one worker, feeds it, reads what it says, notices how it ends, and leaves nothing of it alive."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from io import FileIO

from spark_estimator.collectives.rendezvous import Endpoint
from spark_estimator.env import JOB_VARIABLE, PROGRESS_FD_VARIABLE, RENDEZVOUS_FD_VARIABLE
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import undecided
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.spec import JobSpec, WorkerSpec
from spark_estimator.launch.worker import child_process, orphans, result_pipe
from spark_estimator.launch.worker.batching_selector import RestingSelector
from spark_estimator.launch.worker.line_splitter import LineSplitter
from spark_estimator.launch.worker.log_tail import LastLines
from spark_estimator.launch.worker.worker import input_of
from spark_estimator.observe.driver_log import printable
from spark_estimator.observe.progress import Progress, named

# -c puts the current folder first on the path; a file of the user's there must not shadow a module that we need.
_PROGRAM = """import sys
sys.path[:1] == [''] and sys.path.pop(0)
from spark_estimator.launch.worker.worker import main
main()"""
_TAIL_LINES = 40
# More than a pipe holds, so that a worker that prints without end is not read for ever.
_CATCH_UP_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_STREAMS = ("stdout", "stderr")
# Of a stream with less than that to be read, the next lines are left to gather.
_FEW_BYTES = 1 << 13

# For what a worker has printed to be read before it is called by another number.
_CALLING = timedelta(seconds=0.5)
# A worker that has reported its failure may run its exit handlers for so long.
FAREWELL = timedelta(seconds=2)
# What is left in the pipes of a dead group is read for so long at most: a process that left the group may hold them.
_DRAIN = timedelta(seconds=0.5)


def _turn(ready: tuple[selectors.SelectorKey, int]) -> int:
    """In which turn what is ready is looked at: stdout, stderr, others, results."""
    name = ready[0].data
    return _STREAMS.index(name) if name in _STREAMS else 3 if name == "result" else 2


class Supervisor:
    """One worker's parent. `start`, then `run` in one thread; `stop` from any thread.

    Args:
        job: what is run.
        endpoint: the sockets that the worker inherits; closed here once it has started.
        relay: told of everything as it happens.
        gentle: how long a stopped worker may take to end after SIGTERM before it is killed; zero kills at once.
        inherited: more sockets that the worker inherits and that are closed here once it has started.
        host: how the job calls this host; '' for its own name.
    """

    def __init__(
        self,
        job: JobSpec,
        endpoint: Endpoint,
        relay: Relay,
        *,
        gentle: timedelta = timedelta(0),
        inherited: Sequence[socket.socket] = (),
        host: str = "",
    ) -> None:
        self.relay = relay
        self._job = job
        self._endpoint = endpoint
        self._gentle = gentle
        self._inherited = inherited
        self._host = host or socket.gethostname()
        self._rank = -1
        self._child: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._said_pid = 0
        self._progress: FileIO | None = None  # where the worker tells how far it is
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._lock = threading.Lock()
        self._stop_reason = ""
        self._next_rank: int | None = None
        self._is_called = threading.Event()
        self._frames = result_pipe.FrameReader()
        self._splitters = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._tail = LastLines(_TAIL_LINES)
        self._complaints = LastLines(_TAIL_LINES)  # stderr's
        self._failure: FailureReport | None = None
        self._expected: tuple[int, str] | None = None
        self._value = bytearray()
        self._begun = False
        self._command_status: int | None = None
        self._kill_at: float | None = None
        self._oom_kills = child_process.oom_kills()
        self._own_peak_bytes = 0

    @property
    def pid(self) -> int:
        """The worker's process; 0 before `start`."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        """Starts the worker, which then waits for its spec. The calling thread must live as long as the worker.

        Raises:
            OSError: the process cannot be started.
        """
        if not sys.executable:
            raise OSError(
                "this Python does not know its own executable (sys.executable is empty), so it cannot start workers."
            )
        self._own_peak_bytes = child_process.own_peak_bytes()
        read, write = os.pipe()
        environment = dict(_environment(self._job))
        self._mark = orphans.mark(environment)
        told: list[int] = []
        if self._job.progress:
            reads, writes = os.pipe()
            self._progress = open(reads, "rb", buffering=0)  # noqa: SIM115  # closed in `run`
            environment[PROGRESS_FD_VARIABLE] = named(writes)
            told.append(writes)
        command = [sys.executable, "-u", "-c", _PROGRAM, "--parent", str(os.getpid()), "--result-fd", str(write)]
        if self._job.preload:
            command += ["--preload", ",".join(self._job.preload)]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=[write, *told, *self._endpoint.filenos(), *(sock.fileno() for sock in self._inherited)],
                start_new_session=True,
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            for descriptor in (write, *told):
                os.close(descriptor)
        self._result = open(read, "rb", buffering=0)  # noqa: SIM115  # closed in `run`

    def run(self, spec: WorkerSpec, payload: bytes) -> Outcome:
        """Tells the worker what to do and stays until it, and all that it started, is gone."""
        child = self._child
        assert child is not None and child.stdin and child.stdout and child.stderr
        self._rank = -1 if spec.rendezvous.awaited else spec.rendezvous.rank
        self._close_inherited()
        with contextlib.ExitStack() as stack:
            stack.callback(self._close_wake_pipe)
            for stream in (self._result, child.stdin, child.stdout, child.stderr):
                stack.enter_context(contextlib.closing(stream))
            selector = stack.enter_context(RestingSelector())
            for stream in (self._result, child.stdin, child.stdout, child.stderr):
                os.set_blocking(stream.fileno(), False)
            feed = [memoryview(piece) for piece in input_of(spec, payload) if piece]
            del payload
            if self._progress is not None:
                stack.enter_context(self._progress)
                selector.register(self._progress, selectors.EVENT_READ, "progress")
            selector.register(self._wake_read, selectors.EVENT_READ, "wake")
            selector.register(self._result, selectors.EVENT_READ, "result")
            selector.register(child.stdout, selectors.EVENT_READ, "stdout")
            selector.register(child.stderr, selectors.EVENT_READ, "stderr")
            selector.register(child.stdin, selectors.EVENT_WRITE, "stdin")
            pidfd = child_process.exit_descriptor(child.pid)
            if pidfd >= 0:
                stack.callback(os.close, pidfd)
                selector.register(pidfd, selectors.EVENT_READ, "exit")
            try:
                while not child_process.has_ended(child.pid):
                    timeout = None if pidfd >= 0 else 0.05
                    if self._kill_at is not None:
                        timeout = min(max(self._kill_at - time.monotonic(), 0.0), timeout or 60.0)
                    # Lines first: what was printed before a failure is known when the failure is.
                    for key, _ in sorted(selector.select(timeout), key=_turn):
                        if key.data == "stdin":
                            self._feed(selector, feed)
                        elif key.data == "wake":
                            self._obey()
                        elif key.data == "progress":
                            self._pass_on_progress(selector)
                        elif key.data != "exit":
                            self._read(selector, key.fileobj, key.data)
                    if self._kill_at is not None and time.monotonic() >= self._kill_at:
                        self._kill_at = None
                        self._signal(signal.SIGKILL)
                # Before the leader is reaped: until then no other group can have got its number.
                self.kill()
                self._drain(selector)
            except BaseException:
                self.kill()
                raise
            finally:
                exit_code, peak_bytes = child_process.reap(child)
        for name, splitter in self._splitters.items():
            self._pass_on(name, splitter.flush())
        return self._outcome(exit_code, peak_bytes)

    def become(self, rank: int) -> None:
        """From now on the worker is called by another number: what it prints, and how it ends, is told under it.

        On return what it has printed before is told under the old one.
        """
        with self._lock:
            self._next_rank = rank
            self._is_called.clear()
            self._wake()
            has_ended = self._wake_write < 0
        if has_ended or not self._is_called.wait(_CALLING.total_seconds()):  # or `run` has not begun
            self._rank = rank

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Has the worker's group killed; `run` then returns. Idempotent, and harmless when the worker has ended.

        Args:
            reason: when or why, to stand behind "was stopped".
            at_once: without the time that `gentle` would leave it.
        """
        with self._lock:
            if at_once:
                self._gentle = timedelta(0)
            if not self._stop_reason:
                self._stop_reason = reason
            self._wake()

    def _wake(self) -> None:
        if self._wake_write >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"\0")

    def kill(self) -> None:
        """Kills the worker and all that it has started, in its group or not. Idempotent."""
        if self._child is not None:
            self._signal(signal.SIGKILL)
            orphans.end(self._mark)

    def discard(self) -> None:
        """Ends a worker that `run` will not be called for."""
        self._close_inherited()
        self._close_wake_pipe()
        if self._child is not None and self._child.returncode is None:
            self.kill()
            child_process.reap(self._child)
            for stream in (self._result, self._progress, self._child.stdin, self._child.stdout, self._child.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _close_inherited(self) -> None:
        self._endpoint.close()
        for sock in self._inherited:
            sock.close()

    def _close_wake_pipe(self) -> None:
        with self._lock:
            if self._wake_write >= 0:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_write = -1

    def _feed(self, selector: RestingSelector, feed: list[memoryview]) -> None:
        """Writes some of `feed`, and takes what is written off it."""
        assert self._child is not None and self._child.stdin is not None
        try:
            feed[0] = feed[0][os.write(self._child.stdin.fileno(), feed[0][:_READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            feed.clear()  # the worker is ending; its exit tells the story
        while feed and not feed[0]:
            feed.pop(0)
        if not feed:
            selector.unregister(self._child.stdin)
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def _obey(self) -> None:
        os.read(self._wake_read, 4096)
        with self._lock:
            rank, self._next_rank = self._next_rank, None
            is_stopped = bool(self._stop_reason)
        if rank is not None:
            self._catch_up()
            self._rank = rank
            self._is_called.set()
        if not is_stopped:
            return
        if self._failure is None:
            message = f"was stopped {self._stop_reason}"
            self._failure = self._report(failures.STOPPED, message)
        if self._gentle:
            self._signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + self._gentle.total_seconds()
        else:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        assert self._child is not None
        child_process.signal_group(self._child, number)

    def _read(self, selector: RestingSelector, stream: object, name: str) -> bool:
        """Reads what is there; False at the end of the stream."""
        try:
            received = os.read(stream.fileno(), _READ_BYTES)  # type: ignore[attr-defined]
        except BlockingIOError:
            return True
        if not received:
            selector.unregister(stream)  # type: ignore[arg-type]
            return False
        if name == "result":
            try:
                for letter, content in self._frames.feed(received):
                    self._take(letter, content)
            except ValueError as error:
                self._fail(self._report(failures.BAD_RESULT, f"spoiled its result pipe: {error}"))
                self._frames = result_pipe.FrameReader()
        else:
            self._pass_on(name, self._splitters[name].feed(received))
            if len(received) < _FEW_BYTES:  # both, or what comes on the one would overtake what rests on the other
                selector.rest(*_STREAMS)
        return True

    def _catch_up(self) -> None:
        """Reads the lines that the worker has printed before it said what is being acted on, on other pipes."""
        assert self._child is not None
        for name in ("stdout", "stderr"):
            stream = getattr(self._child, name)
            left = _CATCH_UP_BYTES
            with contextlib.suppress(BlockingIOError):
                while left > 0 and (received := os.read(stream.fileno(), _READ_BYTES)):
                    self._pass_on(name, self._splitters[name].feed(received))
                    left -= len(received)

    def _pass_on(self, stream: str, lines: list[str]) -> None:
        for line in lines:
            self._tail.add(stream, line)
            if stream == "stderr":
                self._complaints.add(stream, line)
        if lines:
            self.relay.lines(self._rank, stream, lines)

    def _pass_on_progress(self, selector: RestingSelector) -> None:
        """Passes on the last that the worker has said of how far it is. Nothing of it is worth an error."""
        assert self._progress is not None
        received = os.read(self._progress.fileno(), _READ_BYTES)
        if not received:
            selector.unregister(self._progress)
            return
        with contextlib.suppress(ValueError):
            self.relay.progress(self._rank, Progress.from_dict(json.loads(received.splitlines()[-1])))

    def _take(self, letter: bytes, content: bytes) -> None:
        """Acts on one frame.

        Raises:
            ValueError: it is not one that a worker sends.
        """
        if letter == result_pipe.CHUNK:
            self._value += content
        elif letter == result_pipe.LOG:
            self._catch_up()
            self.relay.log(self._rank, content.decode("utf-8", "replace"))
        elif letter == result_pipe.BEGUN:
            self._begun = True
            self._said_pid = int(json.loads(content)["pid"])
            self.relay.begun(self._rank, self._said_pid)
        elif letter == result_pipe.FAILURE:
            report = FailureReport.from_dict(json.loads(content))
            self._catch_up()
            tail = printable("\n".join(self._tail))
            self._fail(replace(report, rank=self._rank, host=self._host, log_tail=tail))
        elif letter == result_pipe.RESULT:
            header = json.loads(content)
            self._expected = (int(header["bytes"]), str(header["sha256"]))
        elif letter == result_pipe.ENDED:
            self._command_status = int(json.loads(content)["status"])
        else:
            raise ValueError(f"unknown frame {letter!r}")

    def _fail(self, report: FailureReport) -> None:
        if self._failure is None:
            self._failure = report
            self._kill_at = time.monotonic() + FAREWELL.total_seconds()
            self.relay.failed(report)

    def _drain(self, selector: RestingSelector) -> None:
        """Reads what the dead group has left in its pipes."""
        selector.resume()
        for key in list(selector.get_map().values()):
            if key.data in ("wake", "exit", "stdin", "progress"):
                selector.unregister(key.fileobj)
        deadline = time.monotonic() + _DRAIN.total_seconds()
        while selector.get_map() and (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                self._read(selector, key.fileobj, key.data)

    def _report(self, kind: str, message: str, *, exit_code: int | None = None) -> FailureReport:
        pid = self._said_pid or self.pid
        report = FailureReport(self._rank, self._host, pid, kind, message, "", exit_code, time.time())
        if kind == failures.STOPPED:  # never a cause: nobody asks what it said
            return report
        return replace(
            report, traceback=printable(_stack_in(self._complaints)), log_tail=printable("\n".join(self._tail))
        )

    def _outcome(self, exit_code: int, peak_bytes: int) -> Outcome:
        pid = self._said_pid or self.pid
        whole = self._expected is not None and len(self._value) == self._expected[0]
        if self._failure is not None:
            if self._failure.exit_code is None and self._failure.kind == failures.STOPPED:
                self._failure = replace(self._failure, exit_code=exit_code)
            return Outcome(self._rank, self._host, pid, exit_code, self._failure)
        status = exit_code if self._command_status is None else self._command_status
        if self._job.command:
            failed = status != 0 or self._command_status is None
        else:
            failed = not whole  # an exit status of 0 alone does not mean that the function has returned
        if failed:
            self._fail(self._explain(status, peak_bytes))
            return Outcome(self._rank, self._host, pid, status, self._failure)
        if exit_code not in (0, child_process.UNKNOWN):
            # The value is here and whole: what went wrong afterwards is worth a line, not the job.
            said = (
                f"the worker ended with {child_process.describe_end(exit_code)} after {self._job.function} had returned"
            )
            self.relay.lines(self._rank, "stderr", [said])
        if self._expected is None or not self._value:
            return Outcome(self._rank, self._host, pid, exit_code, None)
        return Outcome(self._rank, self._host, pid, exit_code, None, bytes(self._value), self._expected[1])

    def _explain(self, status: int, peak_bytes: int) -> FailureReport:
        """Why a worker that said nothing itself has ended."""
        said = child_process.describe_end(status)
        known = None if status == child_process.UNKNOWN else status
        if not self._begun:
            message = f"could not start: the worker program ended with {said}"
            return self._report(failures.NOT_STARTED, message, exit_code=known)
        if status < 0:
            more_oom_kills = child_process.oom_kills() - self._oom_kills
            message = child_process.describe_kill(status, peak_bytes, self._own_peak_bytes, more_oom_kills)
            return self._report(failures.KILLED, message, exit_code=status)
        if self._job.command:
            report = self._report(failures.EXITED, f"ended with {said}", exit_code=known)
            return replace(report, secondary=_lost_a_peer(self._complaints))
        message = f"ended with {said} before {self._job.function} returned (os._exit, or an exit from native code)"
        return self._report(failures.EXITED, message, exit_code=known)


def _environment(job: JobSpec) -> Mapping[str, str]:
    environment = {**job.environment_if_unset, **undecided(os.environ)}
    for variable in (RENDEZVOUS_FD_VARIABLE, PROGRESS_FD_VARIABLE):  # of a job that this process itself is a rank of
        environment.pop(variable, None)
    environment |= job.environment
    environment[JOB_VARIABLE] = job.job_id
    # The worker needs our package, and what is preloaded, before it has its spec; the spec then sets its path exactly.
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return environment


def _stack_in(lines: Iterable[str]) -> str:
    """The Python stacks with which a process that could report nothing itself has ended, of the last of its stderr."""
    told = list(lines)
    heads = ("Traceback (most recent call last):", "Fatal Python error:")
    first = next((number for number, line in enumerate(told) if line.startswith(heads)), len(told))
    return "\n".join(told[first:])


def _lost_a_peer(tail: Iterable[str]) -> bool:
    """Whether a command's stderr ends with the traceback of a collective that another rank's end has broken."""
    last = next((line for line in reversed(list(tail)) if line.strip()), "")
    return re.match(r"(\w+\.)*(PeerLostError|ShutDownError)\b", last) is not None
