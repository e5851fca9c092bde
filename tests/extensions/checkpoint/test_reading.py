"""Checkpoints are found and read without running code, and damage is reported by its place."""

from __future__ import annotations

import io
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import folders, reading
from spark_estimator.extensions.checkpoint.folders import Folder
from spark_estimator.extensions.checkpoint.index import Extent, Saved
from spark_estimator.store import FilesystemStore, Store

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
MATRIX = torch.arange(6.0).reshape(2, 3)
FIRST = Folder(1, 5, "00000000", 1_700_000_000)


def file_of(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def store_at(folder: Path) -> FilesystemStore:
    return reading.open_store(str(folder))


def write(root: Path, folder: Folder, state: dict[str, Any] | None) -> None:
    """A checkpoint as torch writes it; None: one that is not complete."""
    (root / folder.name).mkdir(parents=True)
    if state is not None:
        dcp.save(state, checkpoint_id=root / folder.name, no_dist=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Step 5 twice, step 7, and step 9, which is not complete."""
    write(tmp_path, FIRST, {"m": {"w": MATRIX}, "step": 5})
    write(tmp_path, Folder(2, 5, "00000001", FIRST.time), {"m": {"w": MATRIX + 1}, "step": 5})
    write(tmp_path, Folder(2, 7, "00000000", FIRST.time - 9), {"m": {"w": MATRIX + 2}, "n": {"v": [1, "a"]}, "step": 7})
    write(tmp_path, Folder(3, 9, "00000000", FIRST.time + 3), None)
    (tmp_path / "other").mkdir()
    (tmp_path / "step-0000000010-0001-20269941T000000Z-00000000").mkdir()
    return tmp_path


def test_the_newest_complete_checkpoint_counts(root: Path) -> None:
    assert reading.complete_steps(str(root)) == [5, 7]
    assert reading.complete_steps(str(root / "nothing")) == []
    state = reading.load(str(root))
    assert torch.equal(state["m"]["w"], MATRIX + 2) and (state["step"], state["n"]) == (7, {"v": [1, "a"]})
    assert torch.equal(reading.load(str(root), step=5)["m"]["w"], MATRIX + 1), "the later attempt"
    assert reading.load(str(root), names=["n"]) == {"n": {"v": [1, "a"]}}
    assert reading.load(str(root), names=[]) == {}
    with pytest.raises(DataError, match=r"has no object named 'o'\. It has 'm', 'n', 'step'\."):
        reading.load(str(root), names=["n", "o"])


def test_checkpoints_that_are_not_there(root: Path) -> None:
    with pytest.raises(DataError, match=r"has no complete checkpoint of step 9; of other steps: 5, 7\."):
        reading.load(str(root), step=9)
    with pytest.raises(DataError, match="no complete checkpoint"):
        reading.load(str(root / "nothing"))
    assert reading.find(store_at(root), str(root / "nothing"), None) is None


def test_only_a_folder_or_a_store_of_files() -> None:
    class Other(Store):
        pass

    Other.__abstractmethods__ = frozenset()
    with pytest.raises(TypeError, match=r"must be a path, a URL or a FilesystemStore; got .*Other"):
        reading.open_store(Other())  # type: ignore[abstract]


def extents_of(root: Path, *contents: Any) -> list[tuple[Saved, Extent]]:
    """Values of one file, one after the other."""
    result, offset = [], 0
    with (root / "__0_0.distcp").open("wb") as file:
        for number, content in enumerate(contents):
            text = file_of(content)
            file.write(text)
            extent = Extent("__0_0.distcp", offset, len(text))
            result.append((Saved(f"v{number}", (f"v{number}",), None, (), (extent,)), extent))
            offset += len(text)
    return result


def test_values_of_a_file_come_in_its_order(tmp_path: Path) -> None:
    extents = extents_of(tmp_path, MATRIX, {"a": [1]}, None)
    random.Random(3).shuffle(extents)
    values = [(saved.key, value) for saved, _, value in reading.read(store_at(tmp_path), str(tmp_path), extents)]
    assert [key for key, _ in values] == ["v0", "v1", "v2"]
    assert torch.equal(values[0][1], MATRIX) and [value for _, value in values[1:]] == [{"a": [1]}, None]
    assert list(reading.read(store_at(tmp_path), str(tmp_path), [])) == []


def damaged(content: bytes, position: int, bit: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]


def places() -> list[tuple[int, int]]:
    """One bit of each tenth byte, and bits of the archive's own fields that the reader of zip files stumbles over."""
    content = file_of(MATRIX)
    entry, data, end = content.index(b"PK\x01\x02"), content.rindex(b"PK\x01\x02"), content.rindex(b"PK\x05\x06")
    fields = [
        *((6, 0), (10, 3), (30, 7)),  # encrypted; another compression; a name that is no text
        *((entry + 8, 0), (entry + 10, 3), (entry + 46, 7), (data + 38, 4)),  # a folder, whose data torch leaves out
        *((end + 16, 0), (end + 16, 7), (end + 10, 0)),
    ]
    return [*((position, position % 8) for position in range(0, len(content), 10)), *fields]


def test_one_wrong_bit_is_reported_or_changes_nothing(tmp_path: Path) -> None:
    extents = extents_of(tmp_path, MATRIX)
    file, store = tmp_path / "__0_0.distcp", store_at(tmp_path)
    content = file.read_bytes()
    errors = 0
    for position, bit in places():
        file.write_bytes(damaged(content, position, bit))
        try:
            ((_, _, value),) = reading.read(store, str(tmp_path), extents)
        except DataError as error:
            errors += 1
            assert f"{tmp_path}/__0_0.distcp: v0" in str(error)
        else:
            assert torch.equal(value, MATRIX), (position, bit)
    assert errors > 20


@pytest.mark.parametrize("kept", [0, 1, 700, -1])
def test_a_part_that_has_lost_its_end(tmp_path: Path, kept: int) -> None:
    extents = extents_of(tmp_path, MATRIX)
    file = tmp_path / "__0_0.distcp"
    content = file.read_bytes()
    file.write_bytes(content[:kept])
    with pytest.raises(DataError, match=rf"v0 is damaged: of {len(content)} bytes there are {len(content[:kept])}\."):
        list(reading.read(store_at(tmp_path), str(tmp_path), extents))
    file.unlink()
    with pytest.raises(FileNotFoundError):
        list(reading.read(store_at(tmp_path), str(tmp_path), extents))


class Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, ("harmed",)


def test_no_code_runs_from_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="v0 cannot be read without running code: "):
        list(reading.read(store_at(tmp_path), str(tmp_path), extents_of(tmp_path, Harmful())))
    assert not Path("harmed").exists()


def test_an_archive_of_something_else_is_no_value(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("text", "text")
    (tmp_path / "__0_0.distcp").write_bytes(stream.getvalue())
    extent = Extent("__0_0.distcp", 0, len(stream.getvalue()))
    with pytest.raises(DataError, match="v0 cannot be read"):
        list(reading.read(store_at(tmp_path), str(tmp_path), [(Saved("v0", ("v0",), None, (), (extent,)), extent)]))


def test_pieces_are_put_into_their_tensor() -> None:
    saved = Saved("w", ("w",), torch.float32, (3, 3), ())
    values: dict[str, Any] = {}
    reading.fill_tensor(values, saved, Extent("f", 0, 0, (1, 0), (2, 3)), torch.full((2, 3), 2.0))
    reading.fill_tensor(values, saved, Extent("f", 0, 0, (0, 0), (1, 3)), torch.full((1, 3), 1.0))
    assert values["w"].tolist() == [[1.0] * 3, [2.0] * 3, [2.0] * 3]
    reading.fill_tensor(values, Saved("s", ("s",), torch.int64, (), ()), Extent("f", 0, 0), torch.tensor(7))
    reading.fill_tensor(values, Saved("o", ("o",), None, (), ()), Extent("f", 0, 0), {"a": 1})
    assert (values["s"].item(), values["o"]) == (7, {"a": 1})


def test_a_folder_whose_name_has_no_time_is_no_checkpoint(root: Path) -> None:
    assert folders.Folder.parse("step-0000000010-0001-20269941T000000Z-00000000") is None
    assert {folder.step for folder in folders.list_folders(store_at(root), str(root))} == {5, 7, 9}
