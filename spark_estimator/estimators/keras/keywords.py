"""Constructors, setters and getters of `KerasEstimator` and `KerasModel`.

Generated from the tables of parameters by ``python -m tests.estimators.generate_keywords``: change those.
"""

# ruff: noqa: B006

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import ModelKeywords, PredictingKeywords, SharedKeywords
from spark_estimator.estimators.params import by_keyword

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.ml.param import Param
    from typing_extensions import Self

    from spark_estimator.data.fields import Field
    from spark_estimator.estimators.inference.prediction_columns import OutputKind
    from spark_estimator.estimators.keras.history import KerasHistory
    from spark_estimator.spark.backend import Backend
    from spark_estimator.store import Store


class KerasEstimatorKeywords(SharedKeywords, PredictingKeywords):
    """Constructor, setters and getters of `KerasEstimator`."""

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

    @by_keyword
    def __init__(
        self,
        *,
        num_proc: int | None = None,
        model: Any = None,
        backend: Backend | None = None,
        store: Store | str | None = None,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Sequence[float] | None = None,
        metrics: Any = [],
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
        learning_rate: float | None = None,
        callbacks: Any = [],
        checkpoint_callback: Any = None,
        custom_objects: Mapping[str, Any] | None = {},
        backend_env: Mapping[str, Any] | None = {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
        data_module: type | None = None,
    ) -> None:
        super().__init__(**self._call_keywords)

    @by_keyword
    def setParams(
        self,
        *,
        num_proc: int | None = None,
        model: Any = None,
        backend: Backend | None = None,
        store: Store | str | None = None,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Sequence[float] | None = None,
        metrics: Any = [],
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
        learning_rate: float | None = None,
        callbacks: Any = [],
        checkpoint_callback: Any = None,
        custom_objects: Mapping[str, Any] | None = {},
        backend_env: Mapping[str, Any] | None = {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
        data_module: type | None = None,
    ) -> Self:
        """Sets any of the parameters. Returns self."""
        return self._take(self._call_keywords)

    def setModel(self, value: Any) -> Self:
        """Sets model: a keras.Model, compiled or not; required. Returns self."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """model: a keras.Model, compiled or not; required."""
        return self._get(self.model)

    def setOptimizer(self, value: Any) -> Self:
        """Sets optimizer: a Keras optimizer or its name; None: the one the model was compiled with. Returns self."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """optimizer: a Keras optimizer or its name; None: the one the model was compiled with."""
        return self._get(self.optimizer)

    def setLoss(self, value: Any) -> Self:
        """Sets loss: a Keras loss, its name or a function of (label, output), or a list with one per output; None:
        those the model was compiled with. Returns self.
        """
        return self._set(loss=value)

    def getLoss(self) -> list[Any]:
        """loss: a Keras loss, its name or a function of (label, output), or a list with one per output; None: those
        the model was compiled with.
        """
        return self._get(self.loss)

    def setLossWeights(self, value: Sequence[float] | None) -> Self:
        """Sets loss_weights: a weight per loss; None: those the model was compiled with, or 1 for each. Returns
        self.
        """
        return self._set(loss_weights=value)

    def getLossWeights(self) -> list[float] | None:
        """loss_weights: a weight per loss; None: those the model was compiled with, or 1 for each."""
        return self._get(self.loss_weights)

    def setMetrics(self, value: Any) -> Self:
        """Sets metrics: metrics, as model.compile takes them; empty: those the model was compiled with; Keras'
        objects count all rows, and the values that functions return for batches are averaged. Returns self.
        """
        return self._set(metrics=value)

    def getMetrics(self) -> list[Any]:
        """metrics: metrics, as model.compile takes them; empty: those the model was compiled with; Keras' objects
        count all rows, and the values that functions return for batches are averaged.
        """
        return self._get(self.metrics)

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

    def setCallbacks(self, value: Any) -> Self:
        """Sets callbacks: Keras callbacks, called on every rank with global losses. Returns self."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """callbacks: Keras callbacks, called on every rank with global losses."""
        return self._get(self.callbacks)

    def setCheckpointCallback(self, value: Any) -> Self:
        """Sets checkpoint_callback: a ModelCheckpoint, such as BestModelCheckpoint, called on rank 0: the model it
        saved last is returned; None: the model of the last epoch is. Returns self.
        """
        return self._set(checkpoint_callback=value)

    def getCheckpointCallback(self) -> Any:
        """checkpoint_callback: a ModelCheckpoint, such as BestModelCheckpoint, called on rank 0: the model it saved
        last is returned; None: the model of the last epoch is.
        """
        return self._get(self.checkpoint_callback)

    def setCustomObjects(self, value: Mapping[str, Any] | None) -> Self:
        """Sets custom_objects: your classes and functions by name, for Keras to load the model with. Returns self."""
        return self._set(custom_objects=value)

    def getCustomObjects(self) -> dict[str, Any]:
        """custom_objects: your classes and functions by name, for Keras to load the model with."""
        return self._get(self.custom_objects)

    def setBackendEnv(self, value: Mapping[str, Any] | None) -> Self:
        """Sets backend_env: environment variables to set in the processes before they import Keras; the default,
        Horovod's, is set where the processes do not have the variable. Returns self.
        """
        return self._set(backend_env=value)

    def getBackendEnv(self) -> dict[str, Any]:
        """backend_env: environment variables to set in the processes before they import Keras; the default,
        Horovod's, is set where the processes do not have the variable.
        """
        return self._get(self.backend_env)

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


class KerasModelKeywords(ModelKeywords):
    """Constructor, setters and getters of `KerasModel`."""

    history: Param[KerasHistory]
    custom_objects: Param[dict[str, Any]]
    _floatx: Param[str | None]

    @by_keyword
    def __init__(
        self,
        *,
        inputs: Sequence[Field] | None = None,
        outputs: Sequence[int] | None = None,
        label_types: Sequence[str] | None = None,
        output_kinds: Sequence[OutputKind] | None = None,
        history: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[float] | None = None,
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
        custom_objects: Mapping[str, Any] | None = {},
        _floatx: str | None = None,
    ) -> None:
        super().__init__(**self._call_keywords)

    @by_keyword
    def setParams(
        self,
        *,
        history: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[float] | None = None,
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
        custom_objects: Mapping[str, Any] | None = {},
        _floatx: str | None = None,
    ) -> Self:
        """Sets any of the parameters. Returns self."""
        return self._take(self._call_keywords)

    def setHistory(self, value: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[float] | None) -> Self:
        """Sets history: a dict from each metric's name to its values, one per epoch. Returns self."""
        return self._set(history=value)

    def getHistory(self) -> KerasHistory:
        """history: a dict from each metric's name to its values, one per epoch."""
        return self._get(self.history)

    def setCustomObjects(self, value: Mapping[str, Any] | None) -> Self:
        """Sets custom_objects: your classes and functions by name, for Keras to load the model with. Returns self."""
        return self._set(custom_objects=value)

    def getCustomObjects(self) -> dict[str, Any]:
        """custom_objects: your classes and functions by name, for Keras to load the model with."""
        return self._get(self.custom_objects)

    def setFloatx(self, value: str | None) -> Self:
        """Sets _floatx: Keras' floating-point type in the training; not used. Returns self."""
        return self._set(_floatx=value)

    def getFloatx(self) -> str | None:
        """_floatx: Keras' floating-point type in the training; not used."""
        return self._get(self._floatx)
