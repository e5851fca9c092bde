"""The benchmark of launchers: its numbers are complete, and it notices a launcher that does not do its work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import launch
from benchmarks.interleaved import BenchmarkError

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)
def test_every_launcher_is_timed_and_no_line_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    words = ["--master", "local[2]", "--rounds", "1", "--lines", "4000", "--steps", "20", "--peers", "local"]
    words += ["--json", str(tmp_path / "out.json")]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.launch", *words],
        timeout=220,
        check=True,
        capture_output=True,
        text=True,
    )
    in_spark, lines = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [row["name"] for row in in_spark["launchers"]] == [
        "ours",
        "ours, allGather",
        "ours, np < 0",
        "TorchDistributor, local mode",
    ]
    for row in in_spark["launchers"]:
        assert 0 < row["to_function"][0] < row["to_return"][0]
        assert row["name"] in ended.stdout
    assert len(in_spark["line_seconds"]) == 80
    assert min(in_spark["line_seconds"]) >= 0
    assert lines["arrived"] == lines["lines"] == 4000
    assert min(lines["training_ratios"]) > 0


def test_a_launcher_that_brings_something_else_back_is_no_launcher() -> None:
    for wrong in (None, ("other", 0.0), ("word", 0.0)):
        with pytest.raises(BenchmarkError, match="returned"):
            launch.Launcher("wrong", lambda function, word, wrong=wrong: wrong).launch("word", timed=True)  # type: ignore[misc]
