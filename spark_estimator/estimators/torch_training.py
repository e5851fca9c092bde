"""Trains a PyTorch model on the rows of a rank: what every rank of `TorchEstimator.fit` runs."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import arrays
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank_rows import Batch, RankRows, balanced
from spark_estimator.data.spool import receive
from spark_estimator.errors import DataError
from spark_estimator.estimators.torch_checkpoint import (
    Checkpoint,
    Progress,
    fingerprint_of,
    line_of,
    load,
    packed,
    save,
)
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.launch.feed import worker_end
from spark_estimator.observe.driver_log import log_to_driver

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Parts:
    """What `TrainSpec.framework` is for PyTorch.

    Attributes:
        model, optimizer: the optimizer holds the model's own parameters; both travel in one pickle, which keeps that.
        losses: [labels] functions of (output, label).
        loss_weights: [labels].
        scheduler: of the learning rate, moved after each epoch; None: it stays.
        metrics: [labels] functions of (output, label), each.
        compression: of gradients; None: none.
        label_shapes: [labels] of a batch, with -1 for its rows; None: as the output, where that holds as many values.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: Sequence[Callable[..., Any]]
    loss_weights: Sequence[float]
    metrics: Sequence[Sequence[Callable[..., Any]]]
    scheduler: Any = None
    compression: Any = None
    label_shapes: Sequence[Sequence[int]] | None = None


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns what rank 0 brings back; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch; a run whose checkpoint is there goes on from it. What
    chance decides is drawn anew for each epoch from seed, epoch and rank, so that such a run ends with the same numbers
    as one that was never interrupted.
    """
    hvd.init()
    with worker_end() as supervisor:
        spool, marked = receive(spec.fields, supervisor)
    rows = balanced(spool, "training")
    fingerprint = "" if spec.store is None else fingerprint_of(spec, rows.checksum())
    kept = load(spec, fingerprint)
    seed = spec.seed if kept is None else kept.seed
    held: RankRows | None = None
    if spec.held_share:
        rows, held = rows.split(spec.held_share, seed)
    elif any(arrays.allgather(numpy.array([marked.rows]), "marked rows")):
        held = balanced(marked, "validation")
    training = _Training(spec, seed)
    progress = Progress(spec.patience, spec.restore_best)
    if kept is not None:
        training.take(kept.state)
        progress.history = kept.history
        progress.best = kept.best
    while len(progress.history) < spec.epochs and not progress.is_over:
        epoch = len(progress.history)
        entry: dict[str, Any] = {"epoch": epoch, "train": training.train(rows, epoch)}
        if held is not None and held.total:
            entry["validation"] = training.evaluate(held)
        progress.add(entry, training.model)
        training.schedule(progress.watched(entry))
        if hvd.rank() == 0:
            save(spec, Checkpoint(fingerprint, seed, training.state(), progress.history, progress.best))
            if spec.verbose:
                log_to_driver(line_of(entry, spec.epochs))
    if hvd.rank() != 0:
        return None
    state = progress.best or training.model.state_dict()
    return TrainResult(packed(state), progress.history, (rows.total, held.total if held else 0))


class _Training:
    """The model, the optimizer and the sums of one training."""

    def __init__(self, spec: TrainSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._parts: Parts = spec.framework
        use_gpu = spec.use_gpu and torch.cuda.is_available()
        self._device = torch.device("cuda", hvd.local_rank()) if use_gpu else torch.device("cpu")
        self.model = self._parts.model.to(self._device)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._optimizer = hvd.DistributedOptimizer(
            self._parts.optimizer,
            named_parameters=list(self.model.named_parameters()),
            compression=self._parts.compression or hvd.Compression.none,
            backward_passes_per_step=spec.backward_passes_per_step,
        )

    def _step(self) -> None:
        """One step. The learning rate that the user says is that of one process; the joint batch is larger.

        It is multiplied for the step alone, so that schedulers and checkpoints know nothing of the number of ranks.
        """
        groups = self._optimizer.param_groups
        rates = [group.get("lr") for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate * hvd.size()
        try:
            self._optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                if rate is not None:
                    group["lr"] = rate
        self._optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: Horovod's `model` and `optimizer`, and the scheduler."""
        scheduler = self._parts.scheduler
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            **({"scheduler": scheduler.state_dict()} if scheduler is not None else {}),
        }

    def take(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._parts.scheduler is not None and "scheduler" in state:
            self._parts.scheduler.load_state_dict(state["scheduler"])

    def schedule(self, loss: float) -> None:
        """Moves the learning rate."""
        scheduler = self._parts.scheduler
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss)
        elif scheduler is not None:
            with warnings.catch_warnings():
                # It looks for a step() that it has wrapped itself, in the driver's process.
                warnings.filterwarnings("ignore", message=".*lr_scheduler.step|.*optimizer.step")
                scheduler.step()

    def train(self, rows: RankRows, epoch: int) -> dict[str, Any]:
        """One epoch. Returns its averages over all rows."""
        spec = self._spec
        self.model.train()
        torch.manual_seed(((self._seed * 100_003 + epoch) * 10_007 + hvd.rank()) % (1 << 63))
        sums = _Sums(self._parts)
        order = [self._seed, epoch] if spec.shuffle else None
        pending = 0
        self._optimizer.zero_grad()
        for batch in rows.batches(spec.batch_size, spec.train_steps, order):
            loss, outputs, labels = self._forward(batch)
            (loss * batch.factor).backward()
            sums.add(loss, outputs, labels, batch.rows)
            pending += 1
            if pending == spec.backward_passes_per_step:
                self._step()
                pending = 0
        if pending:
            self._step()
        found = sums.averages()
        if not math.isfinite(found["loss"]):
            raise DataError(
                f"the loss of epoch {epoch} was {found['loss']}: a column holds NaN, infinity or huge numbers, or the "
                "learning rate is too high (it is multiplied with the number of processes)."
            )
        return found

    def evaluate(self, rows: RankRows) -> dict[str, Any]:
        """The averages over all rows, with the model as it is."""
        self.model.eval()
        sums = _Sums(self._parts)
        with torch.no_grad():
            for batch in rows.batches(self._spec.val_batch_size, self._spec.validation_steps):
                loss, outputs, labels = self._forward(batch)
                sums.add(loss, outputs, labels, batch.rows)
        return sums.averages()

    def _forward(self, batch: Batch) -> tuple[torch.Tensor, Tensors, Tensors]:
        spec = self._spec
        tensors = [
            tensor_of(matrix, field).to(self._device) for matrix, field in zip(batch.matrices, spec.fields, strict=True)
        ]
        inputs, rest = tensors[: len(spec.inputs)], tensors[len(spec.inputs) :]
        labels, weights = rest[: len(spec.labels)], rest[len(spec.labels) :]
        return loss_of(self.model, self._parts, inputs, labels, weights[0] if weights else None)


class _Sums:
    """Loss and metrics over the rows of an epoch."""

    def __init__(self, parts: Parts) -> None:
        self._metrics = parts.metrics
        count = sum(len(group) for group in parts.metrics)
        self._sums = torch.zeros(2 + count, dtype=torch.float64)

    def add(self, loss: torch.Tensor, outputs: Tensors, labels: Tensors, rows: int) -> None:
        """Counts a batch."""
        if not rows:
            return
        values = [loss.detach()]
        with torch.no_grad():
            for group, output, label in zip(self._metrics, outputs, labels, strict=True):
                values += [torch.as_tensor(metric(output.detach(), label)) for metric in group]
        self._sums[0] += rows
        for place, value in enumerate(values):
            self._sums[place + 1] += float(value) * rows

    def averages(self) -> dict[str, Any]:
        """Over the rows of all ranks. A collective."""
        total = hvd.allreduce(self._sums, op=hvd.Sum, name="averages of an epoch")
        means = (total[1:] / total[0]).tolist()
        found, place = [], 1
        for group in self._metrics:
            found.append(means[place : place + len(group)])
            place += len(group)
        return {"loss": means[0], "all_metrics": found}


def tensor_of(matrix: Array, field: Field) -> torch.Tensor:
    """[rows, *field.shape] over the same memory."""
    return torch.from_numpy(matrix).reshape(len(matrix), *field.shape)


def loss_of(
    model: nn.Module, parts: Parts, inputs: Tensors, labels: Tensors, weights: torch.Tensor | None
) -> tuple[torch.Tensor, Tensors, Tensors]:
    """The loss of a batch, the model's outputs, and the labels in their shapes.

    Raises:
        DataError: the model has another number of outputs than there are labels.
    """
    outputs = outputs_of(model, inputs)
    if len(outputs) != len(labels):
        raise DataError(
            f"the model returned {len(outputs)} tensors for {len(labels)} label columns: one each is needed."
        )
    labels = [
        _shaped(label, output, parts.label_shapes[place] if parts.label_shapes else None)
        for place, (label, output) in enumerate(zip(labels, outputs, strict=True))
    ]
    total = torch.zeros((), device=outputs[0].device)
    for loss, share, output, label in zip(parts.losses, parts.loss_weights, outputs, labels, strict=True):
        if weights is None:
            value = loss(output, label)
        else:
            each = loss_of_rows(loss)(output, label)
            value = (each.reshape(len(weights), -1).mean(1) * weights.reshape(-1)).mean()
        total = total + share * value
    return total, outputs, labels


def outputs_of(model: nn.Module, inputs: Tensors) -> Tensors:
    """The model's outputs as a list."""
    result = model(*inputs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def loss_of_rows(loss: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The same loss without the mean over the rows.

    Raises:
        DataError: it cannot be had.
    """
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        one = copy.copy(loss)
        setattr(one, "reduction", "none")  # noqa: B010  # torch declares modules' attributes otherwise
        return one
    try:
        known = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        known = False
    if not known:
        raise DataError(
            f"sample_weight_col needs the loss of each row, but {loss!r} has no reduction that could be 'none': use a "
            "loss of torch.nn, or a function with the keyword reduction."
        )
    return lambda output, label: loss(output, label, reduction="none")


def _shaped(label: torch.Tensor, output: torch.Tensor, shape: Sequence[int] | None) -> torch.Tensor:
    if shape is not None:
        return label.reshape(len(label), *shape[1:])
    return label.reshape(output.shape) if label.numel() == output.numel() else label
