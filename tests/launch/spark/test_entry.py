"""The entry to a session: calls that cannot run are refused before Spark is used, and interruptions are named."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError

from spark_estimator.errors import NotEnoughSlotsError
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark.entry import (
    add_start_timeout,
    explain_interruption,
    find_elastic_session,
    find_session_and_size,
    run_in_session,
)


def test_a_call_that_cannot_be_made_is_refused_first() -> None:
    with pytest.raises(TypeError):
        run_in_session("no function", 10_000, JobOptions(), caller="a test")  # type: ignore[arg-type]


def test_the_time_for_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(*, has_rows: bool, **more: Any) -> float | None:
        chosen = add_start_timeout(JobOptions(**more), has_rows=has_rows).start_timeout
        return None if chosen is None else chosen.total_seconds()

    seven = timedelta(seconds=7)
    monkeypatch.delenv("HOROVOD_SPARK_START_TIMEOUT", raising=False)
    assert (seconds(has_rows=False), seconds(has_rows=True)) == (600, None)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "9")
    for has_rows in (False, True):
        assert (seconds(has_rows=has_rows), seconds(has_rows=has_rows, start_timeout=seven)) == (9, 7)


def test_an_interruption_names_the_call(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^run\(\) was interrupted while no rank was running$"):
        with explain_interruption("run()"):
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt, match=r"^all ranks were stopped$"), explain_interruption("run()"):
        raise KeyboardInterrupt("all ranks were stopped")


def test_py4j_s_answer_to_an_interruption_is_one() -> None:
    def command() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Py4JError("Gateway must be connected to send cancel cmd.")  # noqa: B904  # as py4j does

    with pytest.raises(KeyboardInterrupt, match=r"^run\(\) was interrupted while it called Spark$"):
        with explain_interruption("run()"):
            command()


def test_an_error_after_an_interruption_is_itself() -> None:
    with pytest.raises(ValueError, match="wrong"):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with explain_interruption("run()"):
                raise ValueError("wrong")  # noqa: B904


def test_py4j_s_stacks_of_an_interruption_are_not_logged() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    filters = list(root.filters)
    try:
        with explain_interruption("run()"):
            for error in (KeyboardInterrupt(), RuntimeError("reentrant call inside"), OSError("of another kind")):
                try:
                    raise error
                except BaseException:
                    root.info("Exception while sending command.", exc_info=True)
                    root.error("Exception while sending command.", exc_info=True)
    finally:
        root.removeHandler(handler)
    assert records == ["Exception while sending command."], "only that of another kind"
    assert root.filters == filters


def test_the_session_and_the_number_of_ranks(spark: Any) -> None:
    assert find_session_and_size(2, "a test") == (spark, 2)
    assert find_session_and_size(lambda session: 1 if session is spark else 0, "a test") == (spark, 1)
    with pytest.raises(NotEnoughSlotsError, match="num_proc"):
        find_session_and_size(99, "a test")


def test_an_elastic_job_begins_with_the_slots_that_there_are(spark: Any) -> None:
    assert find_elastic_session(9, 2, "a test") == (spark, 2)
    assert find_elastic_session(None, None, "a test") == (spark, 2)
    for least in (None, 3, 9):
        with pytest.raises(NotEnoughSlotsError):
            find_elastic_session(9, least, "a test")
