"""Parameters of `KerasEstimator` and `KerasModel`.

Generated from the tables of parameters by ``python -m tools.generate_keywords``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import (
    ModelArguments,
    ModelKeywords,
    ModelParts,
    PredictingArguments,
    PredictingKeywords,
    SharedArguments,
    SharedKeywords,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.ml.param import Param
    from typing_extensions import Self, Unpack

    from spark_estimator.estimators.keras.history import KerasHistory


class KerasEstimatorArguments(SharedArguments, PredictingArguments, total=False):
    """Types of the parameters of `KerasEstimator`."""

    model: Any
    optimizer: Any
    loss: Any
    loss_weights: Sequence[float] | None
    metrics: Any
    learning_rate: float | None
    callbacks: Any
    checkpoint_callback: Any
    custom_objects: Mapping[str, Any] | None
    backend_env: Mapping[str, Any] | None
    data_module: None


class KerasEstimatorKeywords(SharedKeywords, PredictingKeywords):
    """Parameters of `KerasEstimator`."""

    model: Param[Any]
    optimizer: Param[Any]
    loss: Param[list[Any]]
    loss_weights: Param[list[float] | None]
    metrics: Param[list[Any]]
    learning_rate: Param[float | None]
    callbacks: Param[list[Any]]
    checkpoint_callback: Param[Any]
    custom_objects: Param[dict[str, Any]]
    backend_env: Param[dict[str, Any]]
    data_module: Param[Any]

    def __init__(self, **params: Unpack[KerasEstimatorArguments]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[KerasEstimatorArguments]) -> Self:
        """Set any of the parameters. Returns self."""
        return self._take(params)

    def setModel(self, value: Any) -> Self:
        """Set model: a keras.Model, compiled or not; required."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """Return model: a keras.Model, compiled or not; required."""
        return self._get(self.model)

    def setOptimizer(self, value: Any) -> Self:
        """Set optimizer: a Keras optimizer or its name; None: the one the model was compiled with."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """Return optimizer: a Keras optimizer or its name; None: the one the model was compiled with."""
        return self._get(self.optimizer)

    def setLoss(self, value: Any) -> Self:
        """Set loss: a Keras loss, its name or a function of (label, output), or a list with one per output."""
        return self._set(loss=value)

    def getLoss(self) -> list[Any]:
        """Return loss: a Keras loss, its name or a function of (label, output), or a list with one per output."""
        return self._get(self.loss)

    def setLossWeights(self, value: Sequence[float] | None) -> Self:
        """Set loss_weights: a weight per loss; None: those the model was compiled with, or 1 for each."""
        return self._set(loss_weights=value)

    def getLossWeights(self) -> list[float] | None:
        """Return loss_weights: a weight per loss; None: those the model was compiled with, or 1 for each."""
        return self._get(self.loss_weights)

    def setMetrics(self, value: Any) -> Self:
        """Set metrics: metrics, as model.compile takes them."""
        return self._set(metrics=value)

    def getMetrics(self) -> list[Any]:
        """Return metrics: metrics, as model.compile takes them."""
        return self._get(self.metrics)

    def setLearningRate(self, value: float | None) -> Self:
        """Set learning_rate: the learning rate instead of the optimizer's (for ParamGridBuilder)."""
        return self._set(learning_rate=value)

    def getLearningRate(self) -> float | None:
        """Return learning_rate: the learning rate instead of the optimizer's (for ParamGridBuilder)."""
        return self._get(self.learning_rate)

    def setCallbacks(self, value: Any) -> Self:
        """Set callbacks: Keras callbacks, called on every rank with global losses."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """Return callbacks: Keras callbacks, called on every rank with global losses."""
        return self._get(self.callbacks)

    def setCheckpointCallback(self, value: Any) -> Self:
        """Set checkpoint_callback: a ModelCheckpoint, such as BestModelCheckpoint, called on rank 0: the model ..."""
        return self._set(checkpoint_callback=value)

    def getCheckpointCallback(self) -> Any:
        """Return checkpoint_callback: a ModelCheckpoint, such as BestModelCheckpoint, called on rank 0: the ..."""
        return self._get(self.checkpoint_callback)

    def setCustomObjects(self, value: Mapping[str, Any] | None) -> Self:
        """Set custom_objects: your classes and functions by name, for Keras to load the model with."""
        return self._set(custom_objects=value)

    def getCustomObjects(self) -> dict[str, Any]:
        """Return custom_objects: your classes and functions by name, for Keras to load the model with."""
        return self._get(self.custom_objects)

    def setBackendEnv(self, value: Mapping[str, Any] | None) -> Self:
        """Set backend_env: environment variables to set in the processes before they import Keras."""
        return self._set(backend_env=value)

    def getBackendEnv(self) -> dict[str, Any]:
        """Return backend_env: environment variables to set in the processes before they import Keras."""
        return self._get(self.backend_env)

    def setDataModule(self, value: None) -> Self:
        """Set data_module: not supported: loaders of your own belong in a function that ..."""
        return self._set(data_module=value)

    def getDataModule(self) -> Any:
        """Return data_module: not supported: loaders of your own belong in a function that ..."""
        return self._get(self.data_module)


class KerasModelArguments(ModelArguments, total=False):
    """Types of the parameters of `KerasModel`."""

    history: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[float] | None
    custom_objects: Mapping[str, Any] | None
    _floatx: str | None


class _KerasModelInit(KerasModelArguments, ModelParts, total=False):
    """Types of the constructor's keywords."""


class KerasModelKeywords(ModelKeywords):
    """Parameters of `KerasModel`."""

    history: Param[KerasHistory]
    custom_objects: Param[dict[str, Any]]
    _floatx: Param[str | None]

    def __init__(self, **params: Unpack[_KerasModelInit]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[KerasModelArguments]) -> Self:
        """Set any of the parameters. Returns self."""
        return self._take(params)

    def setHistory(self, value: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[float] | None) -> Self:
        """Set history: a dict from each metric's name to its values, one per epoch."""
        return self._set(history=value)

    def getHistory(self) -> KerasHistory:
        """Return history: a dict from each metric's name to its values, one per epoch."""
        return self._get(self.history)

    def setCustomObjects(self, value: Mapping[str, Any] | None) -> Self:
        """Set custom_objects: your classes and functions by name, for Keras to load the model with."""
        return self._set(custom_objects=value)

    def getCustomObjects(self) -> dict[str, Any]:
        """Return custom_objects: your classes and functions by name, for Keras to load the model with."""
        return self._get(self.custom_objects)

    def setFloatx(self, value: str | None) -> Self:
        """Set _floatx: Keras' floating-point type in the training; not used."""
        return self._set(_floatx=value)

    def getFloatx(self) -> str | None:
        """Return _floatx: Keras' floating-point type in the training; not used."""
        return self._get(self._floatx)
