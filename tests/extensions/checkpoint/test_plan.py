"""Which rank writes which piece."""

from __future__ import annotations

import math

import pytest

from spark_estimator.extensions.checkpoint.plan import SMALLEST_PIECE, share_out

MIB = 1 << 20


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_row_has_one_piece_and_the_ranks_have_equal_shares(ranks: int) -> None:
    shapes = [(40 * MIB,), (3, MIB), (), (0, 5), (7, 11, 13), (64 * MIB,)]
    pieces = share_out(shapes, [1] * len(shapes), ranks)
    for number, shape in enumerate(shapes):
        rows = [(piece.first, piece.rows) for piece in pieces if piece.tensor == number]
        assert [first for first, _ in rows] == [sum(r for _, r in rows[:place]) for place in range(len(rows))]
        assert sum(count for _, count in rows) == (shape[0] if shape else 1)
    shares = [0] * ranks
    for piece in pieces:
        shape = shapes[piece.tensor]
        shares[piece.rank] += piece.rows * math.prod(shape[1:])
    total = sum(math.prod(shape) for shape in shapes)
    largest = max(SMALLEST_PIECE, total // ranks // 8) + MIB  # a row of the second tensor has a mebibyte
    assert all(abs(share - total / ranks) <= largest for share in shares), shares


def test_small_tensors_stay_whole() -> None:
    assert [piece.rows for piece in share_out([(1000,), (2000,)], [4, 4], 4)] == [1000, 2000]


def test_tensors_without_elements_only() -> None:
    assert {piece.rank for piece in share_out([(0,), (0, 3)], [4, 4], 2)} == {0}
