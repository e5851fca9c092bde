"""Calls of a user's function row by row: a dict in, a dict out, as petastorm calls a ``TransformSpec``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import pyarrow

from spark_estimator.data.decoding import describe_failure
from spark_estimator.data.fields import Array, is_list
from spark_estimator.data.numbers import get_kind, to_numbers
from spark_estimator.errors import DataError


def to_rows(columns: Mapping[str, pyarrow.Array | list[Array | None]]) -> list[dict[str, Any]]:
    """Return [rows] what the function receives: numpy's scalars and arrays, texts, bytes by column; None for null.

    Raises:
        DataError: see `check_whole`.
    """
    check_whole({name: each for name, each in columns.items() if isinstance(each, list) or is_list(each.type)})
    values = {name: _to_values(column) for name, column in columns.items()}
    count = len(next(iter(values.values()), []))
    return [{name: column[row] for name, column in values.items()} for row in range(count)]


def check_whole(columns: Mapping[str, pyarrow.Array | list[Array | None]]) -> None:
    """Refuse whole numbers that would be rounded because null is beside them: numpy and pandas have doubles then.

    Raises:
        DataError: there are such numbers.
    """
    for name, column in columns.items():
        values = column.flatten() if not isinstance(column, list) and is_list(column.type) else column
        if not isinstance(values, list) and values.null_count and pyarrow.types.is_integer(values.type):
            try:
                values.cast(pyarrow.float64())
            except pyarrow.ArrowInvalid as error:
                words = "whole numbers beyond 2**53, which transformation_fn would get rounded: fill or drop the nulls"
                raise DataError(f"column {name!r} holds null, and {words} before fit().") from error


def call_by_row(
    function: Callable[[Any], Any], rows: Sequence[dict[str, Any]], removed: Sequence[str], row: int
) -> dict[str, list[Any] | Array]:
    """Return [rows] of each name that the function returns: a list of arrays, or an array of numbers.

    Args:
        removed: names that are left out of what it returns.
        row: the number of the first row, for messages.

    Raises:
        DataError: it failed, or returned no dict, or other names than for the first row.
    """
    results: list[dict[str, Any]] = []
    for index, values in enumerate(rows):
        try:
            result = function(values)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end the thread that reads rows, without a report
            raise DataError(
                f"transformation_fn failed on row {row + index} of this rank's rows: {describe_failure(error)}"
            ) from error
        if not isinstance(result, Mapping):
            raise DataError(
                f"transformation_fn returned a dict for the first row, and {type(result).__name__} for row "
                f"{row + index} of this rank's rows."
            )
        returned = {str(name): _to_value(value) for name, value in result.items() if name not in removed}
        if results and returned.keys() != results[0].keys():
            raise DataError(
                f"transformation_fn returned {', '.join(map(repr, returned))} for row {row + index} of this rank's "
                f"rows, and {', '.join(map(repr, results[0]))} before: return the same names for all rows."
            )
        results.append(returned)
    names = results[0] if results else {}
    return {name: _join_values([result[name] for result in results]) for name in names}


def _to_values(column: pyarrow.Array | list[Array | None]) -> Sequence[Any]:
    if isinstance(column, list):
        return column
    kind = column.type
    if pyarrow.types.is_decimal(kind) or (pyarrow.types.is_struct(kind) and get_kind(kind) == "vector"):
        column = to_numbers(column)
    column = column.cast(pyarrow.date32()) if pyarrow.types.is_date64(kind) else column
    nested = pyarrow.types.is_nested(column.type)
    if column.null_count and not nested:  # the values have the same types as without null
        present = iter(column.drop_null().to_numpy(zero_copy_only=False))
        return [next(present) if valid else None for valid in column.is_valid().to_pylist()]
    array: Sequence[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _to_value(value: Any) -> Any:
    """Return a returned value without a framework: tensors as arrays, those of no extent as numpy's scalars; days as
    dates, of which pandas would make seconds.
    """
    if isinstance(value, numpy.datetime64) and numpy.datetime_data(value)[0] == "D":
        return value.item()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "__array__"):
        array = numpy.asarray(value)
        return array if array.ndim else array[()]
    return value


def _join_values(values: list[Any]) -> list[Any] | Array:
    known = [value for value in values if value is not None]
    if not known or not all(isinstance(value, (int, float, numpy.number, numpy.bool_)) for value in known):
        return values
    result = numpy.array(known)
    if len(known) == len(values):
        return result
    with_none = numpy.full(len(values), None)  # not as a list: pandas would round whole numbers
    with_none[[value is not None for value in values]] = result
    return with_none
