"""The epochs of a training so far: which of its validations was the best one, and whether it shall end."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_estimator.errors import DataError


@dataclass
class TrainingProgress:
    """The epochs so far. Every rank has the same, as the numbers are those of all ranks.

    Attributes:
        patience, restore_best, monitor, mode: as in `TrainSpec`.
        history: one entry for each epoch; its "validations" are those within it.
        best: the model's numbers after the best validation, as the framework has them; None where they are not wanted.
        within: the validations within the present epoch so far, each with the number of batches before it ("step").
    """

    patience: int | None
    restore_best: bool
    monitor: str | None = None
    mode: str = "auto"
    history: list[dict[str, Any]] = field(default_factory=list)
    best: Any = None
    within: list[dict[str, Any]] = field(default_factory=list)

    def add(self, entry: dict[str, Any], copy: Callable[[], Any]) -> None:
        """Count an epoch.

        Args:
            copy: returns a copy of the model's numbers.
        """
        if self.within:
            entry["validations"], self.within = self.within, []
        self.history.append(entry)
        self._keep_best(copy)

    def add_within(self, step: int, results: Mapping[str, Any], copy: Callable[[], Any]) -> None:
        """Count a validation after `step` batches of the present epoch; `copy` as of `add`."""
        self.within = [*self.within, {"step": step, **results}]
        self._keep_best(copy)

    def _keep_best(self, copy: Callable[[], Any]) -> None:
        if self.restore_best and not self._count_since_best():
            self.best = copy()

    @property
    def is_over(self) -> bool:
        """Return whether the training shall end before its last epoch."""
        return not self.within and self.is_patience_over

    @property
    def is_patience_over(self) -> bool:
        """Return whether the training, or the epoch that has validations within, shall end."""
        return self.patience is not None and self._count_since_best() >= self.patience

    def _count_since_best(self) -> int:
        """Return how many validations there were after the best one; of equal ones the first is the best."""
        points = [
            point
            for entry in [*self.history, {"validations": self.within}]
            for point in [*({"validation": each} for each in entry.get("validations", [])), entry]
            if "train" in point or "validation" in point
        ]
        sign = -1 if self.mode == "max" else 1
        scores = [sign * find_number(point, self.monitor) for point in points]
        if scores and all(map(math.isnan, scores)):
            raise DataError(
                f"{self.monitor or 'the loss'} is nan in each of the {len(scores)} validations so far, so no model is "
                "the best one: a row for validation has NaN or an infinite value. Remove such rows, or leave out "
                "restore_best and early_stopping_patience."
            )
        scores = [score if math.isfinite(score) else math.inf for score in scores]
        return len(scores) - 1 - scores.index(min(scores)) if scores else 0


def find_number(entry: Mapping[str, Any], name: str | None) -> float:
    """Return a number of an epoch: "train.loss", "validation.accuracy", or what a LightningModule has logged.

    Args:
        name: None or empty: the loss of validation, or without one that of training.

    Raises:
        ValueError: the entry of the history has none of this name.
    """
    name = name or f"{'validation' if entry.get('validation') else 'train'}.loss"
    parts = {part: entry.get(part) or {} for part in ("train", "validation")}
    known = dict(entry.get("logged", {}))
    for part, results in parts.items():
        known |= {f"{part}.{key}": value for key, value in {**results, **results.get("metrics", {})}.items()}
    known = {key: value for key, value in known.items() if isinstance(value, numbers.Real)}
    if name not in known:
        raise ValueError(f"monitor={name!r} is no number of this training, which has {', '.join(known)}.")
    number: float = known[name]
    return number
