"""Parameters that estimators and models share.

Generated from the tables of parameters by ``python -m tools.generate_keywords``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from spark_estimator.estimators.params import TableParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.ml.param import Param
    from typing_extensions import Self

    from spark_estimator.data.fields import Field
    from spark_estimator.estimators.inference.prediction_columns import OutputKind
    from spark_estimator.spark.backend import Backend
    from spark_estimator.store import Store


class CommonArguments(TypedDict, total=False):
    """Types of the parameters of every estimator."""

    num_proc: int | None
    backend: Backend | None
    store: Store | str | None
    validation: float | str | None
    batch_size: int
    val_batch_size: int | None
    epochs: int
    train_steps_per_epoch: int | None
    validation_steps_per_epoch: int | None
    verbose: int
    gradient_compression: Any
    max_restarts: int
    random_seed: int | None
    shuffle: bool
    run_id: str | None
    resume_on_other_rows: bool
    checkpoint_every_steps: int | None
    checkpoint_every_seconds: float | None
    early_stopping_patience: int | None
    restore_best: bool
    monitor: str | None
    mode: str
    use_gpu: bool
    backward_passes_per_step: int
    mlflow: bool | Mapping[str, Any]
    materialize: bool


class CommonKeywords(TableParams):
    """Parameters of every estimator."""

    num_proc: Param[int | None]
    backend: Param[Backend | None]
    store: Param[Store | None]
    validation: Param[float | str | None]
    batch_size: Param[int]
    val_batch_size: Param[int | None]
    epochs: Param[int]
    train_steps_per_epoch: Param[int | None]
    validation_steps_per_epoch: Param[int | None]
    verbose: Param[int]
    gradient_compression: Param[Any]
    max_restarts: Param[int]
    random_seed: Param[int | None]
    shuffle: Param[bool]
    run_id: Param[str | None]
    resume_on_other_rows: Param[bool]
    checkpoint_every_steps: Param[int | None]
    checkpoint_every_seconds: Param[float | None]
    early_stopping_patience: Param[int | None]
    restore_best: Param[bool]
    monitor: Param[str | None]
    mode: Param[str]
    use_gpu: Param[bool]
    backward_passes_per_step: Param[int]
    mlflow: Param[bool | dict[str, Any]]
    materialize: Param[bool]

    def setNumProc(self, value: int | None) -> Self:
        """Set num_proc: the number of training processes."""
        return self._set(num_proc=value)

    def getNumProc(self) -> int | None:
        """Return num_proc: the number of training processes."""
        return self._get(self.num_proc)

    def setBackend(self, value: Backend | None) -> Self:
        """Set backend: where to train: a SparkBackend with its own num_proc and options, or another Backend, ..."""
        return self._set(backend=value)

    def getBackend(self) -> Backend | None:
        """Return backend: where to train: a SparkBackend with its own num_proc and options, or another Backend, ..."""
        return self._get(self.backend)

    def setStore(self, value: Store | str | None) -> Self:
        """Set store: a Store, or its path, for checkpoints and prepared data; None: nothing is stored."""
        return self._set(store=value)

    def getStore(self) -> Store | None:
        """Return store: a Store, or its path, for checkpoints and prepared data; None: nothing is stored."""
        return self._get(self.store)

    def setValidation(self, value: float | str | None) -> Self:
        """Set validation: the fraction of rows to validate on, or a 0/1 column that marks them; None: no validation."""
        return self._set(validation=value)

    def getValidation(self) -> float | str | None:
        """Return validation: the fraction of rows to validate on, or a 0/1 column that marks them."""
        return self._get(self.validation)

    def setBatchSize(self, value: int) -> Self:
        """Set batch_size: rows per batch on each process."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """Return batch_size: rows per batch on each process."""
        return self._get(self.batch_size)

    def setValBatchSize(self, value: int | None) -> Self:
        """Set val_batch_size: rows per validation batch on each process; None: batch_size."""
        return self._set(val_batch_size=value)

    def getValBatchSize(self) -> int | None:
        """Return val_batch_size: rows per validation batch on each process; None: batch_size."""
        return self._get(self.val_batch_size)

    def setEpochs(self, value: int) -> Self:
        """Set epochs: the number of passes over all rows."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """Return epochs: the number of passes over all rows."""
        return self._get(self.epochs)

    def setTrainStepsPerEpoch(self, value: int | None) -> Self:
        """Set train_steps_per_epoch: the number of training batches per epoch; None: all rows."""
        return self._set(train_steps_per_epoch=value)

    def getTrainStepsPerEpoch(self) -> int | None:
        """Return train_steps_per_epoch: the number of training batches per epoch; None: all rows."""
        return self._get(self.train_steps_per_epoch)

    def setValidationStepsPerEpoch(self, value: int | None) -> Self:
        """Set validation_steps_per_epoch: the number of validation batches per epoch; None: all rows."""
        return self._set(validation_steps_per_epoch=value)

    def getValidationStepsPerEpoch(self) -> int | None:
        """Return validation_steps_per_epoch: the number of validation batches per epoch; None: all rows."""
        return self._get(self.validation_steps_per_epoch)

    def setVerbose(self, value: int) -> Self:
        """Set verbose: 0: print nothing."""
        return self._set(verbose=value)

    def getVerbose(self) -> int:
        """Return verbose: 0: print nothing."""
        return self._get(self.verbose)

    def setGradientCompression(self, value: Any) -> Self:
        """Set gradient_compression: a member of Compression: how gradients are sent; None: as they are."""
        return self._set(gradient_compression=value)

    def getGradientCompression(self) -> Any:
        """Return gradient_compression: a member of Compression: how gradients are sent; None: as they are."""
        return self._get(self.gradient_compression)

    def setMaxRestarts(self, value: int) -> Self:
        """Set max_restarts: how many times to continue after a rank dies, exits, raises an error or loses its ..."""
        return self._set(max_restarts=value)

    def getMaxRestarts(self) -> int:
        """Return max_restarts: how many times to continue after a rank dies, exits, raises an error or loses ..."""
        return self._get(self.max_restarts)

    def setRandomSeed(self, value: int | None) -> Self:
        """Set random_seed: a seed that makes results repeatable for a fixed number of processes; None: random."""
        return self._set(random_seed=value)

    def getRandomSeed(self) -> int | None:
        """Return random_seed: a seed that makes results repeatable for a fixed number of processes; None: random."""
        return self._get(self.random_seed)

    def setShuffle(self, value: bool) -> Self:
        """Set shuffle: whether to read the rows in a different order in each epoch."""
        return self._set(shuffle=value)

    def getShuffle(self) -> bool:
        """Return shuffle: whether to read the rows in a different order in each epoch."""
        return self._get(self.shuffle)

    def setRunId(self, value: str | None) -> Self:
        """Set run_id: the name of this training."""
        return self._set(run_id=value)

    def getRunId(self) -> str | None:
        """Return run_id: the name of this training."""
        return self._get(self.run_id)

    def setResumeOnOtherRows(self, value: bool) -> Self:
        """Set resume_on_other_rows: let the run of run_id continue on other rows with the same columns, with ..."""
        return self._set(resume_on_other_rows=value)

    def getResumeOnOtherRows(self) -> bool:
        """Return resume_on_other_rows: let the run of run_id continue on other rows with the same columns, with ..."""
        return self._get(self.resume_on_other_rows)

    def setCheckpointEverySteps(self, value: int | None) -> Self:
        """Set checkpoint_every_steps: write a checkpoint after this many batches within an epoch, too, between ..."""
        return self._set(checkpoint_every_steps=value)

    def getCheckpointEverySteps(self) -> int | None:
        """Return checkpoint_every_steps: write a checkpoint after this many batches within an epoch, too, ..."""
        return self._get(self.checkpoint_every_steps)

    def setCheckpointEverySeconds(self, value: float | None) -> Self:
        """Set checkpoint_every_seconds: as checkpoint_every_steps, after this many seconds."""
        return self._set(checkpoint_every_seconds=value)

    def getCheckpointEverySeconds(self) -> float | None:
        """Return checkpoint_every_seconds: as checkpoint_every_steps, after this many seconds."""
        return self._get(self.checkpoint_every_seconds)

    def setEarlyStoppingPatience(self, value: int | None) -> Self:
        """Set early_stopping_patience: stop when monitor has not improved for this many epochs, or validations."""
        return self._set(early_stopping_patience=value)

    def getEarlyStoppingPatience(self) -> int | None:
        """Return early_stopping_patience: stop when monitor has not improved for this many epochs, or validations."""
        return self._get(self.early_stopping_patience)

    def setRestoreBest(self, value: bool) -> Self:
        """Set restore_best: return the model of the epoch, or the validation, with the best monitor instead of ..."""
        return self._set(restore_best=value)

    def getRestoreBest(self) -> bool:
        """Return restore_best: return the model of the epoch, or the validation, with the best monitor instead ..."""
        return self._get(self.restore_best)

    def setMonitor(self, value: str | None) -> Self:
        """Set monitor: the number of the history by which restore_best and early_stopping_patience decide, such ..."""
        return self._set(monitor=value)

    def getMonitor(self) -> str | None:
        """Return monitor: the number of the history by which restore_best and early_stopping_patience decide, ..."""
        return self._get(self.monitor)

    def setMode(self, value: str) -> Self:
        """Set mode: which monitor is the best; 'auto': the lowest loss."""
        return self._set(mode=value)

    def getMode(self) -> str:
        """Return mode: which monitor is the best; 'auto': the lowest loss."""
        return self._get(self.mode)

    def setUseGpu(self, value: bool) -> Self:
        """Set use_gpu: whether to use GPUs if there are any."""
        return self._set(use_gpu=value)

    def getUseGpu(self) -> bool:
        """Return use_gpu: whether to use GPUs if there are any."""
        return self._get(self.use_gpu)

    def setBackwardPassesPerStep(self, value: int) -> Self:
        """Set backward_passes_per_step: the number of batches whose gradients are accumulated before each ..."""
        return self._set(backward_passes_per_step=value)

    def getBackwardPassesPerStep(self) -> int:
        """Return backward_passes_per_step: the number of batches whose gradients are accumulated before each ..."""
        return self._get(self.backward_passes_per_step)

    def setMlflow(self, value: bool | Mapping[str, Any]) -> Self:
        """Set mlflow: log the training in an MLflow run, below the active run if there is one: parameters, ..."""
        return self._set(mlflow=value)

    def getMlflow(self) -> bool | dict[str, Any]:
        """Return mlflow: log the training in an MLflow run, below the active run if there is one: parameters, ..."""
        return self._get(self.mlflow)

    def setMaterialize(self, value: bool) -> Self:
        """Set materialize: write the rows to the store as Parquet once, and read them from there in each fit."""
        return self._set(materialize=value)

    def getMaterialize(self) -> bool:
        """Return materialize: write the rows to the store as Parquet once, and read them from there in each fit."""
        return self._get(self.materialize)


class SharedArguments(CommonArguments, total=False):
    """Types of the parameters of every estimator of columns of numbers."""

    feature_cols: Sequence[str] | None
    label_cols: Sequence[str] | None
    sample_weight_col: str | None
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    read_files: bool
    cache_bytes: int | None
    buffer_bytes: int | None
    nulls: str | float | Mapping[str, str | float]
    padding: float | Mapping[str, float] | None
    decoders: Mapping[str, Callable[[bytes], Any]] | None
    categories: Mapping[str, int | str | Sequence[Any] | Mapping[str, int]] | None
    transformation_fn: Callable[[Any], Any] | None
    transform_validation: bool
    transformation_edit_fields: Sequence[Sequence[Any]] | None
    transformation_removed_fields: Sequence[str] | None


class SharedKeywords(CommonKeywords):
    """Parameters of every estimator of columns of numbers."""

    feature_cols: Param[list[str] | None]
    label_cols: Param[list[str] | None]
    sample_weight_col: Param[str | None]
    input_shapes: Param[list[list[int]] | None]
    label_shapes: Param[list[list[int]] | None]
    read_files: Param[bool]
    cache_bytes: Param[int | None]
    buffer_bytes: Param[int | None]
    nulls: Param[str | float | dict[str, str | float]]
    padding: Param[float | dict[str, float] | None]
    decoders: Param[dict[str, Callable[[bytes], Any]] | None]
    categories: Param[dict[str, Any] | None]
    transformation_fn: Param[Callable[[Any], Any] | None]
    transform_validation: Param[bool]
    transformation_edit_fields: Param[list[list[Any]] | None]
    transformation_removed_fields: Param[list[str] | None]

    def setFeatureCols(self, value: Sequence[str] | None) -> Self:
        """Set feature_cols: the input columns, in the order of the model's inputs."""
        return self._set(feature_cols=value)

    def getFeatureCols(self) -> list[str] | None:
        """Return feature_cols: the input columns, in the order of the model's inputs."""
        return self._get(self.feature_cols)

    def setLabelCols(self, value: Sequence[str] | None) -> Self:
        """Set label_cols: the columns to predict, one per model output; required."""
        return self._set(label_cols=value)

    def getLabelCols(self) -> list[str] | None:
        """Return label_cols: the columns to predict, one per model output; required."""
        return self._get(self.label_cols)

    def setSampleWeightCol(self, value: str | None) -> Self:
        """Set sample_weight_col: a numeric column that multiplies each row's loss."""
        return self._set(sample_weight_col=value)

    def getSampleWeightCol(self) -> str | None:
        """Return sample_weight_col: a numeric column that multiplies each row's loss."""
        return self._get(self.sample_weight_col)

    def setInputShapes(self, value: Sequence[Sequence[int]] | None) -> Self:
        """Set input_shapes: the shapes of the inputs, each starting with -1 for the batch."""
        return self._set(input_shapes=value)

    def getInputShapes(self) -> list[list[int]] | None:
        """Return input_shapes: the shapes of the inputs, each starting with -1 for the batch."""
        return self._get(self.input_shapes)

    def setLabelShapes(self, value: Sequence[Sequence[int]] | None) -> Self:
        """Set label_shapes: the shapes of the labels, each starting with -1 for the batch."""
        return self._set(label_shapes=value)

    def getLabelShapes(self) -> list[list[int]] | None:
        """Return label_shapes: the shapes of the labels, each starting with -1 for the batch."""
        return self._get(self.label_shapes)

    def setReadFiles(self, value: bool) -> Self:
        """Set read_files: let the processes read the Parquet files themselves if the DataFrame is nothing but ..."""
        return self._set(read_files=value)

    def getReadFiles(self) -> bool:
        """Return read_files: let the processes read the Parquet files themselves if the DataFrame is nothing ..."""
        return self._get(self.read_files)

    def setCacheBytes(self, value: int | None) -> Self:
        """Set cache_bytes: the most bytes of rows that a host's disk keeps, for all of its processes."""
        return self._set(cache_bytes=value)

    def getCacheBytes(self) -> int | None:
        """Return cache_bytes: the most bytes of rows that a host's disk keeps, for all of its processes."""
        return self._get(self.cache_bytes)

    def setBufferBytes(self, value: int | None) -> Self:
        """Set buffer_bytes: with cache_bytes, the most bytes of rows that each process keeps in memory."""
        return self._set(buffer_bytes=value)

    def getBufferBytes(self) -> int | None:
        """Return buffer_bytes: with cache_bytes, the most bytes of rows that each process keeps in memory."""
        return self._get(self.buffer_bytes)

    def setNulls(self, value: str | float | Mapping[str, str | float]) -> Self:
        """Set nulls: how to handle nulls: 'error', 'drop' (drops the row), a number that replaces them, or ..."""
        return self._set(nulls=value)

    def getNulls(self) -> str | float | dict[str, str | float]:
        """Return nulls: how to handle nulls: 'error', 'drop' (drops the row), a number that replaces them, or ..."""
        return self._get(self.nulls)

    def setPadding(self, value: float | Mapping[str, float] | None) -> Self:
        """Set padding: a number that pads shorter arrays at the end, up to the longest array or to input_shapes."""
        return self._set(padding=value)

    def getPadding(self) -> float | dict[str, float] | None:
        """Return padding: a number that pads shorter arrays at the end, up to the longest array or to input_shapes."""
        return self._get(self.padding)

    def setDecoders(self, value: Mapping[str, Callable[[bytes], Any]] | None) -> Self:
        """Set decoders: a dict from the names of binary columns to functions that decode the bytes of one row ..."""
        return self._set(decoders=value)

    def getDecoders(self) -> dict[str, Callable[[bytes], Any]] | None:
        """Return decoders: a dict from the names of binary columns to functions that decode the bytes of one ..."""
        return self._get(self.decoders)

    def setCategories(self, value: Mapping[str, int | str | Sequence[Any] | Mapping[str, int]] | None) -> Self:
        """Set categories: a dict from feature columns of strings, integers or booleans to what turns their ..."""
        return self._set(categories=value)

    def getCategories(self) -> dict[str, Any] | None:
        """Return categories: a dict from feature columns of strings, integers or booleans to what turns their ..."""
        return self._get(self.categories)

    def setTransformationFn(self, value: Callable[[Any], Any] | None) -> Self:
        """Set transformation_fn: a function from a pandas.DataFrame with the columns read to one with the ..."""
        return self._set(transformation_fn=value)

    def getTransformationFn(self) -> Callable[[Any], Any] | None:
        """Return transformation_fn: a function from a pandas.DataFrame with the columns read to one with the ..."""
        return self._get(self.transformation_fn)

    def setTransformValidation(self, value: bool) -> Self:
        """Set transform_validation: whether transformation_fn is called for the rows of validation, too, as in ..."""
        return self._set(transform_validation=value)

    def getTransformValidation(self) -> bool:
        """Return transform_validation: whether transformation_fn is called for the rows of validation, too, as ..."""
        return self._get(self.transform_validation)

    def setTransformationEditFields(self, value: Sequence[Sequence[Any]] | None) -> Self:
        """Set transformation_edit_fields: the columns that transformation_fn changes or adds, as a list of ..."""
        return self._set(transformation_edit_fields=value)

    def getTransformationEditFields(self) -> list[list[Any]] | None:
        """Return transformation_edit_fields: the columns that transformation_fn changes or adds, as a list of ..."""
        return self._get(self.transformation_edit_fields)

    def setTransformationRemovedFields(self, value: Sequence[str] | None) -> Self:
        """Set transformation_removed_fields: the columns that transformation_fn reads and does not return."""
        return self._set(transformation_removed_fields=value)

    def getTransformationRemovedFields(self) -> list[str] | None:
        """Return transformation_removed_fields: the columns that transformation_fn reads and does not return."""
        return self._get(self.transformation_removed_fields)


class PredictingArguments(TypedDict, total=False):
    """Types of the parameters of the columns that `transform` adds."""

    output_cols: Sequence[str] | None
    output_type: str
    prediction_col: str | None
    raw_prediction_col: str | None
    probability_col: str | None


class PredictingKeywords(TableParams):
    """Parameters of the columns that `transform` adds."""

    output_cols: Param[list[str] | None]
    output_type: Param[str]
    prediction_col: Param[str | None]
    raw_prediction_col: Param[str | None]
    probability_col: Param[str | None]

    def setOutputCols(self, value: Sequence[str] | None) -> Self:
        """Set output_cols: the prediction columns; None: each label's name followed by __output."""
        return self._set(output_cols=value)

    def getOutputCols(self) -> list[str] | None:
        """Return output_cols: the prediction columns; None: each label's name followed by __output."""
        return self._get(self.output_cols)

    def setOutputType(self, value: str) -> Self:
        """Set output_type: 'label': predictions have the label's type, or are doubles where it would round what ..."""
        return self._set(output_type=value)

    def getOutputType(self) -> str:
        """Return output_type: 'label': predictions have the label's type, or are doubles where it would round ..."""
        return self._get(self.output_type)

    def setPredictionCol(self, value: str | None) -> Self:
        """Set prediction_col: a double column for evaluators: the predicted class number, or the predicted value."""
        return self._set(prediction_col=value)

    def getPredictionCol(self) -> str | None:
        """Return prediction_col: a double column for evaluators: the predicted class number, or the predicted value."""
        return self._get(self.prediction_col)

    def setRawPredictionCol(self, value: str | None) -> Self:
        """Set raw_prediction_col: a vector column for evaluators, with a score per class; None: none."""
        return self._set(raw_prediction_col=value)

    def getRawPredictionCol(self) -> str | None:
        """Return raw_prediction_col: a vector column for evaluators, with a score per class; None: none."""
        return self._get(self.raw_prediction_col)

    def setProbabilityCol(self, value: str | None) -> Self:
        """Set probability_col: a vector column with a probability per class; None: none."""
        return self._set(probability_col=value)

    def getProbabilityCol(self) -> str | None:
        """Return probability_col: a vector column with a probability per class; None: none."""
        return self._get(self.probability_col)


class InferenceArguments(TypedDict, total=False):
    """Types of the parameters of where and how PyTorch predicts."""

    inference_device: str
    inference_precision: str | None


class InferenceKeywords(TableParams):
    """Parameters of where and how PyTorch predicts."""

    inference_device: Param[str]
    inference_precision: Param[str | None]

    def setInferenceDevice(self, value: str) -> Self:
        """Set inference_device: where transform computes: 'auto': on the GPU that Spark gives the task ..."""
        return self._set(inference_device=value)

    def getInferenceDevice(self) -> str:
        """Return inference_device: where transform computes: 'auto': on the GPU that Spark gives the task ..."""
        return self._get(self.inference_device)

    def setInferencePrecision(self, value: str | None) -> Self:
        """Set inference_precision: 'bf16' or 'fp16': predict under torch.autocast with this type."""
        return self._set(inference_precision=value)

    def getInferencePrecision(self) -> str | None:
        """Return inference_precision: 'bf16' or 'fp16': predict under torch.autocast with this type."""
        return self._get(self.inference_precision)


class RecipeArguments(TypedDict, total=False):
    """Types of the parameters of how PyTorch makes a step."""

    lr_scheduler: str | Callable[..., Any] | Mapping[str, Any] | Any | None
    warmup_steps: int
    warmup_ratio: float
    gradient_clip_norm: float
    gradient_clip_value: float
    on_nonfinite: str
    validate_every_steps: int | None
    compile: bool | Mapping[str, Any]


class RecipeKeywords(TableParams):
    """Parameters of how PyTorch makes a step."""

    lr_scheduler: Param[Any]
    warmup_steps: Param[int]
    warmup_ratio: Param[float]
    gradient_clip_norm: Param[float]
    gradient_clip_value: Param[float]
    on_nonfinite: Param[str]
    validate_every_steps: Param[int | None]
    compile: Param[bool | dict[str, Any]]

    def setLrScheduler(self, value: str | Callable[..., Any] | Mapping[str, Any] | Any | None) -> Self:
        """Set lr_scheduler: how the learning rate moves. After each step: 'linear', 'cosine' or 'constant', as ..."""
        return self._set(lr_scheduler=value)

    def getLrScheduler(self) -> Any:
        """Return lr_scheduler: how the learning rate moves. After each step: 'linear', 'cosine' or 'constant', ..."""
        return self._get(self.lr_scheduler)

    def setWarmupSteps(self, value: int) -> Self:
        """Set warmup_steps: the number of steps in which the learning rate rises from 0."""
        return self._set(warmup_steps=value)

    def getWarmupSteps(self) -> int:
        """Return warmup_steps: the number of steps in which the learning rate rises from 0."""
        return self._get(self.warmup_steps)

    def setWarmupRatio(self, value: float) -> Self:
        """Set warmup_ratio: warmup_steps as a share of all steps, such as 0.1; 0: no warm-up."""
        return self._set(warmup_ratio=value)

    def getWarmupRatio(self) -> float:
        """Return warmup_ratio: warmup_steps as a share of all steps, such as 0.1; 0: no warm-up."""
        return self._get(self.warmup_ratio)

    def setGradientClipNorm(self, value: float) -> Self:
        """Set gradient_clip_norm: the largest norm of the whole gradient, to which clip_grad_norm_ scales ..."""
        return self._set(gradient_clip_norm=value)

    def getGradientClipNorm(self) -> float:
        """Return gradient_clip_norm: the largest norm of the whole gradient, to which clip_grad_norm_ scales ..."""
        return self._get(self.gradient_clip_norm)

    def setGradientClipValue(self, value: float) -> Self:
        """Set gradient_clip_value: the largest absolute value of an element of that gradient ..."""
        return self._set(gradient_clip_value=value)

    def getGradientClipValue(self) -> float:
        """Return gradient_clip_value: the largest absolute value of an element of that gradient ..."""
        return self._get(self.gradient_clip_value)

    def setOnNonfinite(self, value: str) -> Self:
        """Set on_nonfinite: what to do where a loss or a gradient is NaN or infinite on any process: 'error': ..."""
        return self._set(on_nonfinite=value)

    def getOnNonfinite(self) -> str:
        """Return on_nonfinite: what to do where a loss or a gradient is NaN or infinite on any process: ..."""
        return self._get(self.on_nonfinite)

    def setValidateEverySteps(self, value: int | None) -> Self:
        """Set validate_every_steps: validate after this many batches within an epoch, too, between two steps of ..."""
        return self._set(validate_every_steps=value)

    def getValidateEverySteps(self) -> int | None:
        """Return validate_every_steps: validate after this many batches within an epoch, too, between two steps ..."""
        return self._get(self.validate_every_steps)

    def setCompile(self, value: bool | Mapping[str, Any]) -> Self:
        """Set compile: True, or a dict of arguments of torch.compile such as {'mode': 'max-autotune'}: each ..."""
        return self._set(compile=value)

    def getCompile(self) -> bool | dict[str, Any]:
        """Return compile: True, or a dict of arguments of torch.compile such as {'mode': 'max-autotune'}: each ..."""
        return self._get(self.compile)


class ModelArguments(PredictingArguments, total=False):
    """Types of the parameters of every trained model of columns of numbers."""

    model: Any
    _metadata: Mapping[str, Any] | None
    feature_columns: Sequence[str] | None
    label_columns: Sequence[str] | None
    run_id: str | None
    batch_size: int
    decoders: Mapping[str, Callable[[bytes], Any]] | None
    categories: Mapping[str, str | Sequence[Any] | Mapping[str, int]] | None
    null_values: Mapping[str, float] | None
    training_params: Mapping[str, Any] | None


class ModelKeywords(PredictingKeywords):
    """Parameters of every trained model of columns of numbers."""

    model: Param[Any]
    _metadata: Param[Mapping[str, Any] | None]
    feature_columns: Param[list[str] | None]
    label_columns: Param[list[str] | None]
    run_id: Param[str | None]
    batch_size: Param[int]
    decoders: Param[dict[str, Callable[[bytes], Any]] | None]
    categories: Param[dict[str, Any] | None]
    null_values: Param[dict[str, float] | None]
    training_params: Param[dict[str, Any]]

    def setModel(self, value: Any) -> Self:
        """Set model: the framework's trained model."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """Return model: the framework's trained model."""
        return self._get(self.model)

    def setMetadata(self, value: Mapping[str, Any] | None) -> Self:
        """Set _metadata: types and shapes of the columns of the training; None: transform finds them."""
        return self._set(_metadata=value)

    def getMetadata(self) -> Mapping[str, Any] | None:
        """Return _metadata: types and shapes of the columns of the training; None: transform finds them."""
        return self._get(self._metadata)

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

    def setBatchSize(self, value: int) -> Self:
        """Set batch_size: rows per call of the model."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """Return batch_size: rows per call of the model."""
        return self._get(self.batch_size)

    def setDecoders(self, value: Mapping[str, Callable[[bytes], Any]] | None) -> Self:
        """Set decoders: a dict from the names of binary columns to functions that decode the bytes of one row ..."""
        return self._set(decoders=value)

    def getDecoders(self) -> dict[str, Callable[[bytes], Any]] | None:
        """Return decoders: a dict from the names of binary columns to functions that decode the bytes of one ..."""
        return self._get(self.decoders)

    def setCategories(self, value: Mapping[str, str | Sequence[Any] | Mapping[str, int]] | None) -> Self:
        """Set categories: a dict from feature columns to the values with ids 1, 2 and so on, to {'hash': the ..."""
        return self._set(categories=value)

    def getCategories(self) -> dict[str, Any] | None:
        """Return categories: a dict from feature columns to the values with ids 1, 2 and so on, to {'hash': the ..."""
        return self._get(self.categories)

    def setNullValues(self, value: Mapping[str, float] | None) -> Self:
        """Set null_values: a dict from feature columns, under their names in the training, to the number that ..."""
        return self._set(null_values=value)

    def getNullValues(self) -> dict[str, float] | None:
        """Return null_values: a dict from feature columns, under their names in the training, to the number ..."""
        return self._get(self.null_values)

    def setTrainingParams(self, value: Mapping[str, Any] | None) -> Self:
        """Set training_params: the estimator's parameters that were set, as far as they are numbers, names or ..."""
        return self._set(training_params=value)

    def getTrainingParams(self) -> dict[str, Any]:
        """Return training_params: the estimator's parameters that were set, as far as they are numbers, names ..."""
        return self._get(self.training_params)


class ModelParts(TypedDict, total=False):
    """A model's other keywords."""

    inputs: Sequence[Field] | None
    outputs: Sequence[int] | None
    label_types: Sequence[str] | None
    output_kinds: Sequence[OutputKind] | None
