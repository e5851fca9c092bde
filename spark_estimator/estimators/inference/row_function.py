"""Predictions row by row, by a user's function of (model, row): Horovod's ``get_prediction_fn``, overridden.

Spark passes each row with all columns, of any type, to a Python function; the function that predicts and the model
travel with it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.predictor import Predictor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RowFunction:
    """A function and its model; travels to Spark's workers.

    Attributes:
        predictor: has the model.
        payload: the function of (model, row), pickled, as its modules may import Horovod's names. It returns an array
            or a tensor, or a list of them, one for each label.
    """

    predictor: Predictor
    payload: bytes

    @classmethod
    def of(cls, predictor: Predictor, function: Callable[[Any, Any], Any]) -> RowFunction:
        """With a copy of the function as it is now."""
        return cls(predictor, cloudpickle.dumps(function))

    @cached_property
    def function(self) -> Callable[[Any, Any], Any]:
        """The function, unpickled once in this process."""
        self.predictor.prepare_imports()
        loaded: Callable[[Any, Any], Any] = pickle.loads(self.payload)  # noqa: S301  # from the driver
        return loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.predictor, self.payload)

    def outputs_of(self, row: Any) -> list[Array]:
        """[labels] the values that the function returns for a row."""
        result = self.function(self.predictor.model(), row)
        outputs = result if isinstance(result, (list, tuple)) else [result]
        return [_values(output) for output in outputs]


def row_udf(row_function: RowFunction, dataset: DataFrame, widths: Sequence[int]) -> Any:
    """A column with a struct of what the function returns for each row: a double, or an array of them, for each label.

    Args:
        widths: [labels] values per row.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

    kinds = [ArrayType(DoubleType()) if width > 1 else DoubleType() for width in widths]
    struct = StructType([StructField(f"o{place}", kind) for place, kind in enumerate(kinds)])
    expected = list(widths)

    def predicted(row: Any) -> tuple[Any, ...]:
        outputs = row_function.outputs_of(row)
        returned = [len(output) for output in outputs]
        if returned != expected:
            raise DataError(
                f"the function of get_prediction_fn() returned {returned} values for a row; {expected} were expected, "
                "as for the first row."
            )
        return tuple(
            output.tolist() if width > 1 else float(output[0]) for output, width in zip(outputs, expected, strict=True)
        )

    predicted.__annotations__ = {}  # as text they tell PySpark nothing, and it warns
    columns = [functions.col(f"`{name}`") for name in dataset.columns]
    return functions.udf(predicted, struct)(functions.struct(*columns))


def _values(output: Any) -> Array:
    if hasattr(output, "detach"):
        output = output.detach().cpu().numpy()
    return numpy.asarray(output, numpy.float64).reshape(-1)
