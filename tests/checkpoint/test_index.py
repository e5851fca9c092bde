"""The index that is written without torch is torch's own; the reader accepts nothing else."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from spark_estimator.checkpoint.index import index_of
from spark_estimator.checkpoint.metadata_text import Note, SavedObject, SavedPiece, metadata_text
from spark_estimator.checkpoint.part_file import chunks
from spark_estimator.errors import DataError


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
    text = metadata_text([note(0, rows(0, 5), half, objects=(NUMBER,))], "folder")
    ours: Metadata = pickle.loads(text)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    assert {type(place) for place in ours.storage_data.values()} == {
        type(place) for place in theirs.storage_data.values()
    }
    assert ours.version == theirs.version


def test_pieces_of_all_ranks_make_one_tensor() -> None:
    text = metadata_text([note(1, rows(3, 2)), note(0, rows(0, 3), objects=(NUMBER,))], "folder")
    index = index_of(text, "x")
    assert [(extent.file, extent.first, extent.sizes) for extent in index["m.w"].extents] == [
        ("__0_0.distcp", (0, 0), (3, 2)),
        ("__1_0.distcp", (3, 0), (2, 2)),
    ]
    assert (index["n"].dtype, index["n"].extents[0].length) == (None, 1261)


@pytest.mark.parametrize("others", [(), (rows(3, 1),), (rows(2, 3),)])
def test_parts_that_make_no_whole_are_no_checkpoint(others: tuple[SavedPiece, ...]) -> None:
    with pytest.raises(ValueError, match=r"m\.w"):
        metadata_text([note(0, rows(0, 3)), note(1, *others)], "folder")


def test_ranks_of_different_structure() -> None:
    with pytest.raises(ValueError, match="different structure"):
        metadata_text([note(0, rows(0, 3)), note(1, rows(3, 2), structure="t")], "folder")


def test_a_note_travels_as_json() -> None:
    before = note(0, rows(0, 5), objects=(NUMBER,))
    assert metadata_text([Note.from_json(before.to_json())], "f") == metadata_text([before], "f")


class Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, ("harmed",)


def test_no_code_runs_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="mkdir is not part of an index"):
        index_of(pickle.dumps(Harmful()), "x")
    assert not Path("harmed").exists()


def test_a_file_elsewhere_is_refused() -> None:
    text = metadata_text([Note(0, "../x.distcp", 1, "s", [rows(0, 5)], [])], "folder")
    with pytest.raises(DataError, match=r"\.\./x"):
        index_of(text, "x")


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_damaged_index_is_an_error(cut: int) -> None:
    text = metadata_text([note(0, rows(0, 5))], "folder")
    with pytest.raises(DataError, match="the file is no index"):
        index_of(text[:cut], "the file")


def test_chunks_carry_checksums_into_the_text_behind_each_hole() -> None:
    content = memoryview(bytes(range(100)))
    result = b"".join(bytes(chunk) for chunk in chunks(content, 100, [(10, 20, (32, 40)), (60, 5, (70,))]))
    import zlib

    expected = bytearray(content)
    for place in (32, 40):
        expected[place : place + 4] = zlib.crc32(content[10:30]).to_bytes(4, "little")
    expected[70:74] = zlib.crc32(content[60:65]).to_bytes(4, "little")
    assert result == bytes(expected)
    assert io.BytesIO(result).getbuffer().nbytes == 100
