"""Writes Lightning's checkpoint in a form that is read without running code, and resumes a Trainer from it.

It is taken between two epochs, when all of Lightning's hooks and schedulers have run, or between two batches. After a
whole epoch a Trainer resumes from it as if ``fit`` was called a second time; within one, as Lightning itself does.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators.lightning.callbacks import IN_MEMORY
from spark_estimator.estimators.torch.checkpoint import packed
from spark_estimator.estimators.torch.rank_state import take_buffers
from spark_estimator.observe.driver_log import log_to_driver

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


def plain_checkpoint(trainer: Any, *, tells: bool) -> dict[str, Any]:
    """Lightning's own checkpoint, less what could not be read back without running code. Collective.

    Args:
        trainer: with a strategy of `callbacks.strategy_of`.
        tells: a line at the driver names what is left out.
    """
    trainer.save_checkpoint(IN_MEMORY, weights_only=False)
    result = {name: value for name, value in trainer.strategy.in_memory.items() if name not in _NEEDLESS}
    trainer.strategy.in_memory = None
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
    if left_out and tells:
        log_to_driver(
            f"the checkpoint leaves out the state of {', '.join(left_out)}: it holds objects that could not be read "
            "without running code, and is reset when the training resumes"
        )
    return result


def begin_after(trainer: Any, checkpoint: dict[str, Any], *, within: bool) -> None:
    """Sets a Trainer, before its ``fit``, to the epochs and steps that were done.

    Args:
        within: it continues within the epoch of the checkpoint; False: at the beginning of that epoch, or of the next
            one if that is over.
    """
    states = copy.deepcopy(checkpoint["loops"]["fit_loop"])
    if not within:
        for counts in states["epoch_progress"].values():
            counts["ready"] = counts["started"] = counts["processed"]
    trainer.fit_loop.load_state_dict(states)
    if not within:
        forget_restart(trainer)


def forget_restart(trainer: Any) -> None:
    """The Trainer's loops continue as if they had not been restored from a checkpoint."""
    for loop in _loops(trainer.fit_loop):
        if hasattr(loop, "on_iteration_done"):
            loop.on_iteration_done()
        else:  # Lightning 2.4; `restarting` of fit_loop cannot be set with max_steps
            loop._restarting = False


def _loops(loop: Any) -> Iterator[Any]:
    """A loop, and those within it."""
    yield loop
    for value in vars(loop).values():
        if hasattr(value, "on_load_checkpoint") and hasattr(value, "restarting"):
            yield from _loops(value)


def settings_of(trainer: Any) -> dict[str, Any]:
    """What changes in a module and a Trainer, and no state has: modes, frozen parameters, accumulation, a stop."""
    module = trainer.lightning_module
    return {
        "modes": [part.training for part in module.modules()],
        "learning": [parameter.requires_grad for parameter in module.parameters()],
        "accumulated": trainer.accumulate_grad_batches,
        "stops": bool(trainer.should_stop),
    }


def take_settings(trainer: Any, settings: dict[str, Any]) -> None:
    """Restores what `settings_of` returned."""
    module = trainer.lightning_module
    for part, mode in zip(module.modules(), settings["modes"], strict=False):
        part.training = mode
    for parameter, learns in zip(module.parameters(), settings["learning"], strict=False):
        parameter.requires_grad = learns
    trainer.accumulate_grad_batches = settings["accumulated"]
    trainer.should_stop = trainer.should_stop or settings.get("stops", False)


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


def _is_plain(value: Any) -> bool:
    try:
        torch.load(io.BytesIO(packed(value)), weights_only=True)
    except Exception:  # any error of pickle, or of the objects themselves
        return False
    return True
