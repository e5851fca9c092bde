"""Trains a LightningModule on the rows of a rank: what each rank of Lightning's estimator runs, with a real Trainer."""

from __future__ import annotations

import copy
import importlib
import math
from dataclasses import replace
from typing import Any

import torch

import spark_estimator.torch as hvd
from spark_estimator.estimators.lightning.callbacks import EpochSums, average_logged, make_callback, make_strategy
from spark_estimator.estimators.lightning.checkpoint import CheckpointWriter, FreshStart, ResumedStart, get_rates
from spark_estimator.estimators.lightning.identity import make_identity
from spark_estimator.estimators.lightning.legacy import adapter_class
from spark_estimator.estimators.lightning.loaders import RowLoader
from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.lightning.rank_state import add_logged_values, get_logged_values, log_earlier_values
from spark_estimator.estimators.lightning.trainer_arguments import make_trainer_arguments, silence_lightning
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Saver, describe_epoch
from spark_estimator.estimators.persistence.resumed_run import describe_loss, describe_return
from spark_estimator.estimators.rank_run import (
    RankRun,
    average_time,
    begin,
    check_loss,
    make_meter,
    record_epoch,
    to_averages,
)
from spark_estimator.estimators.restarting import Round, train_in_rounds
from spark_estimator.estimators.torch.checkpoint import TorchForm, pack
from spark_estimator.estimators.torch.epoch_means import counts_rows, make_results
from spark_estimator.estimators.torch.exchange import make_local_options
from spark_estimator.estimators.torch.rank_state import seed_generators, seed_start
from spark_estimator.estimators.torch.training import find_left_out
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.estimators.training_progress import TrainingProgress
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Train on every rank. Return the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. PyTorch's, Python's and NumPy's generators are seeded for each epoch from
    seed, epoch and rank, and their state is in checkpoints within an epoch, so that such a run ends with the same
    numbers as one that was never interrupted. In an elastic job all ranks continue from there when one is lost
    (`restarting`).
    """
    hvd.init()
    return train_in_rounds(spec, _train_once)


def _train_once(spec: TrainSpec, present: Round) -> TrainResult | None:
    """Begin the training, or continue it from its checkpoint. Return the result on rank 0. A collective."""
    with Saver(spec, TorchForm()) as saver:
        rank_run = begin(spec, make_identity, TorchForm(), read=present.read)
        training = _Training(spec, rank_run, saver, present)
        training.run(rank_run.kept)
        if hvd.rank() != 0:
            return None
        return rank_run.make_result(spec, pack(training.get_numbers()), training.progress.history, "model.pt")


class _Training:
    """The module and its Trainer; what `EpochSums` calls of it are Lightning's hooks."""

    def __init__(self, spec: TrainSpec, rank_run: RankRun, saver: Saver, present: Round) -> None:
        parts: LightningParts = spec.framework
        rows, validation_rows, kept = rank_run.rows, rank_run.held, rank_run.kept
        self.progress = TrainingProgress(spec.patience, spec.restore_best, spec.monitor, spec.mode)
        self._spec = spec
        self._parts = parts
        self._seed = rank_run.seed
        self._round = present
        self._trainer: Any = None
        needs_spread = spec.checkpoints_within or (kept is not None and kept.cursor is not None)
        spread = rows.compute_spread() if needs_spread else []
        self._start = FreshStart() if kept is None else ResumedStart(kept, spread)
        self._checkpoints = CheckpointWriter(spec, rank_run, saver, spread)
        #: What this rank had logged in the epoch before the checkpoint from which it continues.
        self._logged: dict[str, dict[str, Any]] = {}
        silence_lightning(parts.flavour, spec.verbose)
        self._meter = make_meter(spec)
        order = self._seed if spec.shuffle else None
        # A plain module's labels get their shapes where its outputs are known.
        shapes = parts.label_shapes if parts.plain is None else None
        size = spec.batch_size, spec.train_steps
        self._train = RowLoader(rows, spec, order, *size, shapes, self._handle_batch_end)
        if validation_rows is not None:
            size = spec.val_batch_size, spec.validation_steps
        self._held = None if validation_rows is None else RowLoader(validation_rows, spec, None, *size, shapes)
        self._arguments = make_trainer_arguments(spec, parts)
        plain = parts.plain
        self._watch = EpochSums(
            self._train,
            self._held,
            0 if plain is None else sum(len(group) for group in plain.metrics),
            self,
            # As in TorchEstimator gradients of several batches are added up, of which Lightning makes means.
            multiplied=1 if plain is None else int(self._arguments.get("accumulate_grad_batches") or 1),
            joint=not parts.steps_locally,
            stop_on_nan=parts.stop_on_nan,
            meter=self._meter,
        )
        if plain is None:
            self.module: Any = parts.model
        else:
            weight = None if spec.weight is None else spec.weight.names[0]
            labels = [field.names[0] for field in spec.labels]
            plain = replace(plain, leaving_out=find_left_out(plain, spec, rank_run))
            self.module = adapter_class(parts.flavour)(plain, spec.inputs, labels, weight)
            self.module.counted = lambda: self._watch.counted
            self.module.model.train()
        if kept is not None:
            self.progress.history, self.progress.best = list(kept.history), kept.best
            again = kept.cursor is not None and not self._start.is_within
            self._tell(describe_return(spec.run_id, kept, spec.epochs, again=again, lost=present.lost))
        elif present.lost is not None:
            self._tell(describe_loss(spec.run_id, present.lost))

    def _tell(self, line: str) -> None:
        if hvd.rank() == 0 and self._spec.verbose:
            log_to_driver(line)

    def run(self, kept: Checkpoint | None) -> None:
        """Train the epochs that are left. Collective."""
        if kept is not None and self._has_ended(kept):
            self.module.on_load_checkpoint(kept.state["lightning"])
            self.module.configure_model()  # has the layers that it makes late
            self.module.load_state_dict(kept.state["lightning"]["state_dict"])
            return
        parts = self._parts
        seed_start(self._seed)
        trainer = self._trainer = importlib.import_module(parts.flavour).Trainer(
            **self._arguments,
            strategy=make_strategy(parts.flavour, self._watch, self._spec.verbose, **self._make_strategy_options()),
            callbacks=[make_callback(parts.flavour, self._watch), *parts.callbacks],
        )
        self._start.begin(trainer)
        if parts.compile is not None:
            # Not its steps, which log what PyTorch's compiler may fail on, but what they call.
            for each in (self.module, *self.module.children()):
                if not counts_rows(each):
                    each.forward = torch.compile(each.forward, **parts.compile)
        trainer.fit(self.module, self._train, self._held)

    def _make_strategy_options(self) -> dict[str, Any]:
        """Return the strategy's arguments."""
        parts = self._parts
        if parts.steps_locally:
            return {"sync": parts.sync, "sync_options": make_local_options(parts.compression, parts.inner_steps)}
        compression = parts.compression or hvd.Compression.none
        return {"compression": compression, "scale_lr": parts.scale_lr}

    def _has_ended(self, checkpoint: Checkpoint) -> bool:
        """Return whether a resumed run has already trained all of its epochs, or was ended early."""
        most = self._arguments["max_epochs"]
        had = most is not None and 0 <= most <= len(checkpoint.history)
        return had or self.progress.is_over or bool(checkpoint.state["ended"])

    def get_numbers(self) -> Any:
        """Return the state to return: of the best epoch if `restore_best` is set, else of the last."""
        return self.progress.best or self._inside.state_dict()

    @property
    def _inside(self) -> Any:
        """Return the user's module."""
        return self.module if self._parts.plain is None else self.module.model

    def fit_starts(self, trainer: Any) -> None:
        # Loaders choose the seeds of their workers before the hooks of the epoch.
        seed_generators(self._seed, int(trainer.current_epoch))
        self._start.restore(trainer, self.module)

    def train_starts(self, trainer: Any) -> None:
        self._start.restore_optimizers(trainer)

    def epoch_starts(self, trainer: Any) -> None:
        self._start.take_settings(trainer)
        if not self._start.is_within:  # Lightning 2.4 also begins an epoch that continues
            self._start = FreshStart()
        self._begin_steps(0, get_rates(trainer) if self._spec.checkpoints_within else None)
        seed_generators(self._seed, int(trainer.current_epoch))

    def _begin_steps(self, done: int, rates: dict[str, Any] | None) -> None:
        """Begin an epoch, which had these rates then, or continue it after some batches."""
        self._round.reach(len(self.progress.history), done)
        self._checkpoints.begin_epoch(self._watch.validations, rates)

    def _handle_batch_end(self, done: int) -> None:
        """Handle the moment after `done` batches of the epoch, with their hooks and validations, before the next.
        Collective.

        Writes a checkpoint if one is due, or continues from one.
        """
        trainer = self._trainer
        if self._start.is_within:
            start, self._start = self._start, FreshStart()
            self._logged = start.continue_epoch(trainer, self.module, self._watch, done)
            self._begin_steps(done, start.rates)
            return
        self._add_logged(trainer)
        self._round.reach(len(self.progress.history), done)
        if self._checkpoints.is_due(trainer, self.module, self._watch.validations, done):
            place = done, self._train.count_rows_done(done)
            counted = {"watch": self._watch.get_state(), "logged": {**self._logged, **get_logged_values(trainer)}}
            self._checkpoints.save_within(trainer, self.module, self.progress, place, counted)

    def _add_logged(self, trainer: Any) -> None:
        if self._logged:
            add_logged_values(trainer, self._logged)

    def epoch_ends(self, trainer: Any) -> None:
        """End the epoch: what was logged before the checkpoint alone belongs to it."""
        self._add_logged(trainer)
        log_earlier_values(self.module, self._logged)
        self._logged = {}

    def epoch_ended(self, trainer: Any) -> None:
        spec = self._spec
        if spec.checkpoint_path is not None or spec.restore_best:  # a validation has done it already
            trainer.strategy.synchronize_parameters()
        entry = self._make_entry(trainer)
        self._meter.end_epoch(to_averages(entry))
        self.progress.add(entry, lambda: copy.deepcopy(self._inside.state_dict()))
        record_epoch(spec, entry)
        self._round.reach(len(self.progress.history))
        if spec.checkpoint_path is not None:
            self._checkpoints.save(trainer, self.module, self.progress)
        if self.progress.is_over:
            trainer.should_stop = True
        self._tell(self._describe_epoch(entry))
        if not trainer.should_stop and len(self.progress.history) != self._arguments["max_epochs"]:
            self._round.let_join(self._checkpoints.saver)

    def _make_entry(self, trainer: Any) -> dict[str, Any]:
        """Return an epoch's entry in the history. A collective."""
        result = average_logged(trainer.callback_metrics)
        entry: dict[str, Any] = {"epoch": len(self.progress.history)}
        for part, names in (("train", ("train_loss", "loss")), ("validation", ("val_loss",))):
            means = self._watch.compute_averages(part)
            if not means and part in self._watch.seen:  # a step that returns no loss may have logged it
                means = [result[name] for name in names if name in result][:1]
            if means:
                entry[part] = self._make_results(means)
        entry.setdefault("train", {"loss": math.nan, "all_metrics": []})
        entry["time"] = average_time(self._meter)
        loss = entry["train"]["loss"]
        if self.module.automatic_optimization:
            check_loss(loss, entry["epoch"], multiplied=self._parts.plain is not None)
        if self._parts.plain is None and result:
            entry["logged"] = result
        return entry

    def _make_results(self, means: list[float]) -> dict[str, Any]:
        plain, left = self._parts.plain, iter(means[1:])
        if plain is None:
            return {"loss": means[0], "all_metrics": []}
        return make_results(means[0], [[next(left) for _ in group] for group in plain.metrics], plain)

    def _describe_epoch(self, entry: dict[str, Any]) -> str:
        metrics = {
            name: value for name, value in entry.get("logged", {}).items() if name not in ("train_loss", "val_loss")
        }
        return ", ".join(
            [
                describe_epoch(entry, max(self._arguments["max_epochs"] or 0, len(self.progress.history))),
                *(f"{name} {value:.4g}" for name, value in metrics.items()),
            ]
        )
