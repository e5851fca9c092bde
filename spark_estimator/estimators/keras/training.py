"""Trains a Keras model on the rows of a rank: what every rank of `KerasEstimator.fit` runs, once Keras is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_estimator.collectives import context, launcher_link
from spark_estimator.estimators.keras import recovery
from spark_estimator.estimators.keras.callbacks import KerasCallbacks
from spark_estimator.estimators.keras.checkpoint import KerasForm
from spark_estimator.estimators.keras.history import averages_of, flattened, line_of
from spark_estimator.estimators.keras.loop import Loop
from spark_estimator.estimators.keras.objects import assign, dumped, values_of
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.estimators.persistence.checkpoint import (
    Checkpoint,
    Cursor,
    Saver,
    TrainingProgress,
)
from spark_estimator.estimators.persistence.resumed_run import line_of_return
from spark_estimator.estimators.persistence.run_identity import Identity, of_rows_and_parameters
from spark_estimator.estimators.rank_run import KnownRun, RankRun, ReadRows, begin, check_loss, record_epoch
from spark_estimator.estimators.rows.row_source import rank_rows
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.keras.optimizers import finalize
from spark_estimator.keras.rates import rescale_rate
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. Random numbers are seeded for each epoch from seed, epoch and rank, and their
    state is in checkpoints within an epoch, so that such a run ends with the same numbers as one without interruption.
    In an elastic job it recovers within a step (`recovery`).
    """
    with Saver(spec, KerasForm()) as saver:
        training = KerasTraining(spec, saver)
        if launcher_link.link() is not None:
            return recovery.recovered(training, spec)
        beginning = training.begin()
        training.build(beginning)
        training.loop.broadcast()
        steps = training.take(beginning)
        training.callbacks.on_train_begin()
        return training.run(beginning, steps)


class KerasTraining:
    """The epochs of one training, on one rank.

    Attributes:
        progress: the epochs so far.
        loop: has the model; there from `build` on.
        callbacks: the user's; there from `build` on.
    """

    loop: Loop
    callbacks: KerasCallbacks

    def __init__(self, spec: TrainSpec, saver: Saver) -> None:
        self.progress = TrainingProgress(spec.patience, spec.restore_best)
        self._spec = spec
        self._saver = saver

    def begin(self, known: KnownRun | None = None, read: ReadRows = rank_rows) -> RankRun:
        """As `rank_run.begin`."""
        return begin(self._spec, _identity_of, KerasForm(), known=known, read=read)

    def build(self, beginning: RankRun) -> None:
        """Makes the model and the callbacks of this process."""
        spec, rows = self._spec, beginning.rows
        self.loop = Loop(spec, beginning.seed, rows)
        steps = rows.plan(spec.batch_size, spec.train_steps).steps
        self.callbacks = KerasCallbacks(spec.framework, self.loop.model, spec.epochs, steps)

    def take(self, beginning: RankRun) -> int:
        """Takes over the checkpoint, if there is one. Returns the steps of the next epoch that are done. Collective."""
        kept, spec = beginning.kept, self._spec
        if kept is None:
            return 0
        again = kept.cursor is not None and kept.cursor.spread != beginning.rows.spread()
        cursor = None if again else kept.cursor
        self.loop.take(kept, within=cursor is not None)
        self.progress.history, self.progress.best = list(kept.history), kept.best
        self.callbacks.take(kept.state["callback"])
        if context.rank() == 0 and spec.verbose:
            log_to_driver(line_of_return(spec.run_id, kept, spec.epochs, again=again))
        return 0 if cursor is None else cursor.steps

    def run(
        self,
        beginning: RankRun,
        steps: int,
        commits: recovery.KerasCommits | None = None,
        legs: tuple[Mapping[str, Any], ...] = (),
    ) -> TrainResult | None:
        """Trains to the end. Returns the result on rank 0. A collective.

        Args:
            steps: of the epoch after those of `progress` that are done.
            commits: of a training that recovers within a step; None: of others.
            legs: parts of that epoch that other ranks have done, before the steps.
        """
        spec, loop, callbacks, progress = self._spec, self.loop, self.callbacks, self.progress
        rows, held = beginning.rows, beginning.held
        spread = rows.spread() if spec.checkpoints_within else []
        has_begun, ended = (False, False) if commits is None else (commits.has_begun_epoch, commits.has_ended)

        def save_within(steps: int, done: int) -> None:
            self._save(beginning, Cursor(steps, done, spread))

        while len(progress.history) < spec.epochs and not progress.is_over and not ended:
            epoch = len(progress.history)
            if not has_begun:
                callbacks.on_epoch_begin(epoch)
            commit = None if commits is None else commits.step
            averages = loop.train(rows, epoch, steps, callbacks, save_within, commit, legs)
            steps, has_begun, legs = 0, False, ()
            entry: dict[str, Any] = {"epoch": epoch, "train": averages}
            check_loss(entry["train"].get("loss", 0.0), epoch, rows if spec.has_stored_rows else None, spec.fields)
            if held is not None:
                entry["validation"] = loop.evaluate(held, callbacks)
            callbacks.on_epoch_end(epoch, entry)
            ended = callbacks.want_to_stop
            loop.meter.end_epoch(averages_of(entry))
            progress.add(entry, lambda: values_of(loop.model.weights))
            if commits is None:
                record_epoch(spec, entry)
            if spec.checkpoint_path is not None:
                self._save(beginning)
            if commits is not None:
                commits.epoch(progress, ended=ended)
                record_epoch(spec, entry)  # not before: the epoch's end would be repeated after the loss of a rank
            if context.rank() == 0 and spec.verbose:
                log_to_driver(line_of(entry, spec.epochs))
        finalize(loop.model.optimizer, loop.model.trainable_variables)
        callbacks.on_train_end(flattened(progress.history[-1]) if progress.history else {})
        if context.rank() != 0:
            return None
        rescale_rate(loop.model.optimizer, context.size(), 1)  # as Horovod does, for the next training
        if progress.best is not None:
            assign(loop.model.weights, progress.best)
        else:
            callbacks.give_back()
        return beginning.result(spec, dumped(loop.model), progress.history, "model.keras")

    def _save(self, beginning: RankRun, place: Cursor | None = None) -> None:
        ranks = self.loop.of_ranks(within=place is not None)
        if context.rank() == 0:
            state, progress = {**self.loop.state(), "callback": self.callbacks.state()}, self.progress
            self._saver.save(
                Checkpoint(
                    beginning.identity,
                    beginning.seed,
                    state,
                    progress.history,
                    progress.best,
                    ranks,
                    cursor=place,
                    initial=beginning.known.initial,
                )
            )


def _identity_of(spec: TrainSpec, checksums: list[int]) -> Identity:
    parts: KerasParts = spec.framework
    return {**of_rows_and_parameters(spec, checksums), **parts.identity}
