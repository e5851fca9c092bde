"""Trains a Keras model on the rows of a rank: what every rank of `KerasEstimator.fit` runs, once Keras is chosen."""

from __future__ import annotations

from typing import Any

from spark_estimator.collectives import context
from spark_estimator.estimators import data_modules
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
    line_of_return,
)
from spark_estimator.estimators.persistence.run_identity import Identity, of_rows_and_parameters
from spark_estimator.estimators.rank_run import RankRun, begin, check_loss, record_epoch
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. Random numbers are seeded for each epoch from seed, epoch and rank, and their
    state is in checkpoints within an epoch, so that such a run ends with the same numbers as one without interruption.
    """
    rank, size = context.rank(), context.size()
    with Saver(spec, KerasForm()) as saver, data_modules.opened(spec, rank, size) as brought:
        return _trained(spec, begin(spec, _identity_of, KerasForm(), brought), saver)


def _trained(spec: TrainSpec, beginning: RankRun, saver: Saver) -> TrainResult | None:
    parts: KerasParts = spec.framework
    rows, held, seed, kept = beginning.rows, beginning.held, beginning.seed, beginning.kept
    loop = Loop(spec, seed, rows)
    progress = TrainingProgress(spec.patience, spec.restore_best)
    spread = rows.spread() if spec.checkpoints_within or (kept is not None and kept.cursor is not None) else []
    cursor: Cursor | None = None
    callbacks = KerasCallbacks(parts, loop.model, spec.epochs, rows.plan(spec.batch_size, spec.train_steps).steps)
    if kept is not None:
        again = kept.cursor is not None and kept.cursor.spread != spread
        cursor = None if again else kept.cursor
        loop.take(kept, within=cursor is not None)
        progress.history = kept.history
        progress.best = kept.best
        callbacks.take(kept.state["callback"])
        if context.rank() == 0 and spec.verbose:
            log_to_driver(line_of_return(spec.run_id, kept, spec.epochs, again=again))

    def save(place: Cursor | None = None) -> None:
        ranks = loop.of_ranks(within=place is not None)
        if context.rank() == 0:
            state = {**loop.state(), "callback": callbacks.state()}
            saver.save(
                Checkpoint(beginning.identity, seed, state, progress.history, progress.best, ranks, cursor=place)
            )

    def save_within(steps: int, done: int) -> None:
        save(Cursor(steps, done, spread))

    callbacks.on_train_begin()
    while len(progress.history) < spec.epochs and not progress.is_over and not callbacks.want_to_stop:
        epoch = len(progress.history)
        callbacks.on_epoch_begin(epoch)
        steps, cursor = 0 if cursor is None else cursor.steps, None
        entry: dict[str, Any] = {"epoch": epoch, "train": loop.train(rows, epoch, steps, callbacks, save_within)}
        check_loss(entry["train"].get("loss", 0.0), epoch, rows if spec.has_stored_rows else None, spec.fields)
        if held is not None:
            entry["validation"] = loop.evaluate(held, callbacks)
        callbacks.on_epoch_end(epoch, entry)
        loop.meter.end_epoch(averages_of(entry))
        progress.add(entry, lambda: values_of(loop.model.weights))
        record_epoch(spec, entry)
        if spec.checkpoint_path is not None:
            save()
        if context.rank() == 0 and spec.verbose:
            log_to_driver(line_of(entry, spec.epochs))
    callbacks.on_train_end(flattened(progress.history[-1]) if progress.history else {})
    if context.rank() != 0:
        return None
    if progress.best is not None:
        assign(loop.model.weights, progress.best)
    else:
        callbacks.give_back()
    return beginning.result(spec, dumped(loop.model), progress.history, "model.keras")


def _identity_of(spec: TrainSpec, checksums: list[int]) -> Identity:
    parts: KerasParts = spec.framework
    return {**of_rows_and_parameters(spec, checksums), **parts.identity}
