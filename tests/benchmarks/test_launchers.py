"""The benchmark of other launchers: its table is complete, and it notices a process that trains alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launchers import __main__ as launchers
from benchmarks.launchers.starters import Starter, clean_environment

pytestmark = pytest.mark.slow


def test_the_table_is_complete(tmp_path: Path) -> None:
    words = ["--only", "variables", "--rounds", "1", "--timeout", "2", "--json", str(tmp_path / "out.json")]
    command = [sys.executable, "-m", "benchmarks.launchers", *words]
    shown = subprocess.run(command, timeout=110, check=True, capture_output=True, text=True).stdout
    results = json.loads((tmp_path / "out.json").read_text())
    assert "variables" in results
    for name, result in results.items():
        assert f"| {name} | right, " in shown
        assert result["right"]["verdict"] == "right" and result["missing peer"]["verdict"] == "error"
        assert "rank 1 of number 0 of" in result["missing peer"]["errors"][0]
    assert "silent jobs of one: 0, of" in shown


def test_processes_that_train_alone_are_counted(tmp_path: Path) -> None:
    alone = Starter("alone", (), lambda words: [(list(words), {}), (list(words), {})])
    outcome = launchers.job(alone, "right", tmp_path, 2)
    assert outcome.singles == 2 and not outcome.expected
    assert "RANK" not in clean_environment()
