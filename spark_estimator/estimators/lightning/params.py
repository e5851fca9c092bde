"""The parameters of Lightning's `TorchEstimator`."""

from __future__ import annotations

from spark_estimator.estimators import checks, params
from spark_estimator.estimators.params import Row
from spark_estimator.estimators.torch.params import COMPILE, LOCAL_STEPS, LOSS_CONSTRUCTORS, TYPES, set_types

ESTIMATOR = (
    *set_types(params.SHARED, TYPES),
    *params.PREDICTING,
    *params.INFERENCE,
    LOSS_CONSTRUCTORS,
    Row("callbacks", [], checks.check_list, "Lightning callbacks, copied to every rank", "Any", "list[Any]"),
    Row("logger", None, checks.accept, "a Lightning logger; None: TensorBoard in the store, if both are available"),
    Row("log_every_n_steps", 50, checks.check_int(1), "the number of steps between two log entries", "int"),
    Row(
        "num_gpus",
        None,
        checks.check_int(0),
        "the number of GPUs per process: 0 is use_gpu=False, more than 1 is an error",
        "int | None",
    ),
    params.DATA_MODULE,
    Row(
        "trainer_args",
        None,
        checks.accept,
        "a dict of Trainer arguments that override the estimator's own",
        "dict[str, Any] | None",
    ),
    Row(
        "scale_lr",
        True,
        checks.check_bool,
        "multiply the learning rate by the number of processes, as Horovod does; no effect unless sync is 'allreduce'",
        "bool",
    ),
    Row(
        "terminate_on_nan",
        False,
        checks.check_bool,
        "stop at the first batch whose loss is not finite, instead of at the end of the epoch",
        "bool",
    ),
    *LOCAL_STEPS,
    COMPILE,
    Row("profiler", None, checks.accept, "a Lightning profiler, or its name"),
)

#: As `params.WITHOUT_EFFECT`.
WITHOUT_EFFECT = {
    "train_minibatch_fn": "the module's training_step is the step",
    "loader_num_epochs": "an epoch is all rows of a process",
    "debug_data_loader": "rows are memory-mapped; there is no reader to debug",
    "train_async_data_loader_queue_size": "a thread prepares the next batches anyway",
    "val_async_data_loader_queue_size": "a thread prepares the next batches anyway",
}
