"""Generated speech: sounds of letters differ, and the edits between sequences are counted."""

from __future__ import annotations

import numpy

from benchmarks.tpcx_ai import sounds


def test_letters_have_different_coefficients() -> None:
    frames = sounds.coefficients(sounds.spoken("ab a", numpy.random.default_rng(1)))
    assert frames.dtype == numpy.float32 and frames.shape[1] == sounds.COEFFICIENTS
    assert 12 < len(frames) < 25  # four letters of 60 to 90 ms, and 80 ms of silence
    assert numpy.allclose(frames.mean(0), 0, atol=1e-3)
    middle = {
        letter: sounds.coefficients(sounds.spoken(letter * 3, numpy.random.default_rng(3)))[6]
        for letter in sounds.ALPHABET.strip()
    }
    apart = [abs(middle[a] - middle[b]).max() for a in middle for b in middle if a < b]
    assert min(apart) > 0.3


def test_edits_between_sequences() -> None:
    assert sounds.edits("kitten", "sitting") == sounds.edits("sitting", "kitten") == 3
    assert sounds.edits([], ["a", "b"]) == 2 and sounds.edits(["a"], []) == 1 and sounds.edits("same", "same") == 0
    assert sounds.edits(["my", "order", "is"], ["my", "is"]) == 1
