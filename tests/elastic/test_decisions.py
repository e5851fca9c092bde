"""The limits of an elastic job that a user may ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.elastic.decisions import Terms


def test_by_default_a_job_does_not_grow() -> None:
    terms = Terms(4, 2)
    assert (terms.most, terms.replace, terms.reset_limit, terms.timeout) == (4, False, None, timedelta(minutes=10))
    assert Terms(4, 2, max_size=8).most == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 1, "min_size": 1},
        {"size": 3, "min_size": 3, "max_size": 3},
        {"size": 3, "min_size": 1, "reset_limit": 0},
        {"size": 3, "min_size": 1, "timeout": timedelta(milliseconds=1)},
    ],
)
def test_limits_include_their_bounds(fields: dict[str, Any]) -> None:
    Terms(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"min_size": 0}, "min_size=0 must be from 1 to size=4"),
        ({"min_size": 5}, "min_size=5 must be from 1 to size=4"),
        ({"max_size": 3}, "max_size=3 must be at least size=4"),
        ({"reset_limit": -1}, "reset_limit=-1 must be at least 0"),
        ({"timeout": timedelta(0)}, "timeout=0:00:00 must be more than 0"),
    ],
)
def test_other_limits_are_refused_with_their_value(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Terms(**{"size": 4, "min_size": 2, **fields})
