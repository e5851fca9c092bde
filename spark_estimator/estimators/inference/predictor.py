"""Predicts on Arrow batches: what Spark's Python workers run for ``transform``, for models of all frameworks."""

from __future__ import annotations

import hashlib
import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.compat.importer import install, installed
from spark_estimator.data.categories import CategoryEncoder, encoded
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Array, Field, matrix_of
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference import model_file
from spark_estimator.estimators.inference.features import arrow_columns, decoded, matrices_of, without_nulls_in
from spark_estimator.estimators.inference.prediction_columns import PredictionColumn, struct_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Self

# A Python worker serves many tasks one after the other: it keeps the model that it has used last.
_kept: dict[str, Any] = {}
_lock = threading.Lock()
#: Models are called with multiples of this number of rows: matrix products compute and round a remainder differently.
#: Rows can still differ in their last bits by their places in a batch.
ROWS_ALIKE = 8


@dataclass(frozen=True)
class Predictor(ABC):
    """A model, its inputs and its outputs; pickled to Spark's workers.

    Attributes:
        payload: the model, as the framework's predictor has packed it.
        inputs: [inputs] what its columns are.
        widths: [outputs] values a row that it returns.
        batch_size: rows that go through the model at a time.
        decoders: of columns of bytes, by the names of `inputs`' columns.
        columns: of predictions, which are made of what the model returns.
        aliases: the driver has Horovod's names, which the model's classes may import.
        encoders: of columns of categories, by the names of `inputs`' columns.
        device: one of `devices.DEVICES`; where there is no choice, the model's framework decides.
        precision: "bf16" or "fp16" for mixed precision; None: none.
        null_values: the numbers that replace null and NaN, by the names of `inputs`' columns.
        file: the name of the file with the payload (`model_file`), and no payload; empty: none was sent.
        zone: of times in frames that have none, where there is no session: that of the training's session.
        packed: [arguments of Spark's function] the numbers of the columns that an argument has: one, or those of the
            scalars of which each row is an array. Empty: each argument is a column.
    """

    payload: bytes = field(repr=False)
    inputs: tuple[Field, ...]
    widths: tuple[int, ...]
    batch_size: int
    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    columns: tuple[PredictionColumn, ...] = ()
    aliases: bool = field(default_factory=installed)
    encoders: Mapping[str, CategoryEncoder] = field(default_factory=dict)
    device: str = "cpu"
    precision: str | None = None
    null_values: Mapping[str, float] = field(default_factory=dict)
    file: str = ""
    zone: str = "UTC"
    packed: tuple[tuple[int, ...], ...] = ()

    @abstractmethod
    def loaded(self) -> Any:
        """The model, from its payload. The driver sent it, and this process runs the driver's code anyway."""

    def placed(self, model: Any) -> Any:
        """The loaded model, moved to the device of the present task. Another task of this process may have another."""
        return model

    @abstractmethod
    def called(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """The model's results for some rows.

        Args:
            matrices: [inputs] each [rows, width], that may be written to.

        Returns:
            [outputs] each [rows, ...] of float32, or of float64 where float32 would lose something; contiguous. They
            have their values after `finish`.
        """

    def finish(self, model: Any) -> None:  # noqa: B027  # there is nothing to wait for on a CPU
        """Waits until the arrays that `called` has returned have their values."""

    @cached_property
    def _key(self) -> str:
        return self.file or self._digest()

    def _digest(self) -> str:
        """The same for the same model, as part of a file's name."""
        return hashlib.sha256(self.payload).hexdigest()

    def sent_by(self, spark: SparkSession) -> Self:
        """The predictor for a function of Spark's: without its payload where that is large, and has been sent."""
        if len(self.payload) <= model_file.LARGE:
            return self
        name = model_file.send(spark, self._digest(), self.payload)
        return self if name is None else replace(self, payload=b"", file=name)

    def source(self) -> Any:
        """The payload as an open file in memory, or the path of its file."""
        return model_file.path_of(self.file) if self.file else io.BytesIO(self.payload)

    def prepare_imports(self) -> None:
        """Makes Horovod's names importable here where they were on the driver."""
        if self.aliases:
            install()

    def model(self) -> Any:
        """The model, loaded once in this process."""
        key = f"{self._key} {self.device}"
        with _lock:
            if key not in _kept:
                _kept.clear()
                self.prepare_imports()
                _kept[key] = self.loaded()
            return self.placed(_kept[key])

    def predictions(self, columns: Sequence[pyarrow.Array]) -> pyarrow.Array:
        """The columns of predictions for some rows.

        Args:
            columns: [columns] of all inputs, in their order.

        Returns:
            [rows] of struct<p0, p1, ...>; null where a column has null.

        Raises:
            DataError: a value cannot be used.
        """
        batch = encoded(pyarrow.RecordBatch.from_arrays(list(columns), names=self._columns), self.encoders)
        batch = without_nulls_in(batch, self.null_values, self.inputs)
        mask = None
        if any(column.null_count for column in batch.columns):
            mask = numpy.logical_and.reduce([numpy.asarray(column.is_valid()) for column in batch.columns])
            batch = batch.filter(pyarrow.array(mask))
        struct = struct_of(self.columns, self._results(batch))
        return struct if mask is None else spread(struct, mask)

    def _results(self, batch: pyarrow.RecordBatch) -> list[Array]:
        """[outputs] each [rows, width]."""
        if not self.decoders:
            return self.outputs_for([matrix_of(batch, field, source="a batch of rows") for field in self.inputs])
        # Images are many times larger than their bytes: those of a few rows are held at a time.
        parts = []
        for start in range(0, max(1, batch.num_rows), self.batch_size):
            rows = decoded(batch.slice(start, self.batch_size), self.decoders)
            parts.append(self.outputs_for([matrix_of(rows, field, source="a batch of rows") for field in self.inputs]))
        return [numpy.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    def outputs_for(self, matrices: Sequence[Array]) -> list[Array]:
        """[outputs] each [rows, width], for [inputs] matrices of [rows, width].

        The same rows in the same batches give the same bits. Otherwise a row's values may differ in their last bits, as
        a matrix product may add it up in another order at another place in its batch.

        Raises:
            DataError: the model returned other tensors or shapes than when it was trained.
        """
        model = self.model()
        rows = len(matrices[0])
        results: list[list[Array]] = [[] for _ in self.widths]
        for start in range(0, rows, self.batch_size):
            stop = min(start + self.batch_size, rows)
            pieces = [_filled(matrix[start:stop]) for matrix in matrices]
            outputs, filled = self.called(model, pieces), len(pieces[0])
            if len(outputs) != len(results):
                raise DataError(f"the model returned {len(outputs)} tensors; {len(results)} were expected.")
            for result, output, width in zip(results, outputs, self.widths, strict=True):
                if output.size != filled * width:
                    raise DataError(
                        f"the model returned {list(output.shape)} for {filled} rows; {width} values a row were "
                        "expected."
                    )
                result.append(output.reshape(filled, width)[: stop - start])
        self.finish(model)
        return [
            numpy.concatenate(parts) if parts else numpy.empty((0, width), numpy.float32)
            for parts, width in zip(results, self.widths, strict=True)
        ]

    def widths_of_row(self, row: Any) -> list[int]:
        """[outputs] how many values the model returns for a row.

        Args:
            row: of Spark's, or a mapping, with the columns of `inputs`.
        """
        columns = {name: [row[name]] for field in self.inputs for name in field.names}
        converted = matrices_of(columns, self.inputs, {}, self.encoders, self.null_values, self.zone)
        matrices = [numpy.require(matrix, requirements="W") for matrix in converted]
        return [int(output.size) for output in self.called(self.model(), matrices)]

    def arrow_batches(self, batches: Iterator[Any]) -> Iterator[pyarrow.Array]:
        """For an Arrow UDF over an iterator: each batch is a tuple of arrays."""
        return (self.predictions(unpacked(batch, self.packed)) for batch in batches)

    def pandas_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same for a pandas UDF, in Spark versions that have no Arrow UDFs."""
        for columns in batches:
            # NaN in a column of numbers is what pandas makes of null; in an array it is NaN.
            arrays = [pyarrow.array(column, from_pandas=column.dtype != object) for column in columns]
            struct = self.predictions(arrays)
            frame = pyarrow.RecordBatch.from_struct_array(struct).to_pandas(integer_object_nulls=True)
            for name in frame.columns:
                if frame[name].dtype == object:
                    frame[name] = [None if value is None else numpy.asarray(value).tolist() for value in frame[name]]
            yield frame

    def frame(self, features: Any) -> Any:
        """The columns of predictions as a pandas frame.

        Args:
            features: a pandas frame, or a mapping, with the columns of `inputs`. NaN in a column of numbers is what
                pandas makes of null.

        Raises:
            DataError: a column is missing, or cannot be used.
        """
        arrays = arrow_columns(features, self.inputs, self.decoders, self.encoders, self.zone, nulls=True)
        return self.as_frame(self.predictions(arrays), getattr(features, "index", None))

    def as_frame(self, struct: pyarrow.StructArray, index: Any) -> Any:
        """The result of `predictions` as a pandas frame.

        Args:
            index: of the frame; None: the numbers of rows.
        """
        import pandas

        series = {
            column.name: column.in_pandas(values, self.zone)
            for column, values in zip(self.columns, struct.flatten(), strict=True)
        }
        frame = pandas.DataFrame(series, columns=list(series))
        return frame if index is None else frame.set_axis(index, axis=0)

    @property
    def _columns(self) -> list[str]:
        return [column for field in self.inputs for column in field.columns]


def unpacked(arguments: Sequence[pyarrow.Array], packed: Sequence[Sequence[int]]) -> Sequence[pyarrow.Array]:
    """Return [columns] the columns in Spark's arguments; see `Predictor.packed`."""
    if not packed:
        return arguments
    columns: dict[int, pyarrow.Array] = {}
    for argument, numbers in zip(arguments, packed, strict=True):
        values = argument if len(numbers) == 1 else argument.flatten()
        first = numpy.arange(len(argument)) * len(numbers)
        for place, number in enumerate(numbers):
            columns[number] = values if len(numbers) == 1 else values.take(pyarrow.array(first + place))
    return [columns[number] for number in range(len(columns))]


def spread(struct: pyarrow.StructArray, mask: Array) -> pyarrow.StructArray:
    """[rows] with null where the mask is false; the values in their order where it is true."""
    places = numpy.cumsum(mask) - 1
    return struct.take(pyarrow.array(places, pyarrow.int64(), mask=~mask))


def _filled(matrix: Array) -> Array:
    """With its last row again, up to a multiple of `ROWS_ALIKE`; it may be written to."""
    more = -len(matrix) % ROWS_ALIKE
    if more:
        return numpy.concatenate([matrix, numpy.repeat(matrix[-1:], more, axis=0)])
    return numpy.require(matrix, requirements="W")
