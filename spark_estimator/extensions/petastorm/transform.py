"""`TransformSpec`: a user's function on rows while they are read, and the schema of what it returns; as petastorm's.

A reader of batches gives the function a pandas.DataFrame of many rows and takes one with as many rows as it likes. A
reader of rows (`make_reader`) gives it a dict for each row. It is called again in each epoch, in a thread.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy
import pyarrow

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.decoding import describe_failure
from spark_estimator.data.fields import Array, is_list
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.pages import (
    Page,
    is_fixed_width,
    make_array,
    make_column,
    make_object_array,
    make_page,
)
from spark_estimator.extensions.petastorm.unischema import Unischema, UnischemaField


class TransformSpec:
    """A user's function on rows while they are read.

    Args:
        func: takes and returns a pandas.DataFrame; in `make_reader` a dict. None: columns are removed only.
        edit_fields: columns that it changes or adds: (name, numpy type, shape of a row's value, whether it is
            nullable), or `UnischemaField` objects.
        removed_fields: columns that are removed.
        selected_fields: the columns that remain, in this order. Not together with `removed_fields`.

    Raises:
        ValueError: both are set, or `edit_fields` has an invalid entry.
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[Any] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields is not None and selected_fields is not None:
            raise ValueError("TransformSpec takes removed_fields or selected_fields, not both.")
        if func is not None and not callable(func):
            raise ValueError(f"TransformSpec's func must be a function; got {func!r}.")
        self.func = func
        self.edit_fields = list(edit_fields or [])
        self.removed_fields = list(removed_fields or [])
        self.selected_fields = None if selected_fields is None else list(selected_fields)
        for entry in self.edit_fields:
            _to_field(entry)


def edit_field(
    name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False
) -> tuple[str, Any, tuple[int | None, ...], bool]:
    """Return an entry of `TransformSpec`'s `edit_fields`."""
    return name, numpy_dtype, shape, nullable


def _to_field(entry: Any) -> UnischemaField:
    if isinstance(entry, UnischemaField):
        return entry
    try:
        name, dtype, shape, nullable = entry
        return UnischemaField(str(name), dtype, tuple(shape), None, bool(nullable))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"edit_fields has entries (name, numpy type, shape, nullable), such as ('x', numpy.float32, (3,), False); "
            f"it has {entry!r}."
        ) from error


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """Return the schema of transformed rows: edited columns are last, and selected ones in their order.

    A name that is removed or selected, and is no column, is ignored with a warning.
    """
    unknown = [name for name in transform_spec.removed_fields if name not in schema.fields]
    edited = [_to_field(entry) for entry in transform_spec.edit_fields]
    gone = {*transform_spec.removed_fields, *(field.name for field in edited)}
    fields = {field.name: field for field in [*(f for f in schema.fields.values() if f.name not in gone), *edited]}
    selected = transform_spec.selected_fields
    if selected is not None:
        unknown += [name for name in selected if name not in fields]
        fields = {name: fields[name] for name in selected if name in fields}
    for name in unknown:
        warnings.warn(
            f"TransformSpec names {name!r}, which is no column, and is ignored." + did_you_mean(name, schema.fields),
            stacklevel=2,
        )
    return Unischema(f"{schema._name}_transformed", fields.values())


@dataclass(frozen=True)
class Transformer:
    """Calls the function of `spec`, which returns rows of `schema`, and takes dicts if `by_row`."""

    spec: TransformSpec
    schema: Unischema
    by_row: bool = False

    def transform_table(self, table: pyarrow.Table, shapes: Mapping[str, tuple[int | None, ...]], place: str) -> Page:
        """Transform rows as they were read.

        Args:
            shapes: of a row's value, by column.
            place: of the rows, for messages.

        Raises:
            DataError: it failed, or its result has other columns or shapes than were declared.
        """
        if self.by_row:
            return self._transform_by_row(make_page(table, shapes, by_row=True), place)
        arrays: dict[str, Any] = {}
        matrices: Page = {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            if is_list(column.type):
                array = make_array(column, name, shapes.get(name, ()), by_row=True)
                matrices |= {name: array} if array.ndim > 1 else {}
                arrays[name] = array
            elif is_fixed_width(column):
                arrays[name] = make_array(column, name)
            else:
                arrays[name] = column.to_pandas()
        return self.transform_page(arrays, matrices, place)

    def transform_page(self, arrays: Mapping[str, Any], matrices: Mapping[str, Array], place: str) -> Page:
        """Transform rows as arrays; errors as `transform_table`.

        Args:
            arrays: [rows] or [rows, ...] of all columns.
            matrices: those of the columns of arrays. Where the function leaves a row's objects as they were, the
                matrix is the result, and nothing is copied.
        """
        import pandas

        assert self.spec.func is not None
        objects_of = {name: _make_row_views(matrix) for name, matrix in matrices.items()}
        frame = pandas.DataFrame({name: objects_of.get(name, array) for name, array in arrays.items()}, copy=False)
        count = len(frame)  # before the function changes it
        try:
            result = self.spec.func(frame)
        except BaseException as error:
            _raise_failure(error, f"{count} rows of {place}")
        if not isinstance(result, pandas.DataFrame):
            raise DataError(
                f"transform_spec's function takes and returns a pandas.DataFrame; it returned {type(result).__name__}."
            )
        if not result.columns.is_unique:
            raise DataError(f"transform_spec's function returned columns of one name: {list(result.columns)}.")
        self._check_columns(list(result.columns), place)
        page: Page = {}
        for name, declared in self.schema.fields.items():
            values = result[name].to_numpy()
            if name in objects_of and _are_same(values, objects_of[name]):
                page[name] = matrices[name]
                continue
            try:
                page[name] = make_column(values, name, declared.shape)
            except DataError as error:
                raise DataError(f"transform_spec, rows of {place}: {error}") from error
        return page

    def transform_rows(self, page: Page, place: str) -> list[tuple[Any, ...]]:
        """Return the values of the result's columns, row by row; errors as `transform_table`."""
        assert self.spec.func is not None
        function, names = self.spec.func, tuple(page)
        checked: tuple[Any, ...] | None = None
        fields = tuple(self.schema.fields)
        values_of = operator.itemgetter(*fields) if len(fields) > 1 else lambda row: tuple(row[name] for name in fields)
        rows = []
        for values in zip(*page.values(), strict=True):
            try:
                result = function(dict(zip(names, values, strict=True)))
            except BaseException as error:
                _raise_failure(error, f"a row of {place}")
            if type(result) is not dict and not isinstance(result, Mapping):
                raise DataError(
                    f"make_reader gives transform_spec's function a dict for each row, and takes a dict; it returned "
                    f"{type(result).__name__}. make_batch_reader gives it a pandas.DataFrame."
                )
            if tuple(result) != checked:
                self._check_columns(list(result), place)
                checked = tuple(result)
            rows.append(values_of(result))
        return rows

    def _transform_by_row(self, page: Page, place: str) -> Page:
        columns = list(zip(*self.transform_rows(page, place), strict=True)) or [()] * len(self.schema.fields)
        return {
            name: _make_column(make_object_array(values), name)
            for name, values in zip(self.schema.fields, columns, strict=True)
        }

    def _check_columns(self, names: Sequence[Any], place: str) -> None:
        expected = list(self.schema.fields)
        lacking = [name for name in expected if name not in names]
        allowed = {*expected, *self.spec.removed_fields}
        # Columns that were not selected are left out, also where the function returns them.
        unexpected = [] if self.spec.selected_fields is not None else [name for name in names if name not in allowed]
        if lacking or unexpected:
            raise DataError(
                f"transform_spec, rows of {place}: the columns are {names}, and by the schema {expected}. Name new and "
                "changed columns in edit_fields, and others in removed_fields."
            )


def _raise_failure(error: BaseException, rows: str) -> NoReturn:
    """Raise DataError for what a function has raised: sys.exit() would end the thread that reads rows in silence."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    raise DataError(f"transform_spec's function failed on {rows}: {describe_failure(error)}") from error


def _make_row_views(matrix: Array) -> Array:
    """Return [rows] of objects: a row's array each, which is not writable, as petastorm's are not."""
    protected = matrix.view()
    protected.flags.writeable = False
    return numpy.fromiter(protected, object, len(matrix))


def _are_same(values: Array, objects_before: Array) -> bool:
    """Return whether a column has the same objects as before, in their order."""
    if values is objects_before:
        return True
    return len(values) == len(objects_before) and all(map(operator.is_, values, objects_before))


def _make_column(values: Array, name: str) -> Array:
    """Return a column of rows that a function of rows returned: one type for all if possible, else objects."""
    try:
        return make_column(values, name, None)
    except DataError:
        return values
