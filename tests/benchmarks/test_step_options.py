"""The benchmark of the options of steps: it times two packages, and refuses those with other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.interleaved import BenchmarkError
from benchmarks.step_options import extract, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_another_commit_is_timed_and_its_numbers_are_compared(tmp_path: Path) -> None:
    extract("HEAD", tmp_path)
    assert min(measure(tmp_path, 20, 2)) > 0
    trainer = tmp_path / "spark_estimator" / "estimators" / "torch" / "trainer.py"
    line = "self.stepper.differentiate(loss.value * part.factor"
    assert line in trainer.read_text()
    trainer.write_text(trainer.read_text().replace(line, f"{line} * 2"))
    with pytest.raises(BenchmarkError, match="the weights differ after epoch 1"):
        measure(tmp_path, 20, 1)
