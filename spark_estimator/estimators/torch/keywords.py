"""Parameters of `TorchEstimator` and `TorchModel`.

Generated from the tables of parameters by ``python -m tools.generate_keywords``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import (
    InferenceArguments,
    InferenceKeywords,
    ModelArguments,
    ModelKeywords,
    ModelParts,
    PredictingArguments,
    PredictingKeywords,
    RecipeArguments,
    RecipeKeywords,
    SharedArguments,
    SharedKeywords,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pyspark.ml.param import Param
    from torch import nn
    from typing_extensions import Self, Unpack

    from spark_estimator.estimators.history import History


class TorchSharedArguments(SharedArguments, PredictingArguments, InferenceArguments, total=False):
    """Types of the parameters of estimators of PyTorch and Lightning."""

    loss_weights: Sequence[float] | None
    loss_constructors: Callable[..., Any] | Sequence[Callable[..., Any]] | None
    sync: str
    inner_steps: int
    compile: bool | Mapping[str, Any]
    data_module: None


class TorchSharedKeywords(SharedKeywords, PredictingKeywords, InferenceKeywords):
    """Parameters of estimators of PyTorch and Lightning."""

    loss_weights: Param[list[float] | None]
    loss_constructors: Param[list[Callable[..., Any]] | None]
    sync: Param[str]
    inner_steps: Param[int]
    compile: Param[bool | dict[str, Any]]
    data_module: Param[Any]

    def setLossWeights(self, value: Sequence[float] | None) -> Self:
        """Set loss_weights: a weight per loss; None: equal weights that sum to 1."""
        return self._set(loss_weights=value)

    def getLossWeights(self) -> list[float] | None:
        """Return loss_weights: a weight per loss; None: equal weights that sum to 1."""
        return self._get(self.loss_weights)

    def setLossConstructors(self, value: Callable[..., Any] | Sequence[Callable[..., Any]] | None) -> Self:
        """Set loss_constructors: functions that create the losses, instead of loss; Horovod's get the keyword model."""
        return self._set(loss_constructors=value)

    def getLossConstructors(self) -> list[Callable[..., Any]] | None:
        """Return loss_constructors: functions that create the losses, instead of loss."""
        return self._get(self.loss_constructors)

    def setSync(self, value: str) -> Self:
        """Set sync: what the processes exchange: 'allreduce': the gradients of each step."""
        return self._set(sync=value)

    def getSync(self) -> str:
        """Return sync: what the processes exchange: 'allreduce': the gradients of each step."""
        return self._get(self.sync)

    def setInnerSteps(self, value: int) -> Self:
        """Set inner_steps: with sync='local_sgd' or 'diloco': the number of steps between two exchanges."""
        return self._set(inner_steps=value)

    def getInnerSteps(self) -> int:
        """Return inner_steps: with sync='local_sgd' or 'diloco': the number of steps between two exchanges."""
        return self._get(self.inner_steps)

    def setCompile(self, value: bool | Mapping[str, Any]) -> Self:
        """Set compile: True, or a dict of arguments of torch.compile such as {'mode': 'max-autotune'}: each ..."""
        return self._set(compile=value)

    def getCompile(self) -> bool | dict[str, Any]:
        """Return compile: True, or a dict of arguments of torch.compile such as {'mode': 'max-autotune'}: each ..."""
        return self._get(self.compile)

    def setDataModule(self, value: None) -> Self:
        """Set data_module: not supported: loaders of your own belong in a function that ..."""
        return self._set(data_module=value)

    def getDataModule(self) -> Any:
        """Return data_module: not supported: loaders of your own belong in a function that ..."""
        return self._get(self.data_module)


class TorchEstimatorArguments(TorchSharedArguments, RecipeArguments, total=False):
    """Types of the parameters of `TorchEstimator`."""

    model: nn.Module | None
    optimizer: torch.optim.Optimizer | None
    loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None
    metrics: (
        Callable[..., Any]
        | Mapping[str, Callable[..., Any]]
        | Sequence[Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]]
        | None
    )
    learning_rate: float | None
    callbacks: Any
    train_minibatch_fn: Callable[..., Any] | None
    channels_last: bool
    profile: Any
    mixed_precision: str | None


class TorchEstimatorKeywords(TorchSharedKeywords, RecipeKeywords):
    """Parameters of `TorchEstimator`."""

    model: Param[nn.Module | None]
    optimizer: Param[torch.optim.Optimizer | None]
    loss: Param[list[Callable[..., Any]]]
    metrics: Param[list[Any]]
    learning_rate: Param[float | None]
    callbacks: Param[list[Any]]
    train_minibatch_fn: Param[Callable[..., Any] | None]
    channels_last: Param[bool]
    profile: Param[Any]
    mixed_precision: Param[str | None]

    def __init__(self, **params: Unpack[TorchEstimatorArguments]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[TorchEstimatorArguments]) -> Self:
        """Set any of the parameters. Returns self."""
        return self._take(params)

    def setModel(self, value: nn.Module | None) -> Self:
        """Set model: the model to train; required."""
        return self._set(model=value)

    def getModel(self) -> nn.Module | None:
        """Return model: the model to train; required."""
        return self._get(self.model)

    def setOptimizer(self, value: torch.optim.Optimizer | None) -> Self:
        """Set optimizer: the optimizer; required."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> torch.optim.Optimizer | None:
        """Return optimizer: the optimizer; required."""
        return self._get(self.optimizer)

    def setLoss(self, value: Callable[..., Any] | Sequence[Callable[..., Any]] | None) -> Self:
        """Set loss: one loss, or a list with one loss per label column."""
        return self._set(loss=value)

    def getLoss(self) -> list[Callable[..., Any]]:
        """Return loss: one loss, or a list with one loss per label column."""
        return self._get(self.loss)

    def setMetrics(
        self,
        value: Callable[..., Any]
        | Mapping[str, Callable[..., Any]]
        | Sequence[Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]]
        | None,
    ) -> Self:
        """Set metrics: functions of (output, label)."""
        return self._set(metrics=value)

    def getMetrics(self) -> list[Any]:
        """Return metrics: functions of (output, label)."""
        return self._get(self.metrics)

    def setLearningRate(self, value: float | None) -> Self:
        """Set learning_rate: the learning rate instead of the optimizer's (for ParamGridBuilder)."""
        return self._set(learning_rate=value)

    def getLearningRate(self) -> float | None:
        """Return learning_rate: the learning rate instead of the optimizer's (for ParamGridBuilder)."""
        return self._get(self.learning_rate)

    def setCallbacks(self, value: Any) -> Self:
        """Set callbacks: objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, ..."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """Return callbacks: objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, ..."""
        return self._get(self.callbacks)

    def setTrainMinibatchFn(self, value: Callable[..., Any] | None) -> Self:
        """Set train_minibatch_fn: a custom training step: (model, optimizer, transform_outputs, loss_fn, ..."""
        return self._set(train_minibatch_fn=value)

    def getTrainMinibatchFn(self) -> Callable[..., Any] | None:
        """Return train_minibatch_fn: a custom training step: (model, optimizer, transform_outputs, loss_fn, ..."""
        return self._get(self.train_minibatch_fn)

    def setChannelsLast(self, value: bool) -> Self:
        """Set channels_last: whether weights and inputs of images are kept in PyTorch's memory format channels_last."""
        return self._set(channels_last=value)

    def getChannelsLast(self) -> bool:
        """Return channels_last: whether weights and inputs of images are kept in PyTorch's memory format ..."""
        return self._get(self.channels_last)

    def setProfile(self, value: Any) -> Self:
        """Set profile: spark_estimator.profile(rank=0, steps=(10, 13)): record what processes do in some steps."""
        return self._set(profile=value)

    def getProfile(self) -> Any:
        """Return profile: spark_estimator.profile(rank=0, steps=(10, 13)): record what processes do in some steps."""
        return self._get(self.profile)

    def setMixedPrecision(self, value: str | None) -> Self:
        """Set mixed_precision: 'bf16' or 'fp16': run forward passes under autocast."""
        return self._set(mixed_precision=value)

    def getMixedPrecision(self) -> str | None:
        """Return mixed_precision: 'bf16' or 'fp16': run forward passes under autocast."""
        return self._get(self.mixed_precision)


class TorchModelArguments(ModelArguments, InferenceArguments, total=False):
    """Types of the parameters of `TorchModel`."""

    history: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None
    optimizer: Any
    input_shapes: Sequence[Sequence[int]] | None
    loss: Any
    loss_constructors: Any


class _TorchModelInit(TorchModelArguments, ModelParts, total=False):
    """Types of the constructor's keywords."""


class TorchModelKeywords(ModelKeywords, InferenceKeywords):
    """Parameters of `TorchModel`."""

    history: Param[History]
    optimizer: Param[Any]
    input_shapes: Param[list[list[int]] | None]
    loss: Param[Any]
    loss_constructors: Param[Any]

    def __init__(self, **params: Unpack[_TorchModelInit]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[TorchModelArguments]) -> Self:
        """Set any of the parameters. Returns self."""
        return self._take(params)

    def setHistory(self, value: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None) -> Self:
        """Set history: one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses."""
        return self._set(history=value)

    def getHistory(self) -> History:
        """Return history: one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses."""
        return self._get(self.history)

    def setOptimizer(self, value: Any) -> Self:
        """Set optimizer: an optimizer of the model's parameters."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """Return optimizer: an optimizer of the model's parameters."""
        return self._get(self.optimizer)

    def setInputShapes(self, value: Sequence[Sequence[int]] | None) -> Self:
        """Set input_shapes: the shapes of the inputs, each starting with -1 for the batch."""
        return self._set(input_shapes=value)

    def getInputShapes(self) -> list[list[int]] | None:
        """Return input_shapes: the shapes of the inputs, each starting with -1 for the batch."""
        return self._get(self.input_shapes)

    def setLoss(self, value: Any) -> Self:
        """Set loss: the losses of the training."""
        return self._set(loss=value)

    def getLoss(self) -> Any:
        """Return loss: the losses of the training."""
        return self._get(self.loss)

    def setLossConstructors(self, value: Any) -> Self:
        """Set loss_constructors: functions that create the losses of the training."""
        return self._set(loss_constructors=value)

    def getLossConstructors(self) -> Any:
        """Return loss_constructors: functions that create the losses of the training."""
        return self._get(self.loss_constructors)
