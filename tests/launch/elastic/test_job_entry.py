"""The start of an elastic job on this host."""

from __future__ import annotations

import os
import threading

import pytest

from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import PicklingError
from spark_estimator.launch.elastic.job_entry import ELASTIC_VARIABLE, mark_elastic, run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.spec import JobSpec

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def test_a_job_is_marked_as_elastic_for_its_ranks() -> None:
    job = JobSpec("job", 2, "f()", environment={"A": "1"}, progress=True)
    marked = mark_elastic(job)
    assert marked.environment == {"A": "1", ELASTIC_VARIABLE: "1"} and not marked.progress
    assert mark_elastic(marked) == marked and job.environment == {"A": "1"}


def test_values_of_all_ranks_come_back_with_their_lines() -> None:
    def work(word: str) -> tuple[str, str]:
        print(word)
        return os.environ[ELASTIC_VARIABLE], os.environ["HOROVOD_RANK"]

    lines: list[tuple[int, str, str]] = []
    options = JobOptions(args=("hello",), show_line=lambda *line: lines.append(line))
    assert run_elastic_local(work, Terms(2, 1), options) == [("1", "0"), ("1", "1")]
    assert sorted(lines) == [(0, "stdout", "hello"), (1, "stdout", "hello")]


def test_nothing_is_started_for_what_cannot_run() -> None:
    with pytest.raises(PicklingError):
        run_elastic_local(print, Terms(1, 1), JobOptions(args=(threading.Lock(),)))
    with pytest.raises(ValueError, match="SPARK_ESTIMATOR_WORKER_THREADS"):
        run_elastic_local(print, Terms(1, 1), JobOptions(environment={"SPARK_ESTIMATOR_WORKER_THREADS": "many"}))
