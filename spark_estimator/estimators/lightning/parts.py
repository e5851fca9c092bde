"""Checks those parameters of Lightning's estimator that are its own, and puts together what the ranks train with."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from spark_estimator.data.columns import did_you_mean
from spark_estimator.estimators.checks import check_labels, check_list, describe_value
from spark_estimator.estimators.torch import losses as torch_losses
from spark_estimator.estimators.torch import parts as torch_parts
from spark_estimator.estimators.torch.exchange import check_exchange
from spark_estimator.estimators.torch.steps.recipe import read_compile
from spark_estimator.lightning import removed_hooks
from spark_estimator.lightning.epoch_outputs import list_epoch_end_hooks
from spark_estimator.lightning.flavours import FLAVOURS, choose_flavour
from spark_estimator.torch.sending import prepare_to_send

#: Arguments of a Trainer that the job itself decides -> why.
_REFUSED = {
    "strategy": "the ranks exchange gradients by the estimator's own strategy; gradient_compression changes how",
    "devices": "each rank has one device; num_proc is the number of ranks",
    "num_nodes": "Spark places the ranks; num_proc is their number",
    "barebones": "it leaves out the callbacks by which the estimator knows how the training goes",
}
_OF_PLAIN = ("optimizer", "loss", "loss_constructors", "loss_weights", "metrics")


@dataclass(frozen=True)
class LightningParts:
    """What `TrainSpec.framework` is for Lightning.

    Attributes:
        flavour: the package whose classes the module and the callbacks are: a name of `FLAVOURS`.
        model: the LightningModule, or the plain module.
        plain: what a plain module is trained with; None: the model is a LightningModule.
        callbacks, logger, profiler: Lightning's objects, as the user gives them.
        log_every_n_steps: for the logger.
        trainer_args: replace the estimator's own arguments of the Trainer.
        compression: of gradients; None: none.
        label_shapes: [labels] of a batch, with -1 for its rows; None: as the columns have them.
        scale_lr: whether the learning rate is multiplied by the number of ranks; False where each steps alone.
        sync, inner_steps: what the ranks exchange, as `TorchParts` has it.
        compile: arguments of torch.compile for the module; None: it is not compiled.
        stop_on_nan: a batch whose loss is no finite number ends the training; False: an epoch does.
    """

    flavour: str
    model: nn.Module
    plain: torch_losses.TorchParts | None
    callbacks: Sequence[Any] = ()
    logger: Any = None
    profiler: Any = None
    log_every_n_steps: int = 50
    trainer_args: Mapping[str, Any] | None = None
    compression: Any = None
    label_shapes: Sequence[Sequence[int]] | None = None
    scale_lr: bool = True
    stop_on_nan: bool = False
    compile: Mapping[str, Any] | None = None
    sync: str = "allreduce"
    inner_steps: int = 32

    @property
    def steps_locally(self) -> bool:
        """Return whether each rank steps by its own gradients."""
        return self.sync != "allreduce"


def make_parts(value: Callable[[str], Any]) -> tuple[LightningParts, list[str]]:
    """Return the parts for the ranks, and the labels' names.

    Args:
        value: gives a parameter by its name.

    Raises:
        TypeError, ValueError: it is missing, or of another kind.
    """
    model = value("model")
    if not isinstance(model, nn.Module):
        raise TypeError(
            "model must be a LightningModule, or a torch.nn.Module with optimizer and loss; got "
            f"{describe_value(model)}."
        )
    if hasattr(model, "_orig_mod"):
        raise ValueError("model was wrapped by torch.compile: pass the module itself, and compile=True.")
    for name in ("checkpoint_every_steps", "checkpoint_every_seconds"):
        if value(name) is not None and (obstacle := find_checkpoint_obstacle(model, value)):
            raise ValueError(f"{name}: {obstacle}")
    flavour = find_flavour(model)
    plain = None
    if flavour is None:
        flavour = next(filter(None, map(find_flavour, value("callbacks"))), choose_flavour())
        if value("optimizer") is None and not (value("loss") or value("loss_constructors")):
            raise TypeError(
                f"model is a {type(model).__name__}, a torch.nn.Module and not a LightningModule: give it optimizer "
                f"and loss, or derive it from {flavour}.LightningModule."
            )
        plain, labels = torch_parts.make_parts(lambda name: _get_for_torch(name, value))
    else:
        labels = check_labels(value)
        _check_module(model, value)
    check_exchange(value("gradient_compression"), value("sync"))
    package = importlib.import_module(flavour)
    for callback in value("callbacks"):
        if not isinstance(callback, package.Callback):
            raise TypeError(
                f"callbacks are Callbacks of {flavour}, as the model is; one was {describe_value(callback)}."
            )
    if (value("num_gpus") or 0) > 1:
        raise ValueError(f"num_gpus={value('num_gpus')}: each process has one GPU; ask for more of them by num_proc.")
    arguments = value("trainer_args") or {}
    if not isinstance(arguments, Mapping):
        raise TypeError(f"trainer_args must be a dict of arguments of the Trainer; got {describe_value(arguments)}.")
    arguments = dict(arguments)
    _check_trainer_args(arguments, package.Trainer, flavour, value("callbacks"))
    callbacks = [*value("callbacks"), *check_list("callbacks", arguments.pop("callbacks", None))]
    removed_hooks.warn_about_callbacks(callbacks)
    return (
        LightningParts(
            flavour=flavour,
            model=model,
            plain=plain,
            callbacks=callbacks,
            logger=value("logger"),
            profiler=value("profiler"),
            log_every_n_steps=value("log_every_n_steps"),
            trainer_args=arguments,
            compression=value("gradient_compression"),
            label_shapes=value("label_shapes"),
            scale_lr=value("scale_lr") and value("sync") == "allreduce",
            stop_on_nan=value("terminate_on_nan"),
            compile=read_compile(value("compile")),
            sync=value("sync"),
            inner_steps=value("inner_steps"),
        ),
        labels,
    )


_AVERAGING = {"StochasticWeightAveraging", "WeightAveraging"}


def find_checkpoint_obstacle(model: Any, value: Callable[[str], Any]) -> str:
    """Return why checkpoints within an epoch would lack something of the epoch; '' where they do not."""
    averaging = [each for each in value("callbacks") if {kind.__name__ for kind in type(each).__mro__} & _AVERAGING]
    if "training_epoch_end" in list_epoch_end_hooks(model):
        return (
            f"{type(model).__name__} has training_epoch_end(), which gets what all steps of an epoch have returned. "
            "Replace it by on_train_epoch_end()."
        )
    if averaging:
        return (
            f"{type(averaging[0]).__name__} keeps an average of weights that a checkpoint within an epoch does not "
            "have. Leave this out: there is a checkpoint after each epoch."
        )
    if value("sync") != "allreduce":
        return (
            f"with sync={value('sync')!r} each checkpoint would exchange the parameters, which ranks do every "
            f"inner_steps={value('inner_steps')} steps. Leave this out: each epoch ends with a checkpoint."
        )
    return ""


def find_flavour(item: Any) -> str | None:
    """Return the package of Lightning's whose class an object is of; None: of neither."""
    modules = [kind.__module__ for kind in type(item).__mro__]
    return next((name for name in FLAVOURS if any(module.startswith(f"{name}.") for module in modules)), None)


def _get_for_torch(name: str, value: Callable[[str], Any]) -> Any:
    """Return a parameter as `torch_parts` asks for it; None for those that Lightning's estimator does not have."""
    if name == "callbacks":
        return []
    from spark_estimator.estimators.torch import params as torch_params  # it imports pyspark, which ranks don't need

    absent = dict.fromkeys(("learning_rate", "train_minibatch_fn", "mixed_precision"))
    absent |= {row.name: row.default for row in torch_params.RECIPE} | {"channels_last": False}
    return absent[name] if name in absent else value(name)


def _check_module(model: Any, value: Callable[[str], Any]) -> None:
    """Check that a LightningModule has its methods; warn about parameters that it replaces."""
    ignored = [name for name in _OF_PLAIN if value(name)]
    if ignored:
        warnings.warn(
            f"{', '.join(ignored)}: no effect, as {type(model).__name__} is a LightningModule, which has its own "
            "configure_optimizers and training_step.",
            stacklevel=2,
        )
    torch_parts.check_numbers(model)
    prepare_to_send(model)
    kind: Any = type(model)
    base = next(base for base in kind.__mro__ if base.__name__ == "LightningModule")
    for method, reason in (
        ("training_step", "what it learns from a batch, a dict from column names to tensors"),
        ("configure_optimizers", "what it is trained with"),
    ):
        if getattr(kind, method) is getattr(base, method):
            raise ValueError(f"{type(model).__name__} has no {method}(), which defines {reason}.")
    for name, today in removed_hooks.STEP_ENDS.items():
        if callable(getattr(kind, name, None)):
            raise ValueError(
                f"{type(model).__name__} has {name}(), which Lightning 2 does not call: return from {today}() what it "
                "returns."
            )
    removed_hooks.warn_about_module(model)
    if kind.forward in (base.forward, nn.Module.forward):
        raise ValueError(
            f"{type(model).__name__} has no forward(), which predicts: it is called with a tensor for each feature."
        )
    if value("backward_passes_per_step") > 1 and not model.automatic_optimization:
        raise ValueError(
            f"backward_passes_per_step={value('backward_passes_per_step')}: {type(model).__name__} optimizes by hand "
            "(automatic_optimization=False), so that it decides itself when a step is due."
        )


def _check_trainer_args(arguments: dict[str, Any], trainer: Any, flavour: str, callbacks: Sequence[Any]) -> None:
    parameters = [name for name in inspect.signature(trainer.__init__).parameters if name != "self"]
    for name, value in arguments.items():
        if name in _REFUSED:
            raise ValueError(f"trainer_args[{name!r}] = {value!r} is not taken: {_REFUSED[name]}.")
        if name not in parameters:
            words = f"trainer_args has {name!r}, which no Trainer of {flavour} takes."
            raise TypeError(words + did_you_mean(name, parameters))
    package = importlib.import_module(flavour)
    for callback in check_list("callbacks", arguments.get("callbacks")):
        if not isinstance(callback, package.Callback):
            raise TypeError(
                f"trainer_args['callbacks'] are Callbacks of {flavour}; one was {describe_value(callback)}."
            )
    if arguments.get("accelerator") in ("tpu", "mps"):
        raise ValueError(
            f"trainer_args['accelerator'] must be 'cpu', 'gpu' or 'auto'; got {arguments['accelerator']!r}."
        )
