"""Predicts row by row with a user's function of (model, row), as subclasses that override Horovod's
``get_prediction_fn``.

Spark passes each row with all columns, of any type, to a Python function; the function that predicts and the model are
sent with it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy

from spark_estimator.data.fields import Array
from spark_estimator.data.quoting import quote
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.features import check_values
from spark_estimator.estimators.inference.prediction_columns import Role, make_struct, make_struct_type
from spark_estimator.estimators.inference.predictor import Predictor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RowFunction:
    """A function and its model; is sent to Spark's workers.

    Attributes:
        predictor: has the model.
        payload: the function of (model, row), pickled, as its modules may import Horovod's names. It returns an array
            or a tensor, or a list of them, one for each label.
    """

    predictor: Predictor
    payload: bytes

    @classmethod
    def from_function(cls, predictor: Predictor, function: Callable[[Any, Any], Any]) -> RowFunction:
        """Return one with a copy of the function as it is now."""
        return cls(predictor, cloudpickle.dumps(function))

    @cached_property
    def function(self) -> Callable[[Any, Any], Any]:
        """Return the function, unpickled once in this process."""
        self.predictor.prepare_imports()
        loaded: Callable[[Any, Any], Any] = pickle.loads(self.payload)  # noqa: S301  # from the driver
        return loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.predictor, self.payload)

    def call_function(self, row: Any) -> list[Array]:
        """Return [labels] the values that the function returns for a row."""
        result = self.function(self.predictor.get_model(), row)
        outputs = result if isinstance(result, (list, tuple)) else [result]
        return [_to_values(output) for output in outputs]

    def predict_row(self, row: Any) -> tuple[Any, ...]:
        """Return the predictor's columns of predictions for a row.

        Raises:
            DataError: the function returned other numbers of values.
        """
        columns = self.predictor.columns
        outputs = self.call_function(row)
        returned = [len(output) for output in outputs]
        expected = [column.width for column in columns if column.role is Role.LABEL]
        if returned != expected:
            raise DataError(
                f"the function of get_prediction_fn() returned {returned} values for a row; {expected} were expected, "
                "as for the first row."
            )
        struct = make_struct(columns, [output.reshape(1, -1) for output in outputs])
        return tuple(struct[0].as_py().values())

    def predict_frame(self, features: Any) -> Any:
        """Return the columns of predictions for the rows of a pandas frame, or of a mapping, as a pandas frame."""
        import pandas

        for name in features:
            check_values(features[name], name)
        frame = pandas.DataFrame(features)
        rows = [self.predict_row(row) for row in frame.to_dict("records")]
        names = [column.name for column in self.predictor.columns]
        return pandas.DataFrame(rows, columns=names, index=frame.index)


def make_row_udf(row_function: RowFunction, dataset: DataFrame) -> Any:
    """Return a column with a struct of the predictions for each row."""
    from pyspark.sql import functions

    def predict(row: Any) -> tuple[Any, ...]:
        return row_function.predict_row(row)

    predict.__annotations__ = {}  # as text they are no types to PySpark, which warns
    columns = [functions.col(quote(name)) for name in dataset.columns]
    struct = make_struct_type(row_function.predictor.columns)
    return functions.udf(predict, struct)(functions.struct(*columns))


def _to_values(output: Any) -> Array:
    if hasattr(output, "detach"):
        output = output.detach().cpu().numpy()
    return numpy.asarray(output, numpy.float64).reshape(-1)
