"""MLflow's signature of a model's columns: types of features and predictions, and a few rows as an example."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow

from spark_estimator.data.numbers import to_numbers
from spark_estimator.data.quoting import quote
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_estimator.data.parquet import DataFiles
    from spark_estimator.estimators.inference.prediction_columns import PredictionColumn
    from spark_estimator.estimators.rows.sampling import Columns

EXAMPLE_ROWS = 5
# Spark's types, and MLflow's.
_TYPES = {
    "boolean": "boolean",
    "tinyint": "integer",
    "smallint": "integer",
    "int": "integer",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "datetime",
    "timestamp": "datetime",
    "timestamp_ntz": "datetime",
}
_CHAT = "array<struct<"
_WHOLE = ("tinyint", "smallint", "int", "bigint")
# Texts have a prediction, or null, for null in models of texts, and an id in other models.
_TEXTS = ("string", "array<string", _CHAT)


@dataclass(frozen=True)
class Features:
    """The feature columns of a training, as `transform` reads them.

    Attributes:
        kinds: their Spark types by name, as ``simpleString`` has them; ``vector`` for Spark ML's vectors.
        example: a few rows of them as a pandas frame; None: there is none.
    """

    kinds: Mapping[str, str]
    example: Any = None

    @classmethod
    def from_frame(cls, frame: DataFrame, kinds: Mapping[str, str]) -> Features:
        """Return the features with the first rows of a DataFrame, which a small Spark job collects."""
        from pyspark.sql import functions

        if not {name.partition(".")[0] for name in kinds if name not in frame.columns} <= set(frame.columns):
            return cls(kinds)  # a function of the user's makes them
        columns = [functions.col(_quote_path(frame, name)).alias(name) for name in kinds]
        return cls(kinds, _to_plain_lists(frame.select(*columns).limit(EXAMPLE_ROWS).toPandas()))

    @classmethod
    def from_files(cls, files: DataFiles, columns: Columns) -> Features:
        """Return the features with the first rows of Parquet files, which this process reads."""
        kinds = {column.name: column.kind for column in columns.features}
        names = [name for name in kinds if name in files.kinds]
        if len(names) < len(kinds):  # a function of the user's makes them
            return cls(kinds)
        rows = next(iter(files.read_batches(names, 0, 1, EXAMPLE_ROWS)), None)
        if rows is None:
            return cls(kinds)
        arrays = [
            to_numbers(column) if kinds[name] == "vector" else column
            for name, column in zip(names, rows.columns, strict=True)
        ]
        return cls(kinds, _to_plain_lists(pyarrow.RecordBatch.from_arrays(arrays, names=names).to_pandas()))


def _quote_path(frame: DataFrame, name: str) -> str:
    """Return how Spark's functions call a column, or a field of a struct."""
    if name in frame.columns:
        return quote(name)
    return ".".join(map(quote, name.split(".")))


def _to_plain_lists(frame: Any) -> Any:
    """Return the frame with lists in place of vectors and arrays, and plain dicts in place of rows: MLflow writes
    JSON of them.
    """
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = [_to_plain(value) for value in frame[name]]
    return frame


def _to_plain(value: Any) -> Any:
    if hasattr(value, "toArray"):
        value = value.toArray()
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        return value.tolist()
    return [_to_plain(item) for item in value] if isinstance(value, list) else value


def make_signature(features: Features, columns: Sequence[PredictionColumn], nullable: Collection[str] = ()) -> Any:
    """Return MLflow's ModelSignature; None if MLflow has no name for a feature's type.

    Args:
        columns: of the predictions, which are left out where MLflow has no name for a type.
        nullable: the features in which null is a value as any other. They are optional, as texts are.
    """
    from mlflow.models import ModelSignature

    optional = {name for name, kind in features.kinds.items() if name in nullable or kind.startswith(_TEXTS)}
    inputs = _make_schema(features.kinds, optional)
    outputs = _make_schema({column.name: column.kind for column in columns})
    return None if inputs is None else ModelSignature(inputs=inputs, outputs=outputs)


def _make_schema(kinds: Mapping[str, str], optional: Collection[str] = ()) -> Any:
    from mlflow.types import Schema

    try:
        return Schema([_make_column(name, kind, required=name not in optional) for name, kind in kinds.items()])
    except DataError:
        return None


def _make_column(name: str, kind: str, *, required: bool) -> Any:
    from mlflow.types import schema

    chosen = _to_type(kind)
    # pandas has floats for whole numbers with null, which MLflow refuses for each of its types of numbers.
    if not required and kind in _WHOLE and hasattr(schema, "AnyType"):  # since MLflow 2.19
        chosen = schema.AnyType()
    return schema.ColSpec(type=chosen, name=name, required=required)


def _to_type(kind: str) -> Any:
    from mlflow.types import DataType
    from mlflow.types.schema import Array, Object, Property

    if kind == "vector":
        return Array(DataType.double)
    if kind.startswith(_CHAT):
        texts = [Property(name, DataType.string) for name in ("content", "role")]
        return Array(Object(texts))
    if kind.startswith("array<"):
        inside = kind[len("array<") : -1]
        return Array(_to_type("double" if inside == "float" else inside))  # lists of Python's numbers are doubles
    if kind not in _TYPES:
        raise DataError(f"MLflow has no type for {kind}.")
    return DataType[_TYPES[kind]]
