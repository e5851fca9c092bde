"""Trains a PyTorch model on the rows of a rank: what every rank of `TorchEstimator.fit` runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy

import spark_estimator.torch as hvd
from spark_estimator.collectives import arrays, launcher_link
from spark_estimator.data.fields import Array
from spark_estimator.data.rank.epoch_rows import EpochRows
from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Cursor, Saver, TrainingProgress, line_of
from spark_estimator.estimators.persistence.resumed_run import line_of_return
from spark_estimator.estimators.rank_run import KnownRun, RankRun, ReadRows, averages_of, begin, record_epoch
from spark_estimator.estimators.rows.row_source import rank_rows
from spark_estimator.estimators.torch import recovery
from spark_estimator.estimators.torch.callbacks import TorchCallbacks
from spark_estimator.estimators.torch.checkpoint import TorchForm
from spark_estimator.estimators.torch.epoch_log import epoch_log
from spark_estimator.estimators.torch.identity import identity_of
from spark_estimator.estimators.torch.losses import TorchParts, counts_some, leaves_out
from spark_estimator.estimators.torch.trainer import Trainer
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Train on every rank. Return the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. PyTorch's, Python's and NumPy's random numbers are seeded for each epoch
    from seed, epoch and rank, and their state is in checkpoints within an epoch, so that such a run ends with the
    same numbers as one without interruption.
    In an elastic job it recovers within a step (`recovery`).
    """
    hvd.init()
    with Saver(spec, TorchForm()) as saver, epoch_log(spec, hvd.rank) as log:
        training = Training(spec, saver, log)
        if launcher_link.link() is not None:
            return recovery.recovered(training, spec)
        beginning = training.begin()
        training.trainer.take_size()
        hvd.broadcast_parameters(training.trainer.model.state_dict(), root_rank=0)
        return training.run(beginning, training.leaving(beginning))


class Training:
    """The epochs of one training, on one rank.

    Attributes:
        trainer: has the model.
        progress: the epochs so far.
    """

    def __init__(self, spec: TrainSpec, saver: Saver, log: Callable[[Mapping[str, Any]], None]) -> None:
        self.trainer = Trainer(spec)
        self.progress = TrainingProgress(spec.patience, spec.restore_best)
        self._spec = spec
        self._saver = saver
        self._log = log
        self._callbacks = TorchCallbacks(spec.framework.callbacks)
        self._recorded: int | None = None  # how many epochs this process has logged, or others before it began

    def begin(self, known: KnownRun | None = None, read: ReadRows = rank_rows) -> RankRun:
        """Return what `rank_run.begin` does."""
        return begin(self._spec, identity_of, TorchForm(), known=known, read=read)

    def leaving(self, beginning: RankRun) -> frozenset[int]:
        """Return `TorchParts.leaving_out`. A collective."""
        return leaving_out(self._spec.framework, self._spec, beginning)

    def run(
        self,
        beginning: RankRun,
        leaving: frozenset[int],
        steps: int = 0,
        commits: recovery.Commits | None = None,
        legs: tuple[Mapping[str, Any], ...] = (),
    ) -> TrainResult | None:
        """Train to the end. Return the result on rank 0. A collective.

        Args:
            leaving: `TorchParts.leaving_out`.
            steps: of the epoch after those of `progress` that are done.
            commits: of a training that recovers within a step; None: of others.
            legs: parts of that epoch that other ranks have done, before the steps.
        """
        spec, trainer, progress = self._spec, self.trainer, self.progress
        trainer.begin(beginning.seed, leaving)
        spread = beginning.rows.spread() if self._needs_spread(beginning) else []
        if beginning.kept is not None:
            steps = self._resumed(beginning, spread)
            if commits is not None:
                commits.resumed(progress)
        # The commit at an epoch's end may also end the round, before the epoch was logged.
        for entry in [] if self._recorded is None else progress.history[self._recorded :]:
            self._record(entry)
            self._report(entry)
        self._recorded = len(progress.history)
        self._callbacks.call("on_train_begin", trainer.model, spec.framework.optimizer)
        ended = commits is not None and commits.ended

        def save_within(steps: int, done: int, ranks: list[dict[str, Any]]) -> None:
            self._save(beginning, ranks, Cursor(steps, done, spread))

        while len(progress.history) < spec.epochs and not progress.is_over and not ended:
            epoch = len(progress.history)
            self._callbacks.call("on_epoch_begin", epoch)
            commit = None if commits is None else commits.step
            averages = trainer.train(beginning.rows, epoch, steps, save_within, commit, legs)
            steps, legs = 0, ()
            entry = self._entry(beginning, epoch, averages)
            if commits is None:
                self._record(entry)
            if spec.checkpoint_path is not None:
                self._save(beginning, trainer.of_ranks())
            ended = self._callbacks.ends_after(epoch, entry)
            if commits is not None:
                commits.epoch(progress, ended=ended)
                self._record(entry)  # not before: the epoch's end would be repeated after the loss of a rank
            self._report(entry)
        trainer.synchronize()
        self._callbacks.call("on_train_end")
        if hvd.rank() != 0:
            return None
        return beginning.result(spec, trainer.packed(progress.best), progress.history, "model.pt")

    def _entry(self, beginning: RankRun, epoch: int, averages: dict[str, Any]) -> dict[str, Any]:
        """Add the entry of an epoch to the history, after its validation."""
        spec, trainer = self._spec, self.trainer
        entry: dict[str, Any] = {"epoch": epoch, "train": averages}
        if beginning.held is not None or spec.checkpoint_path is not None or spec.restore_best:
            trainer.synchronize()
        if beginning.held is not None:
            entry["validation"] = trainer.evaluate(beginning.held)
        trainer.meter.end_epoch(averages_of(entry))
        self.progress.add(entry, lambda: copy.deepcopy(trainer.model.state_dict()))
        trainer.schedule(self.progress.watched(entry))
        return entry

    def _record(self, entry: dict[str, Any]) -> None:
        """Log an epoch's entry."""
        self._log(entry)
        record_epoch(self._spec, entry)
        self._recorded = len(self.progress.history)

    def _report(self, entry: dict[str, Any]) -> None:
        """Print a line about an epoch's entry at the driver."""
        if hvd.rank() == 0 and self._spec.verbose:
            log_to_driver(line_of(entry, self._spec.epochs))

    def _save(self, beginning: RankRun, ranks: list[dict[str, Any]], place: Cursor | None = None) -> None:
        if hvd.rank() == 0:
            state, progress = self.trainer.state(), self.progress
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

    def _needs_spread(self, beginning: RankRun) -> bool:
        kept = beginning.kept
        return self._spec.checkpoints_within or (kept is not None and kept.cursor is not None)

    def _resumed(self, beginning: RankRun, spread: list[int]) -> int:
        """Take over the checkpoint. Return the steps of the next epoch that are done."""
        kept, spec = beginning.kept, self._spec
        assert kept is not None
        again = kept.cursor is not None and kept.cursor.spread != spread
        cursor = None if again else kept.cursor
        self.trainer.take(kept, within=cursor is not None)
        self.progress.history, self.progress.best = list(kept.history), kept.best
        if hvd.rank() == 0 and spec.verbose:
            log_to_driver(line_of_return(spec.run_id, kept, spec.epochs, again=again))
        return 0 if cursor is None else cursor.steps


def leaving_out(parts: TorchParts, spec: TrainSpec, beginning: RankRun) -> frozenset[int]:
    """Return `TorchParts.leaving_out`, of the rows of all ranks. A collective.

    Raises:
        DataError: the loss leaves out all rows, for training or validation; or rows have weights, too: without
            the ignored rows, the mean would be neither by rows nor by weights.
    """
    if spec.kept is not None:  # a function makes the labels, in each epoch again
        return frozenset()
    per_label, counted = [], []
    for loss, place in zip(parts.losses, range(len(spec.inputs), len(spec.fields)), strict=False):
        places = [place, len(spec.fields) - 1] if spec.weight else [place]
        pieces = (
            (block[0], block[1] if spec.weight else None)
            for item in (beginning.rows, beginning.held)
            if item is not None
            for block in item.blocks(places)
        )
        per_label.append(leaves_out(loss, pieces))
        counted.append([_learns(loss, item, place) for item in (beginning.rows, beginning.held)])
    here = numpy.array([[per_label, *zip(*counted, strict=True)]], numpy.uint8)
    of_ranks = numpy.logical_or.reduce(arrays.allgather(here, "labels that losses leave out"))
    _check_labels(parts, of_ranks[1:])
    result = numpy.flatnonzero(of_ranks[0])
    if spec.weight and len(result):
        label, loss = spec.labels[result[0]].name, parts.losses[result[0]]
        raise DataError(
            f"column {label!r} holds {loss.ignore_index}, and {loss!r} leaves such rows out, in rows whose weight "
            f"({spec.weight.name!r}) is not 0: give them the weight 0, or drop them."
        )
    return frozenset(result.tolist())


def _learns(loss: Any, rows: EpochRows | None, place: int) -> bool:
    """Return whether some label of a rank's rows counts, or no rank has such rows."""
    return rows is None or counts_some(loss, (block for (block,) in rows.blocks([place])))


def _check_labels(parts: TorchParts, learned: Array) -> None:
    """Raise DataError for labels of which none counts.

    Args:
        learned: [training, validation][labels] whether one counts.
    """
    for purpose, of_labels in zip(("training", "validation"), learned, strict=True):
        for loss, label, learns in zip(parts.losses, parts.labels, of_labels, strict=False):
            if not learns:
                what = f"all of column {label!r} is of the class that {loss!r} leaves out."
                raise DataError(f"the rows for {purpose} have nothing to learn: {parts.nothing_to_learn or what}")
