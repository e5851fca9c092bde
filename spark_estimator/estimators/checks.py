"""Checks of estimators' parameters: each takes a name and a value, and returns the value to store.

It raises TypeError or ValueError, with a sentence that has the value.
"""

from __future__ import annotations

import math
import numbers
import os
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, TypeGuard

import numpy

from spark_estimator.data.categories import LONGEST_TEXT, MOST_HASHED_IDS, MOST_IDS
from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.nulls import STATISTICS
from spark_estimator.errors import DataError, PreflightError
from spark_estimator.launch.spark.slots import is_stopped
from spark_estimator.log import get_logger
from spark_estimator.store import Store

_log = get_logger(__name__)
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = 100


def describe_value(value: Any, arguments: str = "...") -> str:
    """Return a value as a message shows it: on one line and short; for a class, the hint to pass an instance.

    Args:
        arguments: of the class's constructor, for the hint.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}; pass an instance: {value.__name__}({arguments})"
    return " ".join(_REPR.repr(value).split())


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number of Python's or NumPy's, and neither true nor false."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _to_items(name: str, value: Any, kind: str) -> list[Any]:
    """Return the items of a list, or of what can be read as one.

    Raises:
        TypeError: it can't, or is a string; the text has `kind`, what it should be.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {kind}; got {describe_value(value)}.")
    return list(value)


def accept(name: str, value: Any) -> Any:
    """Return the value as it is."""
    return value


def check_int(least: int) -> Callable[[str, Any], int | None]:
    """Return a check for a whole number, at least `least`; or None."""

    def check(name: str, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be an integer; got {describe_value(value)} ({type(value).__name__}).")
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}.")
        return int(value)

    return check


def check_bool(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, (bool, int, numpy.bool_)) or value not in (0, 1):
        raise TypeError(f"{name} must be True or False; got {describe_value(value)}.")
    return bool(value)


def check_str(name: str, value: Any) -> str | None:
    """Return text, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string; got {describe_value(value)} ({type(value).__name__}).")
    return value


def check_names(name: str, value: Any) -> list[str] | None:
    """Return a list of names, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of column names; got the string {value!r}. Use [{value!r}].")
    result = _to_items(name, value, "a list of column names")
    for item in result:
        if not isinstance(item, str):
            raise TypeError(f"{name} must be a list of column names; it contains {item!r}.")
    if len(set(result)) < len(result):
        twice = next(entry for entry in result if result.count(entry) > 1)
        raise ValueError(f"{name} contains {twice!r} twice.")
    return result


def check_weights(name: str, value: Any) -> list[float] | None:
    """Return a list of numbers, or None."""
    if value is None:
        return None
    items = _to_items(name, value, "a list of numbers")
    if not all(_is_number(item) for item in items):
        raise TypeError(f"{name} must be a list of numbers; got {describe_value(value)}.")
    return [float(item) for item in items]


def check_shapes(name: str, value: Any) -> list[list[int]] | None:
    """Return a list of shapes, the first extent of each being -1: the rows of the batch; or None.

    A shape without -1 is taken as that of a row, with a warning: Horovod reshapes a batch to it, of one row.
    """
    if value is None:
        return None
    kind = "a list of shapes that start with -1 (the batch), for example [[-1, 20]]"
    result = []
    for shape in _to_items(name, value, kind):
        extents = _to_items(name, shape, kind)
        if not all(isinstance(extent, numbers.Integral) for extent in extents):
            raise TypeError(f"{name} must be {kind}; it contains {shape!r}.")
        extents = [int(extent) for extent in extents]
        if extents and min(extents) >= 1:
            _log.warning("%s: %s is taken as %s, the shape of a batch of any size.", name, extents, [-1, *extents])
            extents = [-1, *extents]
        if extents[:1] != [-1] or any(extent < 1 for extent in extents[1:]):
            raise ValueError(f"{name} must be {kind}; it contains {shape!r}.")
        result.append(extents)
    return result


def check_share_or_column(name: str, value: Any) -> float | str | None:
    """Return a share of the rows in [0, 1), or the name of a column that marks them."""
    if value is None or isinstance(value, str):
        return value
    if not _is_number(value):
        raise ValueError(f"{name} must be a fraction of the rows or a column name; got {describe_value(value)}.")
    if not 0 <= value < 1:
        raise ValueError(
            f"{name} must be at least 0 and less than 1, as a fraction of the rows; got {describe_value(value)}."
        )
    return float(value)


def check_null_policy(name: str, value: Any) -> str | float:
    """Return 'error', 'drop', 'mean', 'median', or a number."""
    if value in ("error", "drop", *STATISTICS):
        return str(value)
    if _is_number(value):
        return float(value)
    raise ValueError(
        f"{name} must be 'error', 'drop' or a number that replaces nulls, 'mean' or 'median'; got "
        f"{describe_value(value)}."
    )


def check_null_policies(name: str, value: Any) -> str | float | dict[str, str | float]:
    """Return a policy for nulls, or a dict with one for each of some columns."""
    if not isinstance(value, Mapping):
        return check_null_policy(name, value)
    if not all(isinstance(column, str) for column in value):
        raise TypeError(f"{name} must have the names of columns as its keys; got {describe_value(value)}.")
    return {column: check_null_policy(f"{name}[{column!r}]", policy) for column, policy in value.items()}


def check_paddings(name: str, value: Any) -> float | dict[str, float] | None:
    """Return a number, or one for each of some columns; or None."""
    if value is None:
        return None
    by_column = value if isinstance(value, dict) else {"": value}
    for column, item in by_column.items():
        if not isinstance(column, str) or not _is_number(item):
            raise TypeError(
                f"{name} must be a number that pads shorter arrays, or a dict with one per column; got "
                f"{describe_value(value)}."
            )
    return {column: float(entry) for column, entry in by_column.items()} if isinstance(value, dict) else float(value)


def check_numbers_by_column(name: str, value: Any) -> dict[str, float] | None:
    """Return a dict from columns to numbers, or None."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and _is_number(value[key]) for key in value):
        raise TypeError(f"{name} must be a dict from columns to numbers; got {describe_value(value)}.")
    return {key: float(number) for key, number in value.items()} or None


def check_function(name: str, value: Any) -> Any:
    """Check that a value is callable, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function; got {describe_value(value)}.")
    return value


def check_functions(name: str, value: Any) -> dict[str, Any] | None:
    """Return a dict with a function for each of some columns; or None."""
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(item, str) and callable(of) for item, of in value.items()):
        raise TypeError(f"{name} must be a dict from columns to functions; got {describe_value(value)}.")
    return dict(value) or None


def check_categories(name: str, value: Any) -> dict[str, Any] | None:
    """Return a dict from columns to a number of ids, a list of values, ``{"hash": number of ids}``, or one of the
    other columns; or None.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(column, str) for column in value):
        raise TypeError(f"{name} must be a dict from columns to categories; got {describe_value(value)}.")
    result = {column: _check_entry(f"{name}[{column!r}]", entry) for column, entry in value.items()}
    for column, entry in result.items():
        if isinstance(entry, str) and isinstance(result.get(entry, entry), str):
            others = [other for other, of_other in result.items() if not isinstance(of_other, str)]
            hint = did_you_mean(entry, others) if entry not in result else ""
            raise ValueError(
                f"{name}[{column!r}] is {entry!r}, which has no vocabulary of its own: it must be one of those columns "
                f"that have a number of ids, a list of values, or a hash: {describe_value(others)}.{hint}"
            )
    return result or None


def check_known_categories(name: str, value: Any) -> dict[str, Any] | None:
    """Return what `check_categories` does, for a trained model, whose vocabularies have been counted."""
    result = check_categories(name, value)
    for column, entry in (result or {}).items():
        if isinstance(entry, int):
            raise TypeError(f"{name}[{column!r}] of a model must be a list of values, or a hash; got {entry}.")
    return result


def _check_entry(name: str, entry: Any) -> Any:
    """Return an entry of `check_categories`, as JSON can hold it."""
    if isinstance(entry, Mapping) and list(entry) == ["hash"]:
        return {"hash": _check_id_count(f"{name}['hash']", entry["hash"], MOST_HASHED_IDS)}
    if isinstance(entry, numbers.Number):
        return _check_id_count(name, entry, MOST_IDS)
    if isinstance(entry, str):
        return str(entry)
    kind = "the number of ids, a list of values, {'hash': the number of ids}, or the column whose ids it shares"
    if isinstance(entry, (Mapping, Set)):  # a set has no order, and the order makes the ids
        raise TypeError(f"{name} must be {kind}; got {describe_value(entry)}.")
    values = _to_items(name, entry, kind)
    if all(isinstance(value, str) for value in values):
        values = [str(value) for value in values]
    elif all(isinstance(value, (numbers.Integral, numpy.bool_)) for value in values):
        values = [int(value) for value in values]
    else:
        raise TypeError(
            f"{name} must be a list of strings, or of integers; got {describe_value(values)}. Null has id 0."
        )
    if not values:
        raise ValueError(f"{name} is an empty list: list at least one value.")
    if len(values) >= MOST_IDS:
        raise ValueError(f"{name} has {len(values)} values; at most {MOST_IDS - 1} are possible. Use {{'hash': ids}}.")
    if len(set(values)) < len(values):
        twice = next(value for value, count in Counter(values).items() if count > 1)
        raise ValueError(f"{name} contains {twice!r} twice.")
    bad = next((value for value in values if _is_no_category(value)), None)
    if bad is not None:
        limit = f"{LONGEST_TEXT} characters" if isinstance(bad, str) else "64 bits"
        raise ValueError(f"{name} contains {describe_value(bad)}, which has more than {limit}.")
    return values


def _is_no_category(value: str | int) -> bool:
    return len(value) > LONGEST_TEXT if isinstance(value, str) else not -(1 << 63) <= value < 1 << 63


def _check_id_count(name: str, value: Any, most: int) -> int:
    """Return a number of ids."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, the number of ids; got {describe_value(value)}.")
    count = int(value)
    if not 2 <= count <= most:
        raise ValueError(f"{name} must be a number of ids from 2 to {most}; got {count}.")
    return count


def check_edited_fields(name: str, value: Any) -> list[list[Any]] | None:
    """Return Horovod's tuples (name, numpy type, shape, whether null is allowed), as JSON can hold them; or None."""
    if value is None:
        return None
    kind = "a list of (name, numpy type, shape, nullable)"
    result = []
    for item in _to_items(name, value, kind):
        try:  # petastorm's own have a codec before their last part
            field, dtype, shape, nullable = (*tuple(item)[:3], tuple(item)[-1])
            extents = [None if extent is None else int(extent) for extent in shape or ()]
            numpy_type = numpy.dtype(dtype)
            spelled = numpy_type.name if numpy_type.kind in "biuf" else numpy_type.str
            result.append([str(field), spelled, extents, bool(nullable)])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be {kind}; it contains {item!r}.") from error
    return result


def check_positive(name: str, value: Any) -> float | None:
    """Return a number above 0, or None."""
    if value is None:
        return None
    if not _is_number(value):
        raise TypeError(f"{name} must be a number; got {describe_value(value)} ({type(value).__name__}).")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be greater than 0; got {describe_value(value)}.")
    return float(value)


def check_not_negative(name: str, value: Any, below: float = math.inf) -> float:
    """Return a number that is 0 or more; None is 0."""
    limit = "0 or more" if below == math.inf else f"0 or more, less than {below}"
    text = f"{name} must be a number, {limit}; got {describe_value(value)}."
    if value is not None and not _is_number(value):
        raise TypeError(text)
    if not 0 <= (value or 0.0) < below:
        raise ValueError(text)
    return float(value or 0.0)


#: Parameters of which at most one is not 0.
_ALTERNATIVES = (("gradient_clip_norm", "gradient_clip_value"), ("warmup_steps", "warmup_ratio"))


def check_alternatives(value: Callable[[str], Any]) -> None:
    """Raise ValueError for two parameters that exclude each other.

    Args:
        value: returns a parameter by its name; None: there is none.
    """
    for name, other in _ALTERNATIVES:
        if value(name) and value(other):
            raise ValueError(f"{name}={value(name)} and {other}={value(other)} exclude each other: set one to 0.")


def check_autocast_type(name: str, value: Any) -> str | None:
    """Return 'bf16', 'fp16', or None."""
    if value not in (None, "bf16", "fp16"):
        raise ValueError(f"{name} must be 'bf16', 'fp16' or None; got {describe_value(value)}.")
    return None if value is None else str(value)


def check_one_of(*known: str) -> Callable[[str, Any], str]:
    """Return a check for one of some words."""

    def check(name: str, value: Any) -> str:
        if value not in known:
            raise ValueError(f"{name} must be one of {known}; got {describe_value(value)}.")
        return str(value)

    return check


def check_list(name: str, value: Any) -> list[Any]:
    """Return a list; a value that is no list becomes a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check_dict(name: str, value: Any) -> dict[str, Any]:
    """Return a dict with something for each of some names."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} must be a dict with string keys; got {describe_value(value)}.")
    return dict(value)


def get_frame(method: str, dataset: Any, df: Any) -> Any:
    """Return the DataFrame of a method that takes it as `dataset`, Spark's name, or as `df`, Horovod's.

    Raises:
        TypeError: there is none, or one under each name.
    """
    if dataset is not None and df is not None:
        raise TypeError(f"{method} takes one DataFrame, as dataset or as df; got both.")
    frame = df if dataset is None else dataset
    if frame is None:
        check_frame(method, frame)
    return frame


def check_frame(method: str, frame: Any) -> None:
    """Raise for a value that is not a Spark DataFrame, or a DataFrame whose session has ended.

    Raises:
        TypeError: it is not a DataFrame; the message explains how to convert pandas and NumPy data.
        PreflightError: its session has been stopped.
    """
    # Look `schema` up on the class: on the object it may query a session that has ended.
    if not all(hasattr(type(frame), name) for name in ("sparkSession", "schema", "selectExpr")):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}"
        text = repr(frame)
        shown = kind if len(text) > 100 or "\n" in text else f"{text} ({kind})"  # a pandas DataFrame prints as a table
        raise TypeError(
            f"{method} takes a Spark DataFrame. Convert pandas and NumPy data with spark.createDataFrame(...); got "
            f"{shown}."
        )
    if is_stopped(frame.sparkSession):
        raise PreflightError(
            f"{method}: the DataFrame's Spark session has been stopped. Create the DataFrame in a new session."
        )


def check_batch_frame(method: str, frame: Any) -> None:
    """Raise as `check_frame` does; a streaming DataFrame is a DataError, too."""
    check_frame(method, frame)
    if frame.isStreaming:
        raise DataError(
            f"{method} doesn't support streaming DataFrames, which have no last row. Call it in foreachBatch or on a "
            "table."
        )


def check_store(name: str, value: Any) -> Any:
    """Return a store, or None; of a path, the store there."""
    if value is None or isinstance(value, Store):
        return value
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(
            f"{name} must be a Store or its path, for example Store.create('/path'); got {describe_value(value)}."
        )
    return Store.create(os.fspath(value))


def check_backend(name: str, value: Any) -> Any:
    """Check that a value is a backend, or None."""
    if value is not None and not all(callable(getattr(value, method, None)) for method in ("run", "num_processes")):
        raise TypeError(
            f"{name} must be a SparkBackend, or another Backend with run() and num_processes(); got "
            f"{describe_value(value)}."
        )
    return value


def refuse_data_module(name: str, value: Any) -> None:
    """Refuse a data module, which Horovod's estimators take."""
    if value is not None:
        raise ValueError(
            f"{name} is not supported, got {describe_value(value)}: the estimator's ranks read the DataFrame's rows "
            "themselves. For a loop or loaders of your own, train in a function, HorovodRunner(np=2).run(train, "
            "data=df), where data.loader(batch_size) makes batches of the rank's rows."
        )


def check_labels(value: Callable[[str], Any]) -> list[str]:
    """Return the label columns, and check the parameters of all frameworks that have to fit them.

    Args:
        value: gives a parameter by its name.

    Raises:
        TypeError, ValueError: there is none, or another parameter does not fit.
    """
    labels: list[str] = value("label_cols")
    if not labels:
        raise ValueError("label_cols is required: the columns to predict, one per model output.")
    shapes = value("label_shapes")
    if shapes is not None and len(shapes) != len(labels):
        raise ValueError(f"label_shapes has {len(shapes)} shapes for {len(labels)} label columns; give one per column.")
    store = value("store")
    if store is not None and value("run_id"):
        store.get_run_path(value("run_id"))  # which refuses a name that is not a single folder
    monitor = value("monitor")
    if monitor and value("mode") == "auto" and not monitor.endswith("loss"):
        raise ValueError(f"monitor={monitor!r} needs mode='max' or mode='min': which of its values is better.")
    if not monitor and value("mode") != "auto":
        raise ValueError(
            f"mode={value('mode')!r} needs monitor: without it, the loss is watched, whose lowest is best."
        )
    for name in ("checkpoint_every_steps", "checkpoint_every_seconds"):
        if store is None and value(name) is not None:
            raise ValueError(f"{name} needs a store, for example store=Store.create('/path').")
    return labels
