"""Constructor, setters and getters of Lightning's `TorchEstimator`.

Generated from the tables of parameters by ``python -m tests.estimators.generate_keywords``: change those.
"""

# ruff: noqa: B006

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import PredictingKeywords, SharedKeywords
from spark_estimator.estimators.params import by_keyword

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pyspark.ml.param import Param
    from torch import nn
    from typing_extensions import Self

    from spark_estimator.spark.backend import Backend
    from spark_estimator.store import Store


class LightningEstimatorKeywords(SharedKeywords, PredictingKeywords):
    """Constructor, setters and getters of Lightning's `TorchEstimator`."""

    model: Param[nn.Module | None]
    optimizer: Param[torch.optim.Optimizer | None]
    loss: Param[list[Callable[..., Any]]]
    metrics: Param[list[Any]]
    inference_device: Param[str]
    inference_precision: Param[str | None]
    loss_constructors: Param[list[Callable[..., Any]] | None]
    callbacks: Param[list[Any]]
    logger: Param[Any]
    log_every_n_steps: Param[int]
    num_gpus: Param[int | None]
    data_module: Param[Any]
    trainer_args: Param[dict[str, Any] | None]
    scale_lr: Param[bool]
    terminate_on_nan: Param[bool]
    sync: Param[str]
    inner_steps: Param[int]
    profiler: Param[Any]

    @by_keyword
    def __init__(
        self,
        *,
        num_proc: int | None = None,
        model: nn.Module | None = None,
        backend: Backend | None = None,
        store: Store | str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        loss_weights: Sequence[float] | None = None,
        metrics: Callable[..., Any]
        | Mapping[str, Callable[..., Any]]
        | Sequence[Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]]
        | None = [],
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        sample_weight_col: str | None = None,
        validation: float | str | None = None,
        batch_size: int = 32,
        val_batch_size: int | None = None,
        epochs: int = 1,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        verbose: int = 1,
        gradient_compression: Any = None,
        max_restarts: int = 0,
        random_seed: int | None = None,
        shuffle: bool = True,
        run_id: str | None = None,
        resume_on_other_rows: bool = False,
        checkpoint_every_steps: int | None = None,
        checkpoint_every_seconds: float | None = None,
        early_stopping_patience: int | None = None,
        restore_best: bool = False,
        use_gpu: bool = True,
        backward_passes_per_step: int = 1,
        mlflow: bool | Mapping[str, Any] = False,
        input_shapes: Sequence[Sequence[int]] | None = None,
        label_shapes: Sequence[Sequence[int]] | None = None,
        materialize: bool = False,
        read_files: bool = True,
        cache_bytes: int | None = None,
        buffer_bytes: int | None = None,
        nulls: str | float | Mapping[str, str | float] = "error",
        padding: float | Mapping[str, float] | None = None,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        categories: Mapping[str, int | str | Sequence[Any] | Mapping[str, int]] | None = None,
        transformation_fn: Callable[[Any], Any] | None = None,
        transform_validation: bool = True,
        transformation_edit_fields: Sequence[Sequence[Any]] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
        loss_constructors: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        callbacks: Any = [],
        logger: Any = None,
        log_every_n_steps: int = 50,
        num_gpus: int | None = None,
        data_module: Any = None,
        trainer_args: dict[str, Any] | None = None,
        scale_lr: bool = True,
        terminate_on_nan: bool = False,
        sync: str = "allreduce",
        inner_steps: int = 32,
        profiler: Any = None,
    ) -> None:
        super().__init__(**self._call_keywords)

    @by_keyword
    def setParams(
        self,
        *,
        num_proc: int | None = None,
        model: nn.Module | None = None,
        backend: Backend | None = None,
        store: Store | str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        loss_weights: Sequence[float] | None = None,
        metrics: Callable[..., Any]
        | Mapping[str, Callable[..., Any]]
        | Sequence[Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]]
        | None = [],
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        sample_weight_col: str | None = None,
        validation: float | str | None = None,
        batch_size: int = 32,
        val_batch_size: int | None = None,
        epochs: int = 1,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        verbose: int = 1,
        gradient_compression: Any = None,
        max_restarts: int = 0,
        random_seed: int | None = None,
        shuffle: bool = True,
        run_id: str | None = None,
        resume_on_other_rows: bool = False,
        checkpoint_every_steps: int | None = None,
        checkpoint_every_seconds: float | None = None,
        early_stopping_patience: int | None = None,
        restore_best: bool = False,
        use_gpu: bool = True,
        backward_passes_per_step: int = 1,
        mlflow: bool | Mapping[str, Any] = False,
        input_shapes: Sequence[Sequence[int]] | None = None,
        label_shapes: Sequence[Sequence[int]] | None = None,
        materialize: bool = False,
        read_files: bool = True,
        cache_bytes: int | None = None,
        buffer_bytes: int | None = None,
        nulls: str | float | Mapping[str, str | float] = "error",
        padding: float | Mapping[str, float] | None = None,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        categories: Mapping[str, int | str | Sequence[Any] | Mapping[str, int]] | None = None,
        transformation_fn: Callable[[Any], Any] | None = None,
        transform_validation: bool = True,
        transformation_edit_fields: Sequence[Sequence[Any]] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
        loss_constructors: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        callbacks: Any = [],
        logger: Any = None,
        log_every_n_steps: int = 50,
        num_gpus: int | None = None,
        data_module: Any = None,
        trainer_args: dict[str, Any] | None = None,
        scale_lr: bool = True,
        terminate_on_nan: bool = False,
        sync: str = "allreduce",
        inner_steps: int = 32,
        profiler: Any = None,
    ) -> Self:
        """Sets any of the parameters. Returns self."""
        return self._take(self._call_keywords)

    def setModel(self, value: nn.Module | None) -> Self:
        """Sets model: the model to train; required. Returns self."""
        return self._set(model=value)

    def getModel(self) -> nn.Module | None:
        """model: the model to train; required."""
        return self._get(self.model)

    def setOptimizer(self, value: torch.optim.Optimizer | None) -> Self:
        """Sets optimizer: the optimizer; required. Returns self."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> torch.optim.Optimizer | None:
        """optimizer: the optimizer; required."""
        return self._get(self.optimizer)

    def setLoss(self, value: Callable[..., Any] | Sequence[Callable[..., Any]] | None) -> Self:
        """Sets loss: one loss, or a list with one loss per label column. Returns self."""
        return self._set(loss=value)

    def getLoss(self) -> list[Callable[..., Any]]:
        """loss: one loss, or a list with one loss per label column."""
        return self._get(self.loss)

    def setMetrics(
        self,
        value: Callable[..., Any]
        | Mapping[str, Callable[..., Any]]
        | Sequence[Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]]
        | None,
    ) -> Self:
        """Sets metrics: functions of (output, label); or Horovod's lists, each of one function, or of one per label
        column; or a dict per label column, whose keys are their names; batches' values are averaged by their
        rows, which is right for means over rows, and not for AUC, F1, R2, precision, recall or roots. Returns
        self.
        """
        return self._set(metrics=value)

    def getMetrics(self) -> list[Any]:
        """metrics: functions of (output, label); or Horovod's lists, each of one function, or of one per label
        column; or a dict per label column, whose keys are their names; batches' values are averaged by their
        rows, which is right for means over rows, and not for AUC, F1, R2, precision, recall or roots.
        """
        return self._get(self.metrics)

    def setInferenceDevice(self, value: str) -> Self:
        """Sets inference_device: where transform computes: 'auto': on the GPU that Spark gives the task
        (spark.task.resource.gpu.amount), or, without one, on the CPU; 'cpu'; 'cuda': on a GPU, or it is an error.
        Returns self.
        """
        return self._set(inference_device=value)

    def getInferenceDevice(self) -> str:
        """inference_device: where transform computes: 'auto': on the GPU that Spark gives the task
        (spark.task.resource.gpu.amount), or, without one, on the CPU; 'cpu'; 'cuda': on a GPU, or it is an error.
        """
        return self._get(self.inference_device)

    def setInferencePrecision(self, value: str | None) -> Self:
        """Sets inference_precision: 'bf16' or 'fp16': predict under torch.autocast with this type; None: in the
        model's own types. Returns self.
        """
        return self._set(inference_precision=value)

    def getInferencePrecision(self) -> str | None:
        """inference_precision: 'bf16' or 'fp16': predict under torch.autocast with this type; None: in the model's
        own types.
        """
        return self._get(self.inference_precision)

    def setLossConstructors(self, value: Callable[..., Any] | Sequence[Callable[..., Any]] | None) -> Self:
        """Sets loss_constructors: functions that create the losses, instead of loss; Horovod's get the keyword
        model. Returns self.
        """
        return self._set(loss_constructors=value)

    def getLossConstructors(self) -> list[Callable[..., Any]] | None:
        """loss_constructors: functions that create the losses, instead of loss; Horovod's get the keyword model."""
        return self._get(self.loss_constructors)

    def setCallbacks(self, value: Any) -> Self:
        """Sets callbacks: Lightning callbacks, copied to every rank. Returns self."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """callbacks: Lightning callbacks, copied to every rank."""
        return self._get(self.callbacks)

    def setLogger(self, value: Any) -> Self:
        """Sets logger: a Lightning logger; None: TensorBoard in the store, if both are available. Returns self."""
        return self._set(logger=value)

    def getLogger(self) -> Any:
        """logger: a Lightning logger; None: TensorBoard in the store, if both are available."""
        return self._get(self.logger)

    def setLogEveryNSteps(self, value: int) -> Self:
        """Sets log_every_n_steps: the number of steps between two log entries. Returns self."""
        return self._set(log_every_n_steps=value)

    def getLogEveryNSteps(self) -> int:
        """log_every_n_steps: the number of steps between two log entries."""
        return self._get(self.log_every_n_steps)

    def setNumGpus(self, value: int | None) -> Self:
        """Sets num_gpus: the number of GPUs per process: 0 is use_gpu=False, more than 1 is an error. Returns self."""
        return self._set(num_gpus=value)

    def getNumGpus(self) -> int | None:
        """num_gpus: the number of GPUs per process: 0 is use_gpu=False, more than 1 is an error."""
        return self._get(self.num_gpus)

    def setDataModule(self, value: Any) -> Self:
        """Sets data_module: a LightningDataModule, or its class: its loaders replace the DataFrame, whose first rows
        are only used for the types of the columns. A class with the argument train_dir gets Horovod's keywords,
        and the rows are written to the store; others are created without arguments on each rank. Returns self.
        """
        return self._set(data_module=value)

    def getDataModule(self) -> Any:
        """data_module: a LightningDataModule, or its class: its loaders replace the DataFrame, whose first rows are
        only used for the types of the columns. A class with the argument train_dir gets Horovod's keywords, and
        the rows are written to the store; others are created without arguments on each rank.
        """
        return self._get(self.data_module)

    def setTrainerArgs(self, value: dict[str, Any] | None) -> Self:
        """Sets trainer_args: a dict of Trainer arguments that override the estimator's own. Returns self."""
        return self._set(trainer_args=value)

    def getTrainerArgs(self) -> dict[str, Any] | None:
        """trainer_args: a dict of Trainer arguments that override the estimator's own."""
        return self._get(self.trainer_args)

    def setScaleLr(self, value: bool) -> Self:
        """Sets scale_lr: multiply the learning rate by the number of processes, as Horovod does; no effect unless
        sync is 'allreduce'. Returns self.
        """
        return self._set(scale_lr=value)

    def getScaleLr(self) -> bool:
        """scale_lr: multiply the learning rate by the number of processes, as Horovod does; no effect unless sync is
        'allreduce'.
        """
        return self._get(self.scale_lr)

    def setTerminateOnNan(self, value: bool) -> Self:
        """Sets terminate_on_nan: stop at the first batch whose loss is not finite, instead of at the end of the
        epoch. Returns self.
        """
        return self._set(terminate_on_nan=value)

    def getTerminateOnNan(self) -> bool:
        """terminate_on_nan: stop at the first batch whose loss is not finite, instead of at the end of the epoch."""
        return self._get(self.terminate_on_nan)

    def setSync(self, value: str) -> Self:
        """Sets sync: what the processes exchange: 'allreduce': the gradients of each step; 'local_sgd' and 'diloco':
        parameters, every inner_steps steps, as spark_estimator.torch.LocalSGD and DiLoCo do, with the learning
        rate of one process. Returns self.
        """
        return self._set(sync=value)

    def getSync(self) -> str:
        """sync: what the processes exchange: 'allreduce': the gradients of each step; 'local_sgd' and 'diloco':
        parameters, every inner_steps steps, as spark_estimator.torch.LocalSGD and DiLoCo do, with the learning
        rate of one process.
        """
        return self._get(self.sync)

    def setInnerSteps(self, value: int) -> Self:
        """Sets inner_steps: with sync='local_sgd' or 'diloco': the number of steps between two exchanges. Returns
        self.
        """
        return self._set(inner_steps=value)

    def getInnerSteps(self) -> int:
        """inner_steps: with sync='local_sgd' or 'diloco': the number of steps between two exchanges."""
        return self._get(self.inner_steps)

    def setProfiler(self, value: Any) -> Self:
        """Sets profiler: a Lightning profiler, or its name. Returns self."""
        return self._set(profiler=value)

    def getProfiler(self) -> Any:
        """profiler: a Lightning profiler, or its name."""
        return self._get(self.profiler)
