"""Constructors, setters and getters of `TransformersEstimator` and `TransformersModel`.

Generated from the tables of parameters by ``python -m tests.estimators.generate_keywords``: change those.
"""

# ruff: noqa: B006

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.keywords import PredictingKeywords
from spark_estimator.estimators.params import by_keyword

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pyspark.ml.param import Param
    from torch.optim.lr_scheduler import LRScheduler
    from typing_extensions import Self

    from spark_estimator.estimators.history import History
    from spark_estimator.spark.backend import Backend
    from spark_estimator.store import Store


class TransformersEstimatorKeywords(PredictingKeywords):
    """Constructor, setters and getters of `TransformersEstimator`."""

    num_proc: Param[int | None]
    backend: Param[Backend | None]
    store: Param[Store | None]
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
    lr_scheduler: Param[Callable[[torch.optim.Optimizer], LRScheduler] | None]
    mixed_precision: Param[str | None]
    callbacks: Param[list[Any]]
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
    materialize: Param[bool]
    nulls: Param[str]
    max_new_tokens: Param[int]
    generation: Param[dict[str, Any]]
    inference_device: Param[str]
    inference_precision: Param[str | None]

    @by_keyword
    def __init__(
        self,
        *,
        num_proc: int | None = None,
        backend: Backend | None = None,
        store: Store | str | None = None,
        model: Any = None,
        tokenizer: Any = None,
        task: str | None = None,
        text_col: str = "text",
        label_col: str | None = None,
        labels: Sequence[Any] | None = None,
        max_length: int | None = None,
        packing: bool = True,
        loss_on: str = "assistant",
        lora: Mapping[str, Any] | Any | None = None,
        learning_rate: float = 5e-05,
        weight_decay: float = 0.0,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
        mixed_precision: str | None = None,
        callbacks: Any = [],
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
        materialize: bool = False,
        nulls: str = "error",
        max_new_tokens: int = 64,
        generation: Mapping[str, Any] | None = {},
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
    ) -> None:
        super().__init__(**self._call_keywords)

    @by_keyword
    def setParams(
        self,
        *,
        num_proc: int | None = None,
        backend: Backend | None = None,
        store: Store | str | None = None,
        model: Any = None,
        tokenizer: Any = None,
        task: str | None = None,
        text_col: str = "text",
        label_col: str | None = None,
        labels: Sequence[Any] | None = None,
        max_length: int | None = None,
        packing: bool = True,
        loss_on: str = "assistant",
        lora: Mapping[str, Any] | Any | None = None,
        learning_rate: float = 5e-05,
        weight_decay: float = 0.0,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
        mixed_precision: str | None = None,
        callbacks: Any = [],
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
        materialize: bool = False,
        nulls: str = "error",
        max_new_tokens: int = 64,
        generation: Mapping[str, Any] | None = {},
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
    ) -> Self:
        """Sets any of the parameters. Returns self."""
        return self._take(self._call_keywords)

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

    def setModel(self, value: Any) -> Self:
        """Sets model: a folder with a pretrained model, its name on the Hugging Face Hub, or a model of
        transformers; required. Returns self.
        """
        return self._set(model=value)

    def getModel(self) -> Any:
        """model: a folder with a pretrained model, its name on the Hugging Face Hub, or a model of transformers;
        required.
        """
        return self._get(self.model)

    def setTokenizer(self, value: Any) -> Self:
        """Sets tokenizer: a fast tokenizer of transformers, or its folder; None: the model's folder has it. Returns
        self.
        """
        return self._set(tokenizer=value)

    def getTokenizer(self) -> Any:
        """tokenizer: a fast tokenizer of transformers, or its folder; None: the model's folder has it."""
        return self._get(self.tokenizer)

    def setTask(self, value: str | None) -> Self:
        """Sets task: 'causal': generate text; 'classification': a class for each text; 'token_classification': a
        class for each word; None: the label column decides: without one, of texts or numbers, of arrays. Returns
        self.
        """
        return self._set(task=value)

    def getTask(self) -> str | None:
        """task: 'causal': generate text; 'classification': a class for each text; 'token_classification': a class
        for each word; None: the label column decides: without one, of texts or numbers, of arrays.
        """
        return self._get(self.task)

    def setTextCol(self, value: str) -> Self:
        """Sets text_col: the column with texts; for token classification with arrays of words; for a chat with
        arrays of messages, structs of role and content. Returns self.
        """
        return self._set(text_col=value)

    def getTextCol(self) -> str:
        """text_col: the column with texts; for token classification with arrays of words; for a chat with arrays of
        messages, structs of role and content.
        """
        return self._get(self.text_col)

    def setLabelCol(self, value: str | None) -> Self:
        """Sets label_col: the column with classes: texts, integers or booleans, or arrays. Returns self."""
        return self._set(label_col=value)

    def getLabelCol(self) -> str | None:
        """label_col: the column with classes: texts, integers or booleans, or arrays."""
        return self._get(self.label_col)

    def setLabels(self, value: Sequence[Any] | None) -> Self:
        """Sets labels: all classes, in the order of the model's outputs; None: those of the label column, sorted, by
        a Spark job. Returns self.
        """
        return self._set(labels=value)

    def getLabels(self) -> list[Any] | None:
        """labels: all classes, in the order of the model's outputs; None: those of the label column, sorted, by a
        Spark job.
        """
        return self._get(self.labels)

    def setMaxLength(self, value: int | None) -> Self:
        """Sets max_length: the number of tokens of a row of the training; longer texts are cut, or are several rows
        of a causal model; None: 256, or the most that the model takes. Returns self.
        """
        return self._set(max_length=value)

    def getMaxLength(self) -> int | None:
        """max_length: the number of tokens of a row of the training; longer texts are cut, or are several rows of a
        causal model; None: 256, or the most that the model takes.
        """
        return self._get(self.max_length)

    def setPacking(self, value: bool) -> Self:
        """Sets packing: whether a row of a causal model's training holds several texts, which do not see each other.
        Returns self.
        """
        return self._set(packing=value)

    def getPacking(self) -> bool:
        """packing: whether a row of a causal model's training holds several texts, which do not see each other."""
        return self._get(self.packing)

    def setLossOn(self, value: str) -> Self:
        """Sets loss_on: of a chat: 'assistant': learn the assistant's messages; 'all': every message. Returns self."""
        return self._set(loss_on=value)

    def getLossOn(self) -> str:
        """loss_on: of a chat: 'assistant': learn the assistant's messages; 'all': every message."""
        return self._get(self.loss_on)

    def setLora(self, value: Mapping[str, Any] | Any | None) -> Self:
        """Sets lora: arguments of peft.LoraConfig, such as {'r': 8}, or a LoraConfig: train an adapter; None: the
        whole model. Returns self.
        """
        return self._set(lora=value)

    def getLora(self) -> dict[str, Any] | None:
        """lora: arguments of peft.LoraConfig, such as {'r': 8}, or a LoraConfig: train an adapter; None: the whole
        model.
        """
        return self._get(self.lora)

    def setLearningRate(self, value: float) -> Self:
        """Sets learning_rate: of a step of all processes; not multiplied by their number. Returns self."""
        return self._set(learning_rate=value)

    def getLearningRate(self) -> float:
        """learning_rate: of a step of all processes; not multiplied by their number."""
        return self._get(self.learning_rate)

    def setWeightDecay(self, value: float) -> Self:
        """Sets weight_decay: of AdamW. Returns self."""
        return self._set(weight_decay=value)

    def getWeightDecay(self) -> float:
        """weight_decay: of AdamW."""
        return self._get(self.weight_decay)

    def setOptimizer(self, value: Callable[[Any], torch.optim.Optimizer] | None) -> Self:
        """Sets optimizer: a function from a list of parameters to a torch.optim optimizer, instead of AdamW. Returns
        self.
        """
        return self._set(optimizer=value)

    def getOptimizer(self) -> Callable[[Any], torch.optim.Optimizer] | None:
        """optimizer: a function from a list of parameters to a torch.optim optimizer, instead of AdamW."""
        return self._get(self.optimizer)

    def setLrScheduler(self, value: Callable[[torch.optim.Optimizer], LRScheduler] | None) -> Self:
        """Sets lr_scheduler: a function from the optimizer to a scheduler, stepped after each epoch and not after
        each batch: its num_training_steps is a number of epochs; None: none. Returns self.
        """
        return self._set(lr_scheduler=value)

    def getLrScheduler(self) -> Callable[[torch.optim.Optimizer], LRScheduler] | None:
        """lr_scheduler: a function from the optimizer to a scheduler, stepped after each epoch and not after each
        batch: its num_training_steps is a number of epochs; None: none.
        """
        return self._get(self.lr_scheduler)

    def setMixedPrecision(self, value: str | None) -> Self:
        """Sets mixed_precision: 'bf16': run forward passes under autocast; None: full precision. Returns self."""
        return self._set(mixed_precision=value)

    def getMixedPrecision(self) -> str | None:
        """mixed_precision: 'bf16': run forward passes under autocast; None: full precision."""
        return self._get(self.mixed_precision)

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

    def setMaterialize(self, value: bool) -> Self:
        """Sets materialize: write the rows to the store as Parquet once, and read them from there in each fit.
        Returns self.
        """
        return self._set(materialize=value)

    def getMaterialize(self) -> bool:
        """materialize: write the rows to the store as Parquet once, and read them from there in each fit."""
        return self._get(self.materialize)

    def setNulls(self, value: str) -> Self:
        """Sets nulls: how to handle nulls: 'error', or 'drop' the row. Returns self."""
        return self._set(nulls=value)

    def getNulls(self) -> str:
        """nulls: how to handle nulls: 'error', or 'drop' the row."""
        return self._get(self.nulls)

    def setMaxNewTokens(self, value: int) -> Self:
        """Sets max_new_tokens: the number of tokens that transform generates at most. Returns self."""
        return self._set(max_new_tokens=value)

    def getMaxNewTokens(self) -> int:
        """max_new_tokens: the number of tokens that transform generates at most."""
        return self._get(self.max_new_tokens)

    def setGeneration(self, value: Mapping[str, Any] | None) -> Self:
        """Sets generation: other arguments of the model's generate(), such as {'do_sample': True}. Returns self."""
        return self._set(generation=value)

    def getGeneration(self) -> dict[str, Any]:
        """generation: other arguments of the model's generate(), such as {'do_sample': True}."""
        return self._get(self.generation)

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


class TransformersModelKeywords(PredictingKeywords):
    """Constructor, setters and getters of `TransformersModel`."""

    history: Param[History]
    model: Param[Any]
    tokenizer: Param[Any]
    task: Param[str | None]
    feature_columns: Param[list[str] | None]
    label_columns: Param[list[str] | None]
    run_id: Param[str | None]
    labels: Param[list[Any] | None]
    label_type: Param[str]
    batch_size: Param[int]
    max_length: Param[int | None]
    max_new_tokens: Param[int]
    generation: Param[dict[str, Any]]
    inference_device: Param[str]
    inference_precision: Param[str | None]

    @by_keyword
    def __init__(
        self,
        *,
        history: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None = None,
        model: Any = None,
        tokenizer: Any = None,
        task: str | None = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        run_id: str | None = None,
        labels: Any = None,
        label_type: str = "string",
        batch_size: int = 32,
        max_length: int | None = None,
        max_new_tokens: int = 64,
        generation: Mapping[str, Any] | None = {},
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
    ) -> None:
        super().__init__(**self._call_keywords)

    @by_keyword
    def setParams(
        self,
        *,
        history: Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None = None,
        model: Any = None,
        tokenizer: Any = None,
        task: str | None = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        run_id: str | None = None,
        labels: Any = None,
        label_type: str = "string",
        batch_size: int = 32,
        max_length: int | None = None,
        max_new_tokens: int = 64,
        generation: Mapping[str, Any] | None = {},
        output_cols: Sequence[str] | None = None,
        output_type: str = "label",
        prediction_col: str | None = None,
        raw_prediction_col: str | None = None,
        probability_col: str | None = None,
        inference_device: str = "auto",
        inference_precision: str | None = None,
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

    def setModel(self, value: Any) -> Self:
        """Sets model: the trained model of transformers, or of peft. Returns self."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """model: the trained model of transformers, or of peft."""
        return self._get(self.model)

    def setTokenizer(self, value: Any) -> Self:
        """Sets tokenizer: the tokenizer that it was trained with. Returns self."""
        return self._set(tokenizer=value)

    def getTokenizer(self) -> Any:
        """tokenizer: the tokenizer that it was trained with."""
        return self._get(self.tokenizer)

    def setTask(self, value: str | None) -> Self:
        """Sets task: 'causal': generate text; 'classification': a class for each text; 'token_classification': a
        class for each word; None: the label column decides: without one, of texts or numbers, of arrays. Returns
        self.
        """
        return self._set(task=value)

    def getTask(self) -> str | None:
        """task: 'causal': generate text; 'classification': a class for each text; 'token_classification': a class
        for each word; None: the label column decides: without one, of texts or numbers, of arrays.
        """
        return self._get(self.task)

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

    def setLabels(self, value: Any) -> Self:
        """Sets labels: the classes, in the order of the model's outputs. Returns self."""
        return self._set(labels=value)

    def getLabels(self) -> list[Any] | None:
        """labels: the classes, in the order of the model's outputs."""
        return self._get(self.labels)

    def setLabelType(self, value: str) -> Self:
        """Sets label_type: the Spark type of a class. Returns self."""
        return self._set(label_type=value)

    def getLabelType(self) -> str:
        """label_type: the Spark type of a class."""
        return self._get(self.label_type)

    def setBatchSize(self, value: int) -> Self:
        """Sets batch_size: rows per call of the model. Returns self."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """batch_size: rows per call of the model."""
        return self._get(self.batch_size)

    def setMaxLength(self, value: int | None) -> Self:
        """Sets max_length: the number of tokens of a row of the training; longer texts are cut, or are several rows
        of a causal model; None: 256, or the most that the model takes. Returns self.
        """
        return self._set(max_length=value)

    def getMaxLength(self) -> int | None:
        """max_length: the number of tokens of a row of the training; longer texts are cut, or are several rows of a
        causal model; None: 256, or the most that the model takes.
        """
        return self._get(self.max_length)

    def setMaxNewTokens(self, value: int) -> Self:
        """Sets max_new_tokens: the number of tokens that transform generates at most. Returns self."""
        return self._set(max_new_tokens=value)

    def getMaxNewTokens(self) -> int:
        """max_new_tokens: the number of tokens that transform generates at most."""
        return self._get(self.max_new_tokens)

    def setGeneration(self, value: Mapping[str, Any] | None) -> Self:
        """Sets generation: other arguments of the model's generate(), such as {'do_sample': True}. Returns self."""
        return self._set(generation=value)

    def getGeneration(self) -> dict[str, Any]:
        """generation: other arguments of the model's generate(), such as {'do_sample': True}."""
        return self._get(self.generation)

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
