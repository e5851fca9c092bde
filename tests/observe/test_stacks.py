"""A process's reports of its stacks, which end with the engine, the interpreter and a fork."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from spark_estimator.observe import stacks
from spark_estimator.observe.stacks import StackReporter, format_current_stacks

SECONDS = 20.0


class Questions:
    """An engine's two calls."""

    def __init__(self) -> None:
        self.asked: queue.Queue[int | Exception] = queue.Queue()
        self.answers: queue.Queue[tuple[int, str]] = queue.Queue()

    def wait(self, seconds: float) -> int | None:
        assert seconds > 0
        try:
            question = self.asked.get(timeout=min(seconds, 0.2))
        except queue.Empty:
            return None
        if isinstance(question, Exception):
            raise question
        return question

    def answer(self, question: int, text: str) -> None:
        self.answers.put((question, text))


@pytest.fixture
def parked() -> Iterator[threading.Thread]:
    """A thread in a function with a unique name."""
    release, arrived = threading.Event(), threading.Event()

    def a_function_that_waits() -> None:
        arrived.set()
        release.wait(SECONDS)

    thread = threading.Thread(target=a_function_that_waits, name="data loader")
    thread.start()
    assert arrived.wait(SECONDS)
    yield thread
    release.set()
    thread.join()


def test_all_threads_main_first(parked: threading.Thread) -> None:
    text = format_current_stacks()
    assert text.startswith("Thread MainThread (most recent call last):\n")
    assert f'File "{__file__}"' in text and "in test_all_threads_main_first" in text
    main, rest = text.split("\nThread data loader (most recent call last):\n")
    assert "a_function_that_waits" in rest and "a_function_that_waits" not in main
    lines = rest.splitlines()
    waiting = next(number for number, line in enumerate(lines) if "in a_function_that_waits" in line)
    assert lines[waiting + 1].strip() == "release.wait(SECONDS)"  # the source
    assert any("in wait" in line for line in lines[waiting:])  # the most recent call is the last


def test_the_thread_that_asks_is_left_out(parked: threading.Thread) -> None:
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(format_current_stacks()), name="the teller")
    thread.start()
    thread.join()
    assert "Thread MainThread" in texts[0] and "Thread data loader" in texts[0] and "the teller" not in texts[0]


def test_long_stacks_are_cut_at_their_old_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def deeper(left: int) -> str:
        return deeper(left - 1) if left else innermost()

    def innermost() -> str:
        return format_current_stacks()

    text = deeper(200)
    assert "(older calls omitted)" in text and "in innermost" in text
    monkeypatch.setattr(stacks, "MAX_CHARACTERS", 100)
    text = format_current_stacks()
    assert len(text) < 130 and text.endswith("\n  (more omitted)")


def test_questions_are_answered() -> None:
    questions = Questions()
    teller = StackReporter(questions.wait, questions.answer)
    for question in (7, 8):
        questions.asked.put(question)
        number, text = questions.answers.get(timeout=SECONDS)
        assert number == question
        assert text.startswith("Thread MainThread") and "spark_estimator stacks" not in text
    assert teller.alive
    teller.stop()
    teller.stop()
    assert not teller.alive


def test_the_end_of_the_engine_ends_it() -> None:
    questions = Questions()
    teller = StackReporter(questions.wait, questions.answer)
    questions.asked.put(RuntimeError("this rank has shut down"))
    teller._thread.join(SECONDS)
    assert not teller.alive


def test_stacks_that_fail_and_answers_that_fail_end_nothing() -> None:
    questions = Questions()
    failing = iter([True, False])

    def unlucky() -> str:
        if next(failing):
            raise LookupError("no frames today")
        return "fine"

    teller = StackReporter(questions.wait, questions.answer, unlucky)
    questions.asked.put(1)
    assert questions.answers.get(timeout=SECONDS) == (1, "its stacks are not available: LookupError('no frames today')")
    questions.asked.put(2)
    assert questions.answers.get(timeout=SECONDS) == (2, "fine")
    teller.stop()

    refused = threading.Event()

    def refuse(question: int, text: str) -> None:
        if question == 3:
            refused.set()
            raise RuntimeError("too late")
        questions.answer(question, text)

    teller = StackReporter(questions.wait, refuse)
    questions.asked.put(3)
    assert refused.wait(SECONDS)
    questions.asked.put(4)
    assert questions.answers.get(timeout=SECONDS)[0] == 4
    teller.stop()


def test_a_forked_child_has_none() -> None:
    # In a separate process: a fork of the test run would inherit its threads' locks.
    program = """
import os, time
from spark_estimator.observe.stacks import StackReporter

teller = StackReporter(lambda seconds: time.sleep(0.01), lambda question, text: None)
child = os.fork()
if child == 0:
    assert not teller.alive
    teller.stop()
    os._exit(17)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
assert teller.alive
teller.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_interpreter_ends_while_it_waits() -> None:
    # One waits in native code, where ctypes has given up the interpreter's lock, for longer than the test may take.
    program = """
import ctypes
from spark_estimator.observe.stacks import StackReporter

libc = ctypes.CDLL(None)
StackReporter(lambda seconds: libc.sleep(600), lambda question, text: None)
StackReporter(lambda seconds: libc.usleep(100) and None, lambda question, text: None)
"""
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_calls_and_threads_of_this_package_take_a_line_or_none() -> None:
    ended = threading.Event()

    def asked_by_a_user(seconds: float) -> int | None:
        ended.wait(seconds)
        return None

    # As if the engine's own wait were called directly: no frame of it is a user's.
    engine_wait = StackReporter(ended.wait, lambda number, text: None)  # type: ignore[arg-type]
    users = StackReporter(asked_by_a_user, lambda number, text: None)
    try:
        wanted = f"in {asked_by_a_user.__name__}\n"
        while wanted not in (text := format_current_stacks()):
            time.sleep(0.001)
    finally:
        ended.set()
        engine_wait.stop()
        users.stop()
    assert text.count(wanted) == 1
    assert text.count("in _answer_requests\n") == 1, "of the user's thread; the other is left out"
    assert "(inside spark_estimator: format_current_stacks)" in text
