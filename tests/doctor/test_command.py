"""The command ``doctor``: its report, its exit status, and an address without a listener."""

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
    answer = run_doctor("--json", root=tmp_path)  # as the wheel for every system, which drives jobs on Spark
    assert answer.returncode == 0 and findings(answer)["engine"]["state"] == "note"
    (tmp_path / "native").mkdir()  # as a checkout
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
    rows = findings(answer)
    assert answer.returncode == 0, answer.stdout
    assert rows["shared memory"]["state"] == "note"
    assert "use TCP" in rows["shared memory"]["fix"]
    assert rows["two local ranks"]["text"] == "met and summed 1 MiB over TCP"


def test_an_address_without_a_listener_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as gone:
        answers, closed = listener.getsockname()[1], gone.getsockname()[1]
        gone.close()
        for flag, address in (
            ("--remote", f"sc://localhost:{closed}/;token=x"),
            ("--master", f"spark://[::1]:{closed}"),
        ):
            assert verbs.main(["doctor", "--cluster", flag, address]) == 1
            output = capsys.readouterr().out
            assert re.search(rf"MISSING  session +no answer at .*port {closed}: ", output), output
        # The listener is not a Spark server.
        answer = run_doctor("--cluster", "--remote", f"sc://127.0.0.1:{answers}", "--timeout", "1", "--json")
        assert answer.returncode == 1 and "within 1 seconds (--timeout)" in findings(answer)["session"]["text"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--speed"], "--speed is for --cluster"),
        (["--cluster", "--parameters", "7B"], "--parameters is for --speed"),
        (
            ["--cluster", "--speed", "--parameters", "0"],
            "'0' is not a number of parameters, such as 25600000, 350M or 7B",
        ),
        (["--cluster", "--speed", "--parameters", "3X"], "'3X' is not a number of parameters"),
        (["--cluster", "--speed", "--parameters", "nanM"], "'nanM' is not a number of parameters"),
        (["--cluster", "--timeout", "-3"], "'-3' is not a number of seconds above 0"),
    ],
)
def test_arguments_of_speed_that_mean_nothing(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        verbs.main(["doctor", *arguments])
    assert problem in capsys.readouterr().err


def test_numbers_of_parameters() -> None:
    parsed = [
        doctor.make_parser().parse_args(["--parameters", text]).parameters for text in ("25600000", "350M", "1.5b")
    ]
    assert parsed == [25_600_000, 350_000_000, 1_500_000_000]
