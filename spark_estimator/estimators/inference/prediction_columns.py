"""The columns of predictions: what a model returns, in the type of its label, or as Spark ML's evaluators read it.

`transform`, MLflow's pyfunc flavour and Spark's UDF of it all take their values from here, so that the same outputs of
a model give the same bits. The loss decides what an output means, its `OutputKind`: logits or probabilities, for
example. The predicted class and the probabilities follow from it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.times import get_zone, to_times

if TYPE_CHECKING:
    from pyspark.sql import Column

#: One of the values below; None: numbers of unknown meaning.
OutputKind = str | None
#: By the loss, or the function of torch.nn.functional, of this name; Keras' ones unless they say from_logits=True.
OUTPUT_KINDS: dict[str, str] = {
    "BCEWithLogitsLoss": "logit",
    "binary_cross_entropy_with_logits": "logit",
    "BCELoss": "probability",
    "binary_cross_entropy": "probability",
    "CrossEntropyLoss": "logits",
    "cross_entropy": "logits",
    "NLLLoss": "log_probabilities",
    "nll_loss": "log_probabilities",
    "BinaryCrossentropy": "probability",
    "CategoricalCrossentropy": "probabilities",
    "SparseCategoricalCrossentropy": "probabilities",
}
#: What an output of one value has to exceed to be 1, or true.
THRESHOLDS = {"logit": 0.0, "probability": 0.5}
#: The types of labels in which a prediction is a class or nothing: they cannot hold other outputs.
_CLASSES = ("boolean", "tinyint", "smallint", "int", "bigint")
_ARROW = {
    "boolean": pyarrow.bool_(),
    "tinyint": pyarrow.int8(),
    "smallint": pyarrow.int16(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "float": pyarrow.float32(),
    "double": pyarrow.float64(),
    "string": pyarrow.string(),
    "date": pyarrow.date32(),
}
_TIMESTAMP = "timestamp"
_VECTOR = "vector"
# In place of infinity, which has no differences.
_LARGEST = 1e300


class Role(enum.Enum):
    """The purpose of a column of predictions."""

    #: The prediction in the type of the label, or in that of `output_type`.
    LABEL = "output_cols"
    #: Spark ML's predictionCol: a class's number, or the very number that the model returned.
    PREDICTION = "prediction_col"
    #: Its rawPredictionCol: a vector with a number for each class.
    RAW = "raw_prediction_col"
    #: Its probabilityCol: a vector of numbers that add up to 1.
    PROBABILITY = "probability_col"
    #: Texts, or arrays of them, as the predictor returns them.
    TEXT = "text"


@dataclass(frozen=True)
class PredictionColumn:
    """One column of predictions. It is sent to Spark's workers, which return its values.

    Attributes:
        name: of the column.
        output: the number of the model's output that it is made of, from 0.
        width: values per row of that output.
        role: what it is for.
        kind: its Spark type, as ``simpleString`` has it; ``vector`` for Spark ML's vectors.
        output_kind: what the output is.
        classes: the values of the classes, in the order of the output's values; empty: the column has numbers of
            classes, or no classes.
    """

    name: str
    output: int
    width: int
    role: Role
    kind: str
    output_kind: OutputKind = None
    classes: tuple[Any, ...] = ()

    @property
    def sent(self) -> str:
        """Return the Spark type of the values that are sent, which Spark turns into `kind`."""
        is_text = self.role is Role.TEXT or bool(self.classes)
        return self.kind if is_text else _to_sent_type(self.kind)

    def make_values(self, output: Array) -> pyarrow.Array:
        """Return the column's values, of the type `sent`.

        Args:
            output: [rows, width] what the model returned.
        """
        if self.classes:
            return pyarrow.array(self.classes, to_arrow_type(self.kind)).take(_find_best(output))
        if self.role is Role.LABEL:
            return self._make_label(output)
        if self.role is Role.PREDICTION:
            return self._convert_to_prediction(output)
        numbers = numpy.clip(output.astype(numpy.float64), -_LARGEST, _LARGEST)
        scores = _compute_raw_scores if self.role is Role.RAW else _compute_probabilities
        vectors = _make_lists(scores(numbers, self.output_kind), numpy.float64)
        # A rank by NaN would be a wrong one; evaluators refuse null.
        return vectors.take(pyarrow.array(numpy.arange(len(numbers)), mask=numpy.isnan(numbers).any(1)))

    def to_spark(self, column: Column) -> Column:
        """Return Spark's expression for a column of `make_values`: vectors of arrays, timestamps of microseconds."""
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions

        if self.kind == _VECTOR:
            return functions.when(column.isNotNull(), array_to_vector(column))
        if self.kind.startswith(f"array<{_TIMESTAMP}"):
            column = functions.transform(column, _to_timestamp)
        elif self.kind.startswith(_TIMESTAMP):
            column = _to_timestamp(column)
        return column if self.sent == self.kind else column.cast(self.kind)

    def to_pandas(self, values: pyarrow.Array, zone: str) -> Any:
        """Return the same as a pandas series.

        Args:
            zone: as of `times.get_zone`; timestamps are in it, as Spark's ``toPandas`` has them.
        """
        import pandas

        if self.kind.startswith(_TIMESTAMP):
            values = to_times(values, get_zone(zone), self.kind)
        if pyarrow.types.is_list(values.type):
            return pandas.Series(values.to_pylist(), dtype=object)
        return values.to_pandas()

    def _make_label(self, output: Array) -> pyarrow.Array:
        if self.kind == _VECTOR or self.width > 1:
            return _make_lists(output, numpy.float64 if self.kind == _VECTOR else numpy.float32)
        kind = self.kind
        if not kind.startswith("array<"):
            return _to_kind(output.reshape(-1), kind, self.output_kind)
        inside = _to_kind(output.reshape(-1), kind[len("array<") : -1], self.output_kind)
        return pyarrow.ListArray.from_arrays(pyarrow.array(numpy.arange(len(inside) + 1, dtype=numpy.int32)), inside)

    def _convert_to_prediction(self, output: Array) -> pyarrow.Array:
        if self.width > 1:
            return _find_best(output).cast(pyarrow.float64())
        threshold = THRESHOLDS.get(self.output_kind or "")
        numbers = output.reshape(-1).astype(numpy.float64)
        if threshold is None:
            return pyarrow.array(numbers)
        return pyarrow.array((numbers > threshold).astype(numpy.float64), mask=numpy.isnan(numbers))


def get_output_kind(loss: Any) -> OutputKind:
    """Return the kind of outputs that a loss expects."""
    if isinstance(loss, functools.partial):
        loss = loss.func
    named = loss if hasattr(loss, "__name__") else type(loss)
    if isinstance(named, type):
        named = find_computing_class("forward", named, ("torch",))
    return OUTPUT_KINDS.get(named.__name__) if str(named.__module__).startswith("torch.nn.") else None


def find_computing_class(method: str, kind: type, packages: Sequence[str]) -> type:
    """Return the framework's class whose computation a subclass keeps, as one that only sets arguments does; or
    itself.

    Args:
        method: that computes.
        packages: the framework's.
    """
    if str(getattr(getattr(kind, method, None), "__module__", "")).partition(".")[0] not in packages:
        return kind
    return next(base for base in kind.__mro__ if base.__module__.partition(".")[0] in packages)


def choose_label_kind(width: int, kind: str, wanted: str, output_kind: OutputKind) -> str:
    """Return the Spark type of a prediction: the label's, unless that would round an output that is no class.

    Args:
        kind: of the label.
        wanted: "label", "array" or "vector".
    """
    if wanted == "array":
        return "array<float>"
    if wanted == _VECTOR or width > 1:
        return _VECTOR
    if kind.startswith("array<"):
        return f"array<{choose_label_kind(width, kind[len('array<') : -1], wanted, output_kind)}>"
    rounds = kind.startswith("decimal") or (kind in _CLASSES and output_kind not in THRESHOLDS)
    return "double" if rounds else kind


def make_evaluator_column(name: str, role: Role, width: int, label_type: str, output_kind: OutputKind) -> Any:
    """Return a column for Spark ML's evaluators, of a model with one output.

    Raises:
        DataError: the model does not return what it is made of.
    """
    threshold = THRESHOLDS.get(output_kind or "")
    if role is Role.PREDICTION:
        is_array = label_type == _VECTOR or label_type.startswith("array")
        if width > 1 and (threshold is not None or is_array):
            raise DataError(
                f"prediction_col is one number a row; the model returns {width} for a label of type {label_type}: read "
                "the column that output_cols names."
            )
        return PredictionColumn(name, 0, width, role, "double", output_kind)
    several = ("logits", "log_probabilities", "probabilities")
    is_classifier = output_kind in THRESHOLDS if width == 1 else role is Role.RAW or output_kind in several
    if not is_classifier:
        raise DataError(
            f"{role.value} is for classes: for a model that returns a number for each of them, or was trained with one "
            f"of {', '.join(OUTPUT_KINDS)}, and it has to be one of these for probabilities."
        )
    return PredictionColumn(name, 0, width, role, _VECTOR, output_kind)


def to_arrow_type(kind: str) -> pyarrow.DataType:
    """Return the Arrow type of a Spark type that values are sent in."""
    if kind.startswith("array<"):
        return pyarrow.list_(to_arrow_type(kind[len("array<") : -1]))
    return _ARROW[kind]


def _to_sent_type(kind: str) -> str:
    if kind == _VECTOR:
        return "array<double>"
    if kind.startswith("array<"):
        return f"array<{_to_sent_type(kind[len('array<') : -1])}>"
    if kind.startswith(_TIMESTAMP):
        return "bigint"
    return kind if kind in _ARROW and kind != "string" else "double"


def _to_timestamp(micros: Column) -> Column:
    from pyspark.sql import functions

    return functions.timestamp_seconds(micros.cast("decimal(19,0)") / 1_000_000)


def _to_kind(values: Array, kind: str, output_kind: OutputKind) -> pyarrow.Array:
    """Return [rows] numbers in the type that `choose_label_kind` chose; null where the type cannot hold the number."""
    numbers = values.astype(numpy.float64)
    unknown = numpy.isnan(numbers)
    if kind in _CLASSES:
        return pyarrow.array(numbers > THRESHOLDS[output_kind or ""], mask=unknown).cast(_ARROW[kind])
    if kind == "date":
        days = numpy.trunc(numbers + numpy.copysign(0.5, numbers))
        beyond = unknown | (numpy.abs(days) >= 1 << 31)
        return pyarrow.array(_truncate(days, numpy.int32), mask=beyond).cast(pyarrow.date32())
    if kind.startswith(_TIMESTAMP):
        return pyarrow.array(_truncate(numbers * 1e6, numpy.int64), mask=~numpy.isfinite(numbers))
    return pyarrow.array(values.astype(numpy.float32 if kind == "float" else numpy.float64))


def _truncate(numbers: Array, dtype: Any) -> Array:
    """Truncate to whole numbers; a number beyond the type's limits becomes the nearest limit, and NaN 0."""
    limits = numpy.iinfo(dtype)
    with numpy.errstate(invalid="ignore"):
        result: Array = numpy.nan_to_num(numbers, nan=0.0).clip(limits.min, float(limits.max)).astype(dtype)
    if dtype is numpy.int64:  # whose largest number is no double
        result[numbers >= float(limits.max)] = limits.max
    return result


def _find_best(output: Array) -> pyarrow.Array:
    """Return [rows] the index of the largest value, the first one of equals, as torch.argmax; null where a value is
    NaN.
    """
    return pyarrow.array(output.argmax(1), mask=numpy.isnan(output).any(1))


def _compute_raw_scores(numbers: Array, output_kind: OutputKind) -> Array:
    """Return [rows, classes] scores. Of two classes the second score orders rows as the probability of that class
    does.
    """
    if numbers.shape[1] == 1:
        return numpy.hstack([-numbers if output_kind == "logit" else 1 - numbers, numbers])
    if output_kind == "probabilities":
        return _compute_probabilities(numbers, output_kind)
    if output_kind in THRESHOLDS:  # each output is a score of another label
        return numbers
    centered: Array = numbers - numbers.mean(1, keepdims=True)  # one logit has a meaning only beside the others
    return centered


def _compute_probabilities(numbers: Array, output_kind: OutputKind) -> Array:
    if output_kind == "probability":
        return numpy.hstack([1 - numbers, numbers])
    if output_kind == "logit":  # beside one that is always 0
        numbers = numpy.hstack([numpy.zeros_like(numbers), numbers])
    if output_kind == "probabilities":  # which Keras' losses divide by their sum, without those below 0
        shares = numpy.maximum(numbers, numpy.finfo(numpy.float64).tiny)
    else:
        shares = numpy.exp(numbers - numbers.max(1, keepdims=True))  # so that nothing overflows
    result: Array = shares / shares.sum(1, keepdims=True)
    return result


def _make_lists(values: Array, dtype: Any) -> pyarrow.Array:
    """Return [rows] of lists, from [rows, width]."""
    offsets = numpy.arange(0, values.size + 1, max(1, values.shape[1]), dtype=numpy.int32)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(values.reshape(-1).astype(dtype)))


def make_struct(columns: Sequence[PredictionColumn], outputs: Sequence[Array]) -> pyarrow.StructArray:
    """Return [rows] of struct<p0, p1, ...>: the values of all columns.

    Args:
        outputs: [outputs] each [rows, width].
    """
    arrays = [column.make_values(outputs[column.output]) for column in columns]
    return pyarrow.StructArray.from_arrays(arrays, [f"p{number}" for number in range(len(arrays))])


def make_struct_type(columns: Sequence[PredictionColumn]) -> str:
    """Return the Spark type of `make_struct`, as DDL has it."""
    return ", ".join(f"p{number} {column.sent}" for number, column in enumerate(columns))
