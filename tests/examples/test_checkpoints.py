"""The example of checkpoints: interrupted, and taken up by another number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from tests.examples.running import run


@pytest.mark.slow  # tests/extensions/checkpoint and tests/data cover its parts
def test_another_number_of_ranks_takes_it_up(tmp_path: Path) -> None:
    words = ("--folder", str(tmp_path), "--epochs", "1")
    first = run(2, "checkpoints", *words, "--most-steps", "30")
    assert "begins after step 0, in epoch 1" in first
    assert "the last checkpoint is of step 30" in first
    second = run(1, "checkpoints", *words)
    assert "begins after step 30, in epoch 1" in second
    # 2 * 30 batches of 127 or 128 of the 20,000 rows are done.
    assert "the last checkpoint is of step 127" in second
