"""`TransformSpec`: a user's function on rows while they are read, and the schema of what it returns; as petastorm's.

A reader of batches gives the function a pandas.DataFrame of many rows and takes one with as many rows as it likes. A
reader of rows (`make_reader`) gives it a dict for each row. It is called anew in each epoch, in a thread.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.decoding import failure_text
from spark_estimator.data.fields import Array
from spark_estimator.data.petastorm.pages import Page, column_of, objects, page_of
from spark_estimator.data.petastorm.unischema import Unischema, UnischemaField
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    import pandas


class TransformSpec:
    """What is done to rows while they are read.

    Args:
        func: takes and returns a pandas.DataFrame; in `make_reader` a dict. None: columns are removed only.
        edit_fields: columns that it changes or adds: (name, numpy type, shape of a row's value, whether it is
            nullable), or `UnischemaField` objects.
        removed_fields: columns that are removed.
        selected_fields: the columns that remain, in this order. Not together with `removed_fields`.

    Raises:
        ValueError: both were given, or `edit_fields` has something else.
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
            raise ValueError(f"TransformSpec's func is a function; it was {func!r}.")
        self.func = func
        self.edit_fields = list(edit_fields or [])
        self.removed_fields = list(removed_fields or [])
        self.selected_fields = None if selected_fields is None else list(selected_fields)
        for entry in self.edit_fields:
            _edited(entry)


def edit_field(
    name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False
) -> tuple[str, Any, tuple[int | None, ...], bool]:
    """An entry of `TransformSpec`'s `edit_fields`."""
    return name, numpy_dtype, shape, nullable


def _edited(entry: Any) -> UnischemaField:
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
    """The schema of transformed rows: edited columns come last, and selected ones in their order.

    A name that is removed or selected, and is no column, is ignored with a warning.
    """
    unknown = [name for name in transform_spec.removed_fields if name not in schema.fields]
    edited = [_edited(entry) for entry in transform_spec.edit_fields]
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
    """Calls a TransformSpec's function.

    Attributes:
        spec: with the function.
        schema: of what it returns.
        by_row: it takes dicts.
    """

    spec: TransformSpec
    schema: Unischema
    by_row: bool = False

    @property
    def keeps_rows(self) -> bool:
        """There is no function that could return more rows or fewer."""
        return self.spec.func is None or self.by_row

    def of_table(self, table: pyarrow.Table, shapes: Mapping[str, tuple[int | None, ...]], place: str) -> Page:
        """What it makes of rows as they were read.

        Args:
            shapes: of a row's value, by column.
            place: of the rows, for messages.

        Raises:
            DataError: it failed, or its result has other columns or shapes than were declared.
        """
        if self.by_row or self.spec.func is None:
            page = page_of(table, shapes, by_row=self.by_row)
            return self._by_row(page, place) if self.by_row and self.spec.func else self._only_declared(page, place)
        deep = {name: shape for name, shape in shapes.items() if len(shape) > 1 and name in table.column_names}
        frame = table.drop_columns(list(deep)).to_pandas()
        for name, array in page_of(table.select(list(deep)), shapes, by_row=True).items():
            frame[name] = list(array)
        return self._of_frame(frame, {}, place)

    def of_page(self, page: Page, place: str) -> Page:
        """What it makes of rows as arrays; arguments and errors as `of_table`."""
        import pandas

        if self.spec.func is None:
            return self._only_declared(page, place)
        given: dict[str, tuple[Array, Array]] = {}
        columns: dict[str, Any] = {}
        for name, array in page.items():
            if array.ndim > 1:
                views = numpy.fromiter(array, object, len(array))
                given[name] = views, array
                columns[name] = views.copy()
            else:
                columns[name] = array
        return self._of_frame(pandas.DataFrame(columns, copy=False), given, place)

    def _of_frame(self, frame: pandas.DataFrame, given: Mapping[str, tuple[Array, Array]], place: str) -> Page:
        """As `of_page`.

        Args:
            given: of columns of arrays, by name, the objects in the frame, and the array that they are parts of.
        """
        import pandas

        assert self.spec.func is not None
        count = len(frame)
        try:
            result = self.spec.func(frame)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end the thread that reads rows, and tell nobody
            raise DataError(
                f"transform_spec's function failed on {count} rows of {place}: {failure_text(error)}"
            ) from error
        if not isinstance(result, pandas.DataFrame):
            raise DataError(
                f"transform_spec's function takes and returns a pandas.DataFrame; it returned {type(result).__name__}."
            )
        if not result.columns.is_unique:
            raise DataError(f"transform_spec's function returned columns of one name: {list(result.columns)}.")
        self._check_columns(list(result.columns), place)
        page = {}
        for name, field in self.schema.fields.items():
            values = result[name]
            if name in given and _same(values.to_numpy(), given[name][0]):
                page[name] = given[name][1]
                continue
            try:
                page[name] = column_of(values, name, field.shape)
            except DataError as error:
                raise DataError(f"transform_spec, rows of {place}: {error}") from error
        return page

    def _by_row(self, page: Page, place: str) -> Page:
        import pandas

        assert self.spec.func is not None
        rows = []
        for values in zip(*page.values(), strict=True):
            row = dict(zip(page, values, strict=True))
            try:
                result = self.spec.func(row)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # as for a frame
                raise DataError(
                    f"transform_spec's function failed on a row of {place}: {failure_text(error)}"
                ) from error
            if not isinstance(result, Mapping):
                raise DataError(
                    f"make_reader gives transform_spec's function a dict for each row, and takes a dict; it returned "
                    f"{type(result).__name__}. make_batch_reader gives it a pandas.DataFrame."
                )
            self._check_columns(list(result), place)
            rows.append(result)
        columns = {name: pandas.Series(objects([row[name] for row in rows])) for name in self.schema.fields}
        return {name: _of_rows(column, name) for name, column in columns.items()}

    def _only_declared(self, page: Page, place: str) -> Page:
        self._check_columns(list(page), place)
        return {name: page[name] for name in self.schema.fields}

    def _check_columns(self, names: Sequence[Any], place: str) -> None:
        wanted = list(self.schema.fields)
        lacking = [name for name in wanted if name not in names]
        allowed = {*wanted, *self.spec.removed_fields}
        # Columns that were not selected are left out, also where the function returns them.
        strange = [] if self.spec.selected_fields is not None else [name for name in names if name not in allowed]
        if lacking or strange:
            raise DataError(
                f"transform_spec, rows of {place}: the columns are {names}, and by the schema {wanted}. Name new and "
                "changed columns in edit_fields, and others in removed_fields."
            )


def _same(values: Array, given: Array) -> bool:
    """Whether the rows' objects are those that were given, in their order."""
    return len(values) == len(given) and all(map(operator.is_, values, given))


def _of_rows(values: pandas.Series, name: str) -> Array:
    """A column of rows that a function of rows returned: one type for all where there is one, else objects."""
    try:
        return column_of(values, name, None)
    except DataError:
        result: Array = values.to_numpy()
        return result
