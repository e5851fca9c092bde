"""What is done about nulls: one policy for all columns, or one for each of some columns."""

from __future__ import annotations

from collections.abc import Mapping

#: "error" leaves them, "drop" drops their rows, and a number replaces them; both treat NaN as null. One of `STATISTICS`
#: becomes a number, that of the rows to train on, before the training.
NullPolicy = str | float
#: By the column's name; the policy of other columns is "error".
Nulls = NullPolicy | Mapping[str, NullPolicy]
STATISTICS = ("mean", "median")


def get_policy(nulls: Nulls, column: str) -> NullPolicy:
    """Return the policy of a column."""
    return nulls.get(column, "error") if isinstance(nulls, Mapping) else nulls


def drops_rows(nulls: Nulls) -> bool:
    """Return whether a null drops a row in some column."""
    return "drop" in _get_policies(nulls)


def has_statistics(nulls: Nulls) -> bool:
    """Return whether a statistic replaces nulls in some column."""
    return not _get_policies(nulls).isdisjoint(STATISTICS)


def set_numbers(nulls: Nulls, numbers: Mapping[str, float]) -> Nulls:
    """Return the policies with numbers for statistics; one for all columns is for those with a number."""
    if isinstance(nulls, Mapping):
        return {**nulls, **numbers}
    return dict(numbers) if nulls in STATISTICS else nulls


def _get_policies(nulls: Nulls) -> set[NullPolicy]:
    return set(nulls.values()) if isinstance(nulls, Mapping) else {nulls}
