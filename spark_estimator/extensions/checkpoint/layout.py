"""Which rank writes which piece of the state, and where it is in a slot's memory, and so in the rank's part.

Computed once for a structure, without communication.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from spark_estimator.checkpoint.shared_control import SlotState
from spark_estimator.checkpoint.writer_link import WriterLink
from spark_estimator.extensions.checkpoint.image import Hole, align, make_frame, move_hole
from spark_estimator.extensions.checkpoint.metadata_text import SavedPiece
from spark_estimator.extensions.checkpoint.state import StateEntry

#: [entries] key, type and shape; of a value that is no tensor "" and ().
Structure = tuple[tuple[str, str, tuple[int, ...]], ...]
#: Tensors are not cut into smaller pieces: each costs about a kilobyte and a tenth of a millisecond.
SMALLEST_PIECE = 1 << 20
# Of a rank's share, so that shares are even within that.
_PIECES_OF_A_SHARE = 8


def collect_structure(entries: Sequence[StateEntry]) -> Structure:
    """Return keys, types and shapes of a state, which must be equal on all ranks."""
    return tuple(
        (entry.key, str(entry.value.dtype).removeprefix("torch."), tuple(entry.value.shape))
        if isinstance(entry.value, torch.Tensor)
        else (entry.key, "", ())
        for entry in entries
    )


@dataclass(frozen=True)
class TensorPiece:
    """Rows of a tensor."""

    tensor: int  # its number
    first: int  # along its first dimension; of a tensor without one, 0
    rows: int  # of a tensor without dimensions, 1
    rank: int  # that writes it


@dataclass(frozen=True)
class Placed:
    """A piece of this rank's part."""

    entry: int  # the number of its tensor
    first: int
    rows: int
    hole: Hole  # the position of its data


@dataclass
class Layout:
    """One rank's part, but for the values that are no tensors."""

    structure: Structure  # for which it was made
    digest: str  # of the structure
    end: int = 0  # bytes of the pieces together
    table: bytes = b""  # what the writer needs of it, in JSON; its place is behind the pieces
    pieces: list[Placed] = field(default_factory=list)
    texts: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def objects_offset(self) -> int:
        """Return the offset in a slot of the values that are not tensors."""
        return align(self.end + len(self.table))


class Staging:
    """Room for a state in both slots; it is made in a thread, as the kernel takes its time for new memory.

    Args:
        layout: of this rank's part.
        values: [entries] whose tensors will be copied.
        link: whose slots it is in.
    """

    def __init__(self, layout: Layout, values: Sequence[Any], link: WriterLink) -> None:
        self.layout = layout
        shapes = [select_rows(values[placed.entry], placed).shape for placed in layout.pieces]
        dtypes = [values[placed.entry].dtype for placed in layout.pieces]
        self._kinds = list(zip(layout.pieces, shapes, dtypes, strict=True))
        self._link = link
        self._targets: list[list[torch.Tensor] | None] = [None] * len(link.slots)
        self._thread = threading.Thread(target=self._make, name="spark_estimator checkpoint memory", daemon=True)
        self._thread.start()

    def get_targets(self, number: int) -> list[torch.Tensor]:
        """Return [pieces] tensors over a free slot's memory, to copy to."""
        self._thread.join()
        result = self._targets[number]
        if result is None:
            result = self._targets[number] = self._make_targets(number)
        return result

    def _make(self) -> None:
        for number in self._link.control.find_slots(SlotState.FREE):  # a copy that waits is not overwritten
            self._targets[number] = self._make_targets(number)

    def _make_targets(self, number: int) -> list[torch.Tensor]:
        slot, layout = self._link.slots[number], self.layout
        if layout.end:
            slot.make_room(layout.end)
            slot.populate()
        for offset, text in layout.texts:
            slot.put(offset, text)
        slot.put(layout.end, layout.table)
        result = []
        for placed, shape, dtype in self._kinds:
            count = placed.hole.size // dtype.itemsize
            flat = torch.frombuffer(slot.view, dtype=dtype, count=count, offset=placed.hole.offset)
            result.append(flat.view(shape))
        return result


def select_rows(tensor: torch.Tensor, piece: TensorPiece | Placed) -> torch.Tensor:
    """Return the rows of a piece."""
    return tensor[piece.first : piece.first + piece.rows] if tensor.dim() else tensor


def make_layout(entries: Sequence[StateEntry], structure: Structure, rank: int, ranks: int) -> Layout:
    """Return the layout of a rank's part. No other rank is asked, as all have the same structure."""
    digest = hashlib.sha256(json.dumps(structure).encode()).hexdigest()
    layout = Layout(structure, digest)
    tensors = [number for number, entry in enumerate(entries) if isinstance(entry.value, torch.Tensor)]
    shared = [number for number in tensors if not entries[number].of_first]
    shapes = [tuple(entries[number].value.shape) for number in shared]
    pieces = share_out(shapes, [entries[number].value.element_size() for number in shared], ranks)
    own_pieces = [(shared[piece.tensor], piece) for piece in pieces if piece.rank == rank]
    if rank == 0:
        firsts = [number for number in tensors if entries[number].of_first]
        own_pieces += [(number, _make_whole_piece(entries[number].value)) for number in firsts]
    saved = []
    for number, piece in own_pieces:
        entry = entries[number]
        tensor = entry.value
        sizes = tuple(select_rows(tensor, piece).shape)
        frame = make_frame(sizes, tensor.dtype)
        offset = align(layout.end)
        if offset > layout.end:
            layout.texts.append((layout.end, bytes(offset - layout.end)))
        layout.texts += [(offset + position, text) for position, text in frame.texts]
        if frame.hole is not None:
            layout.pieces.append(Placed(number, piece.first, piece.rows, move_hole(frame.hole, offset)))
        layout.end = offset + frame.size
        first = (piece.first, *[0] * (tensor.dim() - 1)) if tensor.dim() else ()
        dtype = structure[number][1]
        saved.append(SavedPiece(entry.key, entry.path, dtype, tuple(tensor.shape), first, sizes, offset, frame.size))
    holes = [(placed.hole.offset, placed.hole.size, placed.hole.checksums) for placed in layout.pieces]
    table = {"holes": holes, "pieces": [asdict(piece) for piece in saved], "structure": digest}
    layout.table = json.dumps(table).encode()
    return layout


def _make_whole_piece(tensor: torch.Tensor) -> TensorPiece:
    return TensorPiece(0, 0, tensor.shape[0] if tensor.dim() else 1, 0)


def share_out(shapes: Sequence[Sequence[int]], item_bytes: Sequence[int], ranks: int) -> list[TensorPiece]:
    """Cut tensors into pieces; assign each rank the same number of bytes, to one piece.

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
