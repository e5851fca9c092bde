"""What a training of `TorchEstimator` remembers: its history, its best epoch, and the checkpoint in the store."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import DataError
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.observe.driver_log import log_to_driver


@dataclass
class Progress:
    """The epochs so far. Every rank has the same, as the losses are those of all ranks.

    Attributes:
        patience, restore_best: as in `TrainSpec`.
        history: one entry for each epoch.
        best: the model's numbers after the best epoch; None where they are not wanted.
    """

    patience: int | None
    restore_best: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, torch.Tensor] | None = None

    def add(self, entry: dict[str, Any], model: nn.Module) -> None:
        """Counts an epoch."""
        self.history.append(entry)
        if self.restore_best and self._best_epoch() == len(self.history) - 1:
            self.best = copy.deepcopy(model.state_dict())

    @property
    def is_over(self) -> bool:
        """Whether it shall end before its last epoch."""
        return self.patience is not None and len(self.history) - 1 - self._best_epoch() >= self.patience

    @staticmethod
    def watched(entry: dict[str, Any]) -> float:
        """The loss by which epochs are compared: that of validation, if there is one."""
        loss: float = entry.get("validation", entry["train"])["loss"]
        return loss

    def _best_epoch(self) -> int:
        losses = [self.watched(entry) for entry in self.history]
        known = [loss if math.isfinite(loss) else math.inf for loss in losses]
        return known.index(min(known)) if known else 0


@dataclass(frozen=True)
class Checkpoint:
    """A training after some epoch.

    Attributes:
        fingerprint: of the data and the parameters.
        seed: with which it was begun.
        state: of model, optimizer and scheduler.
        history, best: as in `Progress`.
    """

    fingerprint: str
    seed: int
    state: dict[str, Any]
    history: list[dict[str, Any]]
    best: dict[str, torch.Tensor] | None


def save(spec: TrainSpec, checkpoint: Checkpoint) -> None:
    """Writes it over the one before, whole or not at all; nothing without a store. For rank 0."""
    if spec.store is None or spec.checkpoint_path is None:
        return
    content = {
        **checkpoint.state,
        "fingerprint": checkpoint.fingerprint,
        "seed": checkpoint.seed,
        "epoch": len(checkpoint.history) - 1,
        "history": checkpoint.history,
        "best": checkpoint.best,
    }
    spec.store.write(spec.checkpoint_path, packed(content))


def fingerprint_of(spec: TrainSpec, checksums: list[int]) -> str:
    """What tells one training from another: its rows, its model's shapes, and the parameters that steer it.

    Not among them are those that a run may be resumed with: more epochs, patience, another number of ranks.
    """
    parts = spec.framework
    told = [
        [repr(field) for field in spec.fields],
        [spec.held_share, spec.batch_size, spec.shuffle, spec.backward_passes_per_step, spec.train_steps],
        [(name, list(value.shape), str(value.dtype)) for name, value in parts.model.state_dict().items()],
        type(parts.optimizer).__qualname__,
        list(parts.loss_weights),
        checksums,
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def load(spec: TrainSpec, fingerprint: str) -> Checkpoint | None:
    """What the store has of this run, as rank 0 reads it; None when it has nothing. A collective.

    Raises:
        DataError: the file is no checkpoint of ours, or another training's.
    """
    if spec.checkpoint_path is None:
        return None
    found: bytes | str | None = None
    if hvd.rank() == 0:
        assert spec.store is not None
        try:
            found = spec.store.read(spec.checkpoint_path) if spec.store.exists(spec.checkpoint_path) else None
        except OSError as error:
            found = f"{spec.checkpoint_path} cannot be read on rank 0: {type(error).__name__}: {error}"
    content = hvd.broadcast_object(found, root_rank=0, name="checkpoint")
    if content is None:
        return None
    if isinstance(content, str):
        raise DataError(content)
    try:
        told = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        theirs, seed, history, best = (
            told.pop("fingerprint"),
            int(told.pop("seed")),
            list(told.pop("history")),
            told.pop("best"),
        )
    except Exception as error:
        raise DataError(
            f"{spec.checkpoint_path} is no checkpoint that this training could go on from ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). Choose another run_id, or remove it."
        ) from error
    if theirs != fingerprint:
        raise DataError(
            f"run_id={spec.run_id!r}: the store has a checkpoint of that name, {spec.checkpoint_path}, but of another "
            "training: its rows, its model or its parameters were others (as those of each fold and of each ParamMap "
            "are). Choose another run_id, leave it out, or remove the checkpoint."
        )
    if hvd.rank() == 0 and spec.verbose:
        log_to_driver(f"run {spec.run_id!r} goes on from its checkpoint, after epoch {len(history)}")
    return Checkpoint(fingerprint, seed, told, history, best)


def packed(content: Any) -> bytes:
    """Tensors and plain values as bytes that ``torch.load(..., weights_only=True)`` reads."""
    stream = io.BytesIO()
    torch.save(_on_cpu(content), stream)
    return stream.getvalue()


def _on_cpu(content: Any) -> Any:
    if isinstance(content, torch.Tensor):
        return content.detach().cpu()
    if isinstance(content, dict):
        return {name: _on_cpu(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(_on_cpu(value) for value in content)
    return content


def line_of(entry: dict[str, Any], epochs: int) -> str:
    """An epoch in one line."""
    parts = [f"epoch {entry['epoch'] + 1}/{epochs}"]
    for name in ("train", "validation"):
        if name in entry:
            metrics = [f"{value:.4g}" for group in entry[name]["all_metrics"] for value in group]
            parts.append(f"{name} loss {entry[name]['loss']:.4g}" + (f" ({', '.join(metrics)})" if metrics else ""))
    return ", ".join(parts)
