"""Trains a LightningModule on the rows of a rank: what each rank of Lightning's estimator runs, with a real Trainer."""

from __future__ import annotations

import copy
import importlib
import logging
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import spark_estimator.torch as hvd
from spark_estimator.collectives import launcher_link
from spark_estimator.estimators.epoch_division import Division
from spark_estimator.estimators.lightning.callbacks import EpochSums, callback_of, logged, strategy_of
from spark_estimator.estimators.lightning.checkpoint import (
    begin_after,
    loop_states,
    plain_checkpoint,
    restore,
    restore_optimizers,
    settings_of,
    take_settings,
)
from spark_estimator.estimators.lightning.identity import identity_of
from spark_estimator.estimators.lightning.legacy import adapter_class
from spark_estimator.estimators.lightning.loaders import RowLoader
from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.lightning.recovery import FitPhase, FitPosition, LightningCommits, recovered
from spark_estimator.estimators.lightning.resumable_fit import ResumableFit
from spark_estimator.estimators.persistence.checkpoint import (
    Checkpoint,
    Saver,
    TrainingProgress,
    line_of,
)
from spark_estimator.estimators.persistence.resumed_run import line_of_return
from spark_estimator.estimators.rank_run import (
    RankRun,
    averages_of,
    begin,
    check_loss,
    meter_of,
    record_epoch,
)
from spark_estimator.estimators.recovering_process import RecoveringProcess
from spark_estimator.estimators.rows.row_source import rank_rows
from spark_estimator.estimators.torch.checkpoint import TorchForm, packed
from spark_estimator.estimators.torch.epoch_means import results_of
from spark_estimator.estimators.torch.exchange import local_options
from spark_estimator.estimators.torch.rank_state import gathered, seed_generators, seed_start
from spark_estimator.estimators.torch.training import leaving_out
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe.driver_log import log_to_driver
from spark_estimator.store import FilesystemStore


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch; a run whose checkpoint exists resumes from it. PyTorch's,
    Python's and NumPy's generators are seeded for each epoch from seed, epoch and rank, so that such a run ends with
    the same numbers as one that was never interrupted. In an elastic job it recovers within a step (`recovery`).
    """
    hvd.init()
    with Saver(spec, TorchForm()) as saver:
        if launcher_link.link() is not None:
            return recovered(lambda commits, process: _trained(spec, saver, commits, process), spec)
        return _trained(spec, saver)


def _trained(
    spec: TrainSpec, saver: Saver, commits: LightningCommits | None = None, process: RecoveringProcess | None = None
) -> TrainResult | None:
    """The epochs that are left. Returns the result on rank 0. A collective.

    Args:
        commits, process: of a training that recovers within a step; None: of others.
    """
    position = None if commits is None else commits.position
    read = rank_rows if process is None else process.read
    beginning = begin(spec, identity_of, TorchForm(), known=None if position is None else position.run, read=read)
    training = _Training(spec, beginning, saver, commits, process)
    kept = beginning.kept
    if kept is not None:
        training.take(kept)
        if hvd.rank() == 0 and spec.verbose:
            log_to_driver(line_of_return(spec.run_id, kept, spec.epochs, again=False))
    training.run()
    if hvd.rank() != 0:
        return None
    return beginning.result(spec, packed(training.numbers()), training.progress.history, "model.pt")


class _Training:
    """The module and its Trainer."""

    def __init__(
        self,
        spec: TrainSpec,
        beginning: RankRun,
        saver: Saver,
        commits: LightningCommits | None,
        process: RecoveringProcess | None,
    ) -> None:
        parts: LightningParts = spec.framework
        joined = None if commits is None else commits.position
        rows, held, seed = beginning.rows, beginning.held, beginning.seed
        self.progress = TrainingProgress(spec.patience, spec.restore_best)
        self._spec = spec
        self._parts = parts
        self._seed = seed
        self._known = beginning.known
        self._commits = commits
        self._process = process
        self._joined = joined
        self._checkpoint = None if commits is None else commits.checkpoint
        self._leaving: frozenset[int] = frozenset()
        self._kept: Checkpoint | None = None
        self._settings: dict[str, Any] | None = None
        self._saver = saver
        self._package: Any = importlib.import_module(parts.flavour)
        quiet(parts.flavour, spec.verbose)
        self._meter = meter_of(spec)
        order = seed if spec.shuffle else None
        # A plain module's labels get their shapes where its outputs are known.
        shapes = parts.label_shapes if parts.plain is None else None
        self._train = RowLoader(rows, spec, order, spec.batch_size, spec.train_steps, shapes)
        self._held: RowLoader | None = None
        if held is not None:
            self._held = RowLoader(held, spec, None, spec.val_batch_size, spec.validation_steps, shapes)
        self._arguments = self._trainer_arguments()
        plain = parts.plain
        self._watch = EpochSums(
            self._train,
            self._held,
            0 if plain is None else sum(len(group) for group in plain.metrics),
            begin=self._epoch_begins,
            end=self._epoch_ended,
            restore=self._take_up,
            run=self._training_begins,
            # As in TorchEstimator gradients of several batches are added up, of which Lightning makes means.
            multiplied=1 if plain is None else _accumulated(self._arguments),
            joint=not parts.steps_locally,
            stop_on_nan=parts.stop_on_nan,
            meter=self._meter,
        )
        if plain is None:
            self.module: Any = parts.model
        else:
            weight = None if spec.weight is None else spec.weight.names[0]
            labels = [field.names[0] for field in spec.labels]
            self._leaving = leaving_out(plain, spec, beginning) if joined is None else joined.leaving
            plain = replace(plain, leaving_out=self._leaving)
            self.module = adapter_class(parts.flavour)(plain, spec.inputs, labels, weight)
            self.module.counted = lambda: self._watch.counted
            self.module.model.train()
        if joined is not None:
            self.progress.history, self.progress.best = list(joined.history), joined.best

    def take(self, kept: Checkpoint) -> None:
        """Sets the checkpoint that `run` resumes from."""
        self._kept = kept
        self._settings = kept.state.get("settings")
        self.progress.history = list(kept.history)
        self.progress.best = kept.best

    def run(self) -> None:
        """The epochs that are left. Collective."""
        if self._kept is not None and self._has_ended(self._kept):
            self._take_model(self._kept.state["lightning"])
            return
        if self._joined is not None and self._joined.phase is FitPhase.OVER and self._checkpoint is None:
            return  # trained here, by a Trainer that has ended
        parts = self._parts
        seed_start(self._seed)
        strategy = strategy_of(parts.flavour, self._watch, self._spec.verbose, **self._exchange())
        trainer = self._package.Trainer(
            **self._arguments,
            strategy=strategy,
            callbacks=[callback_of(parts.flavour, self._watch), *parts.callbacks],
        )
        if self._kept is not None:
            begin_after(trainer, self._kept.state["lightning"])
        if self._joined is not None:
            strategy.is_apart = True
        if self._joined is not None and self._joined.phase is not FitPhase.OVER:
            # Steps are there when the others are met: a Trainer with all of its steps or epochs would not begin.
            trainer.fit_loop.epoch_progress.load_state_dict(loop_states(self._joined.loops)["epoch_progress"])
        trainer.fit(self.module, self._train, self._held)

    def _take_model(self, checkpoint: dict[str, Any]) -> None:
        """Gives the module, which is not trained any more, the numbers of a checkpoint."""
        self.module.on_load_checkpoint(checkpoint)
        _configured(self.module).load_state_dict(checkpoint["state_dict"])

    def _exchange(self) -> dict[str, Any]:
        """The strategy's arguments."""
        parts = self._parts
        if parts.steps_locally:
            return {"sync": parts.sync, "sync_options": local_options(parts.compression, parts.inner_steps)}
        compression = parts.compression or hvd.Compression.none
        return {"compression": compression, "scale_lr": parts.scale_lr}

    def _has_ended(self, kept: Checkpoint) -> bool:
        """Whether a resumed run has already trained all of its epochs, or was ended early."""
        most = self._arguments["max_epochs"]
        had = most is not None and 0 <= most <= len(kept.history)
        return had or self.progress.is_over or bool(kept.state["ended"])

    def numbers(self) -> Any:
        """The state to return: of the best epoch if `restore_best` is set, else of the last."""
        return self.progress.best or self._inside.state_dict()

    @property
    def _inside(self) -> Any:
        """The user's module."""
        return self.module if self._parts.plain is None else self.module.model

    def _epoch_begins(self, trainer: Any) -> None:
        epoch = int(trainer.current_epoch)
        if self._settings is not None:  # not before: callbacks look at the Trainer's own in on_train_start
            take_settings(trainer, self._settings)
            self._settings = None
        seed_generators(self._seed, epoch)

    def _training_begins(self, trainer: Any) -> None:
        """All hooks ``on_fit_start`` have run, which may have added groups of parameters to the optimizer."""
        content = self._checkpoint if self._kept is None else self._kept.state["lightning"]
        if content is not None:
            restore_optimizers(trainer, content)
        self._checkpoint = None
        if self._commits is not None:
            assert self._process is not None
            epochs = self.progress
            first = FitPosition(
                self._known,
                self._process.most_ranks(),
                Division((), self.leg()),
                self._leaving,
                tuple(epochs.history),
                epochs.best,
            )
            first = first.moved(trainer, FitPhase.BETWEEN_EPOCHS)
            ResumableFit(trainer, self._parts.flavour, self._watch, self._commits, first, self)

    def read_again(self) -> None:
        """Takes the rows and the epochs of a new round. A collective."""
        assert self._commits is not None and self._process is not None and self._train is not None
        position = self._commits.position
        assert position is not None
        self._process.joins(position.history, first=False)
        again = begin(self._spec, identity_of, TorchForm(), known=self._known, read=self._process.read)
        self._train.take(again.rows)
        if self._held is not None and again.held is not None:
            self._held.take(again.held)
        self.progress.history, self.progress.best = list(position.history), position.best

    def leg(self) -> dict[str, Any]:
        """See `DividedRows`."""
        assert self._train is not None
        return self._train.leg()

    def take_legs(self, epoch: int, legs: Sequence[Mapping[str, Any]]) -> None:
        """See `DividedRows`."""
        assert self._train is not None
        self._train.take_legs(epoch, legs)

    def lengths(self) -> tuple[int, int]:
        """See `DividedRows`."""
        assert self._train is not None
        return len(self._train), 0 if self._held is None else len(self._held)

    def _take_up(self, trainer: Any) -> None:
        # Loaders choose the seeds of their workers before the hooks of the epoch.
        seed_generators(self._seed, int(trainer.current_epoch))
        if self._checkpoint is not None:
            restore(trainer, self.module, self._checkpoint, None)
        if self._kept is not None:
            ranks = self._kept.ranks
            rank_state = ranks[hvd.rank()] if len(ranks) == hvd.size() else None
            restore(trainer, self.module, self._kept.state["lightning"], rank_state)

    def _epoch_ended(self, trainer: Any) -> None:
        spec = self._spec
        if spec.checkpoint_path is not None or spec.restore_best:  # a validation has done it already
            trainer.strategy.synchronize_parameters()
        entry = self._entry(trainer)
        self._meter.end_epoch(averages_of(entry))
        self.progress.add(entry, lambda: copy.deepcopy(self._inside.state_dict()))
        if self._commits is None:
            record_epoch(spec, entry)
        if spec.checkpoint_path is not None:
            ranks = gathered(self.module, trainer.strategy.root_device)
            least = len(self.progress.history) >= (trainer.min_epochs or 0)
            ended = trainer.should_stop and least and trainer.global_step >= (trainer.min_steps or 0)
            state = {"lightning": plain_checkpoint(trainer), "ended": bool(ended), "settings": settings_of(trainer)}
            if hvd.rank() == 0:
                history, best = self.progress.history, self.progress.best
                known = self._known
                self._saver.save(
                    Checkpoint(known.identity, self._seed, state, history, best, ranks, initial=known.initial)
                )
        if self.progress.is_over:
            trainer.should_stop = True
        if self._commits is not None:
            self._commits.epoch(trainer, self.progress)
            record_epoch(spec, entry)  # not before: the epoch's end would be repeated after the loss of a rank
        if hvd.rank() == 0 and spec.verbose:
            log_to_driver(self._line(entry))

    def _entry(self, trainer: Any) -> dict[str, Any]:
        """An epoch's entry in the history. A collective."""
        result = logged(trainer.callback_metrics)
        entry: dict[str, Any] = {"epoch": len(self.progress.history)}
        for part, names in (("train", ("train_loss", "loss")), ("validation", ("val_loss",))):
            means = self._watch.averages(part)
            if not means and part in self._watch.seen:  # a step that returns no loss may have logged it
                means = [result[name] for name in names if name in result][:1]
            if means:
                entry[part] = self._results(means)
        entry.setdefault("train", {"loss": math.nan, "all_metrics": []})
        loss = entry["train"]["loss"]
        if self.module.automatic_optimization:
            check_loss(loss, entry["epoch"], multiplied=self._parts.plain is not None)
        if self._parts.plain is None and result:
            entry["logged"] = result
        return entry

    def _results(self, means: list[float]) -> dict[str, Any]:
        plain, left = self._parts.plain, iter(means[1:])
        if plain is None:
            return {"loss": means[0], "all_metrics": []}
        return results_of(means[0], [[next(left) for _ in group] for group in plain.metrics], plain)

    def _line(self, entry: dict[str, Any]) -> str:
        metrics = {
            name: value for name, value in entry.get("logged", {}).items() if name not in ("train_loss", "val_loss")
        }
        return ", ".join(
            [
                line_of(entry, max(self._arguments["max_epochs"] or 0, len(self.progress.history))),
                *(f"{name} {value:.4g}" for name, value in metrics.items()),
            ]
        )

    def _trainer_arguments(self) -> dict[str, Any]:
        """All arguments of the Trainer except callbacks and strategy: the estimator's, overridden by the user's."""
        spec, parts = self._spec, self._parts
        callbacks = self._package.callbacks
        on_gpu = spec.use_gpu and torch.cuda.is_available()
        arguments: dict[str, Any] = {
            "accelerator": "gpu" if on_gpu else "cpu",
            "max_epochs": spec.epochs,
            "accumulate_grad_batches": spec.backward_passes_per_step,
            "logger": self._logger(),
            "log_every_n_steps": parts.log_every_n_steps,
            "profiler": parts.profiler,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            "enable_progress_bar": any(isinstance(callback, callbacks.ProgressBar) for callback in parts.callbacks),
            "enable_model_summary": any(isinstance(callback, callbacks.ModelSummary) for callback in parts.callbacks),
            "enable_checkpointing": any(isinstance(callback, callbacks.Checkpoint) for callback in parts.callbacks),
            "default_root_dir": self._folder(),
        }
        arguments |= parts.trainer_args or {}
        if self._joined is not None:
            arguments["num_sanity_val_steps"] = 0  # the other ranks have had theirs
        return arguments

    def _folder(self) -> str | None:
        """The run's folder in the store, where that is one of this host's file system."""
        store = self._spec.store
        if not isinstance(store, FilesystemStore):
            return None
        folder = store.get_logs_path(self._spec.run_id)
        return folder if folder is not None and os.path.isabs(folder) else None

    def _logger(self) -> Any:
        """The user's logger; else TensorBoard's in the store's folder for logs, if both are available; else none."""
        if self._parts.logger is not None:
            return self._parts.logger
        folder = self._folder()
        installed = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
        if folder is None or not installed:
            return False
        return self._package.loggers.TensorBoardLogger(folder, name="")


def quiet(flavour: str, verbose: int) -> None:
    """Lightning's banners are shown to who asks for more than a line for each epoch."""
    if verbose < 2:
        fabric = "lightning.fabric" if flavour.startswith("lightning.") else "lightning_fabric"
        for name in (flavour, fabric):
            logging.getLogger(name).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", message="You defined a `validation_step` but have no `val_dataloader`")
        # PyTorch's warnings about Lightning's own code.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(pytorch_)?lightning")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(pytorch_)?lightning")


def _configured(module: Any) -> Any:
    """The module, with the layers that it makes late."""
    module.configure_model()
    return module


def _accumulated(arguments: Mapping[str, Any]) -> int:
    return int(arguments.get("accumulate_grad_batches") or 1)
