"""What is done about nulls: one policy for all columns, or one for each of some columns."""

from __future__ import annotations

from collections.abc import Mapping

#: "error" leaves them, "drop" drops their rows, and a number replaces them.
NullPolicy = str | float
#: By the column's name; the policy of other columns is "error".
Nulls = NullPolicy | Mapping[str, NullPolicy]


def policy_of(nulls: Nulls, column: str) -> NullPolicy:
    """The policy of a column."""
    return nulls.get(column, "error") if isinstance(nulls, Mapping) else nulls


def drops_rows(nulls: Nulls) -> bool:
    """Whether a null drops a row in some column."""
    return "drop" in (nulls.values() if isinstance(nulls, Mapping) else (nulls,))
