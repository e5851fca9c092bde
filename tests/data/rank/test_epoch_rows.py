"""What each kind of a rank's rows has without code for it: totals, the plan of an epoch, and clear refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

from spark_estimator.data.rank.epoch_rows import Batch, EpochRows


class Counted(EpochRows):
    """Rows that are numbers, without any of what a kind of rows may add."""

    def __init__(self, counts: tuple[int, ...], rank: int) -> None:
        self.counts = counts
        self.rank = rank

    def read_batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        plan = self.make_plan(batch_size, most_steps)
        for step in range(first, plan.steps):
            start, stop = plan.get_bounds(self.rank, step)
            rows = numpy.arange(start, max(stop, start + 1))[:, None]
            yield Batch((rows,), (stop - start) * len(self.counts) / plan.count_total(step), stop - start)


@pytest.mark.parametrize("counts", [(), (0,), (1,), (3, 2), (5, 4, 4), (1, 0, 0)])
@pytest.mark.parametrize(("batch_size", "most_steps"), [(1, None), (2, None), (2, 1), (100, None), (3, 0)])
def test_the_plan_has_as_many_steps_for_all_ranks(
    counts: tuple[int, ...], batch_size: int, most_steps: int | None
) -> None:
    rows = Counted(counts, 0)
    plan = rows.make_plan(batch_size, most_steps)
    assert rows.total == sum(counts)
    assert plan.steps == min(-(-max(counts, default=0) // batch_size), 10**9 if most_steps is None else most_steps)
    assert plan.count_done(plan.steps) == sum(plan.count_total(step) for step in range(plan.steps))
    if most_steps is None:
        assert plan.count_done(plan.steps) == rows.total
    batches = [list(Counted(counts, rank).read_batches(batch_size, most_steps)) for rank in range(len(counts))]
    assert {len(of_rank) for of_rank in batches} <= {plan.steps}


def test_factors_make_the_average_of_the_ranks_the_mean_over_all_rows() -> None:
    counts = (5, 4, 2)
    ranks = [list(Counted(counts, rank).read_batches(2)) for rank in range(3)]
    assert [[batch.rows for batch in of_rank] for of_rank in ranks] == [[2, 2, 1], [2, 1, 1], [1, 1, 0]]
    for step in zip(*ranks, strict=True):
        rows = sum(batch.rows for batch in step)
        means = [batch.matrices[0][: batch.rows].mean() if batch.rows else 123.0 for batch in step]
        average = sum(mean * batch.factor for mean, batch in zip(means, step, strict=True)) / 3
        assert average == pytest.approx(sum(batch.matrices[0][: batch.rows].sum() for batch in step) / rows)


def test_the_interface_needs_batches() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?read_batches"):
        EpochRows()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rows: rows.split(0.5, 1), "Counted cannot be split"),
        (lambda rows: rows.compute_checksums(), "Counted has no checksum"),
        (lambda rows: rows.compute_spread(), "Counted has no checksum"),
        (lambda rows: rows.read_blocks([0]), "Counted gives its rows in batches alone"),
        (lambda rows: rows.make_leg(2, 1), "Counted has no position"),
        (lambda rows: rows.find_remaining([], None), "Counted has no position"),
    ],
)
def test_what_a_kind_of_rows_lacks_is_refused_by_its_name(call: object, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        call(Counted((1,), 0))  # type: ignore[operator]
