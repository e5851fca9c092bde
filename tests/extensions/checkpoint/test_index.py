"""The reader of an index accepts what torch, or this package, has written, and nothing else."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.index import parse_index
from spark_estimator.extensions.checkpoint.metadata_text import Note, make_metadata
from tests.extensions.checkpoint.test_metadata_text import NUMBER, note, rows


def test_pieces_of_all_ranks_make_one_tensor() -> None:
    text = make_metadata([note(1, rows(3, 2)), note(0, rows(0, 3), objects=(NUMBER,))], "folder")
    index = parse_index(text, "x")
    assert [(extent.file, extent.first, extent.sizes) for extent in index["m.w"].extents] == [
        ("__0_0.distcp", (0, 0), (3, 2)),
        ("__1_0.distcp", (3, 0), (2, 2)),
    ]
    assert (index["n"].dtype, index["n"].extents[0].length) == (None, 1261)


class Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, ("harmed",)


def test_no_code_runs_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="mkdir is not part of an index"):
        parse_index(pickle.dumps(Harmful()), "x")
    assert not Path("harmed").exists()


def test_a_file_elsewhere_is_refused() -> None:
    text = make_metadata([Note(0, "../x.distcp", 1, "s", [rows(0, 5)], [])], "folder")
    with pytest.raises(DataError, match=r"\.\./x"):
        parse_index(text, "x")


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_damaged_index_is_an_error(cut: int) -> None:
    text = make_metadata([note(0, rows(0, 5))], "folder")
    with pytest.raises(DataError, match="the file is no index"):
        parse_index(text[:cut], "the file")
