"""Backends: both kinds run alike, and a user's own class gets an error that names what it lacks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import WorkerFailedError
from spark_estimator.spark import Backend, LocalBackend, SparkBackend
from spark_estimator.spark.backend import default_num_proc, get_available_devices
from tests.launch import clusters

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def variables(*names: str, word: str = "") -> list[Any]:
    if word:
        print(word)
    return [int(os.environ["HOROVOD_RANK"]), *(os.environ.get(name) for name in names)]


@pytest.mark.parametrize("kind", [SparkBackend, LocalBackend])
def test_values_of_all_ranks(kind: Any, spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    backend = kind(2, {"A": "of the backend", "B": "of the backend"}, verbose=0, prefix_output_with_timestamp=True)
    assert isinstance(backend, Backend) and backend.num_processes() == 2
    values = backend.run(variables, ("A", "B"), {"word": "ab"}, env={"B": "of the call"})
    assert values == [[number, "of the backend", "of the call"] for number in range(2)]
    assert "20" in (printed := capfd.readouterr().out) and "[1]<stdout>:ab\n" in printed
    with pytest.raises(WorkerFailedError, match=r"rank 0 .* raised ZeroDivisionError"):
        backend.run(lambda: 1 / (1 - 1))
    with pytest.raises(WorkerFailedError, match=r"'boom'\nThis was attempt 2 of 2.*\n +attempt 1: .*'boom'"):
        kind(1, {}, verbose=0, max_restarts=1).run(lambda: {}["boom"])


def test_the_driver_s_environment_goes_along_where_none_is_given(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    monkeypatch.setenv("HOME", "/of/the/driver")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "1")
    names = ("OF_THE_DRIVER", "HOME", "CUDA_VISIBLE_DEVICES", "PYSPARK_GATEWAY_SECRET", "OMP_NUM_THREADS")
    # The executor is a process that started before, and has another HOME.
    home = spark.range(1).mapInArrow(home_of_executor, "home string").collect()[0].home
    assert SparkBackend(1).run(variables, names) == [[0, "1", home, None, None, "3"]]
    assert SparkBackend(1, env=dict(os.environ)).run(variables, names) == [[0, "1", "/of/the/driver", None, None, "3"]]
    assert SparkBackend(1, env={}).run(variables, names)[0][1] is None


def test_a_local_backend_drops_no_argument(capfd: pytest.CaptureFixture[str]) -> None:
    assert LocalBackend(1, verbose=2, start_timeout=7).run(variables, ("HOROVOD_START_TIMEOUT",)) == [[0, "7"]]
    assert f"spark_estimator: 1 ranks on {socket.gethostname()}" in capfd.readouterr().err


def home_of_executor(batches: Any) -> Any:
    import pyarrow

    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"home": [os.environ["HOME"]]})


def test_the_number_of_ranks_by_default(spark: Any) -> None:
    assert SparkBackend().num_processes() == default_num_proc() == 2
    assert LocalBackend().num_processes() == 1


def test_arguments_are_checked_where_they_are_given() -> None:
    with pytest.raises(TypeError, match=r"SparkBackend\(\) has no argument 'num_procs'.*'start_timeout'"):
        SparkBackend(num_procs=2)
    with pytest.raises(ValueError, match="start_timeout must be a number of seconds above 0; got -7"):
        LocalBackend(1, start_timeout=-7)
    with pytest.raises(TypeError, match=r"verbose must be 0, 1 or 2; got None"):
        SparkBackend(verbose=None)
    with pytest.raises(TypeError, match="env must map str to str; got 'A': 1"):
        SparkBackend(env={"A": 1})
    with pytest.raises(ValueError, match="num_proc=-1"):
        LocalBackend(-1)
    with pytest.warns(UserWarning, match="nics=.* has no effect") as caught:
        SparkBackend(2, nics=["eth0"])
    assert caught[0].filename == __file__

    class Mine(Backend):
        pass

    with pytest.raises(NotImplementedError, match=r"Mine .* define run\(\)"):
        Mine().run(print)
    with pytest.raises(NotImplementedError, match="num_processes"):
        Mine().num_processes()


def test_without_pyspark_local_backends_run_and_spark_says_what_is_missing() -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'pyarrow', 'torch'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from spark_estimator.spark import LocalBackend, run\n"
        "print('VALUE', LocalBackend(2).run(lambda x: x + 1, (1,)))\n"
        "run(print, num_proc=2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clusters.environment(), capture_output=True, text=True, timeout=60
    )
    assert "VALUE [2, 2]" in done.stdout, done.stderr
    assert re.search(
        r"spark\.run\(num_proc=2\) runs in Spark, but this Python has no module 'py(spark|arrow)'", done.stderr
    )


def test_the_devices_of_a_rank_and_outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 3")
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    assert get_available_devices() == []
    monkeypatch.setenv("HOROVOD_RANK", "0")
    assert get_available_devices() == ["1", "3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert get_available_devices() == []
