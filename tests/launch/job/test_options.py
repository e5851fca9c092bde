"""A job's options are checked where they are made, and become one description of the job."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.errors import PicklingError
from spark_estimator.launch.job.options import MAX_RESULT_BYTES, JobOptions, check_num_proc, check_text
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.observe.status_line import ProgressDisplay


def add(left: int, right: int = 0) -> int:
    return left + right


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"environment": {"A": 1}}, TypeError, "env must map str to str; got 'A': 1"),
        ({"environment": "A=1"}, TypeError, "env must be a dict of variables, .*; got 'A=1'"),
        ({"environment": {"A=B": "1"}}, ValueError, "'A=B'='1' is not a valid environment variable"),
        ({"verbose": "loud"}, TypeError, "verbose must be 0, 1 or 2; got 'loud'"),
        ({"start_timeout": timedelta(0)}, ValueError, "start_timeout must be more than 0 seconds; got 0"),
    ],
)
def test_an_invalid_option_is_named_with_its_value(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        JobOptions(**options)


def test_variables_of_a_single_process_are_left_out() -> None:
    options = JobOptions(environment={"A": "1", "HOROVOD_RANK": "3", "PYSPARK_GATEWAY_SECRET": "x"})
    assert options.variables == {"A": "1"}
    options.variables["B"] = "2"
    assert options.variables == {"A": "1"}


def test_numbers_of_ranks() -> None:
    check_num_proc(None)
    check_num_proc(1)
    with pytest.raises(TypeError, match="min_num_proc must be an int, the number of ranks; got True"):
        check_num_proc(True, "min_num_proc")
    with pytest.raises(ValueError, match="num_proc=0: at least one rank is needed"):
        check_num_proc(0)


def test_texts() -> None:
    for value in (None, "a", Path("a")):
        check_text("hosts", value)
    with pytest.raises(TypeError, match=r"hosts must be a string; got \['a'\] \(list\)"):
        check_text("hosts", ["a"])
    with pytest.raises(ValueError, match="hosts must not be empty; got ' '"):
        check_text("hosts", " ")


def test_when_ranks_report_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")  # no screen: slow ranks are named all the same
    assert [JobOptions(verbose=verbose).progress_display for verbose in (0, 1, 2)] == [
        ProgressDisplay.OFF,
        ProgressDisplay.ON_SCREEN,
        ProgressDisplay.ON_SCREEN,
    ]
    assert JobSpec.build(add, 1, JobOptions()).progress
    assert not JobSpec.build(add, 1, JobOptions(verbose=0)).progress
    assert not JobSpec.build(add, 1, JobOptions(progress=ProgressDisplay.OFF)).progress
    assert JobSpec.build(add, 1, JobOptions(verbose=0, progress=ProgressDisplay.ANYWHERE)).progress
    monkeypatch.setenv("SPARK_ESTIMATOR_STATUS_LINE", "0")
    assert not JobSpec.build(add, 1, JobOptions(progress=ProgressDisplay.ANYWHERE)).progress


def test_a_job_is_described_in_one_place() -> None:
    options = JobOptions(args=(1,), kwargs={"right": 2}, environment={"A": "1"}, show_line=None, verbose=0)
    job = JobSpec.build(add, 3, options)
    assert (job.size, job.function, dict(job.environment)) == (3, "add()", {"A": "1"})
    assert (job.forward_lines, job.progress, job.all_results, list(job.result_ranks)) == (False, False, False, [0])
    assert (job.attempt, job.max_result_bytes, os.getcwd() in job.driver_sys_path) == (1, MAX_RESULT_BYTES, True)
    [(function, args, kwargs)] = load_values([job.payload], "add()")
    assert function(*args, **kwargs) == 3

    job = JobSpec.build(add, 2, JobOptions(args=(1,), all_results=True), {"B": "2"})
    assert (dict(job.environment), job.forward_lines, list(job.result_ranks)) == ({"B": "2"}, True, [0, 1])
    with pytest.raises(PicklingError):
        JobSpec.build(add, 1, JobOptions(args=(open,), kwargs={"right": (number for number in [1])}))
