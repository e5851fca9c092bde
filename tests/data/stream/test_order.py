"""The order of streamed rows, and the rest of an epoch."""

from __future__ import annotations

import itertools

import numpy
import pytest

from spark_estimator.data.rank import shares
from spark_estimator.data.stream.limits import Mixing
from spark_estimator.data.stream.order import Order, StreamLeg, find_remaining, make_windows

PIECES = [7, 1, 30, 4, 4, 12, 9, 1, 1, 20]


def rows_read(counts: list[int], ranks: int, mixing: Mixing, order: Order) -> list[list[tuple[int, int]]]:
    """[ranks] (piece, row) in the order in which a rank reads them."""
    result = []
    for rank in range(ranks):
        rows: list[tuple[int, int]] = []
        for window in make_windows(shares.divide_ranges(counts, ranks, rank), mixing, order, rank):
            assert 0 < window.rows <= mixing.window_rows and window.start == len(rows)
            stored = [(part.piece, part.start + row) for _, part in window.parts for row in range(part.rows)]
            rows += [stored[number] for number in window.draw_order(order, rank)]
        result.append(rows)
    return result


@pytest.mark.parametrize("window_rows", [1, 3, 8, 25, 1000])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("first_rows", [1, 2, 1000])
@pytest.mark.parametrize("order", [None, (5, 1)])
def test_each_row_comes_once(window_rows: int, streams: int, first_rows: int, order: Order) -> None:
    mixing = Mixing(window_rows, min(streams, window_rows), min(first_rows, window_rows))
    for ranks in (1, 3):
        of_ranks = rows_read(PIECES, ranks, mixing, order)
        assert {len(rows) for rows in of_ranks} <= {sum(PIECES) // ranks, sum(PIECES) // ranks + 1}
        rows = list(itertools.chain.from_iterable(of_ranks))
        everything = [(piece, row) for piece, count in enumerate(PIECES) for row in range(count)]
        assert (rows == everything) if order is None else (sorted(rows) == everything)


def test_a_window_mixes_row_groups_and_each_epoch_differs() -> None:
    (first,), (second,) = (rows_read([50] * 12, 1, Mixing(40, 4, 40), (3, epoch)) for epoch in (0, 1))
    assert first != second
    pieces = [{piece for piece, _ in first[start : start + 40]} for start in range(0, 560, 40)]
    assert min(map(len, pieces)) >= 4
    # A batch of files that are sorted is no run of them.
    assert numpy.mean([a != b for (a, _), (b, _) in itertools.pairwise(first)]) > 0.6


@pytest.mark.parametrize("counts", [[103] * 12, [40] * 3, [1000], [7, 1, 300, 55]])
def test_the_first_windows_are_small_and_each_next_one_has_up_to_twice_the_rows(counts: list[int]) -> None:
    mixing = Mixing(64, 4, 8)
    ranges = shares.divide_ranges(counts, 1, 0)
    rows = [window.rows for window in make_windows(ranges, mixing, (5, 1), 0)]
    assert sum(rows) == sum(counts) and len(rows) < 4 + sum(counts) / 16 + len(counts)
    for place, count in enumerate(rows):
        assert count <= min(64, 8 << min(place, 3))


def test_a_state_of_another_order_is_refused() -> None:
    state = StreamLeg(2, 4, Mixing.from_window(8, 2), 3).to_dict()
    del state["window_rows"]
    with pytest.raises(ValueError, match="keeps all rows on disk"):
        StreamLeg.from_dict(state)


@pytest.mark.parametrize("order", [None, (5, 1)])
def test_other_ranks_read_the_rest_once(order: Order) -> None:
    """4 -> 3 -> 4 ranks, stopped anywhere."""
    for first_steps, second_steps in ((0, 1), (2, 1), (3, 2)):
        legs: list[StreamLeg] = []
        seen: list[tuple[int, int]] = []
        for ranks, steps, window in ((4, first_steps, 5), (3, second_steps, 11), (4, 99, 3)):
            left = find_remaining(PIECES, legs, order)
            numbers = [
                list(range(count)) if rows is None else rows.tolist() for count, rows in zip(PIECES, left, strict=True)
            ]
            counts = [len(rows) for rows in numbers]
            leg = StreamLeg(ranks, 4, Mixing.from_window(window, 2), steps)
            of_ranks = rows_read(counts, ranks, leg.mixing, order)
            plan = shares.Batches(tuple(map(len, of_ranks)), 4)
            for rank, rows in enumerate(of_ranks):
                done = plan.get_bounds(rank, min(steps, plan.steps))[0]
                seen += [(piece, numbers[piece][row]) for piece, row in rows[:done]]
            assert StreamLeg.from_dict(leg.to_dict()) == leg
            legs.append(leg)
        assert sorted(seen) == [(piece, row) for piece, count in enumerate(PIECES) for row in range(count)]
        assert all(rows is not None and not len(rows) for rows in find_remaining(PIECES, legs, order))
