"""Use case 2: transcripts are scored by words, and a small training lowers the error."""

from __future__ import annotations

import pytest

pytest.importorskip("keras")

from benchmarks.tpcx_ai.__main__ import run
from benchmarks.tpcx_ai.speech import Speech


def test_the_share_of_wrong_words() -> None:
    score = Speech().score
    assert score([("my order is late", "my order is late")]) == 0
    assert score([("my order is late", "my odder late"), ("thank you", "thank you")]) == pytest.approx(2 / 6)
    assert Speech().reaches(0.1) and not Speech().reaches(0.5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_training_transcribes() -> None:
    pytest.importorskip("tensorflow")
    result = run(2, 2, rows=400, epochs=14)
    assert (result.case, result.ranks, result.held_out) == (2, 2, 100)
    assert list(result.seconds) == ["load", "preprocessing", "training", "serving"]
    assert result.quality < 0.9
