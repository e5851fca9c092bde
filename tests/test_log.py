"""The logger: its level, the rank in front, and the application's own handlers."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from spark_estimator import log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger(log.ROOT)
    before = (root.level, root.handlers[:], root.propagate)
    root.handlers.clear()
    root.propagate = True  # or pytest gives the logger a handler, which would count as the application's own
    yield
    root.level, root.handlers[:], root.propagate = before


def test_level_and_rank(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", 3)
    log.configure("info", 3)
    log.get_logger("spark_estimator.somewhere").info("hello")
    log.get_logger("spark_estimator.somewhere").debug("not shown")
    assert capsys.readouterr().err == "[3] spark_estimator INFO: hello\n"


def test_the_time_comes_first_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("warning", 3, times=True)
    log.get_logger().warning("hello")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:,]+ \[3\] spark_estimator WARNING: hello\n", capsys.readouterr().err)


def test_without_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("fatal")
    log.get_logger().error("not shown")
    log.get_logger().critical("shown")
    assert capsys.readouterr().err == "spark_estimator CRITICAL: shown\n"


def test_handlers_of_the_application_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    sink = io.StringIO()
    logging.getLogger(log.ROOT).addHandler(logging.StreamHandler(sink))
    log.configure("warning", 0)
    log.get_logger().warning("hello")
    assert sink.getvalue() == "hello\n"
    assert capsys.readouterr().err == ""
