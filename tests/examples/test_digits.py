"""The digits example, on one, two and four ranks."""

from __future__ import annotations

import re

import pytest

from tests.examples.running import run


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("size", "words"),
    [
        pytest.param(1, [], marks=pytest.mark.slow),
        (2, ["--fp16-allreduce"]),
        pytest.param(2, ["--use-adasum"], marks=pytest.mark.slow),
        pytest.param(
            4, ["--gradient-predivide-factor", "2", "--batch-size", "16", "--lr", "0.025"], marks=pytest.mark.slow
        ),
    ],
)
def test_digits(size: int, words: list[str]) -> None:
    reached = re.findall(r"accuracy on held-out images ([0-9.]+)", run(size, "digits", "--epochs", "6", *words))
    assert len(reached) == 6
    assert float(reached[-1]) > 0.9
