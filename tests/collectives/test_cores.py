"""Whether waiting may spin."""

from __future__ import annotations

import pytest

from spark_estimator.collectives.cores import available_cores, spin_microseconds


@pytest.mark.parametrize(
    ("local_size", "cores", "spins"), [(1, 1, False), (1, 2, True), (2, 2, False), (4, 8, True), (4, 7, False)]
)
def test_spinning_needs_two_cores_a_rank(local_size: int, cores: int, spins: bool) -> None:
    assert (spin_microseconds(local_size, cores) > 0) is spins


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1
