"""`TransformersEstimator`: fine-tunes a pretrained model on a column of texts, on several processes of the session."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow
import torch
from pyspark.ml.param import Param

from spark_estimator.data.quoting import quote
from spark_estimator.errors import PythonEnvironmentError
from spark_estimator.estimators import checks, estimator, params
from spark_estimator.estimators.inference.prediction_columns import OutputKind
from spark_estimator.estimators.params import add_params
from spark_estimator.estimators.rows.row_plan import RowPlan
from spark_estimator.estimators.rows.shapes import Fields, Trial
from spark_estimator.estimators.torch.callbacks import check_callbacks
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.estimator_files import TorchFiles
from spark_estimator.estimators.torch.identity import compute_digest
from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from spark_estimator.estimators.tracking.signature import Features
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.extensions.transformers.keywords import TransformersEstimatorKeywords
from spark_estimator.extensions.transformers.model import TransformersModel
from spark_estimator.extensions.transformers.module import TextModule, check_causal, check_packing
from spark_estimator.extensions.transformers.params import ESTIMATOR, WITHOUT
from spark_estimator.extensions.transformers.predictor import check_generation
from spark_estimator.extensions.transformers.pretrained import (
    Pretrained,
    choose_length,
    load_tokenizer,
    silence_warnings,
)
from spark_estimator.extensions.transformers.task import TextTask, choose_task
from spark_estimator.extensions.transformers.tokens import Tokenising
from spark_estimator.extensions.transformers.training import TextParts, train

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The rows on which the driver tries the model before any process starts.
_TRIED_ROWS = 2


@dataclass(frozen=True)
class _Texts:
    """The facts that `fit` has before it plans the rows."""

    task: TextTask
    source: Pretrained
    tokenizer: Any
    dataset: DataFrame


@add_params(ESTIMATOR)
class TransformersEstimator(TransformersEstimatorKeywords, TorchFiles, estimator.TableEstimator[TransformersModel]):
    """Fine-tunes a model of Hugging Face's transformers: ``model = TransformersEstimator(model="folder").fit(df)``.

    The columns decide the task: a column of texts, or of chats, trains a model that generates; with a label column of
    classes the model classifies texts, or the words of a text. Spark's tasks turn the texts into tokens, in parallel,
    and the processes train as those of `TorchEstimator` do. The loss is a mean over the labels of all rows of a step,
    however they are distributed; of a causal model over its tokens. The learning rate is that of a step, and is not
    multiplied by the number of processes.

    Only weights in safetensors are read, and no code of a model's folder is run.

    All parameters are keywords; call ``explainParams()`` for the full list.

    Raises:
        TypeError, ValueError: a parameter is unknown or invalid.
    """

    _public_path = "spark_estimator.TransformersEstimator"
    _prefix = "transformers"
    _model_kind = TransformersModel
    _objects = ("model", "tokenizer", "optimizer", "lr_scheduler", "callbacks", "gradient_compression")
    _texts: _Texts | None = None

    def fit_on_parquet(
        self, params: Mapping[Param[Any], Any] | None = None, dataset_idx: int | None = None
    ) -> NoReturn:
        """Raise ValueError: texts need `fit`.

        Raises:
            ValueError: always; the text names the alternative.
        """
        raise ValueError("fit_on_parquet() reads numbers; of files with texts, call fit(spark.read.parquet(path)).")

    def _value(self, name: str) -> Any:
        if name == "feature_cols" and self._texts is not None:
            return self._texts.task.inputs
        return WITHOUT[name] if name in WITHOUT else super()._value(name)

    def _fit(self, dataset: DataFrame) -> TransformersModel:
        checks.check_batch_frame("fit()", dataset)
        self._check()
        source = Pretrained.from_parameter(super()._value("model"))
        informed: TransformersEstimator = self.copy()
        tokenizer = load_tokenizer(self._value("tokenizer"), source)
        informed._set(max_length=choose_length(self._value("max_length"), source.get_max_tokens(), tokenizer))
        task = choose_task(informed._value, dataset)
        if task.labels and not self._value("labels"):
            task = replace(task, labels=source.order_labels(task.labels))
        if task.chat and not tokenizer.chat_template:
            raise ValueError(
                f"column {task.text!r} holds chats, and the tokenizer has no chat template: set its chat_template."
            )
        informed._texts = _Texts(task, source, tokenizer, dataset)
        validation = self._value("validation")
        marker = validation if isinstance(validation, str) else None
        function = Tokenising(task, pickle.dumps(tokenizer), marker, self._value("nulls") == "drop")
        # PySpark's mapInArrow takes a dot in a name for a field of a struct.
        columns = [f"{quote(name)} as c{number}" for number, name in enumerate(function.columns)]
        tokens = dataset.selectExpr(*columns).mapInArrow(_wrap_in_function(function), function.schema)
        return estimator.TableEstimator._fit(informed, tokens)

    def _make_features(self, dataset: DataFrame, plan: RowPlan) -> Features:
        assert self._texts is not None
        text, frame = self._texts.task.text, self._texts.dataset
        return Features.from_frame(frame, {text: frame.schema[text].dataType.simpleString()})

    def _check(self) -> None:
        try:
            import transformers  # noqa: F401
        except ModuleNotFoundError as error:
            raise PythonEnvironmentError(
                "TransformersEstimator needs transformers on the driver and the executors: pip install transformers."
            ) from error
        value = self._value
        model, lora = value("model"), value("lora")
        if model is None:
            raise ValueError("model is required: a folder, a name on the Hugging Face Hub, or a model of transformers.")
        if lora is not None:
            try:
                import peft  # noqa: F401
            except ModuleNotFoundError as error:
                raise PythonEnvironmentError(
                    "lora needs peft on the driver and the executors: pip install peft."
                ) from error
            if not isinstance(model, str):
                raise ValueError(
                    "lora needs model to be a folder or a name on the Hugging Face Hub: the saved adapter refers to it."
                )
        if value("optimizer") is not None:
            rates = [name for name in ("learning_rate", "weight_decay") if self.isSet(name)]
            if rates:
                raise ValueError(f"optimizer makes the optimizer: leave {' and '.join(rates)} out.")
        schedule = StepRecipe.from_parameters(value).schedule
        if value("lr_scheduler") is not None and (schedule is None or schedule.make is None):
            raise TypeError("lr_scheduler must be a name, or a function of the optimizer, which the ranks make.")
        checks.check_labels(value)
        check_callbacks(value("callbacks"))
        check_generation(value("generation") or {})

    def _make_training(self) -> _TextTraining:
        assert self._texts is not None, "fit() calls it"
        texts, value = self._texts, self._value
        parts = TextParts(
            source=texts.source,
            task=texts.task,
            lora=value("lora"),
            tokenizer=texts.tokenizer,
            rate=value("learning_rate"),
            decay=value("weight_decay"),
            optimizer=value("optimizer"),
            digest=texts.source.compute_digest(),
            compression=value("gradient_compression"),
            precision=value("mixed_precision"),
            callbacks=value("callbacks"),
            recipe=StepRecipe.from_parameters(value),
        )
        return _TextTraining(parts, value)

    def _get_model_kwargs(self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any) -> dict[str, Any]:
        assert self._texts is not None
        task = self._texts.task
        passed_on = ("max_length", "max_new_tokens", "generation")
        predicting = (*params.PREDICTING, *params.INFERENCE)
        return {
            "model": model,
            "tokenizer": self._texts.tokenizer,
            "history": history,
            "run_id": run_id,
            "task": task.task,
            "feature_columns": [task.text],
            "label_columns": None if task.label is None else [task.label],
            "labels": list(task.labels),
            "label_type": task.label_type,
            **{name: self._value(name) for name in (*passed_on, *(row.name for row in predicting))},
        }


class _TextTraining:
    """See `estimator.FrameworkTraining`."""

    def __init__(self, parts: TextParts, value: Callable[[str], Any]) -> None:
        self.framework: Any = parts
        self.labels = ["labels"]
        self.recovers = self.saves_within = True
        made = parts.make_parts()
        parts.recipe.check_schedule(None, made.optimizer, value, made.metric_names)
        assert isinstance(made.model, TextModule)
        if parts.task.task == "causal":
            check_causal(made.model)
        if parts.task.packed:
            check_packing(made.model)
        self.state_bytes = sum(tensor.nbytes for tensor in made.model.state_dict().values())
        self.output_kinds: Sequence[OutputKind] = ["logits"]
        self.trial: Trial = _FewRows(made)
        self.train: Callable[[TrainSpec], TrainResult | None] = train

    def compute_digest(self) -> str:
        """See `estimator.FrameworkTraining.compute_digest`: of a model that is passed as an object."""
        net = self.framework.source.net
        return "" if net is None else compute_digest(net)

    def load_trained(self, state: bytes) -> tuple[torch.nn.Module, None]:
        """See `estimator.FrameworkTraining.load_trained`: on the CPU, ready to predict."""
        with silence_warnings():
            module = self.framework.make_module()
        module.load_state_dict(torch.load(io.BytesIO(state), weights_only=True)["model"])
        net: torch.nn.Module = module.net.eval()
        return net, None


class _FewRows(TorchTrial):
    """A trial on few rows, because these models are large."""

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        """See `shapes.Trial.run`."""
        return super().run(rows.slice(0, _TRIED_ROWS), fields)


def _wrap_in_function(function: Tokenising) -> Callable[[Any], Any]:
    """Return a function that calls `function`: Spark asks it for its name."""

    def tokenise(batches: Any) -> Any:
        return function(batches)

    tokenise.__annotations__ = {}
    return tokenise
