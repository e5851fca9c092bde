"""Converts batches of rows, with the user's functions, to the columns from which fields are made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.categories import CategoryEncoder
from spark_estimator.data.decoding import Decoder, lists_of
from spark_estimator.data.fields import Array, Field, is_list
from spark_estimator.data.nulls import Nulls, drops_rows, policy_of
from spark_estimator.data.numbers import numbers_of, without_nulls
from spark_estimator.data.transformation import Takes, Transformation
from spark_estimator.errors import DataError

# The largest batch that is written to the spool, unless one row is larger.
_BATCH_BYTES = 16 << 20
_MOST_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Preparation:
    """The preparation of rows where they are read: on a rank, or in the task that feeds one. It is sent there.

    First bytes are decoded and categories become ids, then the transformation is called, then nulls are handled.

    Attributes:
        columns: [c0, c1, ...] the names in the batches of the columns that fields call so.
        marker: the column that marks rows for validation; None: no row is.
        nulls: what is done about them, by the names of `columns` or for all.
        decoders: by the column's name in the batches.
        transformation: None: there is none.
        transformation_columns: the columns that the transformation receives; empty: `columns` and `marker`.
        by_name: the columns of a transformation that takes rows are all that it returns.
        encoders: of categories, by the column's name in the batches.
        transforms_marked: rows for validation are transformed, too.
        held_share: of the rows, which is marked by their values, before the transformation; 0: no row is.
    """

    columns: tuple[str, ...]
    marker: str | None = None
    nulls: Nulls = "error"
    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    transformation: Transformation | None = None
    transformation_columns: tuple[str, ...] = ()
    by_name: bool = False
    encoders: Mapping[str, CategoryEncoder] = field(default_factory=dict)
    transforms_marked: bool = True
    held_share: float = 0.0

    @property
    def marks_rows(self) -> bool:
        """Whether its batches have the column ``marker``."""
        return self.marker is not None or self.held_share > 0

    @property
    def untransformed(self) -> Preparation:
        """The preparation of rows for validation alone, where these are not transformed."""
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
    def _wanted(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, *([] if self.marker is None else [self.marker])]))

    def batches(
        self, batches: Iterable[pyarrow.RecordBatch], dtypes: Sequence[str], most_rows: int
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows as ``c0``, ``c1`` and so on, and ``marker``.

        Args:
            dtypes: [columns] of the tensors that they are for.
            most_rows: that are worked on at a time.

        Raises:
            DataError: a function failed, or its result cannot be used.
        """
        row = 0
        for batch in batches:
            for start in range(0, batch.num_rows, most_rows):  # without a row there is no input for a function
                piece = batch.slice(start, most_rows)
                if self.transforms_marked or not self.marks_rows:
                    yield self.batch(piece, dtypes, row)
                else:
                    yield from self._apart(piece, dtypes, row)
                row += piece.num_rows

    def _apart(self, batch: pyarrow.RecordBatch, dtypes: Sequence[str], row: int) -> Iterator[pyarrow.RecordBatch]:
        """The rows to train on, and those for validation, which are not transformed."""
        marked = drawn(batch, self.held_share) if self.marker is None else marks(batch.column(self.marker))
        if marked.null_count:
            raise marks_error(self.marker)
        training = replace(self, marker=None, held_share=0.0)
        for mark, preparation in ((False, training), (True, self.untransformed)):
            rows = batch.filter(marked if mark else pyarrow.compute.invert(marked))
            if rows.num_rows:  # without a row there is no input for a function
                made = preparation.batch(rows, dtypes, row)
                column = pyarrow.array(numpy.full(made.num_rows, mark))
                yield pyarrow.RecordBatch.from_arrays([*made.columns, column], names=[*made.schema.names, "marker"])

    def batch(self, batch: pyarrow.RecordBatch, dtypes: Sequence[str], row: int = 0) -> pyarrow.RecordBatch:
        """One batch; `row` is the number of its first row, for messages."""
        _, result = self.passed(batch, row)
        columns = [numbers_of(result[name]) for name in self.columns]
        names = [f"c{number}" for number in range(len(columns))]
        if self.marker is not None:
            columns.append(marks(result[self.marker]))
            names.append("marker")
        # Columns behind those of the tensors are taken along as they are.
        policies = [policy_of(self.nulls, name) for name in self.columns[: len(dtypes)]]
        return without_nulls(pyarrow.RecordBatch.from_arrays(columns, names=names), policies, dtypes)

    def passed(
        self, batch: pyarrow.RecordBatch, row: int = 0, source: str = "this rank's rows"
    ) -> tuple[Preparation, dict[str, pyarrow.Array]]:
        """Applies the functions to a batch.

        Args:
            row: the number of its first row among those of `source`, for messages.
            source: the rows that the batch belongs to, for messages of decoders.

        Returns:
            The preparation, with what these rows have shown of the functions' results, and the columns by name.
        """
        columns: dict[str, pyarrow.Array] = {
            name: self.encoders[name].ids(batch.column(name)) if name in self.encoders else batch.column(name)
            for name in self.read
        }
        decoders = dict(self.decoders)
        decoded: dict[str, Array] = {}
        for name, decoder in self.decoders.items():
            decoders[name], decoded[name] = decoder.arrays(columns[name], row, source)
        if self.transformation is None:
            arrays = {name: lists_of(values, columns[name].is_valid()) for name, values in decoded.items()}
            return replace(self, decoders=decoders), {**columns, **arrays}
        frames = {name: _or_none(values, columns[name]) for name, values in decoded.items()}
        arguments = {**columns, **frames}
        transformation, result = self.transformation.apply(arguments, self._wanted, row, self.marker, self.by_name)
        names = self.columns
        if self.by_name and transformation.takes is Takes.ROW and not self.transformation.shown:
            names = tuple(name for name in result if name != self.marker)
        return replace(self, columns=names, decoders=decoders, transformation=transformation), result


def marks(column: pyarrow.Array) -> pyarrow.Array:
    """As `columns.Readable.marks`."""
    marks = column.cast(pyarrow.bool_())
    known = pyarrow.compute.equal(marks.cast(pyarrow.int8()), column.cast(pyarrow.int64()))
    return pyarrow.compute.if_else(known, marks, pyarrow.scalar(None, pyarrow.bool_()))


def marks_error(name: str | None = None) -> DataError:
    """The error about a mark that is missing, in the column of this name if it is known."""
    column = "the column" if name is None else f"the column {name!r}"
    return DataError(
        f"{column} of validation marks holds null, or a number that is neither 0 (to train on) nor 1 (to validate "
        "with): fill it, drop such rows, or make it of what marks them, as in (df.fold == 3)."
    )


def drawn(batch: pyarrow.RecordBatch, share: float) -> pyarrow.Array:
    """[rows] marks of about a share of the rows, by their values: equal rows have the same mark, on any rank."""
    columns = [
        [None if value is None else value.tobytes() for value in column.to_numpy(zero_copy_only=False)]
        if is_list(column.type) and pyarrow.types.is_primitive(column.type.value_type)
        else column.to_pylist()
        for column in batch.columns
    ]
    digests = (hashlib.blake2b(repr(row).encode(), digest_size=4) for row in zip(*columns, strict=True))
    return pyarrow.array([int.from_bytes(digest.digest(), "big") < share * (1 << 32) for digest in digests])


def _or_none(values: Array, bytes_of_them: pyarrow.Array) -> list[Array | None]:
    """[rows] what was decoded, and None where there was nothing."""
    return [value if valid else None for value, valid in zip(values, bytes_of_them.is_valid().to_pylist(), strict=True)]


def dtypes_of(fields: Sequence[Field]) -> list[str]:
    """[columns] the types of the tensors that ``c0``, ``c1`` and so on are for."""
    known = {column: field.dtype for field in fields for column in field.columns}
    return [known[f"c{number}"] for number in range(len(known))]


def batch_rows_of(fields: Sequence[Field]) -> int:
    """The number of rows of these fields that are processed at a time."""
    return max(1, min(_MOST_BATCH_ROWS, _BATCH_BYTES // max(1, sum(field.row_bytes for field in fields))))
