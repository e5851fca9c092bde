"""The columns that a trained model's `transform` adds, as Spark expressions over what the model returned.

The loss decides what an output means, its `OutputKind`: logits or probabilities, for example. The predicted class and
the probabilities that Spark ML's evaluators read follow from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column

#: One of the values below; None: a number, or numbers, of which nothing more is known.
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
#: Whole-number types, and the largest of each.
_LIMITS = {"tinyint": 2**7 - 1, "smallint": 2**15 - 1, "int": 2**31 - 1, "bigint": 2**63 - 1}


def output_kind_of(loss: Any) -> OutputKind:
    """What the outputs are that a loss is given."""
    named = loss if hasattr(loss, "__name__") else type(loss)
    return OUTPUT_KINDS.get(named.__name__) if named.__module__.startswith("torch.nn.") else None


def in_label_type(column: Column, width: int, kind: str, wanted: str, output_kind: OutputKind) -> Column:
    """The output in the type in which it is wanted.

    Args:
        column: a double, or an array of floats where `width` is more than 1.
        kind: the label's Spark type, as ``simpleString`` has it.
        wanted: "label", "array" or "vector".
    """
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions

    if wanted == "array":
        return column if width > 1 else _alone(column, column.cast("float"))
    if wanted == "vector" or width > 1 or kind == "vector":
        values = column if width > 1 else functions.array(column)
        return functions.when(column.isNotNull(), array_to_vector(values.cast("array<double>")))
    if kind.startswith("array"):
        return _alone(column, in_label_type(column, width, kind[len("array<") : -1], "label", output_kind))
    threshold = THRESHOLDS.get(output_kind or "")
    known = functions.when(~functions.isnan(column), column)  # Spark holds NaN for larger than any number
    if kind == "boolean":
        return known > (0.5 if threshold is None else threshold)
    if kind in _LIMITS:
        if threshold is not None:
            return (known > threshold).cast(kind)
        limit = float(_LIMITS[kind])  # beyond its limits Spark would end the job
        within = functions.greatest(
            functions.least(functions.rint(known), functions.lit(limit)), functions.lit(-limit - 1)
        )
        return functions.when(known.isNotNull(), within).cast(kind)  # greatest and least leave nulls out
    if kind == "date":
        days = _cast(functions.round(column), "int")
        return functions.date_add(functions.lit("1970-01-01").cast("date"), days)
    if kind.startswith("timestamp"):
        return functions.timestamp_seconds(column).cast(kind)
    return _cast(column, kind)


def _alone(source: Column, value: Column) -> Column:
    """An array of one value; null where the model returned nothing."""
    from pyspark.sql import functions

    return functions.when(source.isNotNull(), functions.array(value))


def _is_spark_4(column: Column) -> bool:
    return hasattr(type(column), "try_cast")  # the object itself has every name, as the field of a struct


def _cast(column: Column, kind: str) -> Column:
    """In another type; null where that has no such number: Spark's own cast would end the job."""
    if _is_spark_4(column):
        return column.try_cast(kind)
    return column.cast(kind)  # before Spark 4, whose default this is


def prediction(column: Column, width: int, kind: str, output_kind: OutputKind) -> Column:
    """As Spark ML's predictionCol: a double; a class's number, or the very number that the model returned.

    Raises:
        DataError: the output is neither.
    """
    from pyspark.sql import functions

    threshold = THRESHOLDS.get(output_kind or "")
    if width == 1:
        known = functions.when(~functions.isnan(column), column)
        return column if threshold is None else (known > threshold).cast("double")
    if threshold is not None or kind == "vector" or kind.startswith("array"):
        raise DataError(
            f"prediction_col is one number a row; the model returns {width} for a label of type {kind}: read the "
            "column that output_cols names."
        )
    # Of equal ones the first, as torch.argmax.
    largest = functions.array_max(column)
    if _is_spark_4(column):
        return (functions.array_position(column, largest) - 1).cast("double")
    # Spark 3's array_position takes no column.
    places = functions.transform(column, lambda value, place: functions.when(value == largest, place))
    return functions.array_min(places).cast("double")


def raw_prediction(column: Column, width: int, output_kind: OutputKind) -> Column:
    """As Spark ML's rawPredictionCol: a vector with a number for each class.

    Raises:
        DataError: the model does not tell classes apart.
    """
    from pyspark.sql import functions

    if width > 1:
        return _vector(column, column)
    if output_kind == "logit":
        return _vector(column, functions.array(-column, column))
    if output_kind == "probability":
        return _vector(column, functions.array(1 - column, column))
    raise _no_classes("raw_prediction_col")


def probability(column: Column, width: int, output_kind: OutputKind) -> Column:
    """As Spark ML's probabilityCol: a vector of numbers that add up to 1.

    Raises:
        DataError: the loss does not say how the model's outputs become probabilities.
    """
    from pyspark.sql import functions

    if width == 1 and output_kind in THRESHOLDS:
        share = column if output_kind == "probability" else 1 / (1 + functions.exp(-column))
        return _vector(column, functions.array(1 - share, share))
    if width > 1 and output_kind == "probabilities":
        return _vector(column, column)
    if width > 1 and output_kind in ("logits", "log_probabilities"):
        numbers = column.cast("array<double>")
        largest = functions.array_max(numbers)  # so that nothing overflows
        powers = functions.transform(numbers, lambda score: functions.exp(score - largest))
        total = functions.aggregate(powers, functions.lit(0.0), lambda total, power: total + power)
        return _vector(column, functions.transform(powers, lambda power: power / total))
    raise _no_classes("probability_col")


def _vector(source: Column, values: Column) -> Column:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions

    return functions.when(source.isNotNull(), array_to_vector(values.cast("array<double>")))


def _no_classes(name: str) -> DataError:
    return DataError(
        f"{name} is for classes: for a model that returns a number for each of them, or was trained with one of "
        f"{', '.join(OUTPUT_KINDS)}, and it has to be one of these for probabilities."
    )
