"""Parameters of Lightning's `TorchEstimator`.

Generated from the tables of parameters by ``python -m tools.generate_keywords``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.torch.keywords import TorchSharedArguments, TorchSharedKeywords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pyspark.ml.param import Param
    from torch import nn
    from typing_extensions import Self, Unpack


class LightningEstimatorArguments(TorchSharedArguments, total=False):
    """Types of the parameters of Lightning's `TorchEstimator`."""

    model: nn.Module | None
    optimizer: torch.optim.Optimizer | None
    loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None
    metrics: (
        Callable[..., Any]
        | Mapping[str, Callable[..., Any]]
        | Sequence[Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]]
        | None
    )
    callbacks: Any
    logger: Any
    log_every_n_steps: int
    num_gpus: int | None
    trainer_args: dict[str, Any] | None
    scale_lr: bool
    terminate_on_nan: bool
    profiler: Any


class LightningEstimatorKeywords(TorchSharedKeywords):
    """Parameters of Lightning's `TorchEstimator`."""

    model: Param[nn.Module | None]
    optimizer: Param[torch.optim.Optimizer | None]
    loss: Param[list[Callable[..., Any]]]
    metrics: Param[list[Any]]
    callbacks: Param[list[Any]]
    logger: Param[Any]
    log_every_n_steps: Param[int]
    num_gpus: Param[int | None]
    trainer_args: Param[dict[str, Any] | None]
    scale_lr: Param[bool]
    terminate_on_nan: Param[bool]
    profiler: Param[Any]

    def __init__(self, **params: Unpack[LightningEstimatorArguments]) -> None:
        super().__init__(**params)

    def setParams(self, **params: Unpack[LightningEstimatorArguments]) -> Self:
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

    def setCallbacks(self, value: Any) -> Self:
        """Set callbacks: Lightning callbacks, copied to every rank."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """Return callbacks: Lightning callbacks, copied to every rank."""
        return self._get(self.callbacks)

    def setLogger(self, value: Any) -> Self:
        """Set logger: a Lightning logger; None: TensorBoard in the store, if both are available."""
        return self._set(logger=value)

    def getLogger(self) -> Any:
        """Return logger: a Lightning logger; None: TensorBoard in the store, if both are available."""
        return self._get(self.logger)

    def setLogEveryNSteps(self, value: int) -> Self:
        """Set log_every_n_steps: the number of steps between two log entries."""
        return self._set(log_every_n_steps=value)

    def getLogEveryNSteps(self) -> int:
        """Return log_every_n_steps: the number of steps between two log entries."""
        return self._get(self.log_every_n_steps)

    def setNumGpus(self, value: int | None) -> Self:
        """Set num_gpus: the number of GPUs per process: 0 is use_gpu=False, more than 1 is an error."""
        return self._set(num_gpus=value)

    def getNumGpus(self) -> int | None:
        """Return num_gpus: the number of GPUs per process: 0 is use_gpu=False, more than 1 is an error."""
        return self._get(self.num_gpus)

    def setTrainerArgs(self, value: dict[str, Any] | None) -> Self:
        """Set trainer_args: a dict of Trainer arguments that override the estimator's own."""
        return self._set(trainer_args=value)

    def getTrainerArgs(self) -> dict[str, Any] | None:
        """Return trainer_args: a dict of Trainer arguments that override the estimator's own."""
        return self._get(self.trainer_args)

    def setScaleLr(self, value: bool) -> Self:
        """Set scale_lr: multiply the learning rate by the number of processes, as Horovod does."""
        return self._set(scale_lr=value)

    def getScaleLr(self) -> bool:
        """Return scale_lr: multiply the learning rate by the number of processes, as Horovod does."""
        return self._get(self.scale_lr)

    def setTerminateOnNan(self, value: bool) -> Self:
        """Set terminate_on_nan: stop at the first batch whose loss is not finite, instead of at the end of the ..."""
        return self._set(terminate_on_nan=value)

    def getTerminateOnNan(self) -> bool:
        """Return terminate_on_nan: stop at the first batch whose loss is not finite, instead of at the end of ..."""
        return self._get(self.terminate_on_nan)

    def setProfiler(self, value: Any) -> Self:
        """Set profiler: a Lightning profiler, or its name."""
        return self._set(profiler=value)

    def getProfiler(self) -> Any:
        """Return profiler: a Lightning profiler, or its name."""
        return self._get(self.profiler)
