"""Trains a Keras model on the rows of a rank: what every rank of `KerasEstimator.fit` runs, once Keras is chosen."""

from __future__ import annotations

import functools
from typing import Any

from spark_estimator.collectives import context
from spark_estimator.estimators.keras.callbacks import KerasCallbacks
from spark_estimator.estimators.keras.checkpoint import KerasForm
from spark_estimator.estimators.keras.history import describe_epoch, flatten_entry, to_averages
from spark_estimator.estimators.keras.loop import Loop
from spark_estimator.estimators.keras.objects import assign, dump_model, get_values
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Cursor, Saver
from spark_estimator.estimators.persistence.resumed_run import describe_loss, describe_return
from spark_estimator.estimators.persistence.run_identity import Identity, make_base_identity
from spark_estimator.estimators.rank_run import RankRun, average_time, begin, check_loss, record_epoch
from spark_estimator.estimators.restarting import Round, train_in_rounds
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.estimators.training_progress import TrainingProgress
from spark_estimator.keras.elastic import restore_engine_errors
from spark_estimator.keras.optimizers import finalize
from spark_estimator.keras.rates import rescale_rate
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Train on every rank. Return the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. Random numbers are seeded for each epoch from seed, epoch and rank, and
    their state is in checkpoints within an epoch, so that such a run ends with the same numbers as one without
    interruption. In an elastic job all ranks continue from there when one is lost (`restarting`).
    """
    return train_in_rounds(spec, restore_engine_errors(_train_once))


def _train_once(spec: TrainSpec, present: Round) -> TrainResult | None:
    """Begin the training, or continue it from its checkpoint. Return the result on rank 0. A collective."""
    with Saver(spec, KerasForm()) as saver:
        rank_run = begin(spec, _make_identity, KerasForm(), read=present.read)
        training = _KerasTraining(spec, saver, present, rank_run)
        training.loop.broadcast()
        return training.run(rank_run, training.begin(rank_run))


class _KerasTraining:
    """The epochs of one training, on one rank.

    Attributes:
        progress: the epochs so far.
        loop: has the model.
        callbacks: the user's.
    """

    def __init__(self, spec: TrainSpec, saver: Saver, present: Round, rank_run: RankRun) -> None:
        self.progress = TrainingProgress(spec.patience, spec.restore_best, spec.monitor, spec.mode)
        self._spec = spec
        self._saver = saver
        self._round = present
        self._has_ended = False  # a callback has ended the training
        self._has_begun_epoch = False  # the callbacks had ``on_epoch_begin`` of the present epoch
        rows = rank_run.rows
        self.loop = Loop(spec, rank_run.seed, rows)
        steps = rows.make_plan(spec.batch_size, spec.train_steps).steps
        self.callbacks = KerasCallbacks(spec.framework, self.loop.model, spec.epochs, steps)

    def begin(self, rank_run: RankRun) -> int:
        """Begin, or take over the checkpoint. Return the steps of the next epoch that are done. A collective."""
        checkpoint, spec, lost = rank_run.kept, self._spec, self._round.lost
        tells = context.rank() == 0 and bool(spec.verbose)
        if checkpoint is None:
            if tells and lost is not None:
                log_to_driver(describe_loss(spec.run_id, lost))
            self.callbacks.on_train_begin()
            return 0
        again = checkpoint.cursor is not None and checkpoint.cursor.spread != rank_run.rows.compute_spread()
        cursor = None if again else checkpoint.cursor
        self.loop.restore(checkpoint, within=cursor is not None)
        self.progress.history, self.progress.best = list(checkpoint.history), checkpoint.best
        self.callbacks.on_train_begin()
        self.callbacks.restore(checkpoint.state["callback"])
        self._has_ended = bool(checkpoint.state["ended"])
        self._has_begun_epoch = cursor is not None
        if cursor is not None and checkpoint.state["stopping"]:
            self.callbacks.stop()
        if tells:
            log_to_driver(describe_return(spec.run_id, checkpoint, spec.epochs, again=again, lost=lost))
        return 0 if cursor is None else cursor.steps

    def run(self, rank_run: RankRun, steps: int) -> TrainResult | None:
        """Train to the end. Return the result on rank 0. A collective.

        Args:
            steps: of the epoch after those of `progress` that are done.
        """
        spec, loop, callbacks, progress = self._spec, self.loop, self.callbacks, self.progress
        rows, validation_rows = rank_run.rows, rank_run.held
        spread = rows.compute_spread() if spec.checkpoints_within else []

        def save_within(steps: int, done: int) -> None:
            self._save(rank_run, Cursor(steps, done, spread))

        while not self._is_over():
            epoch = len(progress.history)
            reach = functools.partial(self._round.reach, epoch)
            reach(steps)
            if not self._has_begun_epoch:
                callbacks.on_epoch_begin(epoch)
            averages = loop.train(rows, epoch, steps, callbacks, save_within, reach)
            steps, self._has_begun_epoch = 0, False
            entry: dict[str, Any] = {"epoch": epoch, "train": averages, "time": average_time(loop.meter)}
            check_loss(entry["train"].get("loss", 0.0), epoch, rows if spec.has_stored_rows else None, spec.fields)
            if validation_rows is not None:
                entry["validation"] = loop.evaluate(validation_rows, callbacks)
            callbacks.on_epoch_end(epoch, entry)
            self._has_ended = callbacks.want_to_stop
            loop.meter.end_epoch(to_averages(entry))
            progress.add(entry, lambda: get_values(loop.model.weights))
            record_epoch(spec, entry)
            if spec.checkpoint_path is not None:
                self._save(rank_run)
            if context.rank() == 0 and spec.verbose:
                log_to_driver(describe_epoch(entry, spec.epochs))
            if not self._is_over():
                self._round.let_join(self._saver)
        finalize(loop.model.optimizer, loop.model.trainable_variables)
        callbacks.on_train_end(flatten_entry(progress.history[-1]) if progress.history else {})
        if context.rank() != 0:
            return None
        rescale_rate(loop.model.optimizer, context.size(), 1)  # as Horovod does, for the next training
        if progress.best is not None:
            assign(loop.model.weights, progress.best)
        else:
            callbacks.load_best_weights()
        return rank_run.make_result(spec, dump_model(loop.model), progress.history, "model.keras")

    def _is_over(self) -> bool:
        return len(self.progress.history) >= self._spec.epochs or self.progress.is_over or self._has_ended

    def _save(self, rank_run: RankRun, cursor: Cursor | None = None) -> None:
        ranks = self.loop.gather_states(within=cursor is not None)
        stopping = cursor is not None and self.callbacks.is_stopping()
        if context.rank() == 0:
            progress = self.progress
            ends = {"ended": self._has_ended, "stopping": stopping}
            state = {**self.loop.get_state(), "callback": self.callbacks.get_state(), **ends}
            self._saver.save(
                Checkpoint(
                    rank_run.identity,
                    rank_run.seed,
                    state,
                    progress.history,
                    progress.best,
                    ranks,
                    cursor=cursor,
                    initial=rank_run.known.initial,
                )
            )


def _make_identity(spec: TrainSpec, checksums: list[int]) -> Identity:
    parts: KerasParts = spec.framework
    return {**make_base_identity(spec, checksums), **parts.identity}
