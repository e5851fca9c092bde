"""The line that announces the engine's last ops."""

from __future__ import annotations

import pytest

from spark_estimator.observe.last_ops import HEAD, parse_head


def test_the_number_of_lines_is_read_from_the_head() -> None:
    assert parse_head(HEAD % (20, 512)) == 20
    assert parse_head("[3] spark_estimator WARNING: " + HEAD % (1, 7)) == 1


@pytest.mark.parametrize("line", ["", "step 3 of 20", HEAD, HEAD % (20, 512) + " and more"])
def test_other_lines_announce_nothing(line: str) -> None:
    assert parse_head(line) == 0
