"""Trains a LightningModule on the rows of a rank: what each rank of Lightning's estimator runs, with a real Trainer."""

from __future__ import annotations

import copy
import importlib
import math
from dataclasses import replace
from typing import Any

import spark_estimator.torch as hvd
from spark_estimator.checkpoint.schedule import Schedule
from spark_estimator.estimators.lightning.callbacks import EpochSums, callback_of, logged, strategy_of
from spark_estimator.estimators.lightning.checkpoint import (
    begin_after,
    forget_restart,
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
from spark_estimator.estimators.lightning.rank_state import (
    add_logged_values,
    log_earlier_values,
    logged_values,
    metric_states,
    take_metric_states,
)
from spark_estimator.estimators.lightning.trainer_arguments import make_trainer_arguments, quiet_lightning
from spark_estimator.estimators.persistence.checkpoint import (
    Checkpoint,
    Cursor,
    Saver,
    TrainingProgress,
    line_of,
    schedule_of,
)
from spark_estimator.estimators.persistence.resumed_run import line_of_loss, line_of_return
from spark_estimator.estimators.rank_run import (
    RankRun,
    averages_of,
    begin,
    check_loss,
    meter_of,
    record_epoch,
)
from spark_estimator.estimators.restarting import Round, train_in_rounds
from spark_estimator.estimators.torch.checkpoint import TorchForm, packed
from spark_estimator.estimators.torch.epoch_means import results_of
from spark_estimator.estimators.torch.exchange import local_options
from spark_estimator.estimators.torch.rank_state import (
    gathered,
    rng_state,
    seed_generators,
    seed_start,
    set_rng_state,
)
from spark_estimator.estimators.torch.training import leaving_out
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. PyTorch's, Python's and NumPy's generators are seeded for each epoch from seed,
    epoch and rank, and their state is in checkpoints within an epoch, so that such a run ends with the same numbers as
    one that was never interrupted. In an elastic job all ranks continue from there when one is lost (`restarting`).
    """
    hvd.init()
    return train_in_rounds(spec, _train_once)


def _train_once(spec: TrainSpec, present: Round) -> TrainResult | None:
    """Begins the training, or continues it from its checkpoint. Returns the result on rank 0. A collective."""
    with Saver(spec, TorchForm()) as saver:
        beginning = begin(spec, identity_of, TorchForm(), read=present.read)
        training = _Training(spec, beginning, saver, present)
        training.run()
        if hvd.rank() != 0:
            return None
        return beginning.result(spec, packed(training.numbers()), training.progress.history, "model.pt")


class _Training:
    """The module and its Trainer."""

    def __init__(self, spec: TrainSpec, beginning: RankRun, saver: Saver, present: Round) -> None:
        parts: LightningParts = spec.framework
        rows, held, seed = beginning.rows, beginning.held, beginning.seed
        self.progress = TrainingProgress(spec.patience, spec.restore_best)
        self._spec = spec
        self._parts = parts
        self._seed = seed
        self._known = beginning.known
        self._round = present
        self._saver = saver
        self._kept = beginning.kept
        self._tells = self._kept is None  # what the next checkpoint leaves out
        self._settings: dict[str, Any] | None = None
        self._trainer: Any = None
        self._schedule: Schedule | None = None
        self._is_due = False
        self._counts = 0, 0  # validations that had ended, and optimizer steps, before the last batch
        needs_spread = spec.checkpoints_within or (self._kept is not None and self._kept.cursor is not None)
        self._spread = rows.spread() if needs_spread else []
        #: What this rank had, if the training continues within an epoch, until it does; then what it had logged.
        self._within: dict[str, Any] | None = None
        self._logged: dict[str, dict[str, Any]] = {}
        self._package: Any = importlib.import_module(parts.flavour)
        quiet_lightning(parts.flavour, spec.verbose)
        self._meter = meter_of(spec)
        order = seed if spec.shuffle else None
        # A plain module's labels get their shapes where its outputs are known.
        shapes = parts.label_shapes if parts.plain is None else None
        size = spec.batch_size, spec.train_steps
        self._train = RowLoader(rows, spec, order, *size, shapes, self._between_batches)
        self._held: RowLoader | None = None
        if held is not None:
            self._held = RowLoader(held, spec, None, spec.val_batch_size, spec.validation_steps, shapes)
        self._arguments = make_trainer_arguments(spec, parts)
        plain = parts.plain
        self._watch = EpochSums(
            self._train,
            self._held,
            0 if plain is None else sum(len(group) for group in plain.metrics),
            begin=self._epoch_begins,
            end=self._epoch_ended,
            restore=self._take_up,
            run=self._training_begins,
            last=self._log_earlier,
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
            plain = replace(plain, leaving_out=leaving_out(plain, spec, beginning))
            self.module = adapter_class(parts.flavour)(plain, spec.inputs, labels, weight)
            self.module.counted = lambda: self._watch.counted
            self.module.model.train()
        if self._kept is not None:
            self._take_over(self._kept)
        elif present.lost is not None:
            self._tell(line_of_loss(spec.run_id, present.lost))

    def _take_over(self, kept: Checkpoint) -> None:
        """Continues where a checkpoint was taken."""
        spec, lost = self._spec, self._round.lost
        again = kept.cursor is not None and kept.cursor.spread != self._spread
        self._settings = kept.state.get("settings")
        self.progress.history, self.progress.best = list(kept.history), kept.best
        if kept.cursor is not None and not again:
            self._within = kept.ranks[hvd.rank()]
        self._tell(line_of_return(spec.run_id, kept, spec.epochs, again=again, lost=lost))

    def _tell(self, line: str) -> None:
        if hvd.rank() == 0 and self._spec.verbose:
            log_to_driver(line)

    def run(self) -> None:
        """The epochs that are left. Collective."""
        if self._kept is not None and self._has_ended(self._kept):
            self._take_model(self._kept.state["lightning"])
            return
        parts = self._parts
        seed_start(self._seed)
        strategy = strategy_of(parts.flavour, self._watch, self._spec.verbose, **self._exchange())
        trainer = self._trainer = self._package.Trainer(
            **self._arguments,
            strategy=strategy,
            callbacks=[callback_of(parts.flavour, self._watch), *parts.callbacks],
        )
        if self._kept is not None:
            begin_after(trainer, self._kept.state["lightning"], within=self._within is not None)
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
        self._take_settings(trainer)
        self._begin_steps(0)
        seed_generators(self._seed, int(trainer.current_epoch))

    def _take_settings(self, trainer: Any) -> None:
        # Not before: callbacks look at the Trainer's own in on_train_start.
        settings, self._settings = self._settings, None
        if settings is not None:
            take_settings(trainer, settings)

    def _begin_steps(self, done: int) -> None:
        """An epoch begins, or continues after some batches."""
        self._round.reach(len(self.progress.history), done)
        self._schedule, self._is_due = schedule_of(self._spec), False
        self._counts = self._watch.validations, 0

    def _training_begins(self, trainer: Any) -> None:
        """All hooks ``on_fit_start`` have run, which may have added groups of parameters to the optimizer."""
        if self._kept is None:
            return
        restore_optimizers(trainer, self._kept.state["lightning"])
        if len(self._kept.ranks) == hvd.size():
            trainer.callback_metrics.update(self._kept.ranks[hvd.rank()].get("callback_metrics", {}))

    def _take_up(self, trainer: Any) -> None:
        # Loaders choose the seeds of their workers before the hooks of the epoch.
        seed_generators(self._seed, int(trainer.current_epoch))
        if self._kept is not None:
            ranks = self._kept.ranks
            rank_state = ranks[hvd.rank()] if len(ranks) == hvd.size() else None
            restore(trainer, self.module, self._kept.state["lightning"], rank_state)

    def _between_batches(self, done: int) -> None:
        """`done` batches of the epoch are done, with their hooks and validations, and no other has begun. Collective.

        Writes a checkpoint if one is due, or continues from one.
        """
        trainer = self._trainer
        if self._within is not None:
            self._continue_within(done)
            return
        self._add_logged(trainer)
        self._round.reach(len(self.progress.history), done)
        # Lightning would repeat a validation that is right before a checkpoint.
        before, self._counts = self._counts, (self._watch.validations, int(trainer.global_step))
        validated, stepped = (count != earlier for count, earlier in zip(self._counts, before, strict=True))
        if self._schedule is None:
            return
        self._is_due = self._is_due or self._schedule.is_due()
        # A checkpoint has no gradients that wait for their step; a module that optimizes by hand decides when it is.
        by_hand = not self.module.automatic_optimization
        complete = stepped if by_hand else done % trainer.accumulate_grad_batches == 0
        if self._is_due and not validated and complete:
            assert self._train is not None
            self._save(trainer, Cursor(done, self._train.rows_done(done), self._spread))
            self._schedule.made()
            self._is_due = False

    def _continue_within(self, done: int) -> None:
        """Gives this rank what it had when the checkpoint was taken."""
        trainer, state, self._within = self._trainer, self._within, None
        assert state is not None
        forget_restart(trainer)
        self._take_settings(trainer)
        self._begin_steps(done)
        self._watch.resume(trainer, state["watch"], done)
        take_metric_states(self.module, state["metrics"])
        self._logged = dict(state["logged"])
        set_rng_state(trainer.strategy.root_device, state)

    def _add_logged(self, trainer: Any) -> None:
        if self._logged:
            add_logged_values(trainer, self._logged)

    def _log_earlier(self, trainer: Any) -> None:
        """The epoch ends: what was logged before the checkpoint alone belongs to it."""
        self._add_logged(trainer)
        log_earlier_values(self.module, self._logged)
        self._logged = {}

    def _save(self, trainer: Any, place: Cursor | None = None) -> None:
        """Has a checkpoint written. A collective.

        Args:
            place: within the epoch; None: between two epochs.
        """
        ranks = gathered(self.module, trainer.strategy.root_device)
        here: dict[str, Any] = {"callback_metrics": dict(trainer.callback_metrics)}
        if place is not None:
            here |= rng_state(trainer.strategy.root_device)
            here |= {"watch": self._watch.state(), "metrics": metric_states(self.module)}
            here |= {"logged": {**self._logged, **logged_values(trainer)}}
        states = hvd.allgather_object(here, name="what each rank has of Lightning")
        least = len(self.progress.history) >= (trainer.min_epochs or 0)
        ended = trainer.should_stop and least and trainer.global_step >= (trainer.min_steps or 0)
        tells, self._tells = self._tells, False
        state = {
            "lightning": plain_checkpoint(trainer, tells=tells),
            "ended": bool(ended) and place is None,
            "settings": settings_of(trainer),
        }
        if hvd.rank() == 0:
            self._saver.save(
                Checkpoint(
                    self._known.identity,
                    self._seed,
                    state,
                    self.progress.history,
                    self.progress.best,
                    [{**each, **more} for each, more in zip(ranks, states, strict=True)],
                    cursor=place,
                    initial=self._known.initial,
                )
            )

    def _epoch_ended(self, trainer: Any) -> None:
        spec = self._spec
        if spec.checkpoint_path is not None or spec.restore_best:  # a validation has done it already
            trainer.strategy.synchronize_parameters()
        entry = self._entry(trainer)
        self._meter.end_epoch(averages_of(entry))
        self.progress.add(entry, lambda: copy.deepcopy(self._inside.state_dict()))
        record_epoch(spec, entry)
        self._round.reach(len(self.progress.history))
        if spec.checkpoint_path is not None:
            self._save(trainer)
        if self.progress.is_over:
            trainer.should_stop = True
        self._tell(self._line(entry))
        if not trainer.should_stop and len(self.progress.history) != self._arguments["max_epochs"]:
            self._round.let_join(self._saver)

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


def _configured(module: Any) -> Any:
    """The module, with the layers that it makes late."""
    module.configure_model()
    return module
