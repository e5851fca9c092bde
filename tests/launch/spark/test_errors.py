"""Common errors when Spark's workers run another Python than the driver: one sentence with the setting to change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.errors import (
    JobFailedError,
    NotEnoughSlotsError,
    PreflightError,
    PythonEnvironmentError,
    ResultError,
    remove_links,
)
from spark_estimator.launch.spark import errors as spark_errors
from tests.launch import clusters

JAVA = "org.apache.spark.SparkException: Job aborted due to stage failure: {}\n\tat java.lang.Thread.run(Thread.java)"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'", PythonEnvironmentError, "has no module 'pyarrow'"),
        (
            "No module named 'spark_estimator.launch'",
            PythonEnvironmentError,
            "pip install the wheel that the driver has",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 2.7 than that in driver: 3.11",
            PythonEnvironmentError,
            "workers run Python 2.7, but the driver runs Python 3.",
        ),
        (
            "Python in worker has different version 3.8 than that in driver 3.11, PySpark cannot run with different "
            "minor versions. different minor version than that in driver",
            PythonEnvironmentError,
            "workers run Python 3.8",
        ),
        ('Cannot run program "python9": error=2', PythonEnvironmentError, "there is no 'python9'"),
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
            PythonEnvironmentError,
            "lacks PyArrow 18.0.0",
        ),
        ("[SPARK-24819]: Barrier execution mode does not allow ...", NotEnoughSlotsError, "slot for every rank"),
        (
            "Total size of serialized results of 2 tasks (8.1 MiB) is bigger than spark.driver.maxResultSize (6.0 MiB)",
            ResultError,
            "returned are too large together: Total size of serialized results of 2 tasks (8.1 MiB) is bigger than "
            "spark.driver.maxResultSize (6.0 MiB). Return less",
        ),
        (
            "Exception while getting task result: java.lang.IllegalStateException: unread block data",
            ResultError,
            "Return less (save it to storage and return the path), or start the session with a larger spark.driver",
        ),
        (
            'status = StatusCode.RESOURCE_EXHAUSTED\n\tdetails = "CLIENT: Sent message larger than max (9 vs. 8)"',
            PreflightError,
            "are larger than a message of Spark Connect may be (Sent message larger than max (9 vs. 8)). Use a classic",
        ),
        ("[SPARK-24942]: Barrier execution mode ...", NotEnoughSlotsError, "dynamicAllocation.enabled=false"),
    ],
)
def test_known_troubles_become_one_sentence(text: str, kind: type[Exception], says: str) -> None:
    error = spark_errors.explain(JAVA.format(text))
    assert type(error) is kind and says in str(error)
    assert "\n" not in remove_links(str(error))
    if kind is PythonEnvironmentError:
        assert f"PYSPARK_PYTHON={sys.executable}" in str(error)


def test_a_module_of_the_user_s_own_is_not_mistaken_for_ours() -> None:
    assert spark_errors.explain(JAVA.format("No module named 'my_module'")) is None
    assert spark_errors.explain("anything else") is None


def test_what_is_not_known_is_shown_by_its_telling_line() -> None:
    error = spark_errors.make_spark_error(RuntimeError(JAVA.format("Task lost: FetchFailed")), "train()")
    assert isinstance(error, JobFailedError)
    assert "FetchFailed" in str(error) and "\tat " not in str(error)
    assert "RuntimeError" in str(spark_errors.make_spark_error(RuntimeError(), "train()"))


def another_python() -> str | None:
    """An interpreter of another minor version, if this machine has one that runs."""
    executables = Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob("versions/3.1*/bin/python3.1*")
    versions = [
        (int(path.name.split(".")[1]), str(path)) for path in executables if re.fullmatch(r"python3\.\d+", path.name)
    ]
    for minor, path in [*versions, *((minor, shutil.which(f"python3.{minor}")) for minor in range(10, 16))]:
        if path is None or minor == sys.version_info.minor:
            continue
        code = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
        if subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.timeout(240)
class TestForReal:
    @pytest.fixture(autouse=True)
    def spark_is_there(self) -> None:
        pytest.importorskip("pyspark")

    def outcome(self, folder: Path, *arguments: str, **env: str | None) -> dict[str, object]:
        with clusters.driver("one_run.py", *arguments, folder=folder, env=env) as driver:
            return driver.wait(200)

    def refusal(self, folder: Path, *arguments: str, **env: str) -> str:
        outcome = self.outcome(folder, *arguments, **env)
        assert outcome.get("type") == "PythonEnvironmentError", outcome
        assert outcome["cause"] == "None", "forty lines of Java would follow"
        assert f"PYSPARK_PYTHON={sys.executable}" in str(outcome["text"])
        return str(outcome["text"])

    @pytest.mark.slow
    def test_workers_without_pyarrow(self, tmp_path: Path) -> None:
        bare = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
        text = self.refusal(tmp_path, "local[2]", PYSPARK_PYTHON=str(bare / "bin" / "python"))
        assert "has no module 'py" in text  # pyarrow; pyspark finds its own copy of itself

    def test_workers_of_another_version(self, tmp_path: Path) -> None:
        path = another_python()
        if path is None:
            pytest.skip("no second Python on this machine")
        text = self.refusal(tmp_path, "local[2]", PYSPARK_PYTHON=path)
        assert f"but the driver runs Python 3.{sys.version_info.minor}," in text

    @pytest.mark.slow
    def test_workers_that_do_not_exist(self, tmp_path: Path) -> None:
        assert "there is no '/no/such/python'" in self.refusal(tmp_path, "local[2]", PYSPARK_PYTHON="/no/such/python")

    @pytest.mark.slow
    def test_without_a_session_one_is_made_whose_workers_are_right(self, tmp_path: Path) -> None:
        outcome = self.outcome(tmp_path, PYSPARK_PYTHON=None, PYSPARK_DRIVER_PYTHON=None)
        assert "value" in outcome, outcome
        _, executable = outcome["value"]  # type: ignore[misc]
        assert executable == sys.executable

    def test_where_no_session_can_be_made_that_is_said(self, tmp_path: Path) -> None:
        outcome = self.outcome(tmp_path, MASTER="spark://no.such.host.invalid:1", PYSPARK_SUBMIT_ARGS="--class x y")
        assert outcome["type"] == "PreflightError", outcome
        assert "no Spark session" in str(outcome["text"]) and "np=-N" in str(outcome["text"])

    def test_an_executor_whose_address_is_not_its_host_s_says_so(self, tmp_path: Path) -> None:
        settings = ("spark.driver.host=203.0.113.7", "spark.driver.bindAddress=127.0.0.1")
        outcome = self.outcome(tmp_path, "local[2]", *settings)
        assert outcome["type"] == "WorkerFailedError", outcome
        assert "knows its executor as '203.0.113.7'" in str(outcome["text"]) and "SPARK_LOCAL_IP" in str(
            outcome["text"]
        )
