"""``.metadata`` of torch's layout, made from the notes of all parts. Without torch: the writer runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_estimator.extensions.checkpoint.pickle_text import Made, Name, make_dict, pickle_value

_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
#: Of the layout; torch's ``CURRENT_DCP_VERSION``.
_VERSION = "1.0.0"


@dataclass(frozen=True)
class SavedPiece:
    """Some rows of a tensor in a part."""

    key: str  # the tensor's name
    path: Sequence[str | int]  # the keys and places that lead to it in the state
    dtype: str  # as torch names it
    shape: Sequence[int]  # of the whole tensor
    first: Sequence[int]  # [dimensions] where the piece begins
    sizes: Sequence[int]  # [dimensions] of the piece
    offset: int  # in bytes, in the file
    length: int  # in bytes


@dataclass(frozen=True)
class SavedObject:
    """A value that is no tensor, in a part. Attributes as of `SavedPiece`."""

    key: str
    path: Sequence[str | int]
    offset: int
    length: int


@dataclass(frozen=True)
class Note:
    """A writer's note on its part."""

    rank: int  # whose part it is
    file: str  # its name
    size: int  # in bytes
    structure: str  # a digest of names, types and shapes of what all ranks have alike
    pieces: Sequence[SavedPiece]
    objects: Sequence[SavedObject]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Note:
        """Return the note of what `to_json` returned."""
        pieces = [SavedPiece(**each) for each in values["pieces"]]
        objects = [SavedObject(**each) for each in values["objects"]]
        return Note(values["rank"], values["file"], values["size"], values["structure"], pieces, objects)


def make_metadata(notes: Sequence[Note], folder: str) -> bytes:
    """Return the content of the file.

    Args:
        notes: of all ranks.
        folder: of the checkpoint.

    Raises:
        ValueError: the parts do not make a whole; the text names what differs.
    """
    structures = {note.structure for note in notes}
    if len(structures) > 1:
        raise ValueError("the ranks have states of different structure")
    paths: dict[str, tuple[str | int, ...]] = {}
    pieces: dict[str, list[tuple[SavedPiece, str]]] = {}
    storage: list[tuple[Any, Any]] = []
    state: dict[str, Any] = {}
    for note in notes:
        for saved in note.objects:
            state[saved.key] = Made(Name(_METADATA, "BytesStorageMetadata"))
            paths[saved.key] = tuple(saved.path)
            storage.append((_make_index(saved.key, None), _make_storage_info(note.file, saved)))
        for piece in note.pieces:
            pieces.setdefault(piece.key, []).append((piece, note.file))
            paths[piece.key] = tuple(piece.path)
    for key, parts in pieces.items():
        parts.sort(key=lambda part: tuple(part[0].first))
        _check_whole(key, [piece for piece, _ in parts])
        state[key] = _make_tensor_entry([piece for piece, _ in parts])
        storage += [(_make_index(key, piece.first), _make_storage_info(file, piece)) for piece, file in parts]
    meta: dict[str, Any] = {"checkpoint_id": folder, "save_id": None, "load_id": None, "modules": []}
    whole = {
        "state_dict_metadata": state,
        "planner_data": paths,
        "storage_data": make_dict(storage),
        "storage_meta": Made(Name(_METADATA, "StorageMeta"), state=meta),
        "version": _VERSION,
    }
    return pickle_value(Made(Name(_METADATA, "Metadata"), state=whole))


def _check_whole(key: str, pieces: Sequence[SavedPiece]) -> None:
    rows = 0
    for piece in pieces:
        if piece.first and piece.first[0] != rows:
            raise ValueError(f"rows of {key} are missing or double, at row {rows}")
        rows += piece.sizes[0] if piece.sizes else 1
    if rows != (pieces[0].shape[0] if pieces[0].shape else 1):
        raise ValueError(f"of {key} there are {rows} rows, and it has the shape {list(pieces[0].shape)}")


def _make_tensor_entry(pieces: Sequence[SavedPiece]) -> Made:
    layout = Made(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = Made(Name(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    properties = (Name("torch", pieces[0].dtype), layout, False, contiguous, False)
    chunks = [
        Made(
            Name(_METADATA, "ChunkStorageMetadata"),
            state={"offsets": _make_size(piece.first), "sizes": _make_size(piece.sizes)},
        )
        for piece in pieces
    ]
    state = {
        "properties": Made(Name(_METADATA, "TensorProperties"), state=properties),
        "size": _make_size(pieces[0].shape),
        "chunks": chunks,
    }
    return Made(Name(_METADATA, "TensorStorageMetadata"), state=state)


def _make_size(numbers: Sequence[int]) -> Made:
    return Made(Name("torch", "Size"), (tuple(numbers),))


def _make_index(key: str, first: Sequence[int] | None) -> Made:
    offset = {} if first is None else {"offset": _make_size(first)}
    return Made(Name(_METADATA, "MetadataIndex"), state={"fqn": key, "index": None, **offset})


def _make_storage_info(file: str, saved: SavedPiece | SavedObject) -> Made:
    state = {"relative_path": file, "offset": saved.offset, "length": saved.length}
    return Made(Name(_FILES, "_StorageInfo"), state=state)
