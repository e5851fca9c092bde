"""Predicts on Arrow batches: what Spark's Python workers run for ``transform``, for models of all frameworks."""

from __future__ import annotations

import hashlib
import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.compat.importer import install, is_installed
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference import model_file
from spark_estimator.estimators.inference.features import read_features, read_table
from spark_estimator.estimators.inference.prediction_columns import PredictionColumn, make_struct

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
        encoder: makes the model's inputs of columns.
        widths: [outputs] values a row that it returns.
        batch_size: rows that go through the model at a time.
        columns: of predictions, which are made of what the model returns.
        aliases: the driver has Horovod's names, which the model's classes may import.
        device: one of `devices.DEVICES`; where there is no choice, the model's framework decides.
        precision: "bf16" or "fp16" for mixed precision; None: none.
        file: the name of the file with the payload (`model_file`), and no payload; empty: none was sent.
        zone: of times in frames that have none, where there is no session: that of the training's session.
    """

    payload: bytes = field(repr=False)
    encoder: RowEncoder
    widths: tuple[int, ...]
    batch_size: int
    columns: tuple[PredictionColumn, ...] = ()
    aliases: bool = field(default_factory=is_installed)
    device: str = "cpu"
    precision: str | None = None
    file: str = ""
    zone: str = "UTC"

    @property
    def inputs(self) -> tuple[Field, ...]:
        """[inputs] the fields of the model's inputs."""
        return self.encoder.fields

    @abstractmethod
    def load(self) -> Any:
        """Load the model from its payload. The driver sent it, and this process runs the driver's code anyway."""

    def move_to_device(self, model: Any) -> Any:
        """Move the loaded model to the device of the present task. Another task of this process may have another."""
        return model

    @abstractmethod
    def call(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """Return the model's results for some rows.

        Args:
            matrices: [inputs] each [rows, width], that may be written to.

        Returns:
            [outputs] each [rows, ...] of float32, or of float64 where float32 would lose something; contiguous. They
            have their values after `finish`.
        """

    def finish(self, model: Any) -> None:  # noqa: B027  # there is nothing to wait for on a CPU
        """Wait until the arrays that `call` has returned have their values."""

    @cached_property
    def _key(self) -> str:
        return self.file or self._compute_digest()

    def _compute_digest(self) -> str:
        """Return the same for the same model, as part of a file's name."""
        return hashlib.sha256(self.payload).hexdigest()

    def send(self, spark: SparkSession) -> Self:
        """Return the predictor for a function of Spark's: without its payload where a file was sent."""
        if len(self.payload) <= model_file.LARGE:
            return self
        name = model_file.send(spark, self._compute_digest(), self.payload)
        return self if name is None else replace(self, payload=b"", file=name)

    def open_payload(self) -> Any:
        """Return the payload as an open file in memory, or the path of its file."""
        return model_file.find_path(self.file) if self.file else io.BytesIO(self.payload)

    def prepare_imports(self) -> None:
        """Make Horovod's names importable here where they were on the driver."""
        if self.aliases:
            install()

    def get_model(self) -> Any:
        """Return the model, loaded once in this process."""
        key = f"{self._key} {self.device}"
        with _lock:
            if key not in _kept:
                _kept.clear()
                self.prepare_imports()
                _kept[key] = self.load()
            return self.move_to_device(_kept[key])

    def predict_batch(self, batch: pyarrow.RecordBatch) -> pyarrow.StructArray:
        """Return the columns of predictions for some rows.

        Args:
            batch: the columns of all inputs, under the encoder's names.

        Returns:
            [rows] of struct<p0, p1, ...>; null where a column has null.

        Raises:
            DataError: a value cannot be used.
        """
        # Images are many times larger than their bytes: those of a few rows are held at a time.
        most_rows = self.batch_size if self.encoder.decoders else max(1, batch.num_rows)
        pieces = [
            self._predict_piece(batch.slice(start, most_rows)) for start in range(0, max(1, batch.num_rows), most_rows)
        ]
        return pieces[0] if len(pieces) == 1 else pyarrow.concat_arrays(pieces)

    def _predict_piece(self, batch: pyarrow.RecordBatch) -> pyarrow.StructArray:
        rows = self.encoder.to_numbers(batch, source="a batch of rows")
        mask = None
        if any(column.null_count for column in rows.columns):
            mask = numpy.logical_and.reduce([numpy.asarray(column.is_valid()) for column in rows.columns])
            rows = rows.filter(pyarrow.array(mask))
        struct = make_struct(
            self.columns, self.predict_matrices(self.encoder.make_matrices(rows, source="a batch of rows"))
        )
        return struct if mask is None else insert_nulls(struct, mask)

    def predict_matrices(self, matrices: Sequence[Array]) -> list[Array]:
        """Return [outputs] each [rows, width], for [inputs] matrices of [rows, width].

        The same rows in the same batches give the same bits. Otherwise a row's values may differ in their last bits, as
        a matrix product may add it up in another order at another place in its batch.

        Raises:
            DataError: the model returned other tensors or shapes than when it was trained.
        """
        model = self.get_model()
        rows = len(matrices[0])
        results: list[list[Array]] = [[] for _ in self.widths]
        for start in range(0, rows, self.batch_size):
            stop = min(start + self.batch_size, rows)
            pieces = [_fill(matrix[start:stop]) for matrix in matrices]
            outputs, filled = self.call(model, pieces), len(pieces[0])
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

    def predict_features(self, features: Any) -> list[Array]:
        """Return [outputs] each [rows, width], for what a model's ``predict`` takes.

        Raises:
            TypeError, DataError: it cannot be used.
        """
        batch = read_features(features, self.encoder, self.zone)
        return self.predict_matrices(self.encoder.encode(batch, source="a batch of rows"))

    def call_on_row(self, model: Any, row: Any) -> list[Array]:
        """Return [outputs] what a model returns for a row, as it is.

        Args:
            row: of Spark's, or a mapping, with the columns of `inputs`.
        """
        features = {name: [row[name]] for field in self.inputs for name in field.names}
        batch = read_features(features, self.encoder, self.zone)
        matrices = [numpy.require(each, requirements="W") for each in self.encoder.encode(batch, source="a row")]
        return self.call(model, matrices)

    def predict_arrow_batches(self, batches: Iterator[Any]) -> Iterator[pyarrow.Array]:
        """Yield the predictions of an Arrow UDF over an iterator: each batch is a tuple of arrays."""
        return (self.predict_batch(self.encoder.make_batch(batch)) for batch in batches)

    def predict_pandas_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same of a pandas UDF, in Spark versions that have no Arrow UDFs."""
        for columns in batches:
            # NaN in a column of numbers is what pandas makes of null; in an array it is NaN.
            arrays = [pyarrow.array(column, from_pandas=column.dtype != object) for column in columns]
            struct = self.predict_batch(self.encoder.make_batch(arrays))
            frame = pyarrow.RecordBatch.from_struct_array(struct).to_pandas(integer_object_nulls=True)
            for name in frame.columns:
                if frame[name].dtype == object:
                    frame[name] = [None if value is None else numpy.asarray(value).tolist() for value in frame[name]]
            yield frame

    def predict_frame(self, features: Any) -> Any:
        """Return the columns of predictions as a pandas frame.

        Args:
            features: a pandas frame, or a mapping, with the columns of `inputs`. NaN in a column of numbers is what
                pandas makes of null.

        Raises:
            DataError: a column is missing, or cannot be used.
        """
        batch = read_table(features, self.encoder, self.zone, nulls=True)
        return self.to_frame(self.predict_batch(batch), getattr(features, "index", None))

    def to_frame(self, struct: pyarrow.StructArray, index: Any) -> Any:
        """Return the result of `predict_batch` as a pandas frame.

        Args:
            index: of the frame; None: the numbers of rows.
        """
        import pandas

        series = {
            column.name: column.to_pandas(values, self.zone)
            for column, values in zip(self.columns, struct.flatten(), strict=True)
        }
        frame = pandas.DataFrame(series, columns=list(series))
        return frame if index is None else frame.set_axis(index, axis=0)


def insert_nulls(struct: pyarrow.StructArray, mask: Array) -> pyarrow.StructArray:
    """[rows] with null where the mask is false; the values in their order where it is true."""
    places = numpy.cumsum(mask) - 1
    return struct.take(pyarrow.array(places, pyarrow.int64(), mask=~mask))


def _fill(matrix: Array) -> Array:
    """With its last row again, up to a multiple of `ROWS_ALIKE`; it may be written to."""
    more = -len(matrix) % ROWS_ALIKE
    if more:
        return numpy.concatenate([matrix, numpy.repeat(matrix[-1:], more, axis=0)])
    return numpy.require(matrix, requirements="W")
