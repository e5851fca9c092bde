"""What the parameters of estimators may be: each check takes a name and a value, and returns the value as it is kept.

It raises TypeError or ValueError, with a sentence that has the value.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy

from spark_estimator.errors import PreflightError
from spark_estimator.store import Store


def _is_number(value: Any) -> TypeGuard[float]:
    """A number of Python's or NumPy's, and neither true nor false."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def anything(name: str, value: Any) -> Any:
    """Takes it as it is."""
    return value


def whole(least: int) -> Callable[[str, Any], int | None]:
    """A whole number, at least `least`; or None."""

    def check(name: str, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} is a whole number; it was {value!r} of type {type(value).__name__}.")
        if value < least:
            raise ValueError(f"{name} is at least {least}; it was {value}.")
        return int(value)

    return check


def truth(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, int, numpy.bool_)) or value not in (0, 1):
        raise TypeError(f"{name} is True or False; it was {value!r}.")
    return bool(value)


def text(name: str, value: Any) -> str | None:
    """Text, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is text; it was {value!r} of type {type(value).__name__}.")
    return value


def names(name: str, value: Any) -> list[str] | None:
    """A list of names, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError(f"{name} is a list of column names; it was the single text {value!r}: say [{value!r}].")
    found = list(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name} is a list of column names; it holds {one!r}.")
    if len(set(found)) < len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise ValueError(f"{name} names {twice!r} twice.")
    return found


def weights(name: str, value: Any) -> list[float] | None:
    """A list of numbers, or None."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not all(_is_number(one) for one in value):
        raise TypeError(f"{name} is a list of numbers; it was {value!r}.")
    return [float(one) for one in value]


def shapes(name: str, value: Any) -> list[list[int]] | None:
    """A list of shapes, the first extent of each being -1: the rows of the batch; or None."""
    if value is None:
        return None
    found = []
    for shape in value:
        extents = [int(extent) for extent in shape]
        if extents[:1] != [-1] or any(extent < 1 for extent in extents[1:]):
            raise ValueError(
                f"{name} is a list of shapes that begin with -1 (the rows of a batch), for example [[-1, 20]]; "
                f"it holds {shape!r}."
            )
        found.append(extents)
    return found


def share_or_column(name: str, value: Any) -> float | str | None:
    """A share of the rows in [0, 1), or the name of a column that marks them."""
    if value is None or isinstance(value, str):
        return value
    if not _is_number(value):
        raise ValueError(f"{name} is a share of the rows, or a column's name; it was {value!r}.")
    if not 0 <= value < 1:
        raise ValueError(f"{name} as a share of the rows is at least 0 and less than 1; it was {value!r}.")
    return float(value)


def null_policy(name: str, value: Any) -> str | float:
    """'error', 'drop', or a number."""
    if value in ("error", "drop"):
        return str(value)
    if _is_number(value):
        return float(value)
    raise ValueError(f"{name} is 'error', 'drop', or a number that takes the place of nulls; it was {value!r}.")


def paddings(name: str, value: Any) -> float | dict[str, float] | None:
    """A number, or one for each of some columns; or None."""
    if value is None:
        return None
    given = value if isinstance(value, dict) else {"": value}
    for column, one in given.items():
        if not isinstance(column, str) or not _is_number(one):
            raise TypeError(
                f"{name} is a number that fills shorter arrays up, or a dict with one for each of some columns; it was "
                f"{value!r}."
            )
    return {column: float(one) for column, one in given.items()} if isinstance(value, dict) else float(value)


def function(name: str, value: Any) -> Any:
    """What can be called, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is a function; it was {value!r}.")
    return value


def functions(name: str, value: Any) -> dict[str, Any] | None:
    """A dict with a function for each of some columns; or None."""
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(one, str) and callable(of) for one, of in value.items()):
        raise TypeError(f"{name} is a dict with a function for each of some columns; it was {value!r}.")
    return dict(value) or None


def edited_fields(name: str, value: Any) -> list[list[Any]] | None:
    """Horovod's tuples (name, numpy type, shape, whether null is allowed), as JSON can hold them; or None."""
    if value is None:
        return None
    found = []
    for one in value:
        try:  # petastorm's own have a codec before their last part
            field, dtype, shape, nullable = (*tuple(one)[:3], tuple(one)[-1])
            extents = [None if extent is None else int(extent) for extent in shape or ()]
            kind = numpy.dtype(dtype)
            found.append([str(field), kind.name if kind.kind in "biuf" else kind.str, extents, bool(nullable)])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} is a list of (name, numpy type, shape, whether null is allowed); it holds {one!r}."
            ) from error
    return found


def positive(name: str, value: Any) -> float | None:
    """A number above 0, or None."""
    if value is None:
        return None
    if not _is_number(value):
        raise TypeError(f"{name} is a number; it was {value!r} of type {type(value).__name__}.")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is more than 0; it was {value!r}.")
    return float(value)


def precision(name: str, value: Any) -> str | None:
    """'bf16', or None."""
    if value not in (None, "bf16"):
        raise ValueError(f"{name} is 'bf16' or None (float16 would need its losses scaled); it was {value!r}.")
    return None if value is None else "bf16"


def one_of(*known: str) -> Callable[[str, Any], str]:
    """One of some words."""

    def check(name: str, value: Any) -> str:
        if value not in known:
            raise ValueError(f"{name} is one of {known}; it was {value!r}.")
        return str(value)

    return check


def listed(name: str, value: Any) -> list[Any]:
    """A list; what is no list becomes one of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def objects(name: str, value: Any) -> dict[str, Any]:
    """A dict with something for each of some names."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{name} is a dict by names; it was {value!r}.")
    return dict(value)


def spark_frame(what: str, frame: Any) -> None:
    """Refuses what is no DataFrame of Spark's, or one whose session has ended.

    Raises:
        TypeError: it is something else; the text says what to do with pandas and NumPy.
        PreflightError: its session has been stopped.
    """
    # Of the class: to have a schema may ask a session that is gone.
    if not all(hasattr(type(frame), name) for name in ("sparkSession", "schema", "selectExpr")):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}"
        raise TypeError(
            f"{what} takes a DataFrame of Spark's, as spark.createDataFrame(...) makes one of pandas' or NumPy's; it "
            f"was {frame!r:.100} of type {kind}."
        )
    session = frame.sparkSession
    context = getattr(session, "_sc", None)
    if getattr(session, "is_stopped", False) or (context is not None and getattr(context, "_jsc", None) is None):
        raise PreflightError(f"{what}: the DataFrame's Spark session has been stopped; make it with a new one.")


def stored(name: str, value: Any) -> Any:
    """A store; of a path, the store there."""
    return Store.create(value) if isinstance(value, str) else value


def labels_of(value: Callable[[str], Any]) -> list[str]:
    """The label columns, with what has to fit them: the parameters of all frameworks that depend on one another.

    Args:
        value: gives a parameter by its name.

    Raises:
        TypeError, ValueError: there is none, or another parameter does not fit.
    """
    labels: list[str] = value("label_cols")
    if not labels:
        raise ValueError("label_cols names the columns that the model shall predict, one for each output.")
    shapes = value("label_shapes")
    if shapes is not None and len(shapes) != len(labels):
        raise ValueError(f"label_shapes has {len(shapes)} shapes for {len(labels)} label columns.")
    store = value("store")
    if store is not None and not isinstance(store, Store):
        raise TypeError(f"store is a Store, for example Store.create('/path'); it was {store!r}.")
    if store is not None and value("run_id"):
        store.get_run_path(value("run_id"))  # which refuses what names no folder of its own
    if store is None and value("checkpoint_every_steps") is not None:
        raise ValueError("checkpoint_every_steps needs a store, for example store=Store.create('/path').")
    return labels
