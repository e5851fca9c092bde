"""Equal shares, moves between ranks, batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_estimator.data.rank.shares import Batches, compute_begin, compute_share, divide_ranges, plan_moves


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_moves_make_equal(counts: list[int]) -> None:
    after = list(counts)
    for move in plan_moves(counts):
        assert move.rows > 0
        assert move.source != move.target
        after[move.source] -= move.rows
        after[move.target] += move.rows
    assert sum(after) == sum(counts)
    assert max(after) - min(after) <= 1
    gone = {move.source for move in plan_moves(counts)}
    assert not gone & {move.target for move in plan_moves(counts)}, "no rank both sends and receives"


def test_equal_counts_need_no_moves() -> None:
    assert plan_moves([5, 4, 5]) == []


@given(st.integers(0, 100), st.integers(1, 9))
def test_shares_follow_one_another(total: int, parts: int) -> None:
    place = 0
    for part in range(parts):
        assert compute_begin(total, parts, part) == place
        place += compute_share(total, parts, part)
    assert place == total


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 20))
def test_batches_hold_every_row_once(rows: list[int], batch_size: int) -> None:
    batches = Batches(tuple(rows), batch_size)
    for rank, count in enumerate(rows):
        place = 0
        for step in range(batches.steps):
            start, stop = batches.get_bounds(rank, step)
            assert start == place
            assert stop - start == batches.count_rows(rank, step) <= batch_size
            place = stop
        assert place == count
    assert sum(batches.count_total(step) for step in range(batches.steps)) == sum(rows)


def test_no_batch_of_one_row_is_left_over() -> None:
    batches = Batches((65,), 32)
    assert [batches.count_rows(0, step) for step in range(batches.steps)] == [22, 22, 21]


def test_an_epoch_may_end_early() -> None:
    assert Batches((100, 100), 10, most_steps=3).steps == 3


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 6))
def test_ranges_hold_every_row_once(pieces: list[int], parts: int) -> None:
    seen = []
    for part in range(parts):
        shares = divide_ranges(pieces, parts, part)
        assert sum(piece.rows for piece in shares) == compute_share(sum(pieces), parts, part)
        seen += [(piece.piece, row) for piece in shares for row in range(piece.start, piece.start + piece.rows)]
    assert seen == [(piece, row) for piece, rows in enumerate(pieces) for row in range(rows)]


def test_an_epoch_without_rows_has_no_steps() -> None:
    for rows in ((), (0,), (0, 0)):
        batches = Batches(rows, 10)
        assert (batches.steps, batches.count_done(0)) == (0, 0)
        assert [batches.get_bounds(rank, 0) for rank in range(len(rows))] == [(0, 0)] * len(rows)
