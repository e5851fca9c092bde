"""Reads the rows of texts that `TransformersModel.predict` and MLflow's models are given. One text is one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow

from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.features import find_columns, get_column

_KINDS = {
    "classification": "texts",
    "causal": "texts, or chats (lists of dicts with role and content)",
    "token_classification": "lists of words",
}


def to_rows(features: Any, column: str, task: str) -> list[Any]:
    """Return [rows] texts, lists of words, or chats; None for null, and for what pandas has in its place.

    Args:
        features: one text or chat, a list or a column of rows, or a table with the column of texts.
        column: its name.

    Raises:
        TypeError: it is nothing that a model for this task predicts from; the text has what it does.
        DataError: the column is missing.
    """
    table = find_columns(features)
    values = _to_plain(features if table is None else get_column(table, column))
    if isinstance(values, str) or _is_chat(values, task):
        values = [values]
    if isinstance(values, (bytes, bytearray, Mapping)) or not hasattr(values, "__iter__"):
        raise _make_error(values, task)
    rows = [None if _is_null(row) else row for row in map(_to_plain, values)]
    kinds = {str if isinstance(row, str) else list for row in rows if row is not None}
    wrong = next((row for row in rows if row is not None and not _is_row(row, task)), None)
    if wrong is not None:
        raise _make_error(wrong, task)
    if len(kinds) > 1:
        raise DataError("predict() was given texts and chats together: predict from each of them apart.")
    return rows


def _to_plain(value: Any) -> Any:
    """Return Python's lists, texts and numbers for those of numpy, pandas and Arrow."""
    if isinstance(value, (pyarrow.Array, pyarrow.ChunkedArray)):
        return value.to_pylist()
    return value.tolist() if hasattr(value, "tolist") else value


def _is_null(value: Any) -> bool:
    import pandas

    return not hasattr(value, "__iter__") and bool(pandas.isna(value))


def _is_row(value: Any, task: str) -> bool:
    if isinstance(value, str):
        return task != "token_classification"
    if task == "token_classification":
        return isinstance(value, (list, tuple)) and all(word is None or isinstance(word, str) for word in value)
    return _is_chat(value, task) or (task == "causal" and isinstance(value, (list, tuple)) and not len(value))


def _is_chat(value: Any, task: str) -> bool:
    is_list = isinstance(value, (list, tuple)) and task == "causal"
    return is_list and any(map(_is_message, value)) and all(item is None or _is_message(item) for item in value)


def _is_message(value: Any) -> bool:
    fields = value if isinstance(value, Mapping) else getattr(value, "__fields__", ())  # those of a Row of Spark
    return "role" in fields and "content" in fields


def _make_error(value: Any, task: str) -> TypeError:
    kinds = _KINDS[task]
    return TypeError(
        f"predict() was given {value!r:.60}. A model of task={task!r} predicts from {kinds}: give it a list of them, a "
        "pandas.Series, or a table with the column of texts."
    )
