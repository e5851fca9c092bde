"""`TorchModel`: a trained PyTorch model that predicts on DataFrames, arrays and pandas frames."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable
from torch import nn

from spark_estimator.data.columns import readable
from spark_estimator.data.fields import Array, Field, matrix_of
from spark_estimator.errors import DataError
from spark_estimator.estimators import params, torch_files
from spark_estimator.estimators.params import Row, TableParams, with_params
from spark_estimator.estimators.torch_predictor import Output, Predictor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KINDS = ("label", "array", "vector")
#: Whole-number types, and the largest of each.
_LIMITS = {"tinyint": 2**7 - 1, "smallint": 2**15 - 1, "int": 2**31 - 1, "bigint": 2**63 - 1}


def _kind(name: str, value: Any) -> str:
    if value not in _KINDS:
        raise ValueError(f"{name} is one of {_KINDS}; it was {value!r}.")
    return str(value)


_ROWS = (
    Row("history", [], params.listed, "one entry for each epoch: epoch, train, validation"),
    Row("feature_columns", None, params.names, "the columns to predict from, in the order of fit()"),
    Row("label_columns", None, params.names, "the columns that were learnt"),
    Row("output_cols", None, params.names, "the columns of predictions; None: each label's name and __output"),
    Row("run_id", None, params.text, "names the training"),
    Row("batch_size", 1024, params.whole(1), "rows that go through the model at a time"),
    Row("output_type", "label", _kind, "'label': as the label's type has it; 'array' or 'vector': all values of a row"),
)


@with_params(_ROWS)
class TorchModel(Model, TableParams, MLWritable, MLReadable["TorchModel"]):
    """What `TorchEstimator.fit` returns. ``transform(df)`` adds a column of predictions for each label.

    A prediction of one value is of the label's type, rounded where that is a whole number; one of several values is a
    vector (``output_type`` changes that). A row with a null in a feature column gets null.

    Args:
        model: the trained module; kept as it is.
        inputs: [inputs] the fields that it was trained with.
        outputs: [labels] values a row that it returns.
        label_types: [labels] Spark types, as ``simpleString`` has them.
        thresholds: [labels] what a prediction has to exceed to be 1, or true, rather than 0, where the label is a whole
            number or a boolean; None: whole numbers are rounded, and more than 0.5 is true.
        kwargs: the params.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        inputs: Sequence[Field],
        outputs: Sequence[int],
        label_types: Sequence[str],
        thresholds: Sequence[float | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._setDefault(**{row.name: row.default for row in _ROWS})
        self._take(kwargs)
        self._model = model
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._label_types = tuple(label_types)
        self._thresholds = tuple(thresholds or [None] * len(self._outputs))

    def getModel(self) -> nn.Module:  # Horovod's name
        """The trained module, on the CPU, in eval mode. It is this model's own: changes to it change predictions."""
        return self._model

    def setModel(self, value: nn.Module) -> TorchModel:
        """Takes another module with the same inputs and outputs. Returns self."""
        if not isinstance(value, nn.Module):
            raise TypeError(f"model is a torch.nn.Module; it was {value!r}.")
        self._model = value.eval()
        return self

    def setLabelColoumns(self, value: list[str]) -> TorchModel:  # so spelt in Horovod
        """As setLabelColumns."""
        return self.setParams(label_columns=value)

    def module(self) -> nn.Module:
        """A copy of the trained module, for use without Spark."""
        return copy.deepcopy(self._model)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        names = self._value("output_cols") or [f"{label}__output" for label in self._value("label_columns")]
        if len(names) != len(self._outputs):
            raise ValueError(f"output_cols names {len(names)} columns for {len(self._outputs)} outputs.")
        there = {name.lower() for name in dataset.columns}  # as Spark compares them
        taken = [name for name in names if name.lower() in there]
        if taken:
            raise ValueError(f"the DataFrame has a column {taken[0]!r} already: choose others with setOutputCols.")
        inputs = self._renamed_inputs()
        columns: list[Column] = []
        for field in inputs:
            columns += [readable(dataset.schema, name).cast(field.dtype) for name in field.names]
        outputs = self._output_forms()
        predictor = Predictor.of(self._model, inputs, outputs, self._value("batch_size"))
        struct = _udf(predictor, outputs, len(columns))(*columns)
        # One column first: two that refer to the same call would have the model called twice.
        temporary = f"__{self.uid}"
        frame = dataset.withColumn(temporary, struct)
        for place, name in enumerate(names):
            frame = frame.withColumn(name, self._typed(functions.col(f"{temporary}.o{place}"), place))
        return frame.drop(temporary)

    def predict(self, features: Any) -> Any:
        """Predicts without Spark.

        Args:
            features: a numpy array [rows, ...] for a model of one input, a list of such for several; or a pandas
                DataFrame, or a mapping, with the feature columns.

        Returns:
            [rows, values] an array; a list of them where the model has several outputs.

        Raises:
            DataError: the features do not fit.
        """
        inputs = self._renamed_inputs()
        matrices = _matrices(features, inputs)
        outputs = [Output(width) for width in self._outputs]
        results = Predictor.of(self._model, inputs, outputs, self._value("batch_size")).outputs_for(matrices)
        return results[0] if len(results) == 1 else results

    def write(self) -> torch_files.Writer:
        """Spark ML's way to save: ``write().overwrite().save(path)``."""
        return torch_files.Writer(self)

    @classmethod
    def read(cls) -> torch_files.Reader:
        """Spark ML's way to load: ``read().load(path)``."""
        return torch_files.Reader()

    @classmethod
    def load(cls, path: str, *, model: nn.Module | None = None, trust: bool = False) -> TorchModel:
        """Loads what `save` has written, and runs no code from it unless it is trusted.

        Args:
            path: a folder that this process sees.
            model: a module of the same architecture, which then gets the trained numbers; None: it is read too.
            trust: the file comes from somebody whom you would let run code here.

        Raises:
            DataError: there is nothing, or its architecture could be had only by running code from it.
        """
        return torch_files.load(path, model, trust=trust)

    def _renamed_inputs(self) -> tuple[Field, ...]:
        """The inputs under the names of `feature_columns`."""
        names = self._value("feature_columns")
        count = sum(len(field.names) for field in self._inputs)
        if names is None:
            return self._inputs
        if len(names) != count:
            raise ValueError(f"feature_columns names {len(names)} columns; the model was trained with {count}.")
        left = iter(names)
        return tuple(replace(field, names=tuple(next(left) for _ in field.names)) for field in self._inputs)

    def _output_forms(self) -> list[Output]:
        as_label = self._value("output_type") == "label"
        forms = []
        for width, kind, threshold in zip(self._outputs, self._label_types, self._thresholds, strict=True):
            whole = as_label and width == 1 and (kind in _LIMITS or kind == "boolean")
            if kind == "boolean" and threshold is None:
                threshold = 0.5
            forms.append(Output(width, whole, threshold if whole else None))
        return forms

    def _typed(self, column: Column, place: int) -> Column:
        """The prediction in the type in which it is wanted."""
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions

        wanted, kind, width = self._value("output_type"), self._label_types[place], self._outputs[place]
        if wanted == "array":
            return column if width > 1 else functions.array(column.cast("float"))
        vector = wanted == "vector" or width > 1 or kind == "vector"
        if vector:
            values = column if width > 1 else functions.array(column)
            return functions.when(column.isNotNull(), array_to_vector(values.cast("array<double>")))
        if kind.startswith("array"):
            return functions.array(column).cast(kind)
        if kind in _LIMITS:  # beyond its limits Spark would end the job
            limit = _LIMITS[kind]
            column = functions.greatest(functions.least(column, functions.lit(limit)), functions.lit(-limit - 1))
        elif kind == "date":
            return functions.date_from_unix_date(functions.round(column).cast("int"))
        elif kind.startswith("timestamp"):
            return functions.timestamp_seconds(column).cast(kind)
        return column.cast(kind)


def _udf(predictor: Predictor, outputs: Sequence[Output], columns: int) -> Any:
    """The predictor as a function of columns."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, LongType, StructField, StructType

    def spark_type(output: Output) -> DataType:
        if output.width > 1:
            return ArrayType(FloatType())
        return LongType() if output.whole else DoubleType()

    fields = StructType([StructField(f"o{place}", spark_type(output)) for place, output in enumerate(outputs)])
    if hasattr(functions, "arrow_udf"):
        # The types say what kind of function it is: an Arrow array for a batch of one column, a tuple of several.
        def one(batches: Iterator[pyarrow.Array]) -> Iterator[pyarrow.Array]:
            return predictor.arrow_batches((batch,) for batch in batches)

        def several(batches: Iterator[tuple[pyarrow.Array, ...]]) -> Iterator[pyarrow.Array]:
            return predictor.arrow_batches(batches)

        return functions.arrow_udf(_hinted(one if columns == 1 else several, pyarrow.Array, pyarrow.Array), fields)
    import pandas
    from pyspark.sql.pandas.functions import pandas_udf  # where there are no Arrow UDFs yet

    def one_series(batches: Iterator[pandas.Series]) -> Iterator[pandas.DataFrame]:
        return predictor.pandas_batches((batch,) for batch in batches)

    def several_series(batches: Iterator[tuple[pandas.Series, ...]]) -> Iterator[pandas.DataFrame]:
        return predictor.pandas_batches(batches)

    chosen = _hinted(one_series if columns == 1 else several_series, pandas.Series, pandas.DataFrame)
    return pandas_udf(chosen, fields)  # type: ignore[call-overload]  # its stubs know no iterators of frames


def _hinted(function: Any, taken: Any, given: Any) -> Any:
    """The function with type hints that PySpark understands: those of this file are text."""
    single = function.__name__.startswith("one")
    function.__annotations__ = {
        "batches": Iterator[taken] if single else Iterator[tuple[taken, ...]],
        "return": Iterator[given],
    }
    return function


def _matrices(features: Any, inputs: Sequence[Field]) -> list[Array]:
    if hasattr(features, "columns") or isinstance(features, Mapping):
        arrays = []
        for field in inputs:
            for name in field.names:
                if name not in features:
                    raise DataError(f"there is no column {name!r} among {list(features)}.")
                arrays.append(_arrow_column(features[name]))
        names = [column for field in inputs for column in field.columns]
        batch = pyarrow.RecordBatch.from_arrays(arrays, names=names)
        return [matrix_of(batch, field) for field in inputs]
    given = list(features) if isinstance(features, (list, tuple)) and len(inputs) > 1 else [features]
    if len(given) != len(inputs):
        raise DataError(f"{len(given)} arrays were given for {len(inputs)} inputs.")
    matrices = []
    for array, field in zip(given, inputs, strict=True):
        matrix = numpy.ascontiguousarray(array, field.dtype)
        if matrix.size != len(matrix) * field.width:
            raise DataError(f"an array of shape {list(matrix.shape)} was given for {field.name}: [-1, {field.width}].")
        matrices.append(matrix.reshape(len(matrix), field.width))
    return matrices


def _arrow_column(values: Any) -> pyarrow.Array:
    found = [value.toArray() if hasattr(value, "toArray") else value for value in values]
    array = pyarrow.array(found)
    if pyarrow.types.is_timestamp(array.type):  # as Spark's columns are read
        return pyarrow.compute.divide(
            array.cast(pyarrow.timestamp("us")).cast(pyarrow.int64()).cast(pyarrow.float64()), 1e6
        )
    return array.cast(pyarrow.int32()) if pyarrow.types.is_date32(array.type) else array


__all__ = ["TorchModel"]
