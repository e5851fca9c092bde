"""Turns rows of columns into the matrices of a model's tensors: in training, in loaders and in prediction.

Promises: nothing else does. The same values give the same bits, whether files, Spark's tasks, a frame or an array hold
them.

Order of events, for each batch:

1. Bytes are decoded, and categories become ids.
2. A training's transformation is called. Prediction has none.
3. Dates, times, decimals and vectors become numbers (`to_numbers`).
4. Nulls are replaced by a number, or their rows are dropped, or they stay.
5. The columns of each field become a matrix [rows, width] of the field's type; shorter arrays are padded.

A value that does not fit raises DataError with its column, its row, and what to do.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.categories import CategoryEncoder
from spark_estimator.data.decoding import Decoder, to_lists
from spark_estimator.data.fields import Array, Field, is_list, make_matrix
from spark_estimator.data.nulls import NullPolicy, Nulls, drops_rows, get_policy
from spark_estimator.data.numbers import apply_null_rules, has_nan, to_numbers
from spark_estimator.data.transformation import Takes, Transformation
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Self

# The largest batch that is encoded at a time, unless one row is larger.
_BATCH_BYTES = 16 << 20
_MOST_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class RowEncoder:
    """How rows become matrices. It is fitted on the driver, and sent to ranks and to Spark's workers.

    Attributes:
        columns: [c0, c1, ...] the names in the batches of the columns that fields call so.
        fields: of the matrices; empty until the driver knows their shapes.
        nulls: what is done about them, by the names of `columns` or for all.
        decoders: by the column's name in the batches.
        categories: the encoders of categories, by the column's name in the batches.
        marker: the column that marks rows for validation; None: no row is.
        transformation: None: there is none.
        transformation_columns: the columns that the transformation receives; empty: `columns` and `marker`.
        by_name: the columns of a transformation that takes rows are all that it returns.
        transforms_marked: rows for validation are transformed, too.
        held_share: of the rows, which is marked by their values, before the transformation; 0: no row is.
        packed: [arrays of Spark] the numbers of the columns whose scalars a row of the array has; see `make_batch`.
    """

    columns: tuple[str, ...]
    fields: tuple[Field, ...] = ()
    nulls: Nulls = "error"
    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    categories: Mapping[str, CategoryEncoder] = field(default_factory=dict)
    marker: str | None = None
    transformation: Transformation | None = None
    transformation_columns: tuple[str, ...] = ()
    by_name: bool = False
    transforms_marked: bool = True
    held_share: float = 0.0
    packed: tuple[tuple[int, ...], ...] = ()

    @property
    def marks_rows(self) -> bool:
        """Whether its batches have the column ``marker``."""
        return self.marker is not None or self.held_share > 0

    @property
    def untransformed(self) -> RowEncoder:
        """The encoder of rows for validation alone, where these are not transformed."""
        return replace(self, marker=None, transformation=None, transforms_marked=True, held_share=0.0)

    @property
    def read(self) -> list[str]:
        """The columns of the batches; none twice."""
        return list(dict.fromkeys(self.transformation_columns or self._wanted))

    @property
    def keeps_rows(self) -> bool:
        """Whether every input row becomes one output row."""
        return not drops_rows(self.nulls) and self.transformation is None

    @property
    def batch_rows(self) -> int:
        """The number of rows that are encoded at a time."""
        return max(1, min(_MOST_BATCH_ROWS, _BATCH_BYTES // max(1, sum(field.row_bytes for field in self.fields))))

    @property
    def _wanted(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, *([] if self.marker is None else [self.marker])]))

    def with_fields(self, fields: Sequence[Field]) -> Self:
        """Return the encoder that makes these matrices."""
        return replace(self, fields=tuple(fields))

    def by_position(self, *, packed: tuple[tuple[int, ...], ...] = ()) -> RowEncoder:
        """Return the encoder of batches whose columns are named ``c0``, ``c1`` and so on, for rows that Spark selects.

        Args:
            packed: as the attribute.
        """
        names = tuple(f"c{number}" for number in range(len(self.columns)))
        pairs = list(zip(names, self.columns, strict=True))
        return replace(
            self,
            columns=names,
            nulls={name: get_policy(self.nulls, column) for name, column in pairs},
            decoders={name: self.decoders[column] for name, column in pairs if column in self.decoders},
            categories={name: self.categories[column] for name, column in pairs if column in self.categories},
            marker=None if self.marker is None else "marker",
            packed=packed,
        )

    def encode_batches(
        self, batches: Iterable[pyarrow.RecordBatch], most_rows: int | None = None, dtypes: Sequence[str] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows as `to_numbers` does: what `make_matrices` takes.

        Args:
            most_rows: that are worked on at a time; None: `batch_rows`.
            dtypes: as in `to_numbers`.

        Raises:
            DataError: a function failed, or its result cannot be used.
        """
        row, most_rows = 0, most_rows or self.batch_rows
        for batch in batches:
            for start in range(0, batch.num_rows, most_rows):  # without a row there is no input for a function
                piece = batch.slice(start, most_rows)
                if self.transforms_marked or not self.marks_rows:
                    yield self.to_numbers(piece, row, dtypes=dtypes)
                else:
                    yield from self._split_by_mark(piece, row, dtypes)
                row += piece.num_rows

    def _split_by_mark(
        self, batch: pyarrow.RecordBatch, row: int, dtypes: Sequence[str] | None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows to train on, and those for validation, which are not transformed."""
        marked = draw_marks(batch, self.held_share) if self.marker is None else read_marks(batch.column(self.marker))
        if marked.null_count:
            raise make_marks_error(self.marker)
        training = replace(self, marker=None, held_share=0.0)
        for mark, encoder in ((False, training), (True, self.untransformed)):
            rows = batch.filter(marked if mark else pyarrow.compute.invert(marked))
            if rows.num_rows:  # without a row there is no input for a function
                made = encoder.to_numbers(rows, row, dtypes=dtypes)
                column = pyarrow.array(numpy.full(made.num_rows, mark))
                yield pyarrow.RecordBatch.from_arrays([*made.columns, column], names=[*made.schema.names, "marker"])

    def to_numbers(
        self,
        batch: pyarrow.RecordBatch,
        row: int = 0,
        source: str = "this rank's rows",
        dtypes: Sequence[str] | None = None,
    ) -> pyarrow.RecordBatch:
        """Return the rows as numbers, and arrays of numbers, in ``c0``, ``c1`` and so on, and ``marker``.

        Args:
            row: the number of the batch's first row among those of `source`, for messages.
            source: the rows that the batch belongs to, for messages.
            dtypes: [columns] of the tensors; None: those of `fields`.

        Returns:
            The rows. Spark's arrays (`make_batch`) stay as they are where they hold rows of tensors already.
        """
        if self.packed:
            rows = self._keep_packed(batch)
            if rows is not None:
                return rows
            batch = self._unpack(batch)
        _, result = self.apply(batch, row, source)
        columns = [to_numbers(result[name]) for name in self.columns]
        names = [f"c{number}" for number in range(len(columns))]
        rules = [
            self._find_null_rule(number, column, None if dtypes is None else dtypes[number])
            for number, column in enumerate(columns)
        ]
        if self.marker is not None:
            columns.append(read_marks(result[self.marker]))
            names.append("marker")
        return apply_null_rules(pyarrow.RecordBatch.from_arrays(columns, names=names), rules)

    def _find_null_rule(self, number: int, column: pyarrow.Array, dtype: str | None) -> tuple[NullPolicy, str]:
        """Return what is done about a column's nulls, and the type of its tensor."""
        policy = get_policy(self.nulls, self.columns[number])
        if isinstance(policy, str):
            return policy, ""
        if dtype is not None:
            return policy, dtype
        name = f"c{number}"
        for each in self.fields:
            if name in each.columns:
                # A column of nothing but nulls does not show by its type that it has arrays.
                is_scalar = each.widths[each.columns.index(name)] == 1 or not pyarrow.types.is_null(column.type)
                return (policy, each.dtype) if is_scalar else ("error", "")
        return "error", ""  # no field needs the column

    def make_matrices(self, batch: pyarrow.RecordBatch, row: int = 0, source: str = "this rank's rows") -> list[Array]:
        """Return [fields] matrices [rows, width] of a batch that `to_numbers` or `encode_batches` has made.

        Args:
            row, source: as in `to_numbers`.

        Raises:
            DataError: a value is missing, an array has another length, a number does not fit the type.
        """
        return [
            make_matrix(batch, each, row, source)
            if each.columns[0] in batch.schema.names
            else self._take_packed(batch, each)
            for each in self.fields
        ]

    def encode(self, batch: pyarrow.RecordBatch, row: int = 0, source: str = "this rank's rows") -> list[Array]:
        """Return [fields] matrices [rows, width] of a batch; see `to_numbers` and `make_matrices`.

        Raises:
            DataError: a function failed, or a value cannot be used.
        """
        return self.make_matrices(self.to_numbers(batch, row, source), row, source)

    def apply(
        self, batch: pyarrow.RecordBatch, row: int = 0, source: str = "this rank's rows"
    ) -> tuple[RowEncoder, dict[str, pyarrow.Array]]:
        """Decode bytes, look up categories, and call the transformation.

        Args:
            row, source: as in `to_numbers`.

        Returns:
            The encoder, with what these rows have shown of the functions' results, and the columns by name.
        """
        columns: dict[str, pyarrow.Array] = {
            name: self.categories[name].find_ids(batch.column(name)) if name in self.categories else batch.column(name)
            for name in self.read
        }
        decoders = dict(self.decoders)
        decoded: dict[str, Array] = {}
        for name, decoder in self.decoders.items():
            if pyarrow.types.is_binary(columns[name].type):  # prediction also takes arrays that are decoded already
                decoders[name], decoded[name] = decoder.decode(columns[name], row, source)
        if self.transformation is None:
            arrays = {name: to_lists(values, columns[name].is_valid()) for name, values in decoded.items()}
            return replace(self, decoders=decoders), {**columns, **arrays}
        frames = {name: _list_arrays(values, columns[name]) for name, values in decoded.items()}
        arguments = {**columns, **frames}
        transformation, result = self.transformation.apply(arguments, self._wanted, row, self.marker, self.by_name)
        names = self.columns
        if self.by_name and transformation.takes is Takes.ROW and not self.transformation.shown:
            names = tuple(name for name in result if name != self.marker)
        return replace(self, columns=names, decoders=decoders, transformation=transformation), result

    def make_batch(self, arrays: Sequence[pyarrow.Array]) -> pyarrow.RecordBatch:
        """Return the rows of which `to_numbers` makes numbers, of the arrays that Spark sends for `columns` and marks.

        Each array is a column, or has a row's scalars of several columns.
        """
        names = [_name_array(numbers) for numbers in self.packed] or list(self.columns)
        marks = [] if self.marker is None else [self.marker]
        return pyarrow.RecordBatch.from_arrays(list(arrays), names=[*names, *marks])

    def _unpack(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return the same rows, each column by itself."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        for numbers in self.packed:
            array = columns.pop(_name_array(numbers))
            parts = [array] if len(numbers) == 1 else split_columns(array.flatten(), len(numbers))
            columns.update(zip((self.columns[number] for number in numbers), parts, strict=True))
        return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    @functools.cached_property
    def _packed_forms(self) -> list[_PackedForm] | None:
        """[arrays of Spark] what each has to be to stay as it is; None: something is to be done with columns first."""
        if self.decoders or self.categories or self.transformation is not None:
            return None
        forms = []
        for numbers in self.packed:
            columns = {f"c{number}" for number in numbers}
            fields = [each for each in self.fields if len(numbers) > 1 and columns & set(each.columns)]
            if any(not columns.issuperset(each.columns) for each in fields):
                return None
            kinds = {pyarrow.from_numpy_dtype(each.stored_dtype) for each in fields}
            has_rule = any(get_policy(self.nulls, self.columns[number]) != "error" for number in numbers)
            forms.append(_PackedForm(_name_array(numbers), len(numbers) > 1, has_rule, kinds))
        return forms

    def _keep_packed(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch | None:
        """Return Spark's arrays as they are, and marks; None: something is to be done with a column first."""
        arrays: dict[str, pyarrow.Array] = {}
        if self._packed_forms is None:
            return None
        for form in self._packed_forms:
            array = values = to_numbers(batch.column(form.name))
            if form.has_columns:
                values = array.flatten()
                if any(values.type != kind for kind in form.kinds):
                    return None
            if array.null_count or values.null_count or (form.has_rule and has_nan(values)):
                return None
            arrays[form.name] = array
        if self.marker is not None:
            arrays["marker"] = read_marks(batch.column(self.marker))
        return pyarrow.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    @functools.cached_property
    def _packed_places(self) -> dict[tuple[str, ...], tuple[str, int, slice | list[int]]]:
        """By a field's columns: the array of Spark that has them, its number of columns, and the places in a row."""
        places: dict[tuple[str, ...], tuple[str, int, slice | list[int]]] = {}
        for each in self.fields:
            columns = [int(column[1:]) for column in each.columns]
            numbers = next(numbers for numbers in self.packed if columns[0] in numbers)
            if not set(columns).issubset(numbers):  # arrays, side by side: each is a column of the batch by itself
                continue
            positions = list(map(numbers.index, columns))
            in_a_row = slice(positions[0], positions[0] + len(positions))
            places[each.columns] = (
                _name_array(numbers),
                len(numbers),
                in_a_row if positions == list(range(in_a_row.start, in_a_row.stop)) else positions,
            )
        return places

    def _take_packed(self, batch: pyarrow.RecordBatch, field: Field) -> Array:
        """Return the matrix of a field whose columns an array of Spark has; a view, if it has no others."""
        name, count, places = self._packed_places[field.columns]
        rows: Array = batch.column(name).flatten().to_numpy().reshape(-1, count)
        return numpy.ascontiguousarray(rows[:, places]) if isinstance(places, slice) else rows.take(places, axis=1)


class _PackedForm(NamedTuple):
    """An array of Spark, as it has to be to stay as it is."""

    name: str
    has_columns: bool  # several, a row's scalars of which it holds
    has_rule: bool  # for nulls, of a column in it
    kinds: set[pyarrow.DataType]  # of the matrices that its columns are for: its values have them


def _name_array(numbers: Sequence[int]) -> str:
    """Return how batches of Spark's arrays call the one with these columns."""
    return f"c{numbers[0]}" if len(numbers) == 1 else f"packed{numbers[0]}"


def split_columns(values: pyarrow.Array, count: int) -> list[pyarrow.Array]:
    """Return [count] columns of numbers that are stored row by row.

    Args:
        values: [rows * count] of a type that numpy has.
    """
    missing = numpy.asarray(values.is_null()).reshape(-1, count).T if values.null_count else None
    numbers = values.fill_null(0) if values.null_count else values
    columns = numpy.ascontiguousarray(numbers.to_numpy(zero_copy_only=False).reshape(-1, count).T)
    if missing is None:
        return [pyarrow.array(column) for column in columns]
    return [pyarrow.array(column, mask=mask) for column, mask in zip(columns, missing, strict=True)]


def read_marks(column: pyarrow.Array) -> pyarrow.Array:
    """Return [rows] true and false, of a column of 0 and 1; null where there is another number."""
    if pyarrow.types.is_boolean(column.type):
        return column
    marks = column.cast(pyarrow.bool_())
    known = pyarrow.compute.equal(marks.cast(pyarrow.int8()), column.cast(pyarrow.int64()))
    return pyarrow.compute.if_else(known, marks, pyarrow.scalar(None, pyarrow.bool_()))


def make_marks_error(name: str | None = None) -> DataError:
    """Return the error about a mark that is missing, in the column of this name if it is known."""
    column = "the column" if name is None else f"the column {name!r}"
    return DataError(
        f"{column} of validation marks holds null, or a number that is neither 0 (to train on) nor 1 (to validate "
        "with): fill it, drop such rows, or make it of what marks them, as in (df.fold == 3)."
    )


def draw_marks(batch: pyarrow.RecordBatch, share: float) -> pyarrow.Array:
    """Return [rows] marks of about a share of the rows, by their values: equal rows have equal marks, on any rank."""
    columns = [
        [None if value is None else value.tobytes() for value in column.to_numpy(zero_copy_only=False)]
        if is_list(column.type) and pyarrow.types.is_primitive(column.type.value_type)
        else column.to_pylist()
        for column in batch.columns
    ]
    digests = (hashlib.blake2b(repr(row).encode(), digest_size=4) for row in zip(*columns, strict=True))
    return pyarrow.array([int.from_bytes(digest.digest(), "big") < share * (1 << 32) for digest in digests])


def _list_arrays(values: Array, encoded: pyarrow.Array) -> list[Array | None]:
    """Return [rows] the decoded arrays, and None where there were no bytes."""
    return [value if valid else None for value, valid in zip(values, encoded.is_valid().to_pylist(), strict=True)]


def find_dtypes(fields: Sequence[Field]) -> list[str]:
    """Return [columns] the types of the tensors that ``c0``, ``c1`` and so on are for."""
    known = {column: field.dtype for field in fields for column in field.columns}
    return [known[f"c{number}"] for number in range(len(known))]
