"""What a worker reports, and how it ends, make its outcome."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.events import Begun, EventRelay, Failed, Lines, Message
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.log_relay.worker_output import WorkerIdentity, WorkerOutput
from spark_estimator.launch.worker.child_process import MemoryBaseline
from spark_estimator.launch.worker.result_pipe import BEGUN, CHUNK, ENDED, FAILURE, LOG, RESULT, pack_frame
from spark_estimator.launch.worker.state import TRANSITIONS, WorkerEvent, WorkerState
from spark_estimator.launch.worker.worker_report import WorkerReport
from spark_estimator.state_machine import StateMachine

NOTHING = open(os.devnull, "rb")  # noqa: SIM115


class Case:
    """A report on a worker that was started."""

    def __init__(self, **job: Any) -> None:
        import queue

        self.events: queue.Queue[Any] = queue.Queue()
        relay = EventRelay(self.events)
        identity = WorkerIdentity(2, "host", 10)
        self.state = StateMachine(WorkerState.NEW, TRANSITIONS)
        self.state.fire(WorkerEvent.START)
        output = WorkerOutput(NOTHING, NOTHING, identity, relay, {})
        spec = JobSpec("job", 3, "train()", **job)
        self.report = WorkerReport(spec, identity, self.state, output, relay, MemoryBaseline.take())

    def send(self, letter: bytes, content: Any) -> None:
        self.report.feed(pack_frame(letter, content if isinstance(content, bytes) else json.dumps(content).encode()))

    def told(self) -> list[Any]:
        return [self.events.get_nowait() for _ in range(self.events.qsize())]


def test_a_value_that_is_whole_is_success() -> None:
    case = Case()
    case.send(BEGUN, {"pid": 11})
    case.send(LOG, b"hello")
    case.send(RESULT, {"bytes": 4, "sha256": hashlib.sha256(b"abcd").hexdigest(), "threads": []})
    case.send(CHUNK, b"ab")
    case.send(CHUNK, b"cd")
    outcome = case.report.conclude(0, 0)
    assert (outcome.rank, outcome.host, outcome.pid, outcome.failure, outcome.pickled) == (2, "host", 11, None, b"abcd")
    assert case.told() == [Begun(2, 11), Message(2, "hello")]


@pytest.mark.parametrize("announced", [None, 3, 11])
def test_no_more_of_a_value_is_kept_than_was_announced_and_allowed(announced: int | None) -> None:
    case = Case(max_result_bytes=10)
    case.send(BEGUN, {"pid": 11})
    if announced is not None:
        case.send(RESULT, {"bytes": announced, "sha256": "", "threads": []})
    case.send(CHUNK, bytes(11))
    failure = case.report.conclude(0, 0).failure
    assert failure is not None and failure.kind == failures.BAD_RESULT
    assert "invalid data to its result pipe" in failure.message


def test_an_exit_after_the_value_is_a_line() -> None:
    case = Case()
    case.send(RESULT, {"bytes": 0, "sha256": "", "threads": []})
    assert case.report.conclude(3, 0).failure is None
    assert case.told() == [Lines(2, "stderr", ["the worker ended with exit status 3 after train() had returned"])]


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        (["the uploader"], "but its process waits for non-daemon threads: the uploader"),
        ([], "call destroy_process_group() before returning). Its threads: "),
    ],
)
def test_a_process_that_does_not_end_is_reported(threads: list[str], words: str) -> None:
    case = Case()
    case.send(BEGUN, {"pid": os.getpid()})
    assert not case.report.has_returned
    case.send(RESULT, {"bytes": 0, "sha256": "", "threads": threads})
    assert case.report.has_returned
    case.report.report_slow_end(timedelta(seconds=10), timedelta(seconds=290))
    message = case.told()[-1]
    assert isinstance(message, Message), "it is shown where the ranks' lines are not"
    line = message.text
    assert f"train() returned 10 s ago on rank 2 (host host, process {os.getpid()})" in line and words in line
    assert threads or "unknown" not in line


@pytest.mark.parametrize(
    ("begun", "status", "kind", "text"),
    [
        (False, 1, failures.NOT_STARTED, "could not start: the worker program ended with exit status 1"),
        (True, 0, failures.EXITED, "ended with exit status 0 before train() returned"),
        (True, -signal.SIGSEGV, failures.KILLED, "was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_worker_that_reports_nothing(begun: bool, status: int, kind: str, text: str) -> None:
    case = Case()
    if begun:
        case.send(BEGUN, {"pid": 11})
    failure = case.report.conclude(status, 0).failure
    assert failure is not None and (failure.kind, failure.message[: len(text)]) == (kind, text)
    assert case.told()[-1] == Failed(failure)


def test_a_command_has_succeeded_only_when_its_worker_says_so() -> None:
    case = Case(command=("true",))
    case.send(ENDED, {"status": 0})
    assert case.report.conclude(0, 0).failure is None
    failure = Case(command=("true",)).report.conclude(0, 0).failure
    assert failure is not None


def test_the_first_failure_is_kept() -> None:
    reported = FailureReport(0, "?", 11, failures.RAISED, "raised KeyError", when=1.0)
    case = Case()
    case.send(FAILURE, reported.to_dict())
    assert case.state.state is WorkerState.FAILED
    case.report.stop("after that")
    failure = case.report.conclude(-9, 0).failure
    assert failure is not None and (failure.rank, failure.host, failure.kind) == (2, "host", failures.RAISED)

    case = Case()
    case.report.stop("after that")
    case.send(FAILURE, reported.to_dict())
    failure = case.report.conclude(-9, 0).failure
    assert failure is not None
    assert (failure.kind, failure.message, failure.exit_code) == (failures.STOPPED, "was stopped after that", -9)
    assert case.told() == [], "a worker that was stopped is no news"


@pytest.mark.parametrize(
    "frames",
    [
        [(b"?", b"")],
        [(BEGUN, b"{}")],
        [(BEGUN, b'{"pid": 1}')] * 2,
        [(RESULT, b"no JSON")],
        [(FAILURE, b"[]")],
        [(CHUNK, b"x" * 8), (b"\xff" * 9, b"")],
    ],
)
def test_a_broken_result_pipe_is_a_failure(frames: list[tuple[bytes, bytes]]) -> None:
    case = Case()
    for letter, content in frames:
        case.report.feed(pack_frame(letter, content) if len(letter) == 1 else letter)
    failure = case.report.conclude(0, 0).failure
    assert failure is not None and failure.kind == failures.BAD_RESULT
    assert "wrote invalid data to its result pipe" in failure.message
