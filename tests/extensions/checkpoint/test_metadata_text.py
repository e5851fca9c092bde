"""``.metadata`` that is written without torch is torch's own, and only of parts that make a whole."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from spark_estimator.extensions.checkpoint.metadata_text import Note, SavedObject, SavedPiece, make_metadata


def note(rank: int, *pieces: SavedPiece, objects: tuple[SavedObject, ...] = (), structure: str = "s") -> Note:
    return Note(rank, f"__{rank}_0.distcp", 9000, structure, pieces, objects)


def rows(first: int, count: int, *, whole: int = 5) -> SavedPiece:
    return SavedPiece("m.w", ("m", "w"), "float32", (whole, 2), (first, 0), (count, 2), 64, 1577)


NUMBER = SavedObject("n", ("n",), 2048, 1261)


def test_it_says_what_torchs_own_says(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(
            {"m": {"w": torch.zeros(5, 2), "h": torch.zeros((), dtype=torch.bfloat16)}, "n": 5}, checkpoint_id=tmp_path
        )
    theirs: Metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    half = SavedPiece("m.h", ("m", "h"), "bfloat16", (), (), (), 0, 1500)
    text = make_metadata([note(0, rows(0, 5), half, objects=(NUMBER,))], "folder")
    ours: Metadata = pickle.loads(text)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    assert {type(place) for place in ours.storage_data.values()} == {
        type(place) for place in theirs.storage_data.values()
    }
    assert ours.version == theirs.version


@pytest.mark.parametrize("others", [(), (rows(3, 1),), (rows(2, 3),)])
def test_parts_that_make_no_whole_are_no_checkpoint(others: tuple[SavedPiece, ...]) -> None:
    with pytest.raises(ValueError, match=r"m\.w"):
        make_metadata([note(0, rows(0, 3)), note(1, *others)], "folder")


def test_ranks_of_different_structure() -> None:
    with pytest.raises(ValueError, match="different structure"):
        make_metadata([note(0, rows(0, 3)), note(1, rows(3, 2), structure="t")], "folder")


def test_a_note_travels_as_json() -> None:
    before = note(0, rows(0, 5), objects=(NUMBER,))
    assert make_metadata([Note.from_json(before.to_json())], "f") == make_metadata([before], "f")


def test_a_tensor_without_rows_and_numbers_without_dimension_are_whole() -> None:
    scalar = SavedPiece("s", ("s",), "int64", (), (), (), 0, 1)
    metadata = pickle.loads(make_metadata([note(0, rows(0, 0, whole=0), scalar)], "folder"))
    assert metadata.state_dict_metadata["m.w"].size == torch.Size([0, 2])
    assert metadata.state_dict_metadata["s"].size == torch.Size([])
    with pytest.raises(ValueError, match="of s there are 2 rows"):
        make_metadata([note(0, scalar), note(1, scalar)], "folder")


def test_pieces_are_sorted_whatever_rank_has_them() -> None:
    notes = [note(2, rows(4, 1)), note(0, rows(2, 2)), note(1, rows(0, 2))]
    metadata = pickle.loads(make_metadata(notes, "folder"))
    chunks = metadata.state_dict_metadata["m.w"].chunks
    assert [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks] == [
        ((0, 0), (2, 2)),
        ((2, 0), (2, 2)),
        ((4, 0), (1, 2)),
    ]
    files = {tuple(index.offset): place.relative_path for index, place in metadata.storage_data.items()}
    assert files == {(0, 0): "__1_0.distcp", (2, 0): "__0_0.distcp", (4, 0): "__2_0.distcp"}


def test_no_parts_are_an_empty_checkpoint() -> None:
    metadata = pickle.loads(make_metadata([], "folder"))
    assert metadata.state_dict_metadata == metadata.storage_data == metadata.planner_data == {}
    assert metadata.storage_meta.checkpoint_id == "folder"


@pytest.mark.parametrize("lacking", ["rank", "file", "size", "structure", "pieces", "objects"])
def test_a_note_that_lacks_something_is_an_error(lacking: str) -> None:
    values = note(0, rows(0, 5)).to_json()
    del values[lacking]
    with pytest.raises(KeyError, match=lacking):
        Note.from_json(values)
