"""The passes of a step."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

from spark_estimator.data.rank.epoch_rows import Batch
from spark_estimator.data.rank.shares import Batches
from spark_estimator.estimators.torch.losses import TorchParts, compute_joint_loss, find_divisors
from spark_estimator.estimators.torch.stepping import Pass, make_passes

LABELS = torch.tensor(
    [[0, -100, -100], [1, 2, 0], [-100, -100, -100], [2, 2, -100], [1, -100, 0], [0, 1, 2], [2, 0, -100]]
)
OF_RANKS = ((0, 2, 4, 6), (1, 3, 5))


def parts_of(leaving: bool) -> TorchParts:
    model = nn.Linear(1, 1)
    return TorchParts(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        [nn.CrossEntropyLoss() if leaving else nn.MSELoss()],
        [1.0],
        [[]],
        leaving_out=frozenset([0] if leaving else []),
    )


def batches_of(rank: int, plan: Batches, ranks: int) -> list[Batch]:
    made = []
    for step in range(plan.steps):
        start, stop = plan.get_bounds(rank, step)
        rows = numpy.array(OF_RANKS[rank][start:stop] or [0])
        made.append(Batch((rows,), (stop - start) * ranks / plan.count_total(step), stop - start))
    return made


@pytest.mark.parametrize("leaving", [True, False], ids=["tokens", "rows"])
@pytest.mark.parametrize(("batch_size", "most"), [(1, 2), (1, 3), (1, 4), (2, 2), (4, 1)])
def test_the_gradients_of_a_step_are_those_of_all_its_rows(leaving: bool, batch_size: int, most: int) -> None:
    """The rows of two ranks in steps of several passes, of which the last may have fewer."""
    torch.manual_seed(0)
    parts = parts_of(leaving)
    output = torch.randn(7, 3, 3)
    labels = LABELS if leaving else torch.randn(7, 3, 3)
    plan = Batches((4, 3), batch_size)
    by_rank = [batches_of(rank, plan, 2) for rank in range(2)]

    def divisors(batch: Batch) -> list[float]:
        return list(find_divisors(parts, [labels[batch.matrices[0]]], None, batch.rows).values())

    for start in range(0, plan.steps, most):
        step = [of_rank[start : start + most] for of_rank in by_rank]
        sums = [
            sum(column)
            for column in zip(
                *([sum(map(sum, map(divisors, of_rank))), float(sum(b.rows for b in of_rank))] for of_rank in step),
                strict=True,
            )
        ]
        loss = 0.0
        for of_rank in step:
            made = make_passes(iter(of_rank), plan, start, most, divisors, lambda _, sums=sums: sums)
            loss += sum(part.factor * of_pass(parts, output, labels, part) for part in made) / 2
        rows = [row for of_rank in step for batch in of_rank for row in batch.matrices[0][: batch.rows]]
        joint = parts.losses[0](output[rows], labels[rows]).item()
        assert loss == pytest.approx(joint), (start, rows)


def of_pass(parts: TorchParts, output: torch.Tensor, labels: torch.Tensor, part: Pass) -> float:
    rows = part.batch.matrices[0]
    return compute_joint_loss(parts, [output[rows]], [labels[rows]], None, part.batch.rows, part.total).value.item()


def test_passes_count_alike_as_in_horovod_where_losses_divide_by_rows() -> None:
    plan = Batches((5,), 2)
    batches = [Batch((numpy.zeros(1),), 1.0, rows) for rows in (2, 2, 1)]
    made = [*make_passes(iter(batches), plan, 0, 2, lambda _: [], list, as_horovod=True)]
    assert [part.factor for part in made] == [0.5, 0.5, 0.5]
    assert [part.factor for part in make_passes(iter(batches), plan, 0, 2, lambda _: [], list)] == [0.5, 0.5, 1.0]
    labels = [*make_passes(iter(batches), plan, 0, 2, lambda batch: [batch.rows], lambda _: [9.0], as_horovod=True)]
    assert [part.total([]) for part in labels] == [[9.0]] * 3


def test_a_step_of_one_pass_needs_no_sums() -> None:
    batch = Batch((numpy.zeros(1),), 0.5, 1)
    (only,) = make_passes(iter([batch]), Batches((1, 1), 1), 0, 1, lambda _: [], list)
    assert (only.batch, only.factor, only.total) == (batch, 0.5, list)
