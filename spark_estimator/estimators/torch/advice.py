"""Warns, on the driver, of parameters of PyTorch's that are used in another way than they may be meant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spark_estimator.estimators.averaged_metrics import warn_of_averages
from spark_estimator.estimators.params import warn_caller

if TYPE_CHECKING:
    from spark_estimator.estimators.torch.losses import TorchParts

#: Attributes of schedulers, and of the functions of LambdaLR, that count the calls of step() -> whether the count is
#: that of the whole training; else it is that of a part of it, such as a warm-up.
_COUNTS = {
    "total_steps": True,
    "T_max": True,
    "num_training_steps": True,
    "num_warmup_steps": False,
    "total_iters": False,
    "T_0": False,
    "total_size": False,
}


def warn_of_metrics(parts: TorchParts, counts: Callable[[Any], bool] | None = None) -> None:
    """Warn of metrics that are known to be no means over rows.

    Args:
        counts: returns whether a metric counts all rows; None: all are functions of a batch.
    """
    named = zip(itertools.chain(*parts.metric_names), itertools.chain(*parts.metrics), strict=True)
    other = "Pass torchmetrics' objects, which count all rows, or compute" if counts else "Compute"
    warn_of_averages(
        [(name, metric) for name, metric in named if not (counts and counts(metric))],
        f"{other} these from trained.transform(rows), by sklearn.metrics or Spark ML's evaluators.",
    )


def warn_of_schedule(scheduler: Any, epochs: int) -> None:
    """Warn of a learning rate scheduler that is made for another number of steps than the epochs.

    Args:
        scheduler: None: there is none.
        epochs: after each of which it is stepped.
    """
    others = list(_find_other_lengths(scheduler, epochs))
    if others:
        warn_caller(
            f"lr_scheduler has {', '.join(others)}, and is stepped once after each epoch (epochs={epochs}), not after "
            "each batch. Count its steps in epochs, or set epochs."
        )


def _find_other_lengths(scheduler: Any, epochs: int) -> Iterator[str]:
    """Yield the scheduler, or those that it is made of, whose counts do not fit: ``OneCycleLR(total_steps=1000)``."""
    parts = getattr(scheduler, "_schedulers", None)
    if parts is not None:  # a SequentialLR, whose parts follow each other, or a ChainedScheduler
        milestones = getattr(scheduler, "_milestones", None)
        begins = [0] * len(parts) if milestones is None else [0, *milestones]
        ends = [epochs] * len(parts) if milestones is None else [*milestones, epochs]
        for part, begin, end in zip(parts, begins, ends, strict=True):
            yield from _find_other_lengths(part, max(0, min(end, epochs) - begin))
        return
    counts = dict(getattr(scheduler, "__dict__", {}))
    for function in getattr(scheduler, "lr_lambdas", ()):
        counts |= getattr(function, "keywords", {})  # of functools.partial, as transformers' schedules are
    for name, is_whole in _COUNTS.items():
        count = counts.get(name)
        if not isinstance(count, (int, float)):
            continue
        # One step more or less changes the last epoch alone. With fewer, OneCycleLR raises an error.
        fewest = epochs - (name != "total_steps") if is_whole else 0
        if not fewest <= count <= epochs + 1:
            yield f"{type(scheduler).__name__}({name}={count:g})"
