"""A model's metadata of the columns of its training: Horovod's `_metadata`, with the fields that predictions need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_estimator.data.fields import Field
from spark_estimator.estimators.inference.prediction_columns import OutputKind

if TYPE_CHECKING:
    from spark_estimator.data.columns import Readable


class ModelMetadata(dict[str, dict[str, Any]]):
    """By column, as in Horovod: ``spark_data_type``, ``shape`` (the number of values a row), and constants.

    Attributes:
        inputs: [inputs] the fields of the training.
        outputs: [labels] values per row that the model returns; empty: not known before `transform`.
        label_types: [labels] Spark types, in the form of ``simpleString``.
        output_kinds: [labels] what each output is (see `prediction_columns`).
        zone: the time zone of the training's session.
    """

    def __init__(
        self,
        columns: Mapping[str, dict[str, Any]],
        inputs: Sequence[Field],
        outputs: Sequence[int],
        label_types: Sequence[str],
        output_kinds: Sequence[OutputKind] | None = None,
        zone: str = "UTC",
    ) -> None:
        super().__init__(columns)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.label_types = tuple(label_types)
        self.output_kinds = tuple(output_kinds or [None] * len(self.label_types))
        self.zone = zone

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self.inputs, self.outputs, self.label_types, self.output_kinds, self.zone)


def make_column_facts(columns: Sequence[Readable], widths: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the entries of Horovod's metadata for each column."""
    return {
        column.name: {
            "spark_data_type": _to_spark_type(column.kind, column.is_array),
            "shape": widths.get(column.name, 1),
            "is_sparse_vector_only": False,
            "intermediate_format": "array" if column.is_array else "nochange",
            "max_size": None,
        }
        for column in columns
    }


def get_label_type(facts: Mapping[str, Any]) -> str:
    """Return the Spark type of a label, as ``simpleString`` has it, by Horovod's metadata of its column."""
    kind: Any = facts.get("spark_data_type")
    name = getattr(kind, "__name__", type(kind).__name__)
    if name in ("DenseVector", "SparseVector", "VectorUDT"):
        return "vector"
    try:
        text: str = (kind() if isinstance(kind, type) else kind).simpleString()
    except (AttributeError, TypeError):
        return "double"
    return text


def _to_spark_type(kind: str, is_array: bool) -> Any:
    from pyspark.ml.linalg import DenseVector
    from pyspark.sql import types

    if kind == "vector":
        return DenseVector
    if is_array or kind.startswith("array"):
        return types.ArrayType
    return {
        "boolean": types.BooleanType,
        "tinyint": types.ByteType,
        "smallint": types.ShortType,
        "int": types.IntegerType,
        "bigint": types.LongType,
        "float": types.FloatType,
        "double": types.DoubleType,
        "date": types.DateType,
        "timestamp": types.TimestampType,
        "binary": types.BinaryType,
        "string": types.StringType,
    }.get(kind, types.DoubleType)
