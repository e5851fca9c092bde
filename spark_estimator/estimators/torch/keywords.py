"""Constructors, setters and getters of `TorchEstimator` and `TorchModel`.

Generated from the tables of parameters by ``python -m tests.estimators.generate_keywords``: change those.
"""

# ruff: noqa: B006

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import ModelKeywords, PredictingKeywords, SharedKeywords
from spark_estimator.estimators.params import by_keyword

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pyspark.ml.param import Param
    from torch import nn
    from torch.optim.lr_scheduler import LRScheduler
    from typing_extensions import Self

    from spark_estimator.data.fields import Field
    from spark_estimator.estimators.history import History
    from spark_estimator.estimators.inference.prediction_columns import OutputKind
    from spark_estimator.spark.backend import Backend
    from spark_estimator.store import Store


class TorchEstimatorKeywords(SharedKeywords, PredictingKeywords):
    """Constructor, setters and getters of `TorchEstimator`."""

    model: Param[nn.Module | None]
    optimizer: Param[torch.optim.Optimizer | None]
    loss: Param[list[Callable[..., Any]]]
    metrics: Param[list[Any]]
    inference_device: Param[str]
    inference_precision: Param[str | None]
    learning_rate: Param[float | None]
    lr_scheduler: Param[LRScheduler | None]
    loss_constructors: Param[list[Callable[..., Any]] | None]
    callbacks: Param[list[Any]]
    train_minibatch_fn: Param[Callable[..., Any] | None]
    sync: Param[str]
    inner_steps: Param[int]
    data_module: Param[Any]
    mixed_precision: Param[str | None]

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
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        loss_constructors: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        callbacks: Any = [],
        train_minibatch_fn: Callable[..., Any] | None = None,
        sync: str = "allreduce",
        inner_steps: int = 32,
        data_module: type | None = None,
        mixed_precision: str | None = None,
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
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        loss_constructors: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        callbacks: Any = [],
        train_minibatch_fn: Callable[..., Any] | None = None,
        sync: str = "allreduce",
        inner_steps: int = 32,
        data_module: type | None = None,
        mixed_precision: str | None = None,
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

    def setLearningRate(self, value: float | None) -> Self:
        """Sets learning_rate: the learning rate instead of the optimizer's (for ParamGridBuilder); None: the
        optimizer's; either is multiplied by the number of processes, except with sync='diloco' or 'local_sgd'.
        Returns self.
        """
        return self._set(learning_rate=value)

    def getLearningRate(self) -> float | None:
        """learning_rate: the learning rate instead of the optimizer's (for ParamGridBuilder); None: the optimizer's;
        either is multiplied by the number of processes, except with sync='diloco' or 'local_sgd'.
        """
        return self._get(self.learning_rate)

    def setLrScheduler(self, value: LRScheduler | None) -> Self:
        """Sets lr_scheduler: a scheduler of the optimizer, stepped after each epoch and not after each batch:
        total_steps and T_max are numbers of epochs; None: none. Returns self.
        """
        return self._set(lr_scheduler=value)

    def getLrScheduler(self) -> LRScheduler | None:
        """lr_scheduler: a scheduler of the optimizer, stepped after each epoch and not after each batch: total_steps
        and T_max are numbers of epochs; None: none.
        """
        return self._get(self.lr_scheduler)

    def setLossConstructors(self, value: Callable[..., Any] | Sequence[Callable[..., Any]] | None) -> Self:
        """Sets loss_constructors: functions that create the losses, instead of loss; Horovod's get the keyword
        model. Returns self.
        """
        return self._set(loss_constructors=value)

    def getLossConstructors(self) -> list[Callable[..., Any]] | None:
        """loss_constructors: functions that create the losses, instead of loss; Horovod's get the keyword model."""
        return self._get(self.loss_constructors)

    def setCallbacks(self, value: Any) -> Self:
        """Sets callbacks: objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, called on
        every rank. Returns self.
        """
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """callbacks: objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, called on
        every rank.
        """
        return self._get(self.callbacks)

    def setTrainMinibatchFn(self, value: Callable[..., Any] | None) -> Self:
        """Sets train_minibatch_fn: a custom training step: (model, optimizer, transform_outputs, loss_fn, inputs,
        labels, sample_weights) -> (outputs, loss); None: the built-in step. Returns self.
        """
        return self._set(train_minibatch_fn=value)

    def getTrainMinibatchFn(self) -> Callable[..., Any] | None:
        """train_minibatch_fn: a custom training step: (model, optimizer, transform_outputs, loss_fn, inputs, labels,
        sample_weights) -> (outputs, loss); None: the built-in step.
        """
        return self._get(self.train_minibatch_fn)

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

    def setDataModule(self, value: type | None) -> Self:
        """Sets data_module: a class derived from horovod.spark.common.datamodule.DataModule that reads the ranks'
        batches from the store; None, or PetastormDataModule: this package reads them. Returns self.
        """
        return self._set(data_module=value)

    def getDataModule(self) -> Any:
        """data_module: a class derived from horovod.spark.common.datamodule.DataModule that reads the ranks' batches
        from the store; None, or PetastormDataModule: this package reads them.
        """
        return self._get(self.data_module)

    def setMixedPrecision(self, value: str | None) -> Self:
        """Sets mixed_precision: 'bf16': run forward passes under autocast; None: full precision. Returns self."""
        return self._set(mixed_precision=value)

    def getMixedPrecision(self) -> str | None:
        """mixed_precision: 'bf16': run forward passes under autocast; None: full precision."""
        return self._get(self.mixed_precision)


class TorchModelKeywords(ModelKeywords):
    """Constructor, setters and getters of `TorchModel`."""

    history: Param[History]
    inference_device: Param[str]
    inference_precision: Param[str | None]
    optimizer: Param[Any]
    input_shapes: Param[list[list[int]] | None]
    loss: Param[Any]
    loss_constructors: Param[Any]

    @by_keyword
    def __init__(
        self,
        *,
        inputs: Sequence[Field] | None = None,
        outputs: Sequence[int] | None = None,
        label_types: Sequence[str] | None = None,
        output_kinds: Sequence[OutputKind] | None = None,
        history: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None = None,
        model: Any = None,
        _metadata: Mapping[str, Any] | None = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        run_id: str | None = None,
        batch_size: int = 1024,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        categories: Mapping[str, str | Sequence[Any] | Mapping[str, int]] | None = None,
        null_values: Mapping[str, float] | None = None,
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
        optimizer: Any = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
        loss: Any = None,
        loss_constructors: Any = None,
    ) -> None:
        super().__init__(**self._call_keywords)

    @by_keyword
    def setParams(
        self,
        *,
        history: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None = None,
        model: Any = None,
        _metadata: Mapping[str, Any] | None = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        run_id: str | None = None,
        batch_size: int = 1024,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        categories: Mapping[str, str | Sequence[Any] | Mapping[str, int]] | None = None,
        null_values: Mapping[str, float] | None = None,
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
        optimizer: Any = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
        loss: Any = None,
        loss_constructors: Any = None,
    ) -> Self:
        """Sets any of the parameters. Returns self."""
        return self._take(self._call_keywords)

    def setHistory(self, value: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None) -> Self:
        """Sets history: one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses.
        Returns self.
        """
        return self._set(history=value)

    def getHistory(self) -> History:
        """history: one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses."""
        return self._get(self.history)

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

    def setOptimizer(self, value: Any) -> Self:
        """Sets optimizer: an optimizer of the model's parameters. Returns self."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """optimizer: an optimizer of the model's parameters."""
        return self._get(self.optimizer)

    def setInputShapes(self, value: Sequence[Sequence[int]] | None) -> Self:
        """Sets input_shapes: the shapes of the inputs, each starting with -1 for the batch. Returns self."""
        return self._set(input_shapes=value)

    def getInputShapes(self) -> list[list[int]] | None:
        """input_shapes: the shapes of the inputs, each starting with -1 for the batch."""
        return self._get(self.input_shapes)

    def setLoss(self, value: Any) -> Self:
        """Sets loss: the losses of the training. Returns self."""
        return self._set(loss=value)

    def getLoss(self) -> Any:
        """loss: the losses of the training."""
        return self._get(self.loss)

    def setLossConstructors(self, value: Any) -> Self:
        """Sets loss_constructors: functions that create the losses of the training. Returns self."""
        return self._set(loss_constructors=value)

    def getLossConstructors(self) -> Any:
        """loss_constructors: functions that create the losses of the training."""
        return self._get(self.loss_constructors)
