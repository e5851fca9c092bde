"""Known tables and a large one: the estimator reaches the scores of plain PyTorch, on one, two and three ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
# How much scores of the same training differ by chance, with a margin: of 114 to 10,000 held-out ones.
NOISE = {"digits": 0.03, "breast_cancer": 0.045, "diabetes": 0.1, "generated": 0.02}
GOOD = {"digits": 0.93, "breast_cancer": 0.92, "diabetes": 0.3, "generated": 0.8}


@pytest.mark.timeout(400)
def test_scores_are_those_of_one_process() -> None:
    cases = ["digits:1,3", "breast_cancer:2", "generated:3"]
    answer = subprocess.run(
        [sys.executable, "-m", "examples.tables", *cases, "--rows", "50000"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    print(answer.stdout)
    alone = {name: float(score) for name, score in re.findall(r"(\w+): one process ([0-9.]+)", answer.stdout)}
    reached = re.findall(r"(\w+): (\d) ranks ([0-9.]+)", answer.stdout)
    assert [(name, ranks) for name, ranks, _ in reached] == [
        (case.partition(":")[0], ranks) for case in cases for ranks in case.partition(":")[2].split(",")
    ]
    for name, ranks, score in reached:
        assert float(score) == pytest.approx(alone[name], abs=NOISE[name]), (name, ranks)
        assert float(score) > GOOD[name], (name, ranks)
