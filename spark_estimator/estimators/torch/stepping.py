"""The backward passes of a step, whose gradients add up to those of a joint batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_estimator.data.rank.epoch_rows import Batch
from spark_estimator.data.rank.shares import Batches
from spark_estimator.estimators.torch.losses import Total


@dataclass(frozen=True)
class Pass:
    """A batch, and its part in a step.

    Attributes:
        factor: what this rank's loss is multiplied with, so that the ranks' average of the sums over a step's passes is
            the mean of the step.
        total: adds up what the losses divide by, over all ranks and passes of the step.
    """

    batch: Batch
    factor: float
    total: Total


def make_passes(
    batches: Iterator[Batch],
    plan: Batches,
    first: int,
    most: int,
    divisors: Callable[[Batch], Sequence[float]],
    total: Total,
    *,
    as_horovod: bool = False,
) -> Iterator[Pass]:
    """Yield the passes of an epoch. An epoch's last step may have fewer. A collective before each step of several
    passes.

    The loss of a step is the mean over all its rows, or labels that count. Where losses divide by rows it may be
    as in Horovod: the sum of the passes' means, divided by `most`. Then an epoch's last, shorter step moves less.

    Args:
        first: the number of the first batch.
        most: passes of a step.
        divisors: of a batch: what its losses divide by; empty: they divide by rows.
        total: adds up over the ranks.
        as_horovod: where losses divide by rows.
    """
    if most == 1:
        yield from (Pass(batch, batch.factor, total) for batch in batches)
        return
    ranks = len(plan.rows)
    while step := list(itertools.islice(batches, most)):
        rows = sum(plan.count_total(number) for number in range(first, first + len(step)))
        first += len(step)
        of_passes = [divisors(batch) for batch in step]
        if as_horovod and not of_passes[0]:
            yield from (Pass(batch, batch.factor / most, total) for batch in step)
            continue
        of_step = make_step_total(of_passes, [batch.rows for batch in step], total)
        yield from (Pass(batch, batch.rows * ranks / rows, of_step) for batch in step)


def make_step_total(divisors: Sequence[Sequence[float]], rows: Sequence[int], total: Total) -> Total:
    """Return what `total` is to each pass of a step.

    Args:
        divisors: [passes] of this rank.
        rows: [passes] of this rank.
    """
    if not divisors[0]:
        return total
    sums = total([*(sum(column) for column in zip(*divisors, strict=True)), float(sum(rows))])
    return lambda _: sums
