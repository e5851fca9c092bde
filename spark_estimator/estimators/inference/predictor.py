"""Predicts on Arrow batches: what Spark's Python workers run for ``transform``, for models of all frameworks."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.compat.importer import install, installed
from spark_estimator.data.columns import did_you_mean, remedy
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Array, Field, is_list, matrix_of
from spark_estimator.data.numbers import kind_of
from spark_estimator.data.preparation import Preparation
from spark_estimator.errors import DataError

# A Python worker serves many tasks one after the other: it keeps the model that it has used last.
_kept: dict[str, Any] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Predictor(ABC):
    """A model and what goes into it and comes out of it; travels to Spark's workers.

    Attributes:
        payload: the model, as the framework's predictor has packed it.
        inputs: [inputs] what its columns are.
        widths: [outputs] values a row that it returns.
        batch_size: rows that go through the model at a time.
        decoders: of columns of bytes, by the names of `inputs`' columns.
        aliases: the driver has Horovod's names, which the model's classes may import.
    """

    payload: bytes = field(repr=False)
    inputs: tuple[Field, ...]
    widths: tuple[int, ...]
    batch_size: int
    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    aliases: bool = field(default_factory=installed)

    @abstractmethod
    def loaded(self) -> Any:
        """The model, from its payload. It came with the task, from the driver whose code runs here anyway."""

    @abstractmethod
    def called(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """What the model returns for some rows.

        Args:
            matrices: [inputs] each [rows, width], that may be written to.

        Returns:
            [outputs] each [rows, ...] of float32, or of float64 where float32 would lose something.
        """

    @cached_property
    def _key(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    def prepare_imports(self) -> None:
        """Makes Horovod's names importable here where they were on the driver."""
        if self.aliases:
            install()

    def model(self) -> Any:
        """The model, loaded once in this process."""
        with _lock:
            if self._key not in _kept:
                _kept.clear()
                self.prepare_imports()
                _kept[self._key] = self.loaded()
            return _kept[self._key]

    def predictions(self, columns: Sequence[pyarrow.Array]) -> pyarrow.Array:
        """The outputs for some rows.

        Args:
            columns: [columns] of all inputs, in their order.

        Returns:
            [rows] of struct<o0, o1, ...>; null where a column has null.

        Raises:
            DataError: a value cannot be used.
        """
        batch = pyarrow.RecordBatch.from_arrays(list(columns), names=self._columns)
        mask = None
        if any(column.null_count for column in columns):
            mask = numpy.logical_and.reduce([numpy.asarray(column.is_valid()) for column in columns])
            batch = batch.filter(pyarrow.array(mask))
        results = self._results(batch)
        arrays = [_arrow(values) for values in results]
        struct = pyarrow.StructArray.from_arrays(arrays, [f"o{place}" for place in range(len(arrays))])
        if mask is None:
            return struct
        places = numpy.where(mask, numpy.cumsum(mask) - 1, -1)
        return struct.take(pyarrow.array([None if place < 0 else int(place) for place in places], pyarrow.int64()))

    def _results(self, batch: pyarrow.RecordBatch) -> list[Array]:
        """[outputs] each [rows, width]."""
        if not self.decoders:
            return self.outputs_for([matrix_of(batch, field) for field in self.inputs])
        # Images are many times larger than their bytes: those of a few rows are held at a time.
        parts = []
        for start in range(0, max(1, batch.num_rows), self.batch_size):
            rows = decoded(batch.slice(start, self.batch_size), self.decoders)
            parts.append(self.outputs_for([matrix_of(rows, field) for field in self.inputs]))
        return [numpy.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    def outputs_for(self, matrices: Sequence[Array]) -> list[Array]:
        """[outputs] each [rows, width], for [inputs] matrices of [rows, width].

        Raises:
            DataError: the model returned other tensors or shapes than when it was trained.
        """
        model = self.model()
        rows = len(matrices[0])
        results: list[list[Array]] = [[] for _ in self.widths]
        for start in range(0, rows, self.batch_size):
            stop = min(start + self.batch_size, rows)
            outputs = self.called(model, [numpy.require(matrix[start:stop], requirements="W") for matrix in matrices])
            if len(outputs) != len(results):
                raise DataError(f"the model returned {len(outputs)} tensors; {len(results)} were expected.")
            for result, output, width in zip(results, outputs, self.widths, strict=True):
                if output.size != (stop - start) * width:
                    raise DataError(
                        f"the model returned {list(output.shape)} for {stop - start} rows; {width} values a row were "
                        "expected."
                    )
                result.append(output.reshape(stop - start, width))
        return [
            numpy.concatenate(pieces) if pieces else numpy.empty((0, width), numpy.float32)
            for pieces, width in zip(results, self.widths, strict=True)
        ]

    def widths_of_row(self, row: Any) -> list[int]:
        """[outputs] how many values the model returns for a row.

        Args:
            row: of Spark's, or a mapping, with the columns of `inputs`.
        """
        columns = {name: [row[name]] for field in self.inputs for name in field.names}
        matrices = [numpy.require(matrix, requirements="W") for matrix in matrices_of(columns, self.inputs, {})]
        return [int(output.size) for output in self.called(self.model(), matrices)]

    def arrow_batches(self, batches: Iterator[Any]) -> Iterator[pyarrow.Array]:
        """For an Arrow UDF over an iterator: each batch is a tuple of arrays."""
        return map(self.predictions, batches)

    def pandas_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same for a pandas UDF, in Spark versions that have no Arrow UDFs."""
        for columns in batches:
            # NaN in a column of numbers is what pandas makes of null; in an array it is NaN.
            arrays = [pyarrow.array(column, from_pandas=column.dtype != object) for column in columns]
            struct = self.predictions(arrays)
            frame = pyarrow.RecordBatch.from_struct_array(struct).to_pandas()
            for name in frame.columns:
                if frame[name].dtype == object:
                    frame[name] = [None if value is None else numpy.asarray(value).tolist() for value in frame[name]]
            yield frame

    @property
    def _columns(self) -> list[str]:
        return [column for field in self.inputs for column in field.columns]


def decoded(batch: pyarrow.RecordBatch, decoders: Mapping[str, Decoder]) -> pyarrow.RecordBatch:
    """With arrays in place of bytes.

    Raises:
        DataError: a decoder failed.
    """
    names = batch.schema.names
    needed = {name: value for name, value in decoders.items() if pyarrow.types.is_binary(batch.column(name).type)}
    if not needed or not batch.num_rows:
        return batch
    _, columns = Preparation(tuple(names), decoders=needed).passed(batch)
    return pyarrow.RecordBatch.from_arrays([columns[name] for name in names], names=names)


def matrices_of(features: Any, inputs: Sequence[Field], decoders: Mapping[str, Decoder]) -> list[Array]:
    """[inputs] matrices of [rows, width], of what a model's ``predict`` takes.

    Raises:
        DataError: it does not fit; the text names the column, or the input.
    """
    if hasattr(features, "sparkSession"):
        raise DataError("predict() works without Spark; of a DataFrame of Spark's, transform(df) predicts.")
    if hasattr(features, "columns") or isinstance(features, Mapping):
        arrays = []
        for field in inputs:
            for name in field.names:
                if name not in features:
                    raise DataError(
                        f"there is no column {name!r} among {list(features)}." + did_you_mean(name, features)
                    )
                arrays.append(_arrow_column(features[name], name))
        names = [column for field in inputs for column in field.columns]
        batch = decoded(pyarrow.RecordBatch.from_arrays(arrays, names=names), decoders)
        for column, name in zip(batch.columns, [name for field in inputs for name in field.names], strict=True):
            kind = column.type.value_type if is_list(column.type) else column.type
            if _is_text(kind):
                raise DataError(f"column {name!r} is of type {kind_of(kind)}, {remedy(kind_of(kind))}")
        return [matrix_of(batch, field) for field in inputs]
    array_likes = list(features) if isinstance(features, (list, tuple)) and len(inputs) > 1 else [features]
    if len(array_likes) != len(inputs):
        raise DataError(f"{len(array_likes)} arrays were given for {len(inputs)} inputs.")
    if any(item is None for item in array_likes):
        raise DataError("predict() was given None: it takes an array for each input, or a frame with their columns.")
    matrices = []
    for array, field in zip(array_likes, inputs, strict=True):
        result = numpy.asarray(array)
        values = result.flat if result.dtype.kind in "OUS" else ()
        text = next((value for value in values if isinstance(value, (str, bytes))), None)
        if text is not None:  # numpy would read numbers out of it
            raise DataError(f"the array that is given for {field.name} holds {str(text)!r}: a model reads numbers.")
        if result.dtype.kind == "c":
            raise DataError(
                f"the array that is given for {field.name} is of {result.dtype}: a model reads real numbers."
            )
        matrix = numpy.ascontiguousarray(result, field.dtype)
        if matrix.dtype.kind == "i" and result.dtype.kind == "f" and (matrix != array).any():
            raise DataError(f"{field.name} was trained with whole numbers; the array that is given has others.")
        if matrix.size != len(matrix) * field.width:
            raise DataError(f"an array of shape {list(matrix.shape)} was given for {field.name}: [-1, {field.width}].")
        matrices.append(matrix.reshape(len(matrix), field.width))
    return matrices


def _is_text(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_binary(kind))


def _arrow_column(values: Any, name: str) -> pyarrow.Array:
    if hasattr(values, "columns"):  # pandas gives a frame of them
        raise DataError(f"there are {len(values.columns)} columns named {name!r}: rename all but one of them.")
    result = [value.toArray() if hasattr(value, "toArray") else value for value in values]
    try:
        array = pyarrow.array(result)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} is not one of numbers: {error}") from error
    if pyarrow.types.is_timestamp(array.type):  # as Spark's columns are read
        return pyarrow.compute.divide(
            array.cast(pyarrow.timestamp("us")).cast(pyarrow.int64()).cast(pyarrow.float64()), 1e6
        )
    return array.cast(pyarrow.int32()) if pyarrow.types.is_date32(array.type) else array


def _arrow(values: Array) -> pyarrow.Array:
    """[rows] of doubles, or of lists of floats, from [rows, width]."""
    width = values.shape[1]
    if width == 1:
        return pyarrow.array(values.reshape(-1)).cast(pyarrow.float64())
    offsets = numpy.arange(0, values.size + 1, width, dtype=numpy.int32)
    numbers = pyarrow.array(values.reshape(-1).astype(numpy.float32))
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), numbers)
