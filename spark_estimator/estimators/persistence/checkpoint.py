"""The state of an estimator's training: its history, its best epoch, and the checkpoint in the store.

A checkpoint is taken after an epoch, or within one. It holds the state that all ranks share once, and the state that
differs between ranks once per rank. A run that resumes from it on as many ranks, with the rows in the same order, ends
with the same bits as one that was never interrupted. A digest at its end shows whether it is damaged.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import posixpath
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import numpy

from spark_estimator.checkpoint.file_saver import DirectSaver, FileSaver, make_saver
from spark_estimator.checkpoint.schedule import Schedule, find_new_warning, read_clock
from spark_estimator.checkpoint.writer_link import Report
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence import run_lease
from spark_estimator.estimators.persistence.run_identity import Identity, drop_values, find_differences
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.observe.driver_log import log_to_driver
from spark_estimator.store import FilesystemStore, Store
from spark_estimator.store.digests import find_flaw

# A store may be unavailable for a while: after the first checkpoint, this number in a row may fail.
_MOST_LOST = 2
# A store that has written no checkpoint for this time, while a newer one replaces one that waits, is reported.
_SLOW_SECONDS = 1.0
# When a training has failed, a write that is in progress has this time to finish.
_WAITS_AT_FAILURE = timedelta(seconds=30)


@dataclass(frozen=True)
class Cursor:
    """A position within an epoch."""

    steps: int  # batches of the epoch that each rank has done
    rows: int  # of all ranks together, in these
    spread: list[int]  # [ranks] a checksum of the rows of each rank, in their order
    validations: list[dict[str, Any]] = field(default_factory=list)  # `TrainingProgress.within`


@dataclass(frozen=True)
class Checkpoint:
    """A training after some epoch, or within one."""

    identity: Identity  # of the data, the model and the parameters
    seed: int  # with which it was begun
    state: dict[str, Any]  # of model, optimizer and scheduler
    history: list[dict[str, Any]]  # as in `TrainingProgress`
    best: Any  # as in `TrainingProgress`
    ranks: list[dict[str, Any]] = field(default_factory=list)  # [ranks] what each has for itself
    cursor: Cursor | None = None  # how far it was in the epoch after those of the history; None: at its beginning
    initial: str = ""  # as in `TrainSpec`, when the run began
    owner: str = ""  # the fit that wrote it; see `TrainSpec`


class CheckpointFormat(Protocol):
    """How a framework writes a file of tensors and plain values, and reads one without running code from it."""

    def to_stream(self, content: dict[str, Any]) -> io.BytesIO:
        """Return the file."""

    def unpack(self, content: bytes) -> dict[str, Any]:
        """Return the content that was passed to `to_stream`."""

    def describe_error(self, error: Exception) -> str:
        """Return an error of `unpack` in a line."""


class Saver:
    """Writes a training's checkpoints, each over the one before, whole or not at all. For rank 0.

    The training continues while another process writes (`FileSaver`): a newer checkpoint replaces one that waits for a
    slow store. When the first one cannot be written, the training ends: the store is not what the user thinks. Later
    the store may be away: two checkpoints in a row are lost with a line on the driver; at the third the training ends.
    It learns of that at its next checkpoint, or at its end. At the end of a ``with`` block the last one is complete.
    """

    def __init__(self, spec: TrainSpec, form: CheckpointFormat) -> None:
        self._spec = spec
        self._form = form
        self._lost = _MOST_LOST
        self._fence = run_lease.Fence.from_spec(spec)
        self._files: FileSaver | DirectSaver | None = None
        self._waits_since = math.inf
        self._has_reported_skipping = False

    def save(self, checkpoint: Checkpoint) -> None:
        """Start writing a checkpoint; do nothing without a store.

        Raises:
            DataError: earlier ones could not be written; the one before is there still.
            SupersededError: another attempt or driver has the run.
        """
        path = self._spec.checkpoint_path
        if self._spec.store is None or path is None:
            return
        if self._files is None:
            store = self._spec.store
            self._files = make_saver(store, functools.partial(_write, store, self._fence))
        reports = self._files.read_reports()
        self._count_reports(reports)
        if reports or self._waits_since == math.inf:
            self._waits_since = time.monotonic()
        whole = {
            **checkpoint.state,
            "identity": checkpoint.identity,
            "seed": checkpoint.seed,
            "epoch": len(checkpoint.history) - 1,
            "history": checkpoint.history,
            "best": checkpoint.best,
            "ranks": checkpoint.ranks,
            "cursor": None if checkpoint.cursor is None else asdict(checkpoint.cursor),
            "initial": checkpoint.initial,
            "owner": self._spec.owner,
        }
        with self._form.to_stream(whole).getbuffer() as content:
            replaced = self._files.put(path, content)
        is_slow = replaced and time.monotonic() - self._waits_since > _SLOW_SECONDS
        if is_slow and self._spec.verbose and not self._has_reported_skipping:
            self._has_reported_skipping = True
            log_to_driver(
                f"the store is slower than training: checkpoint {path} is skipped in favour of newer ones; this is "
                "reported once per fit"
            )

    def wait(self) -> None:
        """Wait until the last one is complete or has failed. Raise as `save` does."""
        if self._files is not None:
            self._count_reports(self._files.wait())

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._files is None:
            return
        try:
            if kind is None:
                self.wait()
            else:  # the next attempt would not find a file that is still being written
                self._files.wait(_WAITS_AT_FAILURE)
        finally:
            self._files.close()
            self._files = None

    def _count_reports(self, reports: Sequence[Report]) -> None:
        """Count what was written and what was lost."""
        for report in reports:
            if not report.error:
                self._lost = self._lost if report.note else 0
                continue
            if report.raised == run_lease.SupersededError.__name__:
                raise run_lease.SupersededError(report.error.partition(": ")[2])
            self._lost += 1
            failure = (
                f"the checkpoint {self._spec.checkpoint_path} of {report.bytes} bytes cannot be written on rank 0 "
                f"(host {socket.gethostname()}): {report.error}"
            )
            if self._lost > _MOST_LOST:
                raise DataError(
                    f"{failure}. The folder must be writable on every executor, with room for two checkpoints."
                )
            log_to_driver(f"{failure}. Training continues; a restart would resume from the previous checkpoint")


def _write(store: Store, fence: run_lease.Fence | None, path: str, content: bytes) -> None:
    run_lease.write(store, path, content, fence)


def make_schedule(spec: TrainSpec) -> Schedule | None:
    """Return the schedule of checkpoints within an epoch; None: there are none."""
    if not spec.checkpoints_within:
        return None
    seconds = spec.checkpoint_seconds
    every = None if seconds is None else timedelta(seconds=seconds)
    return Schedule(spec.checkpoint_steps, every, _read_first_clock, find_new_warning if spec.heeds_warnings else None)


def _read_first_clock() -> float:
    return float(arrays.broadcast(numpy.array([read_clock()]), 0, "checkpoint.clock")[0])


def load(spec: TrainSpec, identity: Identity, form: CheckpointFormat) -> Checkpoint | None:
    """Return the store's checkpoint of this run, as rank 0 reads it; None if there is none. A collective.

    From then on no earlier attempt writes.

    Raises:
        DataError: the store cannot be read, the file is no checkpoint of this package, or another training's.
    """
    if spec.checkpoint_path is None:
        return None
    result: bytes | str | None = None
    if context.rank() == 0:
        assert spec.store is not None
        discard_partials(spec)
        try:
            fence = run_lease.Fence.from_spec(spec)
            assert fence is not None
            fence.take()
            # Not exists(), which returns False if fsspec cannot reach a store.
            result = spec.store.read(spec.checkpoint_path)
        except FileNotFoundError:
            pass
        except DataError as error:  # of the fence
            result = str(error)
        except Exception as error:  # each kind of store has its own errors
            result = (
                f"{spec.checkpoint_path} cannot be read on rank 0 (host {socket.gethostname()}): "
                f"{type(error).__name__}: {error}. Whether run_id={spec.run_id!r} has a checkpoint is not known."
            )
        else:
            result = _describe_flaw(spec, flaw) if (flaw := find_flaw(result)) else result
    content = broadcast_object(result, root_rank=0, name="checkpoint")
    if content is None:
        return None
    if isinstance(content, str):
        raise DataError(content)
    try:
        values = form.unpack(content)
        rest = {name: values.pop(name) for name in ("identity", "seed", "history", "best", "ranks", "cursor", "epoch")}
        cursor = None if rest["cursor"] is None else Cursor(**rest["cursor"])
        written = {name: str(values.pop(name)) for name in ("initial", "owner")}
        found_in = Checkpoint(
            {kind: list(words) for kind, words in rest["identity"].items()},
            int(rest["seed"]),
            values,
            list(rest["history"]),
            rest["best"],
            list(rest["ranks"]),
            cursor,
            **written,
        )
    except Exception as error:
        raise DataError(_describe_flaw(spec, form.describe_error(error))) from error
    besides_values = find_differences(drop_values(found_in.identity), drop_values(identity))
    others = besides_values if spec.resume_on_other_rows else find_differences(found_in.identity, identity)
    if others:
        on_these_rows = "" if besides_values else "; set resume_on_other_rows=True to continue the run with these rows"
        raise DataError(
            f"run_id={spec.run_id!r}: the checkpoint {spec.checkpoint_path} is from another training: "
            f"{'; '.join(others)}. Use another run_id (each fold and each ParamMap needs one) or the same parameters "
            f"and data, or remove the folder {posixpath.dirname(spec.checkpoint_path)}{on_these_rows}."
        )
    return found_in


def _describe_flaw(spec: TrainSpec, flaw: str) -> str:
    return (
        f"{spec.checkpoint_path} is not a checkpoint that this training can resume from: {flaw}. Choose another "
        "run_id, or remove it."
    )


def discard_partials(spec: TrainSpec) -> None:
    """Remove what a process that was killed while it wrote has left beside the run's files in the store."""
    if isinstance(spec.store, FilesystemStore):
        # Nothing hangs on them: what cannot be removed stays.
        with contextlib.suppress(Exception):
            spec.store.discard_partials(spec.store.get_run_path(spec.run_id))


def describe_epoch(entry: dict[str, Any], epochs: int) -> str:
    """Return an epoch in one line."""
    parts = [f"epoch {entry['epoch'] + 1}/{epochs}"]
    for name in ("train", "validation"):
        if name in entry:
            parts.append(f"{name} loss {entry[name]['loss']:.4g}")
            metrics = entry[name].get("metrics", {})
            parts += [f"{name} {metric} {value:.4g}" for metric, value in metrics.items() if isinstance(value, float)]
            parts += [f"{count} steps skipped"] if (count := entry[name].get("skipped_steps")) else []
    return ", ".join(parts)
