"""How Spark's expressions name a column whose name has dots, blanks or backticks."""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name of one column, or of one field, for ``functions.col`` and for schemas."""
    return f"`{name.replace('`', '``')}`"
