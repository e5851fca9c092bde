"""Trains a Keras model on the rows of a rank: what every rank of `KerasEstimator.fit` runs, once Keras is chosen."""

from __future__ import annotations

from typing import Any

import numpy

from spark_estimator.collectives import arrays, context
from spark_estimator.data.rank_rows import RankRows, balanced
from spark_estimator.errors import DataError
from spark_estimator.estimators import way_back
from spark_estimator.estimators.checkpoint import Checkpoint, Cursor, Progress, Saver, line_of_return, load
from spark_estimator.estimators.identity import of_rows_and_parameters
from spark_estimator.estimators.keras_callbacks import Callbacks
from spark_estimator.estimators.keras_checkpoint import KerasForm
from spark_estimator.estimators.keras_history import flattened, line_of
from spark_estimator.estimators.keras_loop import Loop
from spark_estimator.estimators.keras_objects import assign, dumped, values_of
from spark_estimator.estimators.keras_spec import KerasParts
from spark_estimator.estimators.supply import own_rows
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns what rank 0 brings back; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint is there goes on from it. What chance decides is drawn anew for each epoch from seed, epoch and rank, and
    kept within one, so that such a run ends with the same numbers as one that was never interrupted.
    """
    parts: KerasParts = spec.framework
    spool, marked = own_rows(spec)
    rows = balanced(spool, "training", by_value=spec.by_value)
    identity = {} if spec.store is None else {**of_rows_and_parameters(spec, rows.checksum()), **parts.identity}
    kept = load(spec, identity, KerasForm())
    seed = spec.seed if kept is None else kept.seed
    held: RankRows | None = None
    if spec.held_share:
        rows, held = rows.split(spec.held_share, seed)
    elif any(arrays.allgather(numpy.array([marked.rows]), "marked rows")):
        held = balanced(marked, "validation", by_value=spec.by_value)
    loop = Loop(spec, seed, rows)
    progress = Progress(spec.patience, spec.restore_best)
    spread = rows.spread() if spec.checkpoint_steps or (kept is not None and kept.cursor is not None) else []
    begin: Cursor | None = None
    callbacks = Callbacks(parts, loop, spec.epochs, rows.plan(spec.batch_size, spec.train_steps).steps)
    if kept is not None:
        again = kept.cursor is not None and kept.cursor.spread != spread
        begin = None if again else kept.cursor
        loop.take(kept, within=begin is not None)
        progress.history = kept.history
        progress.best = kept.best
        callbacks.take(kept.state["callback"])
        if context.rank() == 0 and spec.verbose:
            log_to_driver(line_of_return(spec.run_id, kept, again))
    saver = Saver(spec, KerasForm())

    def save(cursor: Cursor | None = None) -> None:
        ranks = loop.of_ranks(within=cursor is not None)
        if context.rank() == 0:
            state = {**loop.state(), "callback": callbacks.state()}
            saver.save(Checkpoint(identity, seed, state, progress.history, progress.best, ranks, cursor=cursor))

    def save_within(steps: int, done: int) -> None:
        save(Cursor(steps, done, spread))

    callbacks.on_train_begin()
    while len(progress.history) < spec.epochs and not progress.is_over and not callbacks.want_to_stop:
        epoch = len(progress.history)
        callbacks.on_epoch_begin(epoch)
        steps, begin = 0 if begin is None else begin.steps, None
        entry: dict[str, Any] = {"epoch": epoch, "train": loop.train(rows, epoch, steps, callbacks, save_within)}
        _check(entry["train"], epoch)
        if held is not None and held.total:
            entry["validation"] = loop.evaluate(held, callbacks)
        callbacks.on_epoch_end(epoch, entry)
        progress.add(entry, lambda: values_of(loop.model.weights))
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
    state = dumped(loop.model)
    counts = (rows.total, held.total if held else 0)
    if spec.store is not None and len(state) > spec.large:
        file = way_back.put(spec.store, spec.run_id, state, "model.keras")
        return TrainResult(b"", progress.history, counts, file)
    return TrainResult(state, progress.history, counts)


def _check(found: dict[str, Any], epoch: int) -> None:
    loss = found.get("loss")
    if isinstance(loss, float) and not numpy.isfinite(loss):
        raise DataError(
            f"the loss of epoch {epoch} was {loss}: a column holds NaN, infinity or huge numbers, or the learning rate "
            "is too high (it is multiplied with the number of processes)."
        )
