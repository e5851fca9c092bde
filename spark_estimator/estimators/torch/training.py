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
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Cursor, Saver, describe_epoch
from spark_estimator.estimators.persistence.resumed_run import describe_return
from spark_estimator.estimators.rank_run import (
    KnownRun,
    RankRun,
    ReadRows,
    average_time,
    begin,
    record_epoch,
    to_averages,
)
from spark_estimator.estimators.rows.row_source import read_rank_rows
from spark_estimator.estimators.torch import recovery
from spark_estimator.estimators.torch.callbacks import TorchCallbacks
from spark_estimator.estimators.torch.checkpoint import TorchForm
from spark_estimator.estimators.torch.epoch_log import open_log
from spark_estimator.estimators.torch.identity import make_identity
from spark_estimator.estimators.torch.losses import TorchParts, counts_some, leaves_out
from spark_estimator.estimators.torch.trainer import Trainer
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.estimators.training_progress import TrainingProgress
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
    with Saver(spec, TorchForm()) as saver, open_log(spec, hvd.rank) as log:
        training = Training(spec, saver, log)
        if launcher_link.link() is not None:
            return recovery.train_with_recovery(training, spec)
        rank_run = training.begin()
        training.trainer.take_size()
        hvd.broadcast_parameters(training.trainer.model.state_dict(), root_rank=0)
        return training.run(rank_run, training.find_left_out(rank_run))


class Training:
    """The epochs of one training, on one rank.

    Attributes:
        trainer: has the model.
        progress: the epochs so far.
    """

    def __init__(self, spec: TrainSpec, saver: Saver, log: Callable[[Mapping[str, Any]], None]) -> None:
        self.trainer = Trainer(spec)
        self.progress = TrainingProgress(spec.patience, spec.restore_best, spec.monitor, spec.mode)
        self._spec = spec
        self._saver = saver
        self._log = log
        self._callbacks = TorchCallbacks(spec.framework.callbacks)
        self._recorded: int | None = None  # how many epochs this process has logged, or others before it began

    def begin(self, known: KnownRun | None = None, read: ReadRows = read_rank_rows) -> RankRun:
        """Return what `rank_run.begin` does."""
        return begin(self._spec, make_identity, TorchForm(), known=known, read=read)

    def find_left_out(self, rank_run: RankRun) -> frozenset[int]:
        """Return `TorchParts.leaving_out`. A collective."""
        return find_left_out(self._spec.framework, self._spec, rank_run)

    def run(
        self,
        rank_run: RankRun,
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
        trainer.begin(rank_run.seed, leaving)
        spread = rank_run.rows.compute_spread() if self._needs_spread(rank_run) else []
        if rank_run.kept is not None:
            steps = self._resume(rank_run, spread)
            if commits is not None:
                commits.note_resumed(progress)
        # The commit at an epoch's end may also end the round, before the epoch was logged.
        for entry in [] if self._recorded is None else progress.history[self._recorded :]:
            self._record(entry)
            self._report(entry)
        self._recorded = len(progress.history)
        self._callbacks.call("on_train_begin", trainer.model, spec.framework.optimizer)
        ended = commits is not None and commits.ended

        def save_within(steps: int, done: int, ranks: list[dict[str, Any]]) -> None:
            self._save(rank_run, ranks, Cursor(steps, done, spread, progress.within))

        while len(progress.history) < spec.epochs and not progress.is_over and not ended:
            epoch = len(progress.history)
            self._callbacks.call("on_epoch_begin", epoch)
            commit = None if commits is None else commits.step
            batch_calls = self._callbacks.find_calls("on_batch_begin"), self._callbacks.find_calls("on_batch_end")
            validate = self._find_validation(rank_run.held, commits, divided=bool(legs))
            averages = trainer.train(rank_run.rows, epoch, steps, save_within, commit, legs, batch_calls, validate)
            steps, legs = 0, ()
            entry = self._make_entry(rank_run, epoch, averages)
            if commits is None:
                self._record(entry)
            if spec.checkpoint_path is not None:
                self._save(rank_run, trainer.gather_states())
            ended = self._callbacks.call_epoch_end(epoch, entry)
            if commits is not None:
                commits.end_epoch(progress, ended=ended)
                self._record(entry)  # not before: the epoch's end would be repeated after the loss of a rank
            self._report(entry)
        trainer.synchronize()
        self._callbacks.call("on_train_end")
        if hvd.rank() != 0:
            return None
        return rank_run.make_result(spec, trainer.pack_result(progress.best), progress.history, "model.pt")

    def _find_validation(
        self, held: EpochRows | None, commits: recovery.Commits | None, *, divided: bool
    ) -> Callable[[int], bool] | None:
        """Return what validates within an epoch, and returns whether that ends the epoch; None: nothing does.

        Args:
            divided: this is the rest of an epoch that was divided again, which has no validations.
        """
        every, progress, trainer = self._spec.framework.recipe.validate_every_steps, self.progress, self.trainer

        def validate(done: int) -> bool:
            if not divided and done // every > (progress.within[-1]["step"] if progress.within else 0) // every:
                trainer.synchronize()
                results = trainer.evaluate(held)  # type: ignore[arg-type]  # validate() is not returned without
                trainer.model.train()
                progress.add_within(done, results, self._copy_numbers)
                if commits is not None:
                    commits.validate(progress)
                self._report({"epoch": len(progress.history), "validation": results}, f", after step {done}")
            return progress.is_patience_over

        return validate if every and held is not None else None

    def _copy_numbers(self) -> Any:
        return copy.deepcopy(self.trainer.model.state_dict())

    def _make_entry(self, rank_run: RankRun, epoch: int, averages: dict[str, Any]) -> dict[str, Any]:
        """Add the entry of an epoch to the history, after its validation."""
        spec, trainer = self._spec, self.trainer
        entry: dict[str, Any] = {"epoch": epoch, "train": averages, "time": average_time(trainer.meter)}
        if rank_run.held is not None or spec.checkpoint_path is not None or spec.restore_best:
            trainer.synchronize()
        if self.progress.within and self.progress.is_patience_over:  # the epoch has ended right after it
            entry["validation"] = self.progress.within.pop()
        elif rank_run.held is not None:
            entry["validation"] = trainer.evaluate(rank_run.held)
        trainer.meter.end_epoch(to_averages(entry))
        self.progress.add(entry, self._copy_numbers)
        trainer.stepper.rates.end_epoch(entry)
        return entry

    def _record(self, entry: dict[str, Any]) -> None:
        """Log an epoch's entry."""
        self._log(entry)
        record_epoch(self._spec, entry)
        self._recorded = len(self.progress.history)

    def _report(self, entry: dict[str, Any], place: str = "") -> None:
        """Print a line about an epoch's entry at the driver."""
        if hvd.rank() == 0 and self._spec.verbose:
            log_to_driver(describe_epoch(entry, self._spec.epochs) + place)

    def _save(self, rank_run: RankRun, ranks: list[dict[str, Any]], cursor: Cursor | None = None) -> None:
        if hvd.rank() == 0:
            state, progress = self.trainer.get_state(), self.progress
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

    def _needs_spread(self, rank_run: RankRun) -> bool:
        checkpoint = rank_run.kept
        return self._spec.checkpoints_within or (checkpoint is not None and checkpoint.cursor is not None)

    def _resume(self, rank_run: RankRun, spread: list[int]) -> int:
        """Take over the checkpoint. Return the steps of the next epoch that are done."""
        checkpoint, spec = rank_run.kept, self._spec
        assert checkpoint is not None
        again = checkpoint.cursor is not None and checkpoint.cursor.spread != spread
        cursor = None if again else checkpoint.cursor
        self.progress.within = [] if cursor is None else list(cursor.validations)
        self.trainer.take(checkpoint, within=cursor is not None)
        self.progress.history, self.progress.best = list(checkpoint.history), checkpoint.best
        if hvd.rank() == 0 and spec.verbose:
            log_to_driver(describe_return(spec.run_id, checkpoint, spec.epochs, again=again))
        return 0 if cursor is None else cursor.steps


def find_left_out(parts: TorchParts, spec: TrainSpec, rank_run: RankRun) -> frozenset[int]:
    """Return `TorchParts.leaving_out`, of the rows of all ranks. A collective.

    Raises:
        DataError: the loss leaves out all rows, for training or validation; or rows have weights, too: without
            the ignored rows, the mean would be neither by rows nor by weights.
    """
    if spec.kept is not None:  # a function makes the labels, in each epoch again
        return frozenset()
    per_label, counted = [], []
    for loss, number in zip(parts.losses, range(len(spec.inputs), len(spec.fields)), strict=False):
        numbers = [number, len(spec.fields) - 1] if spec.weight else [number]
        pieces = (
            (block[0], block[1] if spec.weight else None)
            for item in (rank_run.rows, rank_run.held)
            if item is not None
            for block in item.read_blocks(numbers)
        )
        per_label.append(leaves_out(loss, pieces))
        counted.append([_learns(loss, item, number) for item in (rank_run.rows, rank_run.held)])
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


def _learns(loss: Any, rows: EpochRows | None, number: int) -> bool:
    """Return whether some label of a rank's rows counts, or no rank has such rows."""
    return rows is None or counts_some(loss, (block for (block,) in rows.read_blocks([number])))


def _check_labels(parts: TorchParts, learned: Array) -> None:
    """Raise DataError for labels of which none counts.

    Args:
        learned: [training, validation][labels] whether one counts.
    """
    for purpose, of_labels in zip(("training", "validation"), learned, strict=True):
        for loss, label, learns in zip(parts.losses, parts.labels, of_labels, strict=False):
            if not learns:
                reason = f"all of column {label!r} is of the class that {loss!r} leaves out."
                raise DataError(f"the rows for {purpose} have nothing to learn: {parts.nothing_to_learn or reason}")
