"""Runs an example as a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(size: int, example: str, *words: str) -> str:
    """What rank 0 prints."""
    command = [sys.executable, "-m", "spark_estimator", "run", "-np", str(size)]
    answer = subprocess.run(
        [*command, sys.executable, "-m", f"examples.{example}", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = [line.removeprefix("[0]<stdout>:") for line in answer.stdout.splitlines() if line.startswith("[0]<stdout>")]
    return "\n".join(lines)
