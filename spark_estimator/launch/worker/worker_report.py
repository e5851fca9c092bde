"""Collects a worker's reports on its result pipe, and makes the outcome from them and from its exit."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.log_relay.worker_output import WorkerIdentity, WorkerOutput
from spark_estimator.launch.worker import child_process, result_pipe
from spark_estimator.launch.worker.child_process import MemoryBaseline
from spark_estimator.launch.worker.state import WorkerEvent, WorkerState
from spark_estimator.peer_json import parse_object
from spark_estimator.posix import SIGKILL
from spark_estimator.state_machine import StateMachine

_OF_LLVM = (
    " (LLVM ended it: two libraries of this process contain LLVM, and both register the same options. This happens "
    "where TensorFlow is imported before PyTorch: import torch first, or only one of the two)"
)


class WorkerReport:
    """Collects the frames of one worker.

    Args:
        job: what it runs.
        identity: of the worker; its pid becomes the one that the worker reports.
        state: of the worker; receives BEGIN, FAIL and STOP.
        output: of the worker; read before any other frame is passed on, to keep the order.
        relay: receives every event as it happens.
        memory_before: taken before the worker was started.
    """

    def __init__(
        self,
        job: JobSpec,
        identity: WorkerIdentity,
        state: StateMachine[WorkerState, WorkerEvent],
        output: WorkerOutput,
        relay: Relay,
        memory_before: MemoryBaseline,
    ) -> None:
        self._job = job
        self._identity = identity
        self._state = state
        self._output = output
        self._relay = relay
        self._frames = result_pipe.FrameReader()
        self._failure: FailureReport | None = None
        self._value = bytearray()
        self._expected: tuple[int, str] | None = None  # the value's size and SHA-256
        self._lingering: tuple[str, ...] = ()
        self._command_status: int | None = None
        self._memory_before = memory_before

    def feed(self, received: bytes) -> None:
        """Act on what was read from the result pipe; data that is not a frame is the worker's failure."""
        try:
            for letter, content in self._frames.feed(received):
                self._take(letter, content)
        except (ValueError, KeyError, TypeError) as error:
            self._fail(self._make_failure(failures.BAD_RESULT, f"wrote invalid data to its result pipe: {error!r}"))
            self._frames = result_pipe.FrameReader()

    @property
    def has_returned(self) -> bool:
        """Return whether the function has returned, and its value has arrived. Never of a command."""
        return self._expected is not None and len(self._value) == self._expected[0]

    def report_slow_end(self, after: timedelta, remaining: timedelta) -> None:
        """Report that the process still runs, `after` its function has returned; it is killed after `remaining`."""
        identity, function = self._identity, self._job.function
        if self._lingering:
            waits = (
                f"its process waits for non-daemon threads: {', '.join(self._lingering)}. Join them before {function} "
                "returns, or make them daemon threads"
            )
        else:
            names = ", ".join(child_process.list_thread_names(identity.pid)) or "unknown"
            waits = (
                "its process has not ended; a library may be waiting for its connections (of torch.distributed, call "
                f"destroy_process_group() before returning). Its threads: {names}"
            )
        self._relay.log(
            identity.rank,
            f"spark_estimator: {function} returned {after.total_seconds():g} s ago on rank {identity.rank} "
            f"(host {identity.host}, process {identity.pid}), but {waits}. What it returned has arrived; the process "
            f"is killed in {remaining.total_seconds():g} s.",
        )

    def stop(self, reason: str) -> None:
        """Note that the worker is being stopped, which is its failure unless it has failed before."""
        if self._state.fire(WorkerEvent.STOP):
            self._failure = self._make_failure(failures.STOPPED, f"was stopped {reason}")

    def note_frozen(self, limit: timedelta) -> None:
        """Note that a signal has stopped the worker, which did not continue within `limit` and is being killed."""
        if self.has_returned:  # the job has its value: `conclude` prints how the process ended
            return
        message = (
            f"was stopped by a signal (SIGSTOP) and did not continue within {limit.total_seconds():g} s, so that its "
            "supervisor killed it (SPARK_ESTIMATOR_SILENCE_SECONDS)"
        )
        self._fail(self._make_failure(failures.KILLED, message, exit_code=-SIGKILL))

    def stop_frozen(self, stopped_for: timedelta) -> None:
        """Note that the worker is killed, as the job ends, while stopped by a signal: the cause if others missed it."""
        message = (
            f"was stopped by a signal (SIGSTOP) and had not continued {stopped_for.total_seconds():.0f} s later, when "
            "the job ended"
        )
        self._fail(replace(self._make_failure(failures.KILLED, message, exit_code=-SIGKILL), secondary=True))

    def conclude(self, exit_code: int, peak_bytes: int) -> Outcome:
        """Return how the worker has ended; `exit_code` and `peak_bytes`: as `child_process.reap` returned them."""
        if self._state.state in (WorkerState.FAILED, WorkerState.STOPPED):
            assert self._failure is not None
            if self._state.state is WorkerState.STOPPED:
                self._failure = replace(self._failure, exit_code=exit_code)
            return self._make_outcome(exit_code, self._failure)
        status = exit_code if self._command_status is None else self._command_status
        if not self._has_succeeded(status):
            self._fail(self._explain(status, peak_bytes))
            return self._make_outcome(status, self._failure)
        if exit_code not in (0, child_process.UNKNOWN):
            # The value has arrived: a failure after that is worth a line, not the job.
            end = child_process.describe_end(exit_code)
            line = f"the worker ended with {end} after {self._job.function} had returned"
            self._relay.pass_lines(self._identity.rank, "stderr", [line])
        return self._make_outcome(exit_code, None)

    def _take(self, letter: bytes, content: bytes) -> None:
        """Act on one frame. Raises ValueError: a worker doesn't send such a frame, or not now."""
        if letter == result_pipe.CHUNK:
            size = 0 if self._expected is None else self._expected[0]
            if len(self._value) + len(content) > min(size, self._job.max_result_bytes):
                raise ValueError(f"more of a value than the {size} bytes that were announced")
            self._value += content
        elif letter == result_pipe.LOG:
            self._output.catch_up()
            self._relay.log(self._identity.rank, content.decode("utf-8", "replace"))
        elif letter == result_pipe.RECORD:
            self._relay.record(self._identity.rank, parse_object(content))
        elif letter == result_pipe.BEGUN:
            self._state.fire(WorkerEvent.BEGIN)
            self._identity.pid = int(parse_object(content)["pid"])
            self._relay.note_begin(self._identity.rank, self._identity.pid)
        elif letter == result_pipe.FAILURE:
            report = FailureReport.from_dict(parse_object(content))
            self._output.catch_up()
            identity = self._identity
            self._fail(replace(report, rank=identity.rank, host=identity.host, log_tail=self._output.tail))
        elif letter == result_pipe.RESULT:
            header = parse_object(content)
            self._expected = (int(header["bytes"]), str(header["sha256"]))
            self._lingering = tuple(map(str, header["threads"]))
        elif letter == result_pipe.ENDED:
            self._command_status = int(parse_object(content)["status"])
        else:
            raise ValueError(f"unknown frame {letter!r}")

    def _has_succeeded(self, status: int) -> bool:
        if self._job.command:
            return status == 0 and self._command_status is not None
        # An exit status of 0 alone doesn't mean that the function has returned.
        return self.has_returned

    def _fail(self, report: FailureReport) -> None:
        if self._state.fire(WorkerEvent.FAIL):
            self._failure = report
            self._relay.note_failure(report)

    def _make_failure(self, kind: str, message: str, *, exit_code: int | None = None) -> FailureReport:
        identity = self._identity
        report = FailureReport(
            identity.rank, identity.host, identity.pid, kind, message, "", exit_code, time.monotonic()
        )
        if kind == failures.STOPPED:  # never the cause, so its output is not needed
            return report
        return replace(report, traceback=self._output.python_stack, log_tail=self._output.tail)

    def _explain(self, status: int, peak_bytes: int) -> FailureReport:
        """Explain why a worker that reported nothing has ended."""
        llvm_note = _OF_LLVM if self._output.has_two_llvms else ""
        end = child_process.describe_end(status) + llvm_note
        exit_code = None if status == child_process.UNKNOWN else status
        if self._state.state is WorkerState.STARTING:
            message = f"could not start: the worker program ended with {end}"
            return self._make_failure(failures.NOT_STARTED, message, exit_code=exit_code)
        if status < 0:
            message = child_process.describe_kill(status, peak_bytes, self._memory_before)
            return self._make_failure(failures.KILLED, message + llvm_note, exit_code=status)
        if self._job.command:
            # If ranks wait for one that has not failed, their errors name it.
            error = self._output.python_error
            message = f"ended with {end}: {error}" if error else f"ended with {end}"
            report = self._make_failure(failures.EXITED, message, exit_code=exit_code)
            return replace(report, secondary=self._output.lost_a_peer)
        message = f"ended with {end} before {self._job.function} returned (os._exit, or an exit from native code)"
        return self._make_failure(failures.EXITED, message, exit_code=exit_code)

    def _make_outcome(self, exit_code: int, failure: FailureReport | None) -> Outcome:
        identity = self._identity
        outcome = Outcome(identity.rank, identity.host, identity.pid, exit_code, failure)
        if failure is not None or self._expected is None or not self._value:
            return outcome
        return replace(outcome, value=bytes(self._value), sha256=self._expected[1])
