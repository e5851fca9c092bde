"""The benchmark of recovery kills a rank in each way, and compares numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_kill_each() -> None:
    arguments = ("--np", "2", "--kills", "1", "--step-ms", "10", "--steps", "100", "--epochs", "2", "--keep", "20")
    command = [sys.executable, "-m", "benchmarks.recovery", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for way in ("replaced", "restarted"):
        assert re.search(rf"^{way}: 1 kills .*numbers the same$", done.stdout, re.MULTILINE), done.stdout
    twice = re.search(r"^replaced: .* ([\d.]+) batches computed twice", done.stdout, re.MULTILINE)
    assert twice and float(twice[1]) <= 1
