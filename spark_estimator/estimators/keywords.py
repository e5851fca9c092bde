"""Setters and getters of the parameters that estimators and models share.

Generated from the tables of parameters by ``python -m tests.estimators.generate_keywords``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.params import TableParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.ml.param import Param
    from typing_extensions import Self

    from spark_estimator.spark.backend import Backend
    from spark_estimator.store import Store


class SharedKeywords(TableParams):
    """Parameters of every estimator."""

    num_proc: Param[int | None]
    model: Param[Any]
    backend: Param[Backend | None]
    store: Param[Store | None]
    optimizer: Param[Any]
    loss: Param[list[Any]]
    loss_weights: Param[list[float] | None]
    metrics: Param[list[Any]]
    feature_cols: Param[list[str] | None]
    label_cols: Param[list[str] | None]
    sample_weight_col: Param[str | None]
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
    use_gpu: Param[bool]
    backward_passes_per_step: Param[int]
    mlflow: Param[bool | dict[str, Any]]
    input_shapes: Param[list[list[int]] | None]
    label_shapes: Param[list[list[int]] | None]
    materialize: Param[bool]
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

    def setNumProc(self, value: int | None) -> Self:
        """Sets num_proc: the number of training processes; None: as many as spark.default.parallelism and the task
        slots allow; required with dynamic allocation. Returns self.
        """
        return self._set(num_proc=value)

    def getNumProc(self) -> int | None:
        """num_proc: the number of training processes; None: as many as spark.default.parallelism and the task slots
        allow; required with dynamic allocation.
        """
        return self._get(self.num_proc)

    def setModel(self, value: Any) -> Self:
        """Sets model: the model to train; required. Returns self."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """model: the model to train; required."""
        return self._get(self.model)

    def setBackend(self, value: Backend | None) -> Self:
        """Sets backend: where to train: a SparkBackend with its own num_proc and options, or another Backend, whose
        ranks read their rows from the store; cannot be combined with num_proc. Returns self.
        """
        return self._set(backend=value)

    def getBackend(self) -> Backend | None:
        """backend: where to train: a SparkBackend with its own num_proc and options, or another Backend, whose ranks
        read their rows from the store; cannot be combined with num_proc.
        """
        return self._get(self.backend)

    def setStore(self, value: Store | str | None) -> Self:
        """Sets store: a Store, or its path, for checkpoints and prepared data; None: nothing is stored. Returns
        self.
        """
        return self._set(store=value)

    def getStore(self) -> Store | None:
        """store: a Store, or its path, for checkpoints and prepared data; None: nothing is stored."""
        return self._get(self.store)

    def setOptimizer(self, value: Any) -> Self:
        """Sets optimizer: the optimizer; required. Returns self."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """optimizer: the optimizer; required."""
        return self._get(self.optimizer)

    def setLoss(self, value: Any) -> Self:
        """Sets loss: one loss, or a list with one loss per label column. Returns self."""
        return self._set(loss=value)

    def getLoss(self) -> list[Any]:
        """loss: one loss, or a list with one loss per label column."""
        return self._get(self.loss)

    def setLossWeights(self, value: Sequence[float] | None) -> Self:
        """Sets loss_weights: a weight per loss; None: equal weights that sum to 1. Returns self."""
        return self._set(loss_weights=value)

    def getLossWeights(self) -> list[float] | None:
        """loss_weights: a weight per loss; None: equal weights that sum to 1."""
        return self._get(self.loss_weights)

    def setMetrics(self, value: Any) -> Self:
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

    def setFeatureCols(self, value: Sequence[str] | None) -> Self:
        """Sets feature_cols: the input columns, in the order of the model's inputs; None: all columns except labels,
        sample weights and the validation column. Returns self.
        """
        return self._set(feature_cols=value)

    def getFeatureCols(self) -> list[str] | None:
        """feature_cols: the input columns, in the order of the model's inputs; None: all columns except labels,
        sample weights and the validation column.
        """
        return self._get(self.feature_cols)

    def setLabelCols(self, value: Sequence[str] | None) -> Self:
        """Sets label_cols: the columns to predict, one per model output; required. Returns self."""
        return self._set(label_cols=value)

    def getLabelCols(self) -> list[str] | None:
        """label_cols: the columns to predict, one per model output; required."""
        return self._get(self.label_cols)

    def setSampleWeightCol(self, value: str | None) -> Self:
        """Sets sample_weight_col: a numeric column that multiplies each row's loss; the mean is still taken over the
        number of rows. Returns self.
        """
        return self._set(sample_weight_col=value)

    def getSampleWeightCol(self) -> str | None:
        """sample_weight_col: a numeric column that multiplies each row's loss; the mean is still taken over the
        number of rows.
        """
        return self._get(self.sample_weight_col)

    def setValidation(self, value: float | str | None) -> Self:
        """Sets validation: the fraction of rows to validate on, or a 0/1 column that marks them; None: no
        validation. Returns self.
        """
        return self._set(validation=value)

    def getValidation(self) -> float | str | None:
        """validation: the fraction of rows to validate on, or a 0/1 column that marks them; None: no validation."""
        return self._get(self.validation)

    def setBatchSize(self, value: int) -> Self:
        """Sets batch_size: rows per batch on each process. Returns self."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """batch_size: rows per batch on each process."""
        return self._get(self.batch_size)

    def setValBatchSize(self, value: int | None) -> Self:
        """Sets val_batch_size: rows per validation batch on each process; None: batch_size. Returns self."""
        return self._set(val_batch_size=value)

    def getValBatchSize(self) -> int | None:
        """val_batch_size: rows per validation batch on each process; None: batch_size."""
        return self._get(self.val_batch_size)

    def setEpochs(self, value: int) -> Self:
        """Sets epochs: the number of passes over all rows. Returns self."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """epochs: the number of passes over all rows."""
        return self._get(self.epochs)

    def setTrainStepsPerEpoch(self, value: int | None) -> Self:
        """Sets train_steps_per_epoch: the number of training batches per epoch; None: all rows. Returns self."""
        return self._set(train_steps_per_epoch=value)

    def getTrainStepsPerEpoch(self) -> int | None:
        """train_steps_per_epoch: the number of training batches per epoch; None: all rows."""
        return self._get(self.train_steps_per_epoch)

    def setValidationStepsPerEpoch(self, value: int | None) -> Self:
        """Sets validation_steps_per_epoch: the number of validation batches per epoch; None: all rows. Returns self."""
        return self._set(validation_steps_per_epoch=value)

    def getValidationStepsPerEpoch(self) -> int | None:
        """validation_steps_per_epoch: the number of validation batches per epoch; None: all rows."""
        return self._get(self.validation_steps_per_epoch)

    def setVerbose(self, value: int) -> Self:
        """Sets verbose: 0: print nothing; 1: print one line per epoch, and meanwhile show progress: on a terminal,
        in a notebook, elsewhere a line of text each half minute. Returns self.
        """
        return self._set(verbose=value)

    def getVerbose(self) -> int:
        """verbose: 0: print nothing; 1: print one line per epoch, and meanwhile show progress: on a terminal, in a
        notebook, elsewhere a line of text each half minute.
        """
        return self._get(self.verbose)

    def setGradientCompression(self, value: Any) -> Self:
        """Sets gradient_compression: a member of Compression: how gradients are sent; None: as they are. Returns
        self.
        """
        return self._set(gradient_compression=value)

    def getGradientCompression(self) -> Any:
        """gradient_compression: a member of Compression: how gradients are sent; None: as they are."""
        return self._get(self.gradient_compression)

    def setMaxRestarts(self, value: int) -> Self:
        """Sets max_restarts: how many times to replace a rank that dies, exits, raises an error or loses its
        executor, or, where a single rank cannot be replaced, to restart all ranks from the last checkpoint.
        Returns self.
        """
        return self._set(max_restarts=value)

    def getMaxRestarts(self) -> int:
        """max_restarts: how many times to replace a rank that dies, exits, raises an error or loses its executor,
        or, where a single rank cannot be replaced, to restart all ranks from the last checkpoint.
        """
        return self._get(self.max_restarts)

    def setRandomSeed(self, value: int | None) -> Self:
        """Sets random_seed: a seed that makes results repeatable for a fixed number of processes; None: random.
        Returns self.
        """
        return self._set(random_seed=value)

    def getRandomSeed(self) -> int | None:
        """random_seed: a seed that makes results repeatable for a fixed number of processes; None: random."""
        return self._get(self.random_seed)

    def setShuffle(self, value: bool) -> Self:
        """Sets shuffle: whether to read the rows in a different order in each epoch. Returns self."""
        return self._set(shuffle=value)

    def getShuffle(self) -> bool:
        """shuffle: whether to read the rows in a different order in each epoch."""
        return self._get(self.shuffle)

    def setRunId(self, value: str | None) -> Self:
        """Sets run_id: the name of this training; with a store, fitting again under the same name resumes from the
        last checkpoint, with its seed, and returns the model at once if all epochs are done; rows, model,
        optimizer, schedule, losses and batches must be unchanged; epochs and num_proc may change. Returns self.
        """
        return self._set(run_id=value)

    def getRunId(self) -> str | None:
        """run_id: the name of this training; with a store, fitting again under the same name resumes from the last
        checkpoint, with its seed, and returns the model at once if all epochs are done; rows, model, optimizer,
        schedule, losses and batches must be unchanged; epochs and num_proc may change.
        """
        return self._get(self.run_id)

    def setResumeOnOtherRows(self, value: bool) -> Self:
        """Sets resume_on_other_rows: let the run of run_id continue on other rows with the same columns, with its
        optimizer, schedule and history: raise epochs by the number of passes over them; False: other rows are an
        error. Returns self.
        """
        return self._set(resume_on_other_rows=value)

    def getResumeOnOtherRows(self) -> bool:
        """resume_on_other_rows: let the run of run_id continue on other rows with the same columns, with its
        optimizer, schedule and history: raise epochs by the number of passes over them; False: other rows are an
        error.
        """
        return self._get(self.resume_on_other_rows)

    def setCheckpointEverySteps(self, value: int | None) -> Self:
        """Sets checkpoint_every_steps: write a checkpoint after this many batches within an epoch, too; needs a
        store; None: only after each epoch. Returns self.
        """
        return self._set(checkpoint_every_steps=value)

    def getCheckpointEverySteps(self) -> int | None:
        """checkpoint_every_steps: write a checkpoint after this many batches within an epoch, too; needs a store;
        None: only after each epoch.
        """
        return self._get(self.checkpoint_every_steps)

    def setCheckpointEverySeconds(self, value: float | None) -> Self:
        """Sets checkpoint_every_seconds: write a checkpoint after this many seconds within an epoch, too; needs a
        store; None: only after each epoch, and by checkpoint_every_steps. Returns self.
        """
        return self._set(checkpoint_every_seconds=value)

    def getCheckpointEverySeconds(self) -> float | None:
        """checkpoint_every_seconds: write a checkpoint after this many seconds within an epoch, too; needs a store;
        None: only after each epoch, and by checkpoint_every_steps.
        """
        return self._get(self.checkpoint_every_seconds)

    def setEarlyStoppingPatience(self, value: int | None) -> Self:
        """Sets early_stopping_patience: stop when the validation loss (without validation, the training loss) has
        not improved for this many epochs; None: never. Returns self.
        """
        return self._set(early_stopping_patience=value)

    def getEarlyStoppingPatience(self) -> int | None:
        """early_stopping_patience: stop when the validation loss (without validation, the training loss) has not
        improved for this many epochs; None: never.
        """
        return self._get(self.early_stopping_patience)

    def setRestoreBest(self, value: bool) -> Self:
        """Sets restore_best: return the model of the epoch with the lowest validation loss (without validation, the
        lowest training loss) instead of the last one. Returns self.
        """
        return self._set(restore_best=value)

    def getRestoreBest(self) -> bool:
        """restore_best: return the model of the epoch with the lowest validation loss (without validation, the
        lowest training loss) instead of the last one.
        """
        return self._get(self.restore_best)

    def setUseGpu(self, value: bool) -> Self:
        """Sets use_gpu: whether to use GPUs if there are any. Returns self."""
        return self._set(use_gpu=value)

    def getUseGpu(self) -> bool:
        """use_gpu: whether to use GPUs if there are any."""
        return self._get(self.use_gpu)

    def setBackwardPassesPerStep(self, value: int) -> Self:
        """Sets backward_passes_per_step: the number of batches whose gradients are accumulated before each optimizer
        step. Returns self.
        """
        return self._set(backward_passes_per_step=value)

    def getBackwardPassesPerStep(self) -> int:
        """backward_passes_per_step: the number of batches whose gradients are accumulated before each optimizer
        step.
        """
        return self._get(self.backward_passes_per_step)

    def setMlflow(self, value: bool | Mapping[str, Any]) -> Self:
        """Sets mlflow: log the training in an MLflow run, below the active run if there is one: parameters, epochs,
        plots and the model; True, or a dict of options such as {'experiment_name': 'x', 'registered_model_name':
        'y'}. Returns self.
        """
        return self._set(mlflow=value)

    def getMlflow(self) -> bool | dict[str, Any]:
        """mlflow: log the training in an MLflow run, below the active run if there is one: parameters, epochs, plots
        and the model; True, or a dict of options such as {'experiment_name': 'x', 'registered_model_name': 'y'}.
        """
        return self._get(self.mlflow)

    def setInputShapes(self, value: Sequence[Sequence[int]] | None) -> Self:
        """Sets input_shapes: the shapes of the inputs, each starting with -1 for the batch; None: inferred from the
        columns. Returns self.
        """
        return self._set(input_shapes=value)

    def getInputShapes(self) -> list[list[int]] | None:
        """input_shapes: the shapes of the inputs, each starting with -1 for the batch; None: inferred from the
        columns.
        """
        return self._get(self.input_shapes)

    def setLabelShapes(self, value: Sequence[Sequence[int]] | None) -> Self:
        """Sets label_shapes: the shapes of the labels, each starting with -1 for the batch; None: the shapes of the
        outputs, if they have as many values. Returns self.
        """
        return self._set(label_shapes=value)

    def getLabelShapes(self) -> list[list[int]] | None:
        """label_shapes: the shapes of the labels, each starting with -1 for the batch; None: the shapes of the
        outputs, if they have as many values.
        """
        return self._get(self.label_shapes)

    def setMaterialize(self, value: bool) -> Self:
        """Sets materialize: write the rows to the store as Parquet once, and read them from there in each fit.
        Returns self.
        """
        return self._set(materialize=value)

    def getMaterialize(self) -> bool:
        """materialize: write the rows to the store as Parquet once, and read them from there in each fit."""
        return self._get(self.materialize)

    def setReadFiles(self, value: bool) -> Self:
        """Sets read_files: let the processes read the Parquet files themselves if the DataFrame is nothing but
        Parquet files; False: always send rows through Spark. Returns self.
        """
        return self._set(read_files=value)

    def getReadFiles(self) -> bool:
        """read_files: let the processes read the Parquet files themselves if the DataFrame is nothing but Parquet
        files; False: always send rows through Spark.
        """
        return self._get(self.read_files)

    def setCacheBytes(self, value: int | None) -> Self:
        """Sets cache_bytes: the most bytes of rows that a host's disk keeps, for all of its processes; rows beyond
        are read from their files in each epoch, and mixed by blocks; a DataFrame that is not just Parquet files
        is written to the store for it; 0: none; None: all rows are kept. Returns self.
        """
        return self._set(cache_bytes=value)

    def getCacheBytes(self) -> int | None:
        """cache_bytes: the most bytes of rows that a host's disk keeps, for all of its processes; rows beyond are
        read from their files in each epoch, and mixed by blocks; a DataFrame that is not just Parquet files is
        written to the store for it; 0: none; None: all rows are kept.
        """
        return self._get(self.cache_bytes)

    def setBufferBytes(self, value: int | None) -> Self:
        """Sets buffer_bytes: with cache_bytes, the most bytes of rows that each process keeps in memory; None: 256
        MiB. Returns self.
        """
        return self._set(buffer_bytes=value)

    def getBufferBytes(self) -> int | None:
        """buffer_bytes: with cache_bytes, the most bytes of rows that each process keeps in memory; None: 256 MiB."""
        return self._get(self.buffer_bytes)

    def setNulls(self, value: str | float | Mapping[str, str | float]) -> Self:
        """Sets nulls: how to handle nulls: 'error', 'drop' (drops the row), a number that replaces them, or 'mean'
        or 'median' of the finite numbers in the rows to train on, in features that hold numbers; all but 'error'
        treat NaN as null; or a dict with one of these per column, where 'error' applies to the other columns.
        Returns self.
        """
        return self._set(nulls=value)

    def getNulls(self) -> str | float | dict[str, str | float]:
        """nulls: how to handle nulls: 'error', 'drop' (drops the row), a number that replaces them, or 'mean' or
        'median' of the finite numbers in the rows to train on, in features that hold numbers; all but 'error'
        treat NaN as null; or a dict with one of these per column, where 'error' applies to the other columns.
        """
        return self._get(self.nulls)

    def setPadding(self, value: float | Mapping[str, float] | None) -> Self:
        """Sets padding: a number that pads shorter arrays at the end, up to the longest array or to input_shapes; or
        a dict with a number per column; None: arrays of different lengths are an error. Returns self.
        """
        return self._set(padding=value)

    def getPadding(self) -> float | dict[str, float] | None:
        """padding: a number that pads shorter arrays at the end, up to the longest array or to input_shapes; or a
        dict with a number per column; None: arrays of different lengths are an error.
        """
        return self._get(self.padding)

    def setDecoders(self, value: Mapping[str, Callable[[bytes], Any]] | None) -> Self:
        """Sets decoders: a dict from the names of binary columns to functions that decode the bytes of one row into
        an array, of the same shape for all rows: {'image': decode}. Returns self.
        """
        return self._set(decoders=value)

    def getDecoders(self) -> dict[str, Callable[[bytes], Any]] | None:
        """decoders: a dict from the names of binary columns to functions that decode the bytes of one row into an
        array, of the same shape for all rows: {'image': decode}.
        """
        return self._get(self.decoders)

    def setCategories(self, value: Mapping[str, int | str | Sequence[Any] | Mapping[str, int]] | None) -> Self:
        """Sets categories: a dict from feature columns of strings, integers or booleans to what turns their values
        into ids: a number of ids, such as {'city': 1000}, for the most frequent values of the training's rows; a
        list of values, whose ids start at 1; {'hash': 100000}, for a hash; or another of these columns, such as
        {'history': 'item'}, whose ids it shares, with one vocabulary of the values of both; id 0 is null, and a
        value that is not in the vocabulary. Returns self.
        """
        return self._set(categories=value)

    def getCategories(self) -> dict[str, Any] | None:
        """categories: a dict from feature columns of strings, integers or booleans to what turns their values into
        ids: a number of ids, such as {'city': 1000}, for the most frequent values of the training's rows; a list
        of values, whose ids start at 1; {'hash': 100000}, for a hash; or another of these columns, such as
        {'history': 'item'}, whose ids it shares, with one vocabulary of the values of both; id 0 is null, and a
        value that is not in the vocabulary.
        """
        return self._get(self.categories)

    def setTransformationFn(self, value: Callable[[Any], Any] | None) -> Self:
        """Sets transformation_fn: a function from a pandas.DataFrame with the columns read to one with the model's
        columns, and any number of rows, called once per row while rows are loaded; or, as in Horovod, from a dict
        of one row to one, called for each row in each epoch (the driver calls it with first rows to see which);
        not called by transform; None: none. Returns self.
        """
        return self._set(transformation_fn=value)

    def getTransformationFn(self) -> Callable[[Any], Any] | None:
        """transformation_fn: a function from a pandas.DataFrame with the columns read to one with the model's
        columns, and any number of rows, called once per row while rows are loaded; or, as in Horovod, from a dict
        of one row to one, called for each row in each epoch (the driver calls it with first rows to see which);
        not called by transform; None: none.
        """
        return self._get(self.transformation_fn)

    def setTransformValidation(self, value: bool) -> Self:
        """Sets transform_validation: whether transformation_fn is called for the rows of validation, too, as in
        Horovod; False: they stay as they are, so that augmentation changes neither the validation loss nor early
        stopping; their columns must then fit the model without the function. Returns self.
        """
        return self._set(transform_validation=value)

    def getTransformValidation(self) -> bool:
        """transform_validation: whether transformation_fn is called for the rows of validation, too, as in Horovod;
        False: they stay as they are, so that augmentation changes neither the validation loss nor early stopping;
        their columns must then fit the model without the function.
        """
        return self._get(self.transform_validation)

    def setTransformationEditFields(self, value: Sequence[Sequence[Any]] | None) -> Self:
        """Sets transformation_edit_fields: the columns that transformation_fn changes or adds, as a list of (name,
        numpy type, shape, nullable); its result is checked against them; required for columns that only
        transformation_fn creates. Returns self.
        """
        return self._set(transformation_edit_fields=value)

    def getTransformationEditFields(self) -> list[list[Any]] | None:
        """transformation_edit_fields: the columns that transformation_fn changes or adds, as a list of (name, numpy
        type, shape, nullable); its result is checked against them; required for columns that only
        transformation_fn creates.
        """
        return self._get(self.transformation_edit_fields)

    def setTransformationRemovedFields(self, value: Sequence[str] | None) -> Self:
        """Sets transformation_removed_fields: the columns that transformation_fn reads and does not return. Returns
        self.
        """
        return self._set(transformation_removed_fields=value)

    def getTransformationRemovedFields(self) -> list[str] | None:
        """transformation_removed_fields: the columns that transformation_fn reads and does not return."""
        return self._get(self.transformation_removed_fields)


class PredictingKeywords(TableParams):
    """Parameters of estimators and models that say which columns `transform` adds."""

    output_cols: Param[list[str] | None]
    output_type: Param[str]
    prediction_col: Param[str | None]
    raw_prediction_col: Param[str | None]
    probability_col: Param[str | None]

    def setOutputCols(self, value: Sequence[str] | None) -> Self:
        """Sets output_cols: the prediction columns; None: each label's name followed by __output. Returns self."""
        return self._set(output_cols=value)

    def getOutputCols(self) -> list[str] | None:
        """output_cols: the prediction columns; None: each label's name followed by __output."""
        return self._get(self.output_cols)

    def setOutputType(self, value: str) -> Self:
        """Sets output_type: 'label': predictions have the label's type, or are doubles where it would round what is
        no class; 'array' or 'vector': all output values of a row. Returns self.
        """
        return self._set(output_type=value)

    def getOutputType(self) -> str:
        """output_type: 'label': predictions have the label's type, or are doubles where it would round what is no
        class; 'array' or 'vector': all output values of a row.
        """
        return self._get(self.output_type)

    def setPredictionCol(self, value: str | None) -> Self:
        """Sets prediction_col: a double column for evaluators: the predicted class number, or the predicted value;
        None: none. Returns self.
        """
        return self._set(prediction_col=value)

    def getPredictionCol(self) -> str | None:
        """prediction_col: a double column for evaluators: the predicted class number, or the predicted value; None:
        none.
        """
        return self._get(self.prediction_col)

    def setRawPredictionCol(self, value: str | None) -> Self:
        """Sets raw_prediction_col: a vector column for evaluators, with a score per class; None: none. Returns self."""
        return self._set(raw_prediction_col=value)

    def getRawPredictionCol(self) -> str | None:
        """raw_prediction_col: a vector column for evaluators, with a score per class; None: none."""
        return self._get(self.raw_prediction_col)

    def setProbabilityCol(self, value: str | None) -> Self:
        """Sets probability_col: a vector column with a probability per class; None: none. Returns self."""
        return self._set(probability_col=value)

    def getProbabilityCol(self) -> str | None:
        """probability_col: a vector column with a probability per class; None: none."""
        return self._get(self.probability_col)


class ModelKeywords(PredictingKeywords):
    """Parameters of every trained model."""

    model: Param[Any]
    _metadata: Param[Mapping[str, Any] | None]
    feature_columns: Param[list[str] | None]
    label_columns: Param[list[str] | None]
    run_id: Param[str | None]
    batch_size: Param[int]
    decoders: Param[dict[str, Callable[[bytes], Any]] | None]
    categories: Param[dict[str, Any] | None]
    null_values: Param[dict[str, float] | None]

    def setModel(self, value: Any) -> Self:
        """Sets model: the framework's trained model. Returns self."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """model: the framework's trained model."""
        return self._get(self.model)

    def setMetadata(self, value: Mapping[str, Any] | None) -> Self:
        """Sets _metadata: types and shapes of the columns of the training; None: transform finds them. Returns self."""
        return self._set(_metadata=value)

    def getMetadata(self) -> Mapping[str, Any] | None:
        """_metadata: types and shapes of the columns of the training; None: transform finds them."""
        return self._get(self._metadata)

    def setFeatureColumns(self, value: Sequence[str] | None) -> Self:
        """Sets feature_columns: the columns to predict from, in the order of fit(). Returns self."""
        return self._set(feature_columns=value)

    def getFeatureColumns(self) -> list[str] | None:
        """feature_columns: the columns to predict from, in the order of fit()."""
        return self._get(self.feature_columns)

    def setLabelColumns(self, value: Sequence[str] | None) -> Self:
        """Sets label_columns: the columns that the model was trained to predict. Returns self."""
        return self._set(label_columns=value)

    def getLabelColumns(self) -> list[str] | None:
        """label_columns: the columns that the model was trained to predict."""
        return self._get(self.label_columns)

    def setRunId(self, value: str | None) -> Self:
        """Sets run_id: the name of the training. Returns self."""
        return self._set(run_id=value)

    def getRunId(self) -> str | None:
        """run_id: the name of the training."""
        return self._get(self.run_id)

    def setBatchSize(self, value: int) -> Self:
        """Sets batch_size: rows per call of the model. Returns self."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """batch_size: rows per call of the model."""
        return self._get(self.batch_size)

    def setDecoders(self, value: Mapping[str, Callable[[bytes], Any]] | None) -> Self:
        """Sets decoders: a dict from the names of binary columns to functions that decode the bytes of one row into
        an array, of the same shape for all rows: {'image': decode}. Returns self.
        """
        return self._set(decoders=value)

    def getDecoders(self) -> dict[str, Callable[[bytes], Any]] | None:
        """decoders: a dict from the names of binary columns to functions that decode the bytes of one row into an
        array, of the same shape for all rows: {'image': decode}.
        """
        return self._get(self.decoders)

    def setCategories(self, value: Mapping[str, str | Sequence[Any] | Mapping[str, int]] | None) -> Self:
        """Sets categories: a dict from feature columns to the values with ids 1, 2 and so on, to {'hash': the number
        of ids}, or to another of these columns, whose ids it shares. Returns self.
        """
        return self._set(categories=value)

    def getCategories(self) -> dict[str, Any] | None:
        """categories: a dict from feature columns to the values with ids 1, 2 and so on, to {'hash': the number of
        ids}, or to another of these columns, whose ids it shares.
        """
        return self._get(self.categories)

    def setNullValues(self, value: Mapping[str, float] | None) -> Self:
        """Sets null_values: a dict from feature columns, under their names in the training, to the number that
        replaces null and NaN. Returns self.
        """
        return self._set(null_values=value)

    def getNullValues(self) -> dict[str, float] | None:
        """null_values: a dict from feature columns, under their names in the training, to the number that replaces
        null and NaN.
        """
        return self._get(self.null_values)
