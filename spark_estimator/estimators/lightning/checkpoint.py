"""Writes Lightning's checkpoint in a form that is read without running code, and resumes a Trainer from it.

It is taken between two epochs, when all of Lightning's hooks and schedulers have run, or between two batches. After a
whole epoch a Trainer resumes from it as if ``fit`` was called a second time; within one, as Lightning itself does.
"""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.checkpoint.schedule import Schedule
from spark_estimator.estimators.lightning.callbacks import IN_MEMORY, EpochSums
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Cursor, Saver, make_schedule
from spark_estimator.estimators.rank_run import RankRun
from spark_estimator.estimators.torch.checkpoint import pack
from spark_estimator.estimators.torch.rank_state import gather_rank_states, get_rng_state, set_rng_state, take_buffers
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.estimators.training_progress import TrainingProgress
from spark_estimator.lightning.metrics import get_metric_states, take_metric_states
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


def make_plain_checkpoint(trainer: Any, *, tells: bool) -> dict[str, Any]:
    """Return Lightning's own checkpoint, less what could not be read back without running code. Collective.

    Args:
        trainer: with a strategy of `callbacks.make_strategy`.
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
    """Set a Trainer, before its ``fit``, to the epochs and steps that were done.

    Args:
        within: it continues within the epoch of the checkpoint; False: at the beginning of that epoch, or of the
            next one if that is over.
    """
    states = copy.deepcopy(checkpoint["loops"]["fit_loop"])
    if not within:
        for counts in states["epoch_progress"].values():
            counts["ready"] = counts["started"] = counts["processed"]
    trainer.fit_loop.load_state_dict(states)
    if not within:
        forget_restart(trainer)


def forget_restart(trainer: Any) -> None:
    """Make the Trainer's loops continue as if they had not been restored from a checkpoint."""
    for loop in _iterate_loops(trainer.fit_loop):
        if hasattr(loop, "on_iteration_done"):
            loop.on_iteration_done()
        else:  # Lightning 2.4; `restarting` of fit_loop cannot be set with max_steps
            loop._restarting = False


def _iterate_loops(loop: Any) -> Iterator[Any]:
    """Yield a loop, and the loops within it."""
    yield loop
    for value in vars(loop).values():
        if hasattr(value, "on_load_checkpoint") and hasattr(value, "restarting"):
            yield from _iterate_loops(value)


def get_settings(trainer: Any) -> dict[str, Any]:
    """Return what changes in a module and a Trainer, and no state has: modes, frozen parameters, accumulation, a
    stop.
    """
    module = trainer.lightning_module
    return {
        "modes": [part.training for part in module.modules()],
        "learning": [parameter.requires_grad for parameter in module.parameters()],
        "accumulated": trainer.accumulate_grad_batches,
        "stops": bool(trainer.should_stop),
    }


def take_settings(trainer: Any, settings: dict[str, Any]) -> None:
    """Restore what `get_settings` returned."""
    module = trainer.lightning_module
    for part, mode in zip(module.modules(), settings["modes"], strict=False):
        part.training = mode
    for parameter, learns in zip(module.parameters(), settings["learning"], strict=False):
        parameter.requires_grad = learns
    trainer.accumulate_grad_batches = settings["accumulated"]
    trainer.should_stop = trainer.should_stop or settings.get("stops", False)


def restore(trainer: Any, module: nn.Module, checkpoint: dict[str, Any], rank_state: dict[str, Any] | None) -> None:
    """Restore module and callbacks before other hooks ``on_fit_start``; `restore_optimizers` follows.

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
    """Restore optimizers, schedules and precision, when they have their groups of parameters."""
    trainer.strategy.load_optimizer_state_dict(checkpoint)
    for config, state in zip(trainer.lr_scheduler_configs, checkpoint.get("lr_schedulers", []), strict=False):
        config.scheduler.load_state_dict(state)
    trainer.strategy.follow_ranks(checkpoint)
    precision = trainer.precision_plugin
    precision.on_load_checkpoint(checkpoint)
    if type(precision).__qualname__ in checkpoint:
        precision.load_state_dict(checkpoint[type(precision).__qualname__])


def get_rates(trainer: Any) -> dict[str, Any] | None:
    """Return the state of schedules, and what they change in optimizers; None: it could not be read back without
    running code.
    """
    groups = [optimizer.param_groups for optimizer in trainer.optimizers]
    rates = {
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "groups": [[{key: group[key] for key in group if key != "params"} for group in each] for each in groups],
    }
    return copy.deepcopy(rates) if _is_plain(rates) else None


def _set_back(checkpoint: dict[str, Any], rates: dict[str, Any]) -> dict[str, Any]:
    """Return Lightning's checkpoint with the rates of another moment, as of `get_rates`."""
    states: list[dict[str, Any]] = []
    none: dict[str, Any] = {}
    for state, groups in zip(checkpoint["optimizer_states"], rates["groups"], strict=True):
        pairs = itertools.zip_longest(
            state["param_groups"], groups, fillvalue=none
        )  # hooks may have added groups since
        states.append({**state, "param_groups": [{**group, **before} for group, before in pairs]})
    return {**checkpoint, "optimizer_states": states, "lr_schedulers": rates["lr_schedulers"]}


def _is_plain(value: Any) -> bool:
    try:
        torch.load(io.BytesIO(pack(value)), weights_only=True)
    except Exception:  # any error of pickle, or of the objects themselves
        return False
    return True


class FreshStart:
    """The start of a training without a checkpoint: there is nothing to restore."""

    is_within = False  # the training continues within an epoch
    rates: dict[str, Any] | None = None  # at the beginning of that epoch, as of `get_rates`

    def begin(self, trainer: Any) -> None:
        """Set a Trainer, before its ``fit``, to the epochs that were done."""

    def restore(self, trainer: Any, module: nn.Module) -> None:
        """Restore module and callbacks, before other hooks ``on_fit_start``."""

    def restore_optimizers(self, trainer: Any) -> None:
        """Restore optimizers, after all hooks ``on_fit_start``: these may have added groups of parameters."""

    def take_settings(self, trainer: Any) -> None:
        """Restore what no state has, when the epoch begins: callbacks look at the Trainer's in ``on_train_start``."""

    def continue_epoch(self, trainer: Any, module: nn.Module, watch: EpochSums, done: int) -> dict[str, Any]:
        """Restore what this rank had after `done` batches of the epoch. Return what it had logged in it."""
        raise NotImplementedError


class ResumedStart(FreshStart):
    """The start of a training from a checkpoint. Its epoch begins again if `spread`, as of `Cursor`, is another now."""

    def __init__(self, kept: Checkpoint, spread: list[int]) -> None:
        self._kept = kept
        self._checkpoint: dict[str, Any] = kept.state["lightning"]
        self.is_within = kept.cursor is not None and kept.cursor.spread == spread
        self.rates = kept.state.get("rates")
        if self.rates is not None and not self.is_within:
            self._checkpoint = _set_back(self._checkpoint, self.rates)
        #: What this rank alone had; None if the checkpoint is of another number of ranks.
        self._rank_state = kept.ranks[hvd.rank()] if len(kept.ranks) == hvd.size() else None

    def begin(self, trainer: Any) -> None:
        begin_after(trainer, self._checkpoint, within=self.is_within)

    def restore(self, trainer: Any, module: nn.Module) -> None:
        restore(trainer, module, self._checkpoint, self._rank_state)

    def restore_optimizers(self, trainer: Any) -> None:
        restore_optimizers(trainer, self._checkpoint)
        if self._rank_state is not None:
            trainer.callback_metrics.update(self._rank_state.get("callback_metrics", {}))

    def take_settings(self, trainer: Any) -> None:
        settings = self._kept.state.get("settings")
        if settings is not None:
            take_settings(trainer, settings)

    def continue_epoch(self, trainer: Any, module: nn.Module, watch: EpochSums, done: int) -> dict[str, Any]:
        state = self._rank_state
        assert state is not None
        forget_restart(trainer)
        self.take_settings(trainer)
        watch.resume(trainer, state["watch"], done)
        take_metric_states(module, state["metrics"])
        set_rng_state(trainer.strategy.root_device, state)
        return dict(state["logged"])


class CheckpointWriter:
    """Decides when a checkpoint within an epoch is due, and has checkpoints written; `spread` as of `Cursor`, now."""

    def __init__(self, spec: TrainSpec, beginning: RankRun, saver: Saver, spread: list[int]) -> None:
        self._spec = spec
        self._known = beginning.known
        self.saver = saver
        self._spread = spread
        self._tells = beginning.kept is None  # what the next checkpoint leaves out
        self._schedule: Schedule | None = None
        self._is_due = False
        self._rates: dict[str, Any] | None = None
        self._counts = 0, 0  # validations that had ended, and optimizer steps, before the last batch

    def begin_epoch(self, validations: int, rates: dict[str, Any] | None = None) -> None:
        """Begin an epoch, or continue it, after this number of validations; with the rates at its beginning."""
        self._rates = rates
        self._schedule, self._is_due, self._counts = make_schedule(self._spec), False, (validations, 0)

    def is_due(self, trainer: Any, module: Any, validations: int, done: int) -> bool:
        """Return whether to write one after `done` batches of the epoch, and this number of validations. Collective."""
        before, self._counts = self._counts, (validations, int(trainer.global_step))
        validated, stepped = (count != earlier for count, earlier in zip(self._counts, before, strict=True))
        if self._schedule is None:
            return False
        self._is_due = self._is_due or self._schedule.is_due()
        # A checkpoint has no gradients that wait for their step; a module that optimizes by hand decides when it is.
        complete = done % trainer.accumulate_grad_batches == 0 if module.automatic_optimization else stepped
        # Lightning would repeat a validation that is right before a checkpoint.
        return self._is_due and complete and not validated

    def save_within(
        self, trainer: Any, module: Any, progress: TrainingProgress, place: tuple[int, int], counted: dict[str, Any]
    ) -> None:
        """Have a checkpoint written within an epoch. A collective.

        Args:
            place: batches of the epoch that are done, and their rows.
            counted: what this rank has counted and logged in the epoch.
        """
        here = counted | get_rng_state(trainer.strategy.root_device) | {"metrics": get_metric_states(module)}
        self.save(trainer, module, progress, Cursor(*place, self._spread), here)
        assert self._schedule is not None
        self._schedule.restart()
        self._is_due = False

    def save(
        self,
        trainer: Any,
        module: Any,
        progress: TrainingProgress,
        cursor: Cursor | None = None,
        here: dict[str, Any] | None = None,
    ) -> None:
        """Have a checkpoint written; `cursor` None: between two epochs. A collective."""
        ranks = gather_rank_states(module, trainer.strategy.root_device)
        here = {"callback_metrics": dict(trainer.callback_metrics), **(here or {})}
        states = hvd.allgather_object(here, name="what each rank has of Lightning")
        least = len(progress.history) >= (trainer.min_epochs or 0)
        ended = trainer.should_stop and least and trainer.global_step >= (trainer.min_steps or 0)
        tells, self._tells = self._tells, False
        state = {
            "lightning": make_plain_checkpoint(trainer, tells=tells),
            "ended": bool(ended) and cursor is None,
            "settings": get_settings(trainer),
            "rates": None if cursor is None else self._rates,
        }
        if hvd.rank() == 0:
            known = self._known
            ranks = [{**each, **more} for each, more in zip(ranks, states, strict=True)]
            self.saver.save(
                Checkpoint(
                    known.identity,
                    known.seed,
                    state,
                    progress.history,
                    progress.best,
                    ranks,
                    cursor=cursor,
                    initial=known.initial,
                )
            )
