"""Parameters of `TransformersEstimator` and `TransformersModel`.

Generated from the tables of parameters by ``python -m tools.generate_keywords``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import (
    CommonArguments,
    CommonKeywords,
    InferenceArguments,
    InferenceKeywords,
    PredictingArguments,
    PredictingKeywords,
    RecipeArguments,
    RecipeKeywords,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pyspark.ml.param import Param
    from typing_extensions import Self, Unpack

    from spark_estimator.estimators.history import History


class TransformersEstimatorArguments(
    CommonArguments, PredictingArguments, InferenceArguments, RecipeArguments, total=False
):
    """Types of the parameters of `TransformersEstimator`."""

    model: Any
    tokenizer: Any
    task: str | None
    text_col: str
    label_col: str | None
    labels: Sequence[Any] | None
    max_length: int | None
    packing: bool
    loss_on: str
    lora: Mapping[str, Any] | Any | None
    learning_rate: float
    weight_decay: float
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    lr_scheduler: str | Callable[..., Any] | Mapping[str, Any] | Any | None
    gradient_clip_norm: float
    mixed_precision: str | None
    callbacks: Any
    profile: Any
    nulls: str
    max_new_tokens: int
    generation: Mapping[str, Any] | None


class TransformersEstimatorKeywords(CommonKeywords, PredictingKeywords, InferenceKeywords, RecipeKeywords):
    """Parameters of `TransformersEstimator`."""

    model: Param[Any]
    tokenizer: Param[Any]
    task: Param[str | None]
    text_col: Param[str]
    label_col: Param[str | None]
    labels: Param[list[Any] | None]
    max_length: Param[int | None]
    packing: Param[bool]
    loss_on: Param[str]
    lora: Param[dict[str, Any] | None]
    learning_rate: Param[float]
    weight_decay: Param[float]
    optimizer: Param[Callable[[Any], torch.optim.Optimizer] | None]
    lr_scheduler: Param[Any]
    gradient_clip_norm: Param[float]
    mixed_precision: Param[str | None]
    callbacks: Param[list[Any]]
    profile: Param[Any]
    nulls: Param[str]
    max_new_tokens: Param[int]
    generation: Param[dict[str, Any]]

    def __init__(self, **params: Unpack[TransformersEstimatorArguments]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[TransformersEstimatorArguments]) -> Self:
        """Set any of the parameters. Returns self."""
        return self._take(params)

    def setModel(self, value: Any) -> Self:
        """Set model: a folder with a pretrained model, its name on the Hugging Face Hub, or a model of transformers."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """Return model: a folder with a pretrained model, its name on the Hugging Face Hub, or a model of ..."""
        return self._get(self.model)

    def setTokenizer(self, value: Any) -> Self:
        """Set tokenizer: a fast tokenizer of transformers, or its folder; None: the model's folder has it."""
        return self._set(tokenizer=value)

    def getTokenizer(self) -> Any:
        """Return tokenizer: a fast tokenizer of transformers, or its folder; None: the model's folder has it."""
        return self._get(self.tokenizer)

    def setTask(self, value: str | None) -> Self:
        """Set task: 'causal': generate text."""
        return self._set(task=value)

    def getTask(self) -> str | None:
        """Return task: 'causal': generate text."""
        return self._get(self.task)

    def setTextCol(self, value: str) -> Self:
        """Set text_col: the column with texts."""
        return self._set(text_col=value)

    def getTextCol(self) -> str:
        """Return text_col: the column with texts."""
        return self._get(self.text_col)

    def setLabelCol(self, value: str | None) -> Self:
        """Set label_col: the column with classes: texts, integers or booleans, or arrays."""
        return self._set(label_col=value)

    def getLabelCol(self) -> str | None:
        """Return label_col: the column with classes: texts, integers or booleans, or arrays."""
        return self._get(self.label_col)

    def setLabels(self, value: Sequence[Any] | None) -> Self:
        """Set labels: all classes, in the order of the model's outputs."""
        return self._set(labels=value)

    def getLabels(self) -> list[Any] | None:
        """Return labels: all classes, in the order of the model's outputs."""
        return self._get(self.labels)

    def setMaxLength(self, value: int | None) -> Self:
        """Set max_length: the number of tokens of a row of the training."""
        return self._set(max_length=value)

    def getMaxLength(self) -> int | None:
        """Return max_length: the number of tokens of a row of the training."""
        return self._get(self.max_length)

    def setPacking(self, value: bool) -> Self:
        """Set packing: whether a row of a causal model's training holds several texts, which do not see each other."""
        return self._set(packing=value)

    def getPacking(self) -> bool:
        """Return packing: whether a row of a causal model's training holds several texts, which do not see each ..."""
        return self._get(self.packing)

    def setLossOn(self, value: str) -> Self:
        """Set loss_on: of a chat: 'assistant': learn the assistant's messages; 'all': every message."""
        return self._set(loss_on=value)

    def getLossOn(self) -> str:
        """Return loss_on: of a chat: 'assistant': learn the assistant's messages; 'all': every message."""
        return self._get(self.loss_on)

    def setLora(self, value: Mapping[str, Any] | Any | None) -> Self:
        """Set lora: arguments of peft.LoraConfig, such as {'r': 8}, or a LoraConfig: train an adapter."""
        return self._set(lora=value)

    def getLora(self) -> dict[str, Any] | None:
        """Return lora: arguments of peft.LoraConfig, such as {'r': 8}, or a LoraConfig: train an adapter."""
        return self._get(self.lora)

    def setLearningRate(self, value: float) -> Self:
        """Set learning_rate: of a step of all processes; not multiplied by their number."""
        return self._set(learning_rate=value)

    def getLearningRate(self) -> float:
        """Return learning_rate: of a step of all processes; not multiplied by their number."""
        return self._get(self.learning_rate)

    def setWeightDecay(self, value: float) -> Self:
        """Set weight_decay: of AdamW, for all parameters but biases and those of normalizations, as with the ..."""
        return self._set(weight_decay=value)

    def getWeightDecay(self) -> float:
        """Return weight_decay: of AdamW, for all parameters but biases and those of normalizations, as with the ..."""
        return self._get(self.weight_decay)

    def setOptimizer(self, value: Callable[[Any], torch.optim.Optimizer] | None) -> Self:
        """Set optimizer: a function from a list of parameters to a torch.optim optimizer, instead of AdamW."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Callable[[Any], torch.optim.Optimizer] | None:
        """Return optimizer: a function from a list of parameters to a torch.optim optimizer, instead of AdamW."""
        return self._get(self.optimizer)

    def setLrScheduler(self, value: str | Callable[..., Any] | Mapping[str, Any] | Any | None) -> Self:
        """Set lr_scheduler: how the learning rate moves. After each step: 'linear', 'cosine' or 'constant', as ..."""
        return self._set(lr_scheduler=value)

    def getLrScheduler(self) -> Any:
        """Return lr_scheduler: how the learning rate moves. After each step: 'linear', 'cosine' or 'constant', ..."""
        return self._get(self.lr_scheduler)

    def setGradientClipNorm(self, value: float) -> Self:
        """Set gradient_clip_norm: the largest norm of the whole gradient, to which clip_grad_norm_ scales ..."""
        return self._set(gradient_clip_norm=value)

    def getGradientClipNorm(self) -> float:
        """Return gradient_clip_norm: the largest norm of the whole gradient, to which clip_grad_norm_ scales ..."""
        return self._get(self.gradient_clip_norm)

    def setMixedPrecision(self, value: str | None) -> Self:
        """Set mixed_precision: 'bf16' or 'fp16': run forward passes under autocast."""
        return self._set(mixed_precision=value)

    def getMixedPrecision(self) -> str | None:
        """Return mixed_precision: 'bf16' or 'fp16': run forward passes under autocast."""
        return self._get(self.mixed_precision)

    def setCallbacks(self, value: Any) -> Self:
        """Set callbacks: objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, ..."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """Return callbacks: objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, ..."""
        return self._get(self.callbacks)

    def setProfile(self, value: Any) -> Self:
        """Set profile: spark_estimator.profile(rank=0, steps=(10, 13)): record what processes do in some steps."""
        return self._set(profile=value)

    def getProfile(self) -> Any:
        """Return profile: spark_estimator.profile(rank=0, steps=(10, 13)): record what processes do in some steps."""
        return self._get(self.profile)

    def setNulls(self, value: str) -> Self:
        """Set nulls: how to handle nulls: 'error', or 'drop' the row."""
        return self._set(nulls=value)

    def getNulls(self) -> str:
        """Return nulls: how to handle nulls: 'error', or 'drop' the row."""
        return self._get(self.nulls)

    def setMaxNewTokens(self, value: int) -> Self:
        """Set max_new_tokens: the number of tokens that transform generates at most."""
        return self._set(max_new_tokens=value)

    def getMaxNewTokens(self) -> int:
        """Return max_new_tokens: the number of tokens that transform generates at most."""
        return self._get(self.max_new_tokens)

    def setGeneration(self, value: Mapping[str, Any] | None) -> Self:
        """Set generation: other arguments of the model's generate(), such as {'do_sample': True}."""
        return self._set(generation=value)

    def getGeneration(self) -> dict[str, Any]:
        """Return generation: other arguments of the model's generate(), such as {'do_sample': True}."""
        return self._get(self.generation)


class TransformersModelArguments(PredictingArguments, InferenceArguments, total=False):
    """Types of the parameters of `TransformersModel`."""

    history: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None
    model: Any
    tokenizer: Any
    task: str | None
    feature_columns: Sequence[str] | None
    label_columns: Sequence[str] | None
    run_id: str | None
    training_params: Mapping[str, Any] | None
    labels: Any
    label_type: str
    batch_size: int
    max_length: int | None
    max_new_tokens: int
    generation: Mapping[str, Any] | None


class TransformersModelKeywords(PredictingKeywords, InferenceKeywords):
    """Parameters of `TransformersModel`."""

    history: Param[History]
    model: Param[Any]
    tokenizer: Param[Any]
    task: Param[str | None]
    feature_columns: Param[list[str] | None]
    label_columns: Param[list[str] | None]
    run_id: Param[str | None]
    training_params: Param[dict[str, Any]]
    labels: Param[list[Any] | None]
    label_type: Param[str]
    batch_size: Param[int]
    max_length: Param[int | None]
    max_new_tokens: Param[int]
    generation: Param[dict[str, Any]]

    def __init__(self, **params: Unpack[TransformersModelArguments]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[TransformersModelArguments]) -> Self:
        """Set any of the parameters. Returns self."""
        return self._take(params)

    def setHistory(self, value: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None) -> Self:
        """Set history: one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses."""
        return self._set(history=value)

    def getHistory(self) -> History:
        """Return history: one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses."""
        return self._get(self.history)

    def setModel(self, value: Any) -> Self:
        """Set model: the trained model of transformers, or of peft."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """Return model: the trained model of transformers, or of peft."""
        return self._get(self.model)

    def setTokenizer(self, value: Any) -> Self:
        """Set tokenizer: the tokenizer that it was trained with."""
        return self._set(tokenizer=value)

    def getTokenizer(self) -> Any:
        """Return tokenizer: the tokenizer that it was trained with."""
        return self._get(self.tokenizer)

    def setTask(self, value: str | None) -> Self:
        """Set task: 'causal': generate text."""
        return self._set(task=value)

    def getTask(self) -> str | None:
        """Return task: 'causal': generate text."""
        return self._get(self.task)

    def setFeatureColumns(self, value: Sequence[str] | None) -> Self:
        """Set feature_columns: the columns to predict from, in the order of fit()."""
        return self._set(feature_columns=value)

    def getFeatureColumns(self) -> list[str] | None:
        """Return feature_columns: the columns to predict from, in the order of fit()."""
        return self._get(self.feature_columns)

    def setLabelColumns(self, value: Sequence[str] | None) -> Self:
        """Set label_columns: the columns that the model was trained to predict."""
        return self._set(label_columns=value)

    def getLabelColumns(self) -> list[str] | None:
        """Return label_columns: the columns that the model was trained to predict."""
        return self._get(self.label_columns)

    def setRunId(self, value: str | None) -> Self:
        """Set run_id: the name of the training."""
        return self._set(run_id=value)

    def getRunId(self) -> str | None:
        """Return run_id: the name of the training."""
        return self._get(self.run_id)

    def setTrainingParams(self, value: Mapping[str, Any] | None) -> Self:
        """Set training_params: the estimator's parameters that were set, as far as they are numbers, names or ..."""
        return self._set(training_params=value)

    def getTrainingParams(self) -> dict[str, Any]:
        """Return training_params: the estimator's parameters that were set, as far as they are numbers, names ..."""
        return self._get(self.training_params)

    def setLabels(self, value: Any) -> Self:
        """Set labels: the classes, in the order of the model's outputs."""
        return self._set(labels=value)

    def getLabels(self) -> list[Any] | None:
        """Return labels: the classes, in the order of the model's outputs."""
        return self._get(self.labels)

    def setLabelType(self, value: str) -> Self:
        """Set label_type: the Spark type of a class."""
        return self._set(label_type=value)

    def getLabelType(self) -> str:
        """Return label_type: the Spark type of a class."""
        return self._get(self.label_type)

    def setBatchSize(self, value: int) -> Self:
        """Set batch_size: rows per call of the model."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """Return batch_size: rows per call of the model."""
        return self._get(self.batch_size)

    def setMaxLength(self, value: int | None) -> Self:
        """Set max_length: the number of tokens of a row of the training."""
        return self._set(max_length=value)

    def getMaxLength(self) -> int | None:
        """Return max_length: the number of tokens of a row of the training."""
        return self._get(self.max_length)

    def setMaxNewTokens(self, value: int) -> Self:
        """Set max_new_tokens: the number of tokens that transform generates at most."""
        return self._set(max_new_tokens=value)

    def getMaxNewTokens(self) -> int:
        """Return max_new_tokens: the number of tokens that transform generates at most."""
        return self._get(self.max_new_tokens)

    def setGeneration(self, value: Mapping[str, Any] | None) -> Self:
        """Set generation: other arguments of the model's generate(), such as {'do_sample': True}."""
        return self._set(generation=value)

    def getGeneration(self) -> dict[str, Any]:
        """Return generation: other arguments of the model's generate(), such as {'do_sample': True}."""
        return self._get(self.generation)
