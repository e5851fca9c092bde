"""`spark.run` as Horovod's users call it, in the session that there is."""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import (
    JobTimeoutError,
    NotEnoughSlotsError,
    ResultError,
    StartTimeoutError,
    WorkerFailedError,
)
from spark_estimator.spark import run

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def test_arguments_have_horovod_s_order_and_defaults() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    assert defaults == {
        "fn": inspect.Parameter.empty,
        "args": (),
        "kwargs": None,
        **dict.fromkeys(("num_proc", "start_timeout", "use_mpi", "use_gloo", "extra_mpi_args", "env")),
        **dict.fromkeys(("stdout", "stderr")),
        "verbose": 1,
        "nics": None,
        "prefix_output_with_timestamp": False,
        "executable": None,
        "max_restarts": 0,  # ours, at the end
        "timeout": None,
    }
    assert list(defaults)[3:11] == [
        *("num_proc", "start_timeout", "use_mpi", "use_gloo", "extra_mpi_args", "env", "stdout", "stderr")
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_proc": 0}, ValueError, "num_proc=0: at least one"),
        ({"num_proc": "2"}, TypeError, "num_proc must be an int, the number of ranks; got '2'"),
        ({"start_timeout": 0}, ValueError, "start_timeout must be a number of seconds above 0; got 0"),
        ({"start_timeout": "soon"}, TypeError, "got 'soon'"),
        ({"env": {"A": 1}}, TypeError, "env must map str to str; got 'A': 1"),
        ({"env": "A=1"}, TypeError, "env must be a dict of variables"),
        ({"env": {"A=B": "1"}}, ValueError, "'A=B'='1' is not a valid environment variable"),
        ({"stdout": "a.txt"}, TypeError, "stdout must be an open text file .*'a.txt'"),
        ({"max_restarts": -1}, ValueError, "max_restarts must be at least 0; got -1"),
        ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0; got 0"),
        ({"stderr": io.BytesIO()}, TypeError, "stderr must be an open text file"),
        ({"args": 5}, TypeError, r"args must be .* of rank\(\); got 5 of type int"),
        ({"kwargs": {1: 2}}, TypeError, "kwargs must be a dict whose keys are .*; got the key 1"),
        ({"fn": "train.py"}, TypeError, "the function to run on every rank"),
    ],
)
def test_nonsense_is_refused(spark: Any, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(**{"fn": rank, "num_proc": 1, **arguments})


def test_all_values_come_back_in_rank_order_with_lines_and_environment(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_of_env.py").write_text("ANSWER = 42")

    def work(word: str, *, times: int) -> tuple[Any, ...]:
        import module_of_env

        print(word * times)
        print("complains", file=sys.stderr)
        names = ("GREETING", "HOROVOD_SIZE", "PYSPARK_GATEWAY_SECRET", "PYTHONPATH")
        *values, path = (os.environ.get(name, "") or None for name in names)
        return rank(), module_of_env.ANSWER, *values, str(path).split(os.pathsep)[1]  # [0] is this package's own

    lines, errors = io.StringIO(), io.StringIO()
    # Copies of os.environ are what Horovod's examples pass.
    secret = {"PYSPARK_GATEWAY_SECRET": "s", "HOROVOD_SIZE": "17", "HOROVOD_RANK": "5"}
    env = {"GREETING": "hello", "PYTHONPATH": str(tmp_path), **secret}
    with pytest.warns(UserWarning, match="use_mpi=True has no effect: there is no MPI"):
        values = run(
            work, ("ab",), {"times": 2}, 2, None, True, None, None, env, lines, errors, 2,
            prefix_output_with_timestamp=True,
        )  # fmt: skip
    assert values == [(number, 42, "hello", "2", None, str(tmp_path)) for number in range(2)]
    when = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}"
    for number in range(2):
        assert re.search(rf"^{when}\[{number}\]<stdout>:abab$", lines.getvalue(), re.MULTILINE)
        assert re.search(rf"^{when}\[{number}\]<stderr>:complains$", errors.getvalue(), re.MULTILINE)
    printed, stderr = capfd.readouterr()
    assert "abab" not in printed
    for number in range(2):
        assert re.search(rf"^spark_estimator: rank {number} runs on host \S+, pid \d+$", stderr, re.MULTILINE)


def test_without_a_number_all_slots_are_used(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="pyspark")
        assert run(rank) == [0, 1]
    assert "running on 2 ranks (num_proc was not set)" in capfd.readouterr().err
    run(lambda: print("a line"), num_proc=1, verbose=0)
    printed, stderr = capfd.readouterr()
    assert printed == "[0]<stdout>:a line\n" and "spark_estimator:" not in stderr


def test_failures_are_those_of_horovodrunner(spark: Any) -> None:
    def fail() -> None:
        if rank() == 1:
            raise ValueError("boom")
        threading.Event().wait()

    with pytest.raises(WorkerFailedError, match=r"rank 1 .* raised ValueError: boom") as caught:
        run(fail, num_proc=2)
    assert caught.value.rank == 1 and 'raise ValueError("boom")' in str(caught.value.__cause__)
    with pytest.raises(ResultError, match=r"rank 1 .* cannot be pickled"):
        run(lambda: threading.Lock() if rank() else 1, num_proc=2)
    with pytest.raises(NotEnoughSlotsError, match=r"3 ranks need 3 slots .*, or use num_proc=2\."):
        run(rank, num_proc=3)


def test_ranks_that_run_unheard_are_not_late(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_DRIVER_CHANNEL", "0")

    def work() -> int:
        time.sleep(6)
        return rank()

    assert run(work, num_proc=2, start_timeout=2) == [0, 1]


def test_slots_that_others_hold_are_named(spark: Any, tmp_path: Path) -> None:
    """The job waits for them no longer than it may; the next one runs when they are free."""
    hold = tmp_path / "hold"
    hold.touch()

    def keep() -> None:
        (tmp_path / "held").touch()
        while hold.exists():
            time.sleep(0.1)

    holder = threading.Thread(target=lambda: run(keep, num_proc=1))
    holder.start()
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.05)
        with pytest.raises(StartTimeoutError, match=r"rank\(\) on any of 2 ranks within 2 seconds") as caught:
            run(rank, num_proc=2, start_timeout=2)
        with pytest.raises(
            JobTimeoutError, match=r"rank 0 and rank 1 had not started\. .* other jobs .* running: stage "
        ):
            run(rank, num_proc=2, timeout=2, max_restarts=1)
    finally:
        hold.unlink()
        holder.join()
    assert re.search(
        r"This session has 2: 2 cores .* running: stage \d+ \('spark_estimator: keep\(\) on 1 ranks'; .* of 1 tasks",
        str(caught.value),
    )
    assert run(rank, num_proc=2, start_timeout=60) == [0, 1]
