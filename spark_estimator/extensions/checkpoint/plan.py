"""Assigns to ranks the pieces of the state that is equal on all ranks. Nothing here communicates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Tensors are not cut into smaller pieces: each costs about a kilobyte and a tenth of a millisecond.
SMALLEST_PIECE = 1 << 20
# Of a rank's share, so that shares are even within that.
_PIECES_OF_A_SHARE = 8


@dataclass(frozen=True)
class TensorPiece:
    """Rows of a tensor.

    Attributes:
        tensor: its number.
        first, rows: along its first dimension; of a tensor without one, 0 and 1.
        rank: who writes it.
    """

    tensor: int
    first: int
    rows: int
    rank: int


def share_out(shapes: Sequence[Sequence[int]], item_bytes: Sequence[int], ranks: int) -> list[TensorPiece]:
    """Cuts tensors into pieces and assigns each rank the same number of bytes, to one piece.

    Args:
        shapes: [tensors].
        item_bytes: [tensors] of one element.
    """
    sizes = [math.prod(shape) * size for shape, size in zip(shapes, item_bytes, strict=True)]
    total = sum(sizes)
    largest = max(SMALLEST_PIECE, total // max(1, ranks * _PIECES_OF_A_SHARE))
    pieces, done = [], 0
    for number, (shape, size) in enumerate(zip(shapes, sizes, strict=True)):
        rows = shape[0] if len(shape) else 1
        parts = max(1, min(rows, -(-size // largest))) if ranks > 1 else 1
        for part in range(parts):
            first, stop = part * rows // parts, (part + 1) * rows // parts
            piece = (stop - first) * (size // rows) if rows else 0
            rank = min(ranks - 1, (done + piece // 2) * ranks // total) if total else 0
            pieces.append(TensorPiece(number, first, stop - first, rank))
            done += piece
    return pieces
