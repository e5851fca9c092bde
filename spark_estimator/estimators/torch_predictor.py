"""Predicts with a PyTorch model on Arrow batches: what Spark's Python workers run for `TorchModel.transform`."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cloudpickle
import numpy
import pyarrow
import torch
from torch import nn

from spark_estimator.data.fields import Array, Field, matrix_of
from spark_estimator.errors import DataError
from spark_estimator.estimators.torch_training import outputs_of, tensor_of

# A Python worker serves many tasks one after the other: it keeps the model that it has used last.
_kept: dict[str, nn.Module] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Output:
    """One output of the model.

    Attributes:
        width: values a row.
        whole: they are rounded to whole numbers.
        threshold: whole numbers, of which 1 is what is more than that, and 0 the rest; None: they are rounded.
    """

    width: int
    whole: bool = False
    threshold: float | None = None

    @property
    def arrow_type(self) -> pyarrow.DataType:
        """A number, or a list of numbers."""
        number = pyarrow.int64() if self.whole else pyarrow.float64() if self.width == 1 else pyarrow.float32()
        return number if self.width == 1 else pyarrow.list_(number)


@dataclass(frozen=True)
class Predictor:
    """A model and what goes into it and comes out of it; travels to Spark's workers.

    Attributes:
        payload: the pickled model.
        inputs: [inputs] what its columns are.
        outputs: [outputs] what it returns.
        batch_size: rows that go through the model at a time.
    """

    payload: bytes = field(repr=False)
    inputs: tuple[Field, ...]
    outputs: tuple[Output, ...]
    batch_size: int

    @classmethod
    def of(cls, model: nn.Module, inputs: Sequence[Field], outputs: Sequence[Output], batch_size: int) -> Predictor:
        """A predictor with a copy of the model as it is now."""
        return cls(cloudpickle.dumps(model), tuple(inputs), tuple(outputs), batch_size)

    @cached_property
    def _key(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    def model(self) -> nn.Module:
        """The model, loaded once in this process."""
        with _lock:
            if self._key not in _kept:
                _kept.clear()
                # It came with the task, from the driver whose code runs here anyway.
                _kept[self._key] = pickle.loads(self.payload).eval()  # noqa: S301
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
        results = self.outputs_for([matrix_of(batch, field) for field in self.inputs])
        arrays = [_arrow(values, output) for values, output in zip(results, self.outputs, strict=True)]
        struct = pyarrow.StructArray.from_arrays(arrays, [f"o{place}" for place in range(len(arrays))])
        if mask is None:
            return struct
        places = numpy.where(mask, numpy.cumsum(mask) - 1, -1)
        return struct.take(pyarrow.array([None if place < 0 else int(place) for place in places], pyarrow.int64()))

    def outputs_for(self, matrices: Sequence[Array]) -> list[Array]:
        """[outputs] each [rows, width], for [inputs] matrices of [rows, width].

        Raises:
            DataError: the model returned something else than when it was trained.
        """
        model = self.model()
        rows = len(matrices[0])
        results: list[list[Array]] = [[] for _ in self.outputs]
        with torch.inference_mode():
            for start in range(0, rows, self.batch_size):
                stop = min(start + self.batch_size, rows)
                tensors = [
                    tensor_of(numpy.require(matrix[start:stop], requirements="W"), field)
                    for matrix, field in zip(matrices, self.inputs, strict=True)
                ]
                outputs = outputs_of(model, tensors)
                if len(outputs) != len(results):
                    raise DataError(f"the model returned {len(outputs)} tensors; {len(results)} were expected.")
                for result, output, form in zip(results, outputs, self.outputs, strict=True):
                    if output.numel() != (stop - start) * form.width:
                        raise DataError(
                            f"the model returned {list(output.shape)} for {stop - start} rows; {form.width} values a "
                            "row were expected."
                        )
                    exact = output.dtype in (torch.float64, torch.int64)
                    values = output.to(torch.float64 if exact else torch.float32)
                    result.append(values.reshape(stop - start, form.width).cpu().numpy())
        return [
            numpy.concatenate(pieces) if pieces else numpy.empty((0, form.width), numpy.float32)
            for pieces, form in zip(results, self.outputs, strict=True)
        ]

    def arrow_batches(self, batches: Iterator[Any]) -> Iterator[pyarrow.Array]:
        """For an Arrow UDF over an iterator: each batch is a tuple of arrays."""
        return map(self.predictions, batches)

    def pandas_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same for a pandas UDF, in Spark versions that have no Arrow UDFs."""
        for columns in batches:
            struct = self.predictions([pyarrow.Array.from_pandas(column) for column in columns])
            frame = pyarrow.RecordBatch.from_struct_array(struct).to_pandas()
            for name in frame.columns:
                if frame[name].dtype == object:
                    frame[name] = [None if value is None else numpy.asarray(value).tolist() for value in frame[name]]
            yield frame

    @property
    def _columns(self) -> list[str]:
        return [column for field in self.inputs for column in field.columns]


def _arrow(values: Array, output: Output) -> pyarrow.Array:
    if output.threshold is not None:
        values = (values > output.threshold).astype(numpy.int64)
    elif output.whole:
        values = numpy.rint(values).astype(numpy.int64)
    if output.width == 1:
        return pyarrow.array(values.reshape(-1)).cast(output.arrow_type)
    offsets = numpy.arange(0, values.size + 1, output.width, dtype=numpy.int32)
    numbers = pyarrow.array(values.reshape(-1)).cast(output.arrow_type.value_type)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), numbers)
