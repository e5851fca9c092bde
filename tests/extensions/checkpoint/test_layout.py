"""Which rank writes which piece, and where the pieces are in a rank's part."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from spark_estimator.extensions.checkpoint.layout import (
    SMALLEST_PIECE,
    TensorPiece,
    collect_structure,
    make_layout,
    select_rows,
    share_out,
)
from spark_estimator.extensions.checkpoint.state import StateEntry

MIB = 1 << 20
LARGE = torch.zeros(8, SMALLEST_PIECE // 4 // 4)  # as many bytes as two pieces


def entries(**values: Any) -> list[StateEntry]:
    return [StateEntry(name, (name,), value) for name, value in values.items()]


def test_the_structure_has_names_types_and_shapes() -> None:
    state = entries(w=torch.zeros(2, 3), n=5, s=torch.tensor(1, dtype=torch.int64), e=torch.empty(0))
    structure = collect_structure(state)
    assert structure == (("w", "float32", (2, 3)), ("n", "", ()), ("s", "int64", ()), ("e", "float32", (0,)))
    assert collect_structure([]) == ()
    other = [replace(state[0], value=torch.zeros(3, 2)), *state[1:]]
    digests = {make_layout(each, collect_structure(each), 0, 1).digest for each in (state, other, state[:-1])}
    assert len(digests) == 3
    again = entries(w=torch.ones(2, 3), n=6, s=torch.tensor(2), e=torch.empty(0))
    assert collect_structure(again) == structure, "values do not matter"


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_all_ranks_together_have_each_row_once(ranks: int) -> None:
    state = entries(large=LARGE, small=torch.zeros(3), none=torch.empty(0, 2), scalar=torch.tensor(1.0), text="x")
    structure = collect_structure(state)
    layouts = [make_layout(state, structure, rank, ranks) for rank in range(ranks)]
    assert len({layout.digest for layout in layouts}) == 1
    rows: dict[str, list[tuple[int, int]]] = {}
    for layout in layouts:
        table = json.loads(layout.table)
        assert table["structure"] == layout.digest
        end = 0
        for piece in table["pieces"]:
            assert piece["offset"] % 64 == 0 and piece["offset"] >= end
            end = piece["offset"] + piece["length"]
            first, count = (piece["first"][0], piece["sizes"][0]) if piece["shape"] else (0, 1)
            rows.setdefault(piece["key"], []).append((first, count))
        assert end == layout.end <= layout.objects_offset and layout.objects_offset % 64 == 0
        for placed, hole in zip(layout.pieces, table["holes"], strict=True):
            assert hole == [placed.hole.offset, placed.hole.size, list(placed.hole.checksums)]
            assert placed.hole.size == select_rows(state[placed.entry].value, placed).nbytes
    assert rows.keys() == {"large", "small", "none", "scalar"}
    for key, count in (("large", 8), ("small", 3), ("none", 0), ("scalar", 1)):
        place = 0
        for first, size in sorted(rows[key]):
            assert first == place
            place += size
        assert place == count
    if ranks > 1:
        assert sum(bool(layout.pieces) for layout in layouts) > 1, "the large tensor is shared out"


def test_what_may_differ_between_ranks_is_rank_0_s() -> None:
    state = [StateEntry("b", ("b",), LARGE, of_first=True)]
    layouts = [make_layout(state, collect_structure(state), rank, 2) for rank in range(2)]
    assert [len(layout.pieces) for layout in layouts] == [1, 0]
    assert layouts[0].pieces[0].rows == 8 and layouts[1].end == 0


def test_a_state_without_tensors_has_a_table_alone() -> None:
    layout = make_layout(entries(n=1), collect_structure(entries(n=1)), 0, 1)
    assert (layout.end, layout.pieces, layout.texts) == (0, [], [])
    assert json.loads(layout.table)["pieces"] == []
    assert layout.objects_offset >= len(layout.table)


def test_rows_of_a_tensor() -> None:
    tensor = torch.arange(12).reshape(4, 3)
    assert torch.equal(select_rows(tensor, TensorPiece(0, 1, 2, 0)), tensor[1:3])
    assert select_rows(tensor, TensorPiece(0, 4, 0, 0)).shape == (0, 3)
    assert torch.equal(select_rows(torch.tensor(5), TensorPiece(0, 0, 1, 0)), torch.tensor(5))


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
