"""The example of JAX: two ranks compute what one does."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("jax")
pytest.importorskip("sklearn")

from tests.examples.running import run


@pytest.mark.timeout(240)
def test_two_ranks_compute_what_one_does() -> None:
    alone, together = ([float(loss) for loss in re.findall(r"loss ([\d.]+)", run(n, "jax_digits"))] for n in (1, 2))
    assert len(alone) == 5 and alone[-1] < 0.5
    assert together == pytest.approx(alone, rel=1e-4)
