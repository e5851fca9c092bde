"""`TransformersModel`: a fine-tuned model that classifies or generates on DataFrames and on lists of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from spark_estimator.data.quoting import quote
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.estimators import checks, model, params
from spark_estimator.estimators.inference.features import find_columns
from spark_estimator.estimators.inference.prediction_columns import OutputKind, PredictionColumn, Role
from spark_estimator.estimators.params import add_params
from spark_estimator.extensions.transformers import files
from spark_estimator.extensions.transformers.keywords import TransformersModelKeywords
from spark_estimator.extensions.transformers.params import MODEL
from spark_estimator.extensions.transformers.predictor import TextPredictor, check_generation
from spark_estimator.extensions.transformers.pretrained import choose_length
from spark_estimator.extensions.transformers.special_tokens import get_max_tokens, settle_padding
from spark_estimator.extensions.transformers.texts import to_rows
from spark_estimator.extensions.transformers.tokens import is_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self

_Self = TypeVar("_Self", bound="TransformersModel")


@add_params(MODEL)
class TransformersModel(TransformersModelKeywords, model.TableModel):
    """What `TransformersEstimator.fit` returns. ``transform(df)`` adds a column: a class, classes of words, or a text.

    A causal model continues the texts of the text column, or answers its chats. A row with a null gets null. Its folder
    is one of transformers, or of peft, too: ``AutoModelForCausalLM.from_pretrained(path)``.
    """

    _public_path = "spark_estimator.TransformersModel"
    _packages = ("torch", "transformers", "peft", "safetensors")

    def getModel(self) -> Any:  # Horovod's name
        """Return the trained model of transformers or peft, on the CPU. It is this model's own: changes change
        predictions.
        """
        return self._model

    def setModel(self, value: Any) -> TransformersModel:
        """Set another model of the same task. Return self."""
        if not hasattr(value, "config"):
            raise TypeError(f"model must be a model of transformers or peft; got {value!r:.200}.")
        return self._set(model=value.eval())

    def predict(self, features: Any) -> list[Any]:
        """Predict without Spark.

        Args:
            features: texts, lists of words, or chats (lists of dicts of role and content), as a list or a pandas
                column; or a pandas DataFrame, a pyarrow Table, or a mapping with the text column. One text, or one
                chat, is one row. The result is None for None, for one with None inside, and for a chat without
                messages.

        Returns:
            [texts] a class, a list of classes, or a text; None instead of a class whose scores are NaN.

        Raises:
            TypeError: it is another thing, or a row is: a text for a model of words, for example.
            DataError: the column is missing.
        """
        column = "" if find_columns(features) is None else self._text
        texts = to_rows(features, column, self._value("task"))
        missing = [is_missing(text, self._value("task")) for text in texts]
        present = [text for text, is_none in zip(texts, missing, strict=True) if not is_none]
        results = iter(self._to_results(self._make_text_predictor(as_json=False).predict_texts(present)))
        return [None if is_none else next(results) for is_none in missing]

    def _to_results(self, outputs: list[Any]) -> list[Any]:
        labels = self._value("labels")
        if self._value("task") == "classification":
            return [None if numpy.isnan(scores).any() else labels[int(scores.argmax())] for scores in outputs]
        if self._value("task") == "token_classification":
            return [[None if number is None else labels[number] for number in row] for row in outputs]
        return outputs

    @classmethod
    def load(cls: type[_Self], path: str, *, base: str | None = None, trust: bool = False) -> _Self:
        """Load what `save` has written, and run no code from it unless it is trusted.

        Args:
            path: as for Spark ML: without a scheme it is on the session's default file system.
            base: of an adapter: the pretrained model's folder, or name on the Hugging Face Hub; None: as in the
                training, which needs trust.
            trust: follows settings of the folder that name other models, and reads parameters of a subclass; only for
                folders from a source that you trust. Python files in it are never run.

        Raises:
            DataError: the folder is missing, damaged or of another version, or loading it could run code.
        """
        return files.load(cls, path, base, trust=trust)

    def _set(self, **values: Any) -> Self:
        result = super()._set(**values)
        if {"model", "tokenizer"} & values.keys():
            net, tokenizer = (self._paramMap.get(self.getParam(name)) for name in ("model", "tokenizer"))
            if tokenizer is not None and hasattr(net, "config"):
                settle_padding(net, tokenizer)
        return result

    def _value(self, name: str) -> Any:
        value = super()._value(name)
        if name == "output_cols" and value is None:
            return [f"{self._text}__output"]
        if name == "max_length" and value is None and hasattr(self._model, "config"):
            return choose_length(None, get_max_tokens(self._model), self._value("tokenizer"))
        return value

    @property
    def _text(self) -> str:
        columns = self._value("feature_columns")
        if not columns or len(columns) != 1:
            raise ValueError(f"feature_columns must name the column of texts; got {columns!r}.")
        return str(columns[0])

    @property
    def _outputs(self) -> tuple[int, ...]:
        return (len(self._value("labels") or ()) or 1,)

    @property
    def _label_types(self) -> tuple[str, ...]:
        return (self._value("label_type"),)

    @property
    def _output_kinds(self) -> tuple[OutputKind, ...]:
        return ("logits",)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        checks.check_frame("transform()", dataset)
        return self._predict_frame(dataset)

    def _make_predictor(self, encoder: RowEncoder) -> TextPredictor:
        return self._make_text_predictor(as_json=False)

    def _make_text_predictor(self, *, as_json: bool) -> TextPredictor:
        value = self._value
        generation = value("generation")
        check_generation(generation)
        if "max_length" not in generation:
            generation = {"max_new_tokens": value("max_new_tokens"), **generation}
        return TextPredictor.from_model(
            self._model,
            value("tokenizer"),
            value("batch_size"),
            task=value("task"),
            max_length=value("max_length"),
            generation=generation,
            as_json=as_json,
            device=value("inference_device"),
            precision=value("inference_precision"),
        )

    def _predict_batches(self, dataset: DataFrame) -> Any:
        from pyspark.sql import functions

        kinds = {field.name: field.dataType for field in dataset.schema.fields}
        if self._text not in kinds:
            raise DataError(
                f"there is no column {self._text!r}, which text_col named in the training, among {list(kinds)}: call "
                "model.setFeatureColumns([name]) for another column of texts."
            )
        kind = kinds[self._text].simpleString()
        task = self._value("task")
        chat = task == "causal" and kind.startswith("array<struct<")
        words = task == "token_classification"
        if not chat and kind != ("array<string>" if words else "string"):
            raise DataError(
                f"column {self._text!r} has type {kind}; task={task!r} needs {'words' if words else 'texts'}."
            )
        column = functions.col(quote(self._text))
        predictor = replace(self._make_text_predictor(as_json=chat), columns=self._make_prediction_columns())
        return model.make_udf(predictor.send(dataset.sparkSession), 1)(functions.to_json(column) if chat else column)

    def _make_prediction_columns(self) -> tuple[PredictionColumn, ...]:
        value = self._value
        task, label_type = value("task"), value("label_type")
        if task == "classification":
            classes = tuple(value("labels"))
            first, *others = super()._make_prediction_columns()
            if value("output_type") == "label":
                first = replace(first, kind=label_type, classes=classes)
            return (first, *(others if label_type == "string" else [_to_numbers(each, classes) for each in others]))
        names = value("output_cols")
        of_evaluators = [row.name for row in params.OF_EVALUATORS if value(row.name)]
        if of_evaluators or len(names) != 1:
            raise ValueError(
                f"task={task!r} has one column of predictions, and none for evaluators: leave "
                f"{', '.join(of_evaluators) or 'output_cols'} out."
            )
        if task == "causal":
            return (PredictionColumn(names[0], 0, 1, Role.TEXT, "string"),)
        return (PredictionColumn(names[0], 0, 1, Role.TEXT, f"array<{label_type}>", classes=tuple(value("labels"))),)

    def _make_frame_predictor(self) -> TextPredictor:
        return replace(
            self._make_text_predictor(as_json=False), columns=self._make_prediction_columns(), text=self._text
        )

    def _write_files(self, folder: Path) -> None:
        files.write(self, folder)


def _to_numbers(column: PredictionColumn, classes: Sequence[Any]) -> PredictionColumn:
    """Return a column for evaluators, which compare it with a label of numbers.

    Raises:
        DataError: it is a vector, in which those numbers are no places.
    """
    if column.role is Role.PREDICTION:
        return replace(column, classes=tuple(map(float, classes)))
    if list(classes) != list(range(len(classes))):
        raise DataError(
            f"{column.role.value} is a vector with a place for each class, and evaluators take the label for a place, "
            f"from 0; the classes are {list(classes)!r:.200}: leave it out, or train on a label that counts from 0."
        )
    return column
