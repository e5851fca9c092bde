"""Lines gather for a moment before they are read; no other stream waits for them, and nothing is shown out of order."""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import sys
import time

import pytest

from spark_estimator import HorovodRunner
from spark_estimator.launch.worker.batching_selector import RestingSelector
from spark_estimator.observe.driver_log import log_to_driver


def test_what_rests_is_left_alone_and_all_else_is_not() -> None:
    lines, other = os.pipe(), os.pipe()
    with RestingSelector() as selector:
        selector.register(lines[0], selectors.EVENT_READ, "stdout")
        selector.register(other[0], selectors.EVENT_READ, "result")
        os.write(lines[1], b"x")
        assert [key.data for key, _ in selector.select(10)] == ["stdout"]
        selector.rest("stdout")
        os.write(other[1], b"x")
        assert [key.data for key, _ in selector.select(10)] == ["result"]
        os.read(other[0], 1)
        while not (selected := selector.select(10)):
            pass
        assert [key.data for key, _ in selected] == ["stdout"]
        selector.rest("stdout")
        selector.resume()
        assert [key.data for key, _ in selector.select(0)] == ["stdout"]
        selector.rest("stdout", "stderr")
        assert selector.unregister(lines[0]).data == "stdout", "also what rests can come to its end"
        selector.resume()
        assert [key.data for key in selector.get_map().values()] == ["result"]
    for descriptor in (*lines, *other):
        os.close(descriptor)


def speaks(count: int) -> None:
    for number in range(count):
        print(f"line {number}")
        log_to_driver(f"message {number}")


def complains(count: int) -> None:
    for number in range(count):
        print(f"line {number}")
        time.sleep(0.002)
    print("then it complains", file=sys.stderr)


def test_stderr_does_not_overtake_what_rests_on_stdout() -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        HorovodRunner(np=-1, driver_log_verbosity="all").run(complains, count=30)
    assert [line for line in shown.getvalue().splitlines() if line.startswith("[0]<")] == [
        *(f"[0]<stdout>:line {number}" for number in range(30)),
        "[0]<stderr>:then it complains",
    ]


def test_a_message_is_shown_after_what_was_printed_before_it(capfd: pytest.CaptureFixture[str]) -> None:
    HorovodRunner(np=-1, driver_log_verbosity="all").run(speaks, count=100)
    shown = capfd.readouterr().out.splitlines()
    lines = [shown.index(f"[0]<stdout>:line {number}") for number in range(100)]
    messages = [shown.index(f"[0] message {number}") for number in range(100)]
    assert lines == sorted(lines) and messages == sorted(messages)
    assert all(line < message for line, message in zip(lines, messages, strict=True))
