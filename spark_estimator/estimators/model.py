"""The base of the models of all frameworks: prediction on DataFrames, arrays and pandas frames."""

from __future__ import annotations

import html
import typing
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow
import pyarrow.compute
from pyspark.ml.util import MLReadable, MLWritable

from spark_estimator.data.categories import make_encoders
from spark_estimator.data.columns import check_names, make_category, make_readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.spark_rows import select_inputs
from spark_estimator.estimators import checks, params
from spark_estimator.estimators.history import History, make_table
from spark_estimator.estimators.inference.columnar import prepare_for_python
from spark_estimator.estimators.inference.prediction_columns import (
    OutputKind,
    PredictionColumn,
    Role,
    choose_label_kind,
    make_evaluator_column,
    make_struct_type,
)
from spark_estimator.estimators.inference.predictor import Predictor
from spark_estimator.estimators.inference.row_function import RowFunction, make_row_udf
from spark_estimator.estimators.metadata import ModelMetadata, get_label_type
from spark_estimator.estimators.persistence.spark_ml import FolderReader, FolderWriter
from spark_estimator.estimators.protocol import HorovodModel

if TYPE_CHECKING:
    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame

_Self = TypeVar("_Self", bound="TableModel")


class TableModel(HorovodModel, MLWritable, MLReadable["TableModel"]):
    """What an estimator's ``fit`` returns. ``transform(df)`` adds a prediction column per label.

    A prediction of one value has the label's type. For a label of whole numbers or booleans it is the class if the loss
    is one of two classes, and else a double, as for decimals. A prediction of several values is a vector.
    ``output_type`` changes this. A row with a null in a feature column gets null.

    It can also be made by hand, as in Horovod, with `model`, `feature_columns`, `label_columns` and perhaps
    `_metadata`: then `transform` finds the types and the widths of the outputs by the DataFrame's first row.

    Args:
        inputs: [inputs] the fields of its training. These four are also in `_metadata`, which they replace.
        outputs: [labels] values per row that the model returns.
        label_types: [labels] Spark types, in the form of ``simpleString``.
        output_kinds: [labels] what each output is (see `prediction_columns`), which decides what a class is.
        kwargs: the params.
    """

    def __init__(
        self,
        *,
        inputs: Sequence[Field] | None = None,
        outputs: Sequence[int] | None = None,
        label_types: Sequence[str] | None = None,
        output_kinds: Sequence[OutputKind] | None = None,
        **kwargs: Any,
    ) -> None:
        if inputs is not None:
            kwargs["_metadata"] = ModelMetadata({}, inputs, outputs or (), label_types or (), output_kinds)
        super().__init__(**kwargs)

    #: Packages that a model may need where it is loaded, by their names on PyPI.
    _packages: Sequence[str] = ("torch", "lightning", "pytorch-lightning", "keras", "tensorflow", "jax", "tf-keras")
    #: The id of the MLflow run of its training; None: there was none, or it was loaded from a folder.
    mlflow_run_id: str | None = None

    @property
    def _model(self) -> Any:
        return self._value("model")

    @property
    def _known(self) -> ModelMetadata:
        """Return the metadata of the columns.

        Raises:
            ValueError: the model was made by hand.
        """
        metadata = self._value("_metadata")
        if not isinstance(metadata, ModelMetadata):
            raise ValueError(
                f"{type(self).__name__} was made by hand, and does not know the types of its columns: use "
                "transform(df), which reads them from the DataFrame."
            )
        return metadata

    @property
    def _widths(self) -> tuple[int, ...]:
        """Return `_outputs`; empty if they are not known yet."""
        metadata = self._value("_metadata")
        return metadata.outputs if isinstance(metadata, ModelMetadata) else ()

    @property
    def _inputs(self) -> tuple[Field, ...]:
        return self._known.inputs

    @property
    def _outputs(self) -> tuple[int, ...]:
        return self._known.outputs

    @property
    def _label_types(self) -> tuple[str, ...]:
        return self._known.label_types

    @property
    def _output_kinds(self) -> tuple[OutputKind, ...]:
        return self._known.output_kinds

    def _value(self, name: str) -> Any:
        value = super()._value(name)
        if name == "output_cols" and value is None and self._value("label_columns") is not None:
            return [f"{label}__output" for label in self._value("label_columns")]
        return value

    @abstractmethod
    def _make_predictor(self, encoder: RowEncoder) -> Predictor:
        """Return a predictor with a copy of the present model.

        Args:
            encoder: makes its inputs of the columns to predict from.
        """

    def setLabelColoumns(self: _Self, value: list[str]) -> _Self:  # so spelt in Horovod
        """Set as setLabelColumns does."""
        return self._set(label_columns=value)

    def _repr_html_(self) -> str:
        """Return the model's source and its training's last metrics, for notebooks."""
        names = ("feature_columns", "label_columns", "run_id")
        rows = [*((name, self._value(name)) for name in names), ("model", repr(self._model))]
        history: History = self._value("history")
        return f"<b>{html.escape(self.uid)}</b>{make_table(['', ''], rows)}{history._repr_html_()}"

    @overload
    def transform(self, dataset: DataFrame, params: Mapping[Param[Any], Any] | None = None) -> DataFrame: ...
    @overload
    def transform(self, *, df: DataFrame, params: Mapping[Param[Any], Any] | None = None) -> DataFrame: ...
    def transform(
        self, dataset: DataFrame | None = None, params: Any = None, *, df: DataFrame | None = None
    ) -> DataFrame:
        """Return the DataFrame with a prediction column for each label.

        Args:
            params: parameters for this call only, as a dict from Params to values.
            df: Horovod's name of `dataset`.

        Raises:
            TypeError: there is no DataFrame, or two.
            ValueError, DataError: a column is missing, or cannot be used.
        """
        frame: Any = checks.get_frame("transform()", dataset, df) if dataset is None or df is not None else dataset
        return super().transform(frame, params)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        checks.check_frame("transform()", dataset)
        function = self._make_row_function()
        metadata = self._value("_metadata")
        if function is not None or not isinstance(metadata, ModelMetadata) or not metadata.outputs:
            informed = self.copy()
            informed._set(_metadata=self._complete_metadata(dataset, function))
            return TableModel._predict_frame(informed, dataset, function)
        return self._predict_frame(dataset)

    def _predict_frame(self, dataset: DataFrame, function: RowFunction | None = None) -> DataFrame:
        """Return the DataFrame with the predictions.

        Args:
            function: predicts a row; None: the model predicts batches.
        """
        from pyspark.sql import functions

        dataset = prepare_for_python(dataset)
        temporary = f"__{self.uid}"
        added = self._make_prediction_columns()
        existing = {name.lower() for name in dataset.columns}  # as Spark compares them
        taken = [column.name for column in added if column.name.lower() in existing]
        if taken:
            raise ValueError(f"the DataFrame has a column {taken[0]!r} already: choose others with setOutputCols.")
        check_names(dataset, self._feature_names if function is None else dataset.columns)
        if function is None:
            struct = self._predict_batches(dataset)
        else:
            predictor = replace(function.predictor, columns=added).send(dataset.sparkSession)
            struct = make_row_udf(replace(function, predictor=predictor), dataset)
        # One column first: two that refer to the same call would have the model called twice.
        frame = dataset.withColumn(temporary, struct)
        # All others at once: Spark takes as long for each call as for a frame of all columns before.
        values = {
            column.name: column.to_spark(functions.col(f"{temporary}.p{number}")) for number, column in enumerate(added)
        }
        return frame.withColumns(values).drop(temporary)

    @property
    def _feature_names(self) -> list[str]:
        names = self._value("feature_columns")
        return list(names) if names else [name for field in self._inputs for name in field.names]

    def _predict_batches(self, dataset: DataFrame) -> Any:
        """Return a column with a struct of the predictions."""
        # Spark Connect copies the schema at each access.
        arguments, encoder = select_inputs(dataset.schema, self._make_encoder(self._inputs))
        predictor = replace(self._make_predictor(encoder), columns=self._make_prediction_columns())
        return make_udf(predictor.send(dataset.sparkSession), len(arguments))(*arguments)

    def _make_row_function(self) -> RowFunction | None:
        """Return the function that predicts row by row, from a subclass's `get_prediction_fn`; None: predict
        batches.
        """
        base = next((kind for kind in type(self).__mro__ if "get_prediction_fn" in vars(kind)), None)
        if base is None or base.__module__.startswith("spark_estimator."):
            return None
        function: Any = getattr(self, "get_prediction_fn")  # noqa: B009  # not every framework's model has it
        # The function makes the tensors that it gives to the model, in host memory.
        return RowFunction.from_function(replace(self._make_predictor(RowEncoder(())), device="cpu"), function())

    def _complete_metadata(self, dataset: DataFrame, function: RowFunction | None) -> ModelMetadata:
        """Complete the metadata from the DataFrame's schema and from what the model returns for the first row."""
        metadata, labels = self._value("_metadata"), self._value("label_columns")
        if not labels:
            raise ValueError(f"{type(self).__name__} needs label_columns: they name the columns of its predictions.")
        kinds = {field.name: field.dataType.simpleString() for field in dataset.schema.fields}
        label_types = [
            get_label_type(metadata[label]) if metadata and label in metadata else kinds.get(label, "double")
            for label in labels
        ]
        output_kinds = self._find_output_kinds()
        inputs: Sequence[Field] = ()
        if isinstance(metadata, ModelMetadata):
            inputs = metadata.inputs
            if len(metadata.label_types) == len(labels):
                label_types = list(metadata.label_types)
            if len(metadata.output_kinds) == len(labels):
                output_kinds = metadata.output_kinds
        row = dataset.first()
        if row is None and function is None and not inputs:
            raise ValueError("the DataFrame has no rows, which a model that was made by hand finds its columns by.")
        if row is None:
            outputs = [1] * len(labels)
        elif function is not None:
            outputs = [len(values) for values in function.call_function(row)]
        else:
            inputs = inputs or self._make_inputs(dataset, row)
            # In the driver's process, which has no GPU by Spark.
            predictor = replace(self._make_predictor(self._make_encoder(inputs)), device="cpu", precision=None)
            outputs = [int(output.size) for output in predictor.call_on_row(predictor.get_model(), row)]
        if len(outputs) != len(labels):
            raise ValueError(f"the model returned {len(outputs)} outputs for {len(labels)} label_columns: {labels}.")
        return ModelMetadata({}, inputs, outputs, label_types, output_kinds)

    def _find_output_kinds(self) -> Sequence[OutputKind] | None:
        """Return [labels] what each output of a model that was made by hand is; None: its loss is not known."""
        return None

    def _make_inputs(self, dataset: DataFrame, row: Any) -> list[Field]:
        """Return [inputs] one field for each feature column, in its type, with the values of the first row."""
        shapes = self._value("input_shapes") if self.hasParam("input_shapes") else None
        encoders = make_encoders(self._value("categories"))
        schema = dataset.schema
        fields = []
        for number, name in enumerate(self._value("feature_columns") or ()):
            encoder = encoders.get(name)
            column = make_category(schema, name, encoder) if encoder else make_readable(schema, name)
            width = len(row[name]) if column.is_array else 1
            # As in a training: [rows] of ids are what an embedding takes.
            shape: tuple[int, ...] = () if column.ids and not column.is_array else (width,)
            if shapes is not None:
                shape = tuple(shapes[number][1:])
            dtype = "int64" if column.dtype == "int64" else self._floating
            fields.append(Field((name,), (f"c{number}",), (width,), dtype, shape, times=(column.time,)))
        return fields

    @property
    def _floating(self) -> str:
        """Return the type of the model's numbers."""
        return "float32"

    def predict(self, features: Any) -> Any:
        """Predict without Spark.

        Args:
            features: a numpy array [rows, ...] for a model of one input, a list of such for several; or a pandas
                DataFrame, a pyarrow Table, or a mapping, with the feature columns. Timestamps without a zone are in
                that of the Spark session, as ``df.toPandas()`` gives them; where there is no session, in that of the
                training's.

        Returns:
            [rows, values] an array; a list of them where the model has several outputs.

        Raises:
            TypeError: it is a single value, or another thing that is no table and no array.
            DataError: the features do not fit.
        """
        predictor = replace(self._make_predictor(self._make_encoder(self._inputs)), zone=self._known.zone)
        results = predictor.predict_features(features)
        return results[0] if len(results) == 1 else results

    def write(self) -> FolderWriter:
        """Return Spark ML's way to save: ``write().overwrite().save(path)``."""
        return FolderWriter(self._write_files)

    @classmethod
    def read(cls) -> FolderReader:
        """Return Spark ML's way to load: ``read().load(path)``."""
        return FolderReader(cls.load)

    @abstractmethod
    def _write_files(self, folder: Path) -> None:
        """Put the model's files into a new folder."""

    def _make_encoder(self, trained: Sequence[Field]) -> RowEncoder:
        """Return what makes the model's inputs of the columns to predict from, as in its training.

        Its parts are Params, which a user can set: functions, categories and numbers for nulls, by the columns' names
        in the training.

        Args:
            trained: [inputs] the fields of the training.

        Raises:
            ValueError: `feature_columns` has another number of columns.
        """
        trained_names = [name for field in trained for name in field.names]
        names = self._value("feature_columns") or trained_names
        if len(names) != len(trained_names):
            raise ValueError(
                f"feature_columns names {len(names)} columns; the model was trained with {len(trained_names)}."
            )
        left = iter(names)
        fields = tuple(replace(field, names=tuple(next(left) for _ in field.names)) for field in trained)
        columns = [column for field in trained for column in field.columns]
        # Of a model of an earlier version, or with a transformation, only bytes are known to be such.
        made = [kind or each.stored for each in trained for kind in each.decoded or ("",) * len(each.columns)]
        functions, numbers = self._value("decoders") or {}, self._value("null_values") or {}
        categories = make_encoders(self._value("categories"))
        decoders, ids, nulls = {}, {}, {}
        for name, trained_name, column, kind in zip(names, trained_names, columns, made, strict=True):
            if trained_name in functions:
                decoders[column] = Decoder.from_training(name, functions[trained_name], kind)
            if trained_name in categories:
                ids[column] = replace(categories[trained_name], name=name)
            if trained_name in numbers:
                nulls[column] = numbers[trained_name]
        return RowEncoder(tuple(columns), fields, nulls=nulls, decoders=decoders, categories=ids)

    def _make_prediction_columns(self) -> tuple[PredictionColumn, ...]:
        """Return the columns that `transform` adds.

        Raises:
            ValueError, DataError: a requested one is not available.
        """
        names, count = self._value("output_cols"), len(self._outputs)
        if len(names) != count:
            raise ValueError(f"output_cols names {len(names)} columns for {count} outputs.")
        output_type = self._value("output_type")
        added = [
            PredictionColumn(
                name, output, width, Role.LABEL, choose_label_kind(width, kind, output_type, output_kind), output_kind
            )
            for output, (name, width, kind, output_kind) in enumerate(
                zip(names, self._outputs, self._label_types, self._output_kinds, strict=True)
            )
        ]
        of_evaluators = {
            row.name: self._value(row.name)
            for row in params.OF_EVALUATORS
            if self._has_own(row.name) and self._value(row.name)
        }
        if of_evaluators and count > 1:
            raise ValueError(
                f"{', '.join(of_evaluators)}: for a model of one label; this one has {count}: read the columns "
                f"{', '.join(names)}."
            )
        for param, name in of_evaluators.items():
            if any(column.name == name for column in added):
                raise ValueError(f"two columns of predictions would be named {name!r}: choose another {param}.")
            only = self._outputs[0], self._label_types[0], self._output_kinds[0]
            added.append(make_evaluator_column(name, Role(param), *only))
        return tuple(added)

    def _make_frame_predictor(self) -> Any:
        """Return a predictor without Spark: its ``frame(features)`` returns the columns that `transform` adds."""
        columns = self._make_prediction_columns()
        function = self._make_row_function()
        if function is not None:
            return replace(function, predictor=replace(function.predictor, columns=columns))
        predictor = self._make_predictor(self._make_encoder(self._inputs))
        return replace(predictor, columns=columns, zone=self._known.zone)


def make_udf(predictor: Predictor, columns: int) -> Any:
    """Return the predictor as a function of columns; it returns a struct of the predictions.

    Args:
        columns: how many.
    """
    from pyspark.sql import functions

    fields = make_struct_type(predictor.columns)
    chosen: Any
    taken: Any
    # Hints that PySpark understands: those of this file are text.
    if hasattr(functions, "arrow_udf"):
        # The types select the kind of function: an Arrow array for a batch of one column, a tuple of arrays for
        # several.
        def predict_single(batches: Iterator[pyarrow.Array]) -> Iterator[pyarrow.Array]:
            return predictor.predict_arrow_batches((batch,) for batch in batches)

        def predict_several(batches: Iterator[tuple[pyarrow.Array, ...]]) -> Iterator[pyarrow.Array]:
            return predictor.predict_arrow_batches(batches)

        chosen = predict_single if columns == 1 else predict_several
        taken = pyarrow.Array if columns == 1 else tuple[pyarrow.Array, ...]
        chosen.__annotations__ = {"batches": Iterator[taken], "return": Iterator[pyarrow.Array]}
        return functions.arrow_udf(chosen, fields)
    import pandas
    from pyspark.sql.pandas.functions import pandas_udf  # where there are no Arrow UDFs yet

    def predict_series(batches: Iterator[pandas.Series]) -> Iterator[pandas.DataFrame]:
        return predictor.predict_pandas_batches((batch,) for batch in batches)

    def predict_several_series(batches: Iterator[tuple[pandas.Series, ...]]) -> Iterator[pandas.DataFrame]:
        return predictor.predict_pandas_batches(batches)

    # Those of typing: Spark 3.4 does not know the names of collections.abc.
    chosen = predict_series if columns == 1 else predict_several_series
    taken = pandas.Series if columns == 1 else typing.Tuple[pandas.Series, ...]  # noqa: UP006
    chosen.__annotations__ = {"batches": typing.Iterator[taken], "return": typing.Iterator[pandas.DataFrame]}
    return pandas_udf(chosen, fields)  # type: ignore[call-overload]  # its stubs know no iterators of frames
