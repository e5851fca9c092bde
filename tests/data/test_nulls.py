"""What is done about nulls, for all columns or by column."""

from __future__ import annotations

from spark_estimator.data.nulls import Nulls, drops_rows, get_policy


def test_policies() -> None:
    by_column: Nulls = {"a": 0.5, "b": "drop"}
    assert [get_policy(by_column, name) for name in "abc"] == [0.5, "drop", "error"]
    assert [get_policy("drop", name) for name in "ab"] == ["drop", "drop"]
    assert [drops_rows(nulls) for nulls in (by_column, {"a": 0.5}, {}, "drop", "error", 3.0)] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
