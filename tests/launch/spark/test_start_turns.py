"""Jobs whose ranks start one by one, and that wait for each other's start."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.spark.start import TaskReports
from spark_estimator.launch.spark.start_turns import StartTurn


def session(application: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(applicationId=application))


def waiting(turn: StartTurn) -> threading.Thread:
    thread = threading.Thread(target=turn.wait, args=(lambda: True,))
    thread.start()
    return thread


def test_one_starts_after_the_other_in_their_order() -> None:
    first, second, third = (StartTurn(session("a"), name) for name in ("first()", "second()", "third()"))
    assert first.wait(lambda: True) and first.find_earlier() == ""
    threads = []
    for turn in (second, third):
        threads.append(waiting(turn))
        while not turn.find_earlier():
            assert threads[-1].is_alive()
    assert second.find_earlier() == third.find_earlier() == "first()"
    first.end()
    threads[0].join(10)
    assert not threads[0].is_alive() and third.find_earlier() == "second()"
    second.end()
    second.end()
    threads[1].join(10)
    assert not threads[1].is_alive() and third.find_earlier() == ""
    third.end()


def test_a_job_that_is_ended_waits_no_longer() -> None:
    first, second, third = (StartTurn(session("b"), name) for name in ("first()", "second()", "third()"))
    assert first.wait(lambda: True)
    assert not second.wait(lambda: False)
    second.end()
    first.end()
    assert third.wait(lambda: True)
    third.end()


def test_jobs_of_other_applications_do_not_wait() -> None:
    first, second = StartTurn(session("c"), "first()"), StartTurn(session("d"), "second()")
    assert first.wait(lambda: True) and second.wait(lambda: True)
    first.end()
    second.end()


def test_the_message_of_a_job_that_waits_names_the_other(spark: Any) -> None:
    reports = TaskReports(spark, "no job's", connected=lambda: 0, earlier=lambda: "train()")
    assert reports.describe_holders().startswith(
        "it waits for another job of this program, train(), which has not started all"
    )
