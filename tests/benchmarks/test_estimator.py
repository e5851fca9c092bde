"""The benchmark of estimators: its numbers are complete, and it detects a backend with a wrong result."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.backends import Backend, time_interleaved
from benchmarks.interleaved import BenchmarkError

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)
def test_every_backend_is_timed(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    words = ["--rows", "20000", "--rounds", "1", "--json", str(tmp_path / "out.json")]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.estimator", *words],
        timeout=220,
        check=True,
        capture_output=True,
        text=True,
    )
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert len(runs) == (8 if importlib.util.find_spec("mlflow") else 7)
    for run in runs:
        assert len(run["seconds"]) == 1 and run["seconds"][0] > 0
        assert run["name"] in ended.stdout
    assert [run["rows"] for run in runs[:4]] == [20000, 20000, 2000, 2000]


def test_a_backend_with_another_result_is_an_error() -> None:
    backends = [Backend("right", 1, lambda: 1.0), Backend("wrong", 1, lambda: 1.1)]
    with pytest.raises(BenchmarkError, match=r"wrong returned 1\.1, but right returned 1\.0"):
        time_interleaved(backends, 1)
