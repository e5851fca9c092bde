"""The begin and end of a training on a rank, for all frameworks: its rows, its checkpoint, its result."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from spark_estimator.collectives import arrays, context, objects
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.data.rank.function_rows import FunctionRows
from spark_estimator.data.rank.rank_rows import RankRows, balance
from spark_estimator.data.rank.spool import Spool
from spark_estimator.data.stream.rows import stream_rows
from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence import model_transfer
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, CheckpointFormat, load
from spark_estimator.estimators.persistence.resumed_run import describe_ignored
from spark_estimator.estimators.persistence.run_identity import Identity
from spark_estimator.estimators.persistence.run_lease import Fence
from spark_estimator.estimators.rows.row_source import read_rank_rows
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe import progress
from spark_estimator.observe.step_times import StepParts
from spark_estimator.observe.training_meter import TrainingMeter
from spark_estimator.observe.training_records import StepRecorder, send_record

_SCANNED_ROWS = 4096
#: Reads a rank's rows, and those that are marked, as `read_rank_rows` does.
ReadRows = Callable[[TrainSpec], tuple[Spool, Spool]]


@dataclass(frozen=True)
class KnownRun:
    """A run that has begun, as all of its ranks know it."""

    identity: Identity  # as in `RankRun`
    seed: int  # as in `RankRun`
    read: tuple[
        int, ...
    ] = ()  # [ranks] rows that each had read from files at the start; empty where rows have no order
    initial: str = ""  # as in `TrainSpec`, when the run began

    @classmethod
    def from_checkpoint(
        cls, spec: TrainSpec, identity: Identity, checkpoint: Checkpoint | None, read: tuple[int, ...] = ()
    ) -> KnownRun:
        """Return a run that begins, or that resumes from a checkpoint."""
        if checkpoint is None:
            return cls(identity, spec.seed, read, spec.initial)
        return cls(identity, checkpoint.seed, read, checkpoint.initial)


@dataclass(frozen=True)
class RankRun:
    """The input of a rank's training."""

    rows: EpochRows  # to train on; all ranks have equal numbers of them, or nearly
    held: EpochRows | None  # for validation; None: there are none, on any rank
    kept: Checkpoint | None  # to resume from; None: it starts from the beginning
    known: KnownRun  # what a process that joins needs

    @property
    def seed(self) -> int:
        """Return the seed of the run, which is its checkpoint's if it resumes from one."""
        return self.known.seed

    @property
    def identity(self) -> Identity:
        """Return the identity of the training; empty without a store."""
        return self.known.identity

    def make_result(self, spec: TrainSpec, state: bytes, history: list[dict[str, Any]], name: str) -> TrainResult:
        """Return, on rank 0 at the end, the training's result, with a large model in the store.

        Args:
            state: of the trained model.
            name: of the model's file.
        """
        counts = (self.rows.total, self.held.total if self.held else 0)
        warning = "" if self.kept is None else describe_ignored(spec, self.kept, len(history), context.size())
        file = None
        if spec.store is not None and len(state) > spec.large:
            file = model_transfer.put(spec.store, spec.run_id, state, name, Fence.from_spec(spec))
        return TrainResult(state if file is None else b"", history, counts, file, warning)


def begin(
    spec: TrainSpec,
    identity_of: Callable[[TrainSpec, list[int]], Identity],
    form: CheckpointFormat,
    *,
    known: KnownRun | None = None,
    read: ReadRows = read_rank_rows,
) -> RankRun:
    """Return the rows, evened out between the ranks, and the run's checkpoint. A collective.

    Args:
        identity_of: (spec, checksums of all rows) returns what distinguishes the training from others.
        form: of the framework's checkpoints.
        known: the run has begun, and continues where it is, not from a checkpoint.
        read: reads this rank's rows and those that are marked, as `read_rank_rows` does.

    Raises:
        DataError: something is wrong with rows or checkpoint, or the checkpoint is another training's.
    """
    if known is None and spec.tracking is not None:
        spec.tracking.start_sampling()
    rows, validation_rows = _even_out(spec, read)
    checkpoint = None
    if known is None:
        identity = {} if spec.store is None else identity_of(spec, rows.compute_checksums())
        checkpoint = _record_epochs(spec, load(spec, identity, form))
        known = KnownRun.from_checkpoint(spec, identity, checkpoint, rows.read if isinstance(rows, RankRows) else ())
    if spec.held_share:
        rows, validation_rows = rows.split(spec.held_share, known.seed, known.read)
    validation_rows = validation_rows if validation_rows is not None and validation_rows.total else None
    if spec.kept is not None:
        rows = FunctionRows(rows, spec.kept)
        of_held = spec.kept if spec.transform_validation else spec.kept.untransformed
        validation_rows = None if validation_rows is None else FunctionRows(validation_rows, of_held)
    return RankRun(rows, validation_rows, checkpoint, known)


def _even_out(spec: TrainSpec, read: ReadRows) -> tuple[EpochRows, EpochRows | None]:
    """Return the rows to train on and those that are marked, as many on each rank. A collective."""
    if spec.limits is not None and spec.source is not None:
        within = stream_rows(spec.source, spec.held_source, spec.limits, "training")
        if within is not None:
            return within
    unbalanced, marked = read(spec)
    rows = balance(unbalanced, "training", by_value=spec.by_value)
    if spec.held_share or not any(arrays.allgather(numpy.array([marked.rows]), "marked rows")):
        return rows, None
    return rows, balance(marked, "validation", by_value=spec.by_value)


def _record_epochs(spec: TrainSpec, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Send the records of the epochs that a checkpoint has. Return it."""
    for entry in [] if checkpoint is None else checkpoint.history:
        record_epoch(spec, entry)
    return checkpoint


def record_epoch(spec: TrainSpec, entry: Mapping[str, Any]) -> None:
    """Send an entry of the history to the driver during the training, if the driver wants it; by rank 0.

    The driver takes the first record of each epoch: epochs that a restart repeats have the same numbers.
    """
    if spec.tracking is not None and context.rank() == 0:
        send_record({"entry": json.loads(json.dumps(entry, default=float))})


def make_meter(spec: TrainSpec) -> TrainingMeter:
    """Return a meter of this rank's training. Its counts are reported unless the estimator is silent."""
    every = None if spec.tracking is None else spec.tracking.log_every_n_steps
    meter = TrainingMeter(spec.epochs, None if every is None else StepRecorder(every, context.size()))
    if spec.verbose:
        progress.report_training(meter)
    return meter


def average_time(meter: TrainingMeter) -> dict[str, float]:
    """Return the seconds that each part of an epoch's training has taken, on average over the ranks. A collective."""
    of_ranks = arrays.allgather(numpy.array([meter.end_training()]), "times of an epoch")
    return {name: round(float(each), 6) for name, each in zip(StepParts._fields, of_ranks.mean(axis=0), strict=True)}


def to_averages(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return a history's entry as the progress display names its numbers: loss, val_loss, accuracy, val_accuracy,
    ...

    The losses come first, because only the first few numbers are shown.
    """
    train, validation = entry["train"], entry.get("validation") or {}
    return {
        "loss": train["loss"],
        **({"val_loss": validation["loss"]} if "loss" in validation else {}),
        **train.get("metrics", {}),
        **{f"val_{name}": value for name, value in validation.get("metrics", {}).items()},
        **{name: value for name, value in entry.get("logged", {}).items() if name not in ("train_loss", "val_loss")},
    }


def check_loss(
    loss: float, epoch: int, rows: EpochRows | None = None, fields: Sequence[Field] = (), *, multiplied: bool = True
) -> None:
    """Raise DataError for a loss that is not finite. With `rows` it is a collective if the loss is not finite.

    Args:
        loss: with `rows`, the same on all ranks.
        epoch: from 0.
        rows: of the training; their first value that is not finite is in the error.
        fields: of the rows.
        multiplied: the learning rate is, with the number of ranks.

    Raises:
        DataError: the loss is not finite.
    """
    if math.isfinite(loss):
        return
    start = f"the loss of epoch {epoch + 1} was {loss}: "
    lower = "lower the learning rate" + (", which is multiplied with the number of processes." if multiplied else ".")
    if rows is None:
        raise DataError(
            f"the loss of epoch {epoch + 1} was {loss}. Remove NaN, infinity and huge numbers from the columns, or "
            f"{lower}"
        )
    batches, of = rows.read_batches(_SCANNED_ROWS), f"the rows of rank {context.rank()}"
    texts = objects.allgather_object(find_not_finite(batches, fields, of), name="values that are not finite")
    raise DataError(
        start + next(filter(None, texts), f"all values of the columns are finite. Scale huge numbers, or {lower}")
    )


def find_not_finite(batches: Iterable[Batch], fields: Sequence[Field], of: str) -> str:
    """Return the first column with NaN or infinity, the row and the remedy; empty without one.

    Args:
        of: whose rows these are, for the text.
    """
    first_rows: dict[str, tuple[int, float]] = {}
    counts: Counter[str] = Counter()
    start = 0
    for batch in batches:
        for field, matrix in zip(fields, batch.matrices, strict=True):
            if matrix.dtype.kind != "f" or numpy.isfinite(matrix[: batch.rows]).all():
                continue
            names = [name for name, width in zip(field.names, field.widths, strict=True) for _ in range(width)]
            values = matrix[: batch.rows].reshape(batch.rows, len(names))
            wrong = ~numpy.isfinite(values)
            for name in dict.fromkeys(names):
                of_column = wrong & (numpy.array(names) == name)
                if of_column.any():
                    row, column = (int(number) for number in numpy.argwhere(of_column)[0])
                    first_rows.setdefault(name, (start + row, values[row, column].item()))
                    counts[name] += int(of_column.any(axis=1).sum())
        start += batch.rows
    if not first_rows:
        return ""
    name, (row, value) = min(first_rows.items(), key=lambda item: item[1][0])
    others = f" ({counts[name]} rows of the column have NaN or infinity)" if counts[name] > 1 else ""
    remedy = "filter such rows of the DataFrame, or replace the value"
    widths = {name: width for field in fields for name, width in zip(field.names, field.widths, strict=True)}
    if math.isnan(value) and widths[name] == 1:  # "drop" leaves NaN in arrays
        remedy = "set nulls='drop', which drops rows with null or NaN, or replace the value (df.fillna)"
    return f"column {name!r} contains {value} in row {row} of {of}, counted from 0{others}: {remedy}."
