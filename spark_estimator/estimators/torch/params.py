"""The parameters of `TorchEstimator` and `TorchModel`; Lightning's estimator has some of them, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_estimator.estimators import checks, params
from spark_estimator.estimators.params import Row

_LOSS = "Callable[..., Any]"
#: The types of shared parameters whose values are PyTorch's.
TYPES: dict[str, tuple[str, str]] = {
    "model": ("nn.Module | None", ""),
    "optimizer": ("torch.optim.Optimizer | None", ""),
    "loss": (f"{_LOSS} | Sequence[{_LOSS}] | None", f"list[{_LOSS}]"),
    "metrics": (
        f"{_LOSS} | Mapping[str, {_LOSS}] | Sequence[{_LOSS} | Sequence[{_LOSS}] | Mapping[str, {_LOSS}]] | None",
        "list[Any]",
    ),
}


def set_types(rows: Sequence[Row], types: Mapping[str, tuple[str, str]]) -> tuple[Row, ...]:
    """Return the rows with a framework's types: (of the setter, of the getter) by name; and losses that are checked."""
    return tuple(
        replace(
            row,
            type=types[row.name][0],
            returns=types[row.name][1],
            check=_check_losses if row.name == "loss" else row.check,
        )
        if row.name in types
        else row
        for row in rows
    )


def _check_losses(name: str, value: Any) -> list[Any]:
    """Return a list of losses. One that is no mean is refused at once: in a Pipeline, `fit` is called after other
    stages.
    """
    from spark_estimator.estimators.torch.losses import check_reduction  # not before there is a loss

    result = checks.check_list(name, value)
    for loss in result:
        check_reduction(loss)
    return result


def _check_schedule(name: str, value: Any) -> Any:
    from spark_estimator.estimators.torch.steps.schedules import check_schedule  # not before there is one

    return value if value is None else check_schedule(name, value)


def _check_ratio(name: str, value: Any) -> float:
    return checks.check_not_negative(name, value, below=1)


def _check_compile(name: str, value: Any) -> Any:
    return checks.check_dict(name, dict(value)) if isinstance(value, Mapping) else checks.check_bool(name, value)


def _check_profile(name: str, value: Any) -> Any:
    from spark_estimator.torch.profiling import profile  # not before there is one

    if value is not None and not isinstance(value, profile):
        raise TypeError(f"{name} must be spark_estimator.profile(rank=0, steps=(10, 13)) or None; got {value!r:.100}.")
    return value


LOSS_CONSTRUCTORS = Row(
    "loss_constructors",
    None,
    checks.check_list,
    "functions that create the losses, instead of loss; Horovod's get the keyword model",
    f"{_LOSS} | Sequence[{_LOSS}] | None",
    f"list[{_LOSS}] | None",
)

#: What the processes exchange; of the estimators for PyTorch and Lightning.
LOCAL_STEPS = (
    Row(
        "sync",
        "allreduce",
        checks.check_one_of("allreduce", "local_sgd", "diloco"),
        "what the processes exchange: 'allreduce': the gradients of each step; 'local_sgd' and 'diloco': parameters, "
        "every inner_steps steps, as spark_estimator.torch.LocalSGD and DiLoCo do, with the learning rate of one "
        "process",
        "str",
    ),
    Row(
        "inner_steps",
        32,
        checks.check_int(1),
        "with sync='local_sgd' or 'diloco': the number of steps between two exchanges",
        "int",
    ),
)

#: Of the estimators for PyTorch, Lightning and Hugging Face.
COMPILE = Row(
    "compile",
    False,
    _check_compile,
    "True, or a dict of arguments of torch.compile such as {'mode': 'max-autotune'}: each process compiles the model; "
    "False: it is not compiled",
    "bool | Mapping[str, Any]",
    "bool | dict[str, Any]",
)

#: Of the estimators for PyTorch and Hugging Face; Lightning's has its Trainer's profiler.
PROFILE = Row(
    "profile",
    None,
    _check_profile,
    "spark_estimator.profile(rank=0, steps=(10, 13)): record what processes do in some steps; with a store the traces "
    "are in the run's folder, without one in the profile's folder on the driver; None: nothing is recorded",
)

#: How a step is made of the joint gradient; of the estimators for PyTorch and Hugging Face.
RECIPE = (
    Row(
        "lr_scheduler",
        None,
        _check_schedule,
        "how the learning rate moves. After each step: 'linear', 'cosine' or 'constant', as Hugging Face defines them, "
        "or a function of the optimizer and the number of steps that returns a scheduler. After each epoch: a "
        "scheduler of the optimizer, or a function of the optimizer that returns one; its total_steps and T_max are "
        "numbers of epochs. A dict of one of these as 'scheduler' may have 'interval' ('step' or 'epoch') and, for "
        "ReduceLROnPlateau, 'monitor' ('validation.loss'), as in Lightning. None: the rate stays",
        "str | Callable[..., Any] | Mapping[str, Any] | Any | None",
        "Any",
    ),
    Row(
        "warmup_steps",
        0,
        checks.check_int(0),
        "the number of steps in which the learning rate rises from 0; needs lr_scheduler='linear', 'cosine' or "
        "'constant'; 0: warmup_ratio decides",
        "int",
    ),
    Row("warmup_ratio", 0.0, _check_ratio, "warmup_steps as a share of all steps, such as 0.1; 0: no warm-up", "float"),
    Row(
        "gradient_clip_norm",
        0.0,
        checks.check_not_negative,
        "the largest norm of the whole gradient, to which clip_grad_norm_ scales longer ones: of the average over all "
        "processes and the passes of a step; with sync='local_sgd' or 'diloco', of each process's own; 0: no limit",
        "float",
    ),
    Row(
        "gradient_clip_value",
        0.0,
        checks.check_not_negative,
        "the largest absolute value of an element of that gradient (clip_grad_value_), instead of gradient_clip_norm; "
        "0: no limit",
        "float",
    ),
    Row(
        "on_nonfinite",
        "error",
        checks.check_one_of("error", "skip"),
        "what to do where a loss or a gradient is NaN or infinite on any process: 'error': raise an error after the "
        "epoch; 'skip': leave the step out on all processes, and count it in the history (skipped_steps); 25 in a row "
        "are an error",
        "str",
    ),
    Row(
        "validate_every_steps",
        None,
        checks.check_int(1),
        "validate after this many batches within an epoch, too, between two steps of the optimizer; early stopping and "
        "restore_best count these validations; None: only after each epoch",
        "int | None",
    ),
    COMPILE,
)

ESTIMATOR = (
    *set_types(params.SHARED, TYPES),
    *params.PREDICTING,
    *params.INFERENCE,
    params.LEARNING_RATE,
    LOSS_CONSTRUCTORS,
    Row(
        "callbacks",
        [],
        checks.check_list,
        "objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, called on every rank",
        "Any",
        "list[Any]",
    ),
    Row(
        "train_minibatch_fn",
        None,
        checks.accept,
        "a custom training step: (model, optimizer, transform_outputs, loss_fn, inputs, labels, sample_weights) -> "
        "(outputs, loss); None: the built-in step",
        f"{_LOSS} | None",
    ),
    *LOCAL_STEPS,
    *RECIPE,
    Row(
        "channels_last",
        False,
        checks.check_bool,
        "whether weights and inputs of images are kept in PyTorch's memory format channels_last",
        "bool",
    ),
    params.DATA_MODULE,
    PROFILE,
    Row(
        "mixed_precision",
        None,
        checks.check_autocast_type,
        "'bf16' or 'fp16': run forward passes under autocast; 'fp16' also scales the loss, and skips steps whose "
        "gradient overflows; None: full precision",
        "str | None",
    ),
)

MODEL = (
    params.HISTORY,
    *params.MODEL,
    *params.INFERENCE,
    Row("optimizer", None, checks.accept, "an optimizer of the model's parameters", saved=False),
    Row(
        "input_shapes",
        None,
        checks.check_shapes,
        "the shapes of the inputs, each starting with -1 for the batch",
        "Sequence[Sequence[int]] | None",
        "list[list[int]] | None",
    ),
    Row("loss", None, checks.accept, "the losses of the training", saved=False),
    Row("loss_constructors", None, checks.accept, "functions that create the losses of the training", saved=False),
)
