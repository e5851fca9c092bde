"""Writes Lightning's checkpoint in a form that is read without running code, and resumes a Trainer from it.

It is taken between two epochs, when all of Lightning's hooks and schedulers have run. A Trainer resumes from it as if
``fit`` was called a second time: no epoch is half done.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators.torch.checkpoint import packed
from spark_estimator.estimators.torch.rank_state import take_buffers
from spark_estimator.lightning import rates
from spark_estimator.log import logger
from spark_estimator.observe.driver_log import log_to_driver

_log = logger(__name__)

#: Of what may be any object, only plain values and tensors are kept.
_SURE = ("state_dict", "optimizer_states", "loops", "epoch", "global_step", "pytorch-lightning_version")
#: Belongs to the module as the user made it, which is there anyway.
_NEEDLESS = (
    "hyper_parameters",
    "hparams_name",
    "hparams_type",
    "datamodule_hyper_parameters",
    "datamodule_hparams_name",
)


def plain_checkpoint(trainer: Any) -> dict[str, Any]:
    """Lightning's own checkpoint, less what could not be read back without running code. Collective."""
    result = _dumped(trainer)
    if not trainer.is_global_zero:
        return result
    left_out = []
    for name in [name for name in result if name not in _SURE]:
        if name == "callbacks":
            left_out += [str(key) for key, state in result[name].items() if not _is_plain(state)]
            result[name] = {key: state for key, state in result[name].items() if str(key) not in left_out}
        elif not _is_plain(result[name]):
            left_out.append(name)
            del result[name]
    if left_out and trainer.current_epoch == 1:
        log_to_driver(
            f"the checkpoint leaves out the state of {', '.join(left_out)}: it holds objects that could not be read "
            "without running code, and is reset when the training resumes"
        )
    return result


def live_checkpoint(trainer: Any) -> dict[str, Any]:
    """Lightning's own checkpoint for another rank of the job, less what cannot be pickled.

    Collectives of the Trainer in hooks ``on_save_checkpoint`` return this rank's own value.
    """
    apart, trainer.strategy.is_apart = trainer.strategy.is_apart, True
    try:
        result = _dumped(trainer)
    finally:
        trainer.strategy.is_apart = apart
    states = result.get("callbacks", {})
    lost = [f"the callback {key}" for key, state in states.items() if not _is_pickled(state)]
    result["callbacks"] = {key: state for key, state in states.items() if f"the callback {key}" not in lost}
    more = [name for name in result if name not in (*_SURE, "callbacks") and not _is_pickled(result[name])]
    if lost or more:
        _log.warning(
            "the state of %s cannot be pickled: a process that replaces a lost rank starts without it.",
            ", ".join([*lost, *more]),
        )
    return {name: value for name, value in result.items() if name not in more}


def _dumped(trainer: Any) -> dict[str, Any]:
    """Lightning's own checkpoint, less what the module has anyway, with the factor of its learning rates."""
    whole = trainer._checkpoint_connector.dump_checkpoint(False)
    result = {name: value for name, value in whole.items() if name not in _NEEDLESS}
    rates.note_factor(result, trainer.strategy.optimizers)
    return result


def begin_after(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Sets a Trainer, before its ``fit``, to the epochs and steps that were done."""
    set_progress(trainer, checkpoint["loops"]["fit_loop"])


def progress_of(trainer: Any) -> bytes:
    """The epochs, batches and steps that a Trainer's loops have done, for `set_progress`.

    It is a fifth as expensive as ``state_dict()`` of the loops, which it is made into when it is needed.
    """
    return pickle.dumps(dict(_progress(trainer.fit_loop, "")))


def _progress(loop: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """What ``state_dict()`` of a loop has, with the objects that count in the place of their states."""
    yield f"{prefix}state_dict", loop.on_save_checkpoint()
    for name, value in vars(loop).items():
        if hasattr(value, "from_state_dict"):
            yield prefix + name, value
        elif _is_loop(value):
            yield from _progress(value, f"{prefix}{name}.")


def loop_states(progress: bytes) -> dict[str, Any]:
    """What `progress_of` returned as ``state_dict()`` of the loops."""
    counts: dict[str, Any] = pickle.loads(progress)  # noqa: S301  # from this process or a rank of this job
    return {name: value.state_dict() if hasattr(value, "from_state_dict") else value for name, value in counts.items()}


def set_progress(trainer: Any, states: dict[str, Any]) -> None:
    """Gives a Trainer's loops the epochs, batches and steps that were done.

    Args:
        states: ``state_dict()`` of its ``fit_loop``.
    """
    loop = trainer.fit_loop
    loop.load_state_dict(copy.deepcopy(states))
    for item in _loops(
        loop
    ):  # each would look for the middle of an epoch; fit_loop.restarting cannot be set with max_steps
        item._restarting = item._loaded_from_state_dict = item._resuming_from_checkpoint = False


def _loops(loop: Any) -> Iterator[Any]:
    """A loop, and those within it."""
    yield loop
    for value in vars(loop).values():
        if _is_loop(value):
            yield from _loops(value)


def _is_loop(value: Any) -> bool:
    return hasattr(value, "on_load_checkpoint") and hasattr(value, "restarting")


def settings_of(trainer: Any) -> dict[str, Any]:
    """What changes in a module and a Trainer, and no state has: modes, frozen parameters, accumulation, loaders."""
    module, loop = trainer.lightning_module, trainer.fit_loop
    validation = loop.epoch_loop.val_loop
    return {
        "modes": [part.training for part in module.modules()],
        "learning": [parameter.requires_grad for parameter in module.parameters()],
        "accumulated": trainer.accumulate_grad_batches,
        "reloaded": (loop._last_train_dl_reload_epoch, validation._last_val_dl_reload_epoch),
        "validates": validation._combined_loader is not None,
    }


def take_settings(trainer: Any, settings: dict[str, Any]) -> None:
    """Restores what `settings_of` returned."""
    module = trainer.lightning_module
    for part, mode in zip(module.modules(), settings["modes"], strict=False):
        part.training = mode
    for parameter, learns in zip(module.parameters(), settings["learning"], strict=False):
        parameter.requires_grad = learns
    trainer.accumulate_grad_batches = settings["accumulated"]


def take_loaders(trainer: Any, settings: dict[str, Any]) -> None:
    """Makes loaders where the other ranks have them, and forgets those that the others will make later with this rank.

    Args:
        settings: of another rank's `settings_of`.
    """
    loop = trainer.fit_loop
    validation = loop.epoch_loop.val_loop
    if settings["validates"] and validation._combined_loader is None:
        trainer.validating = True
        validation.setup_data()
        trainer.training = True
    elif not settings["validates"]:
        validation._combined_loader = None
    loop._last_train_dl_reload_epoch, validation._last_val_dl_reload_epoch = settings["reloaded"]


def restore(trainer: Any, module: nn.Module, checkpoint: dict[str, Any], rank_state: dict[str, Any] | None) -> None:
    """Restores module and callbacks before other hooks ``on_fit_start``; `restore_optimizers` follows.

    Args:
        rank_state: what this rank alone has; None if the checkpoint is of other ranks.
    """
    user: Any = module
    user.on_load_checkpoint(checkpoint)
    module.load_state_dict(checkpoint["state_dict"])
    if rank_state is not None:
        take_buffers(module, rank_state)
    data = trainer.datamodule
    if data is not None and type(data).__qualname__ in checkpoint:
        data.load_state_dict(checkpoint[type(data).__qualname__])
    states = checkpoint.get("callbacks", {})
    for callback in trainer.callbacks:
        callback.on_load_checkpoint(trainer, module, checkpoint)
        if callback.state_key in states:
            callback.load_state_dict(copy.deepcopy(states[callback.state_key]))


def restore_optimizers(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Restores optimizers, schedules and precision, when they have their groups of parameters."""
    trainer.strategy.load_optimizer_state_dict(checkpoint)
    for config, state in zip(trainer.lr_scheduler_configs, checkpoint.get("lr_schedulers", []), strict=False):
        config.scheduler.load_state_dict(state)
    trainer.strategy.follow_ranks(checkpoint)
    precision = trainer.precision_plugin
    precision.on_load_checkpoint(checkpoint)
    if type(precision).__qualname__ in checkpoint:
        precision.load_state_dict(checkpoint[type(precision).__qualname__])


def _is_pickled(value: Any) -> bool:
    try:
        packed(value)
    except Exception:  # any error of pickle, or of the objects themselves
        return False
    return True


def _is_plain(value: Any) -> bool:
    try:
        torch.load(io.BytesIO(packed(value)), weights_only=True)
    except Exception:  # any error of pickle, or of the objects themselves
        return False
    return True
