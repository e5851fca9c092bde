"""Row groups whose rows are read in sequence, as matrices."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.stream.pieces import PiecePart, Pieces, make_pieces
from spark_estimator.errors import DataError

X = Field(("x",), ("c0",), (1,), "float32")
Y = Field(("y",), ("c1",), (1,), "int64")
#: Rows of the row groups of three files.
COUNTS = (4, 4, 2, 0, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """x counts the rows in fractions, y in whole numbers; marked are the rows of a multiple of 3."""
    for name, rows in (("a", range(10)), ("b", range(0)), ("c", range(10, 13))):
        table = pyarrow.table(
            {
                "x": pyarrow.array([float(row) for row in rows], pyarrow.float64()),
                "y": pyarrow.array(list(rows), pyarrow.int32()),
                "held": pyarrow.array([row % 3 == 0 for row in rows], pyarrow.bool_()),
                "gap": pyarrow.array([None if row % 4 == 1 else float(row) for row in rows], pyarrow.float64()),
            }
        )
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=4)
    return tmp_path


def made(folder: Path, encoder: RowEncoder) -> tuple[Pieces, Pieces]:
    return make_pieces(FileRows(find_files(str(folder)), encoder))


def read(pieces: Pieces, piece: int, start: int, rows: int, batch_rows: int = 3) -> list[list[float]]:
    return [batch[0].ravel().tolist() for batch in pieces.read(piece, start, rows, batch_rows, 1 << 14)]


def test_the_row_groups_of_all_files_in_their_order(folder: Path) -> None:
    train, marked = made(folder, RowEncoder(("x", "y"), (X, Y)))
    assert (train.counts, marked.counts) == (COUNTS, (0,) * len(COUNTS))
    assert (train.part, marked.part) == (PiecePart.TRAIN, PiecePart.MARKED)
    for piece, first in enumerate((0, 4, 8, 10, 10)):
        batches = list(train.read(piece, 0, COUNTS[piece], 3, 1 << 14))
        assert all(0 < len(x) <= 3 for x, _ in batches)
        rows = [row for _, y in batches for row in y.ravel().tolist()]
        assert rows == list(range(first, first + COUNTS[piece]))
        assert {(x.dtype.name, y.dtype.name) for x, y in batches} <= {("float32", "int64")}


@pytest.mark.parametrize(("start", "rows", "expected"), [(0, 1, [4]), (3, 1, [7]), (1, 2, [5, 6]), (1, 3, [5, 6, 7])])
def test_a_part_of_a_row_group(folder: Path, start: int, rows: int, expected: list[int]) -> None:
    train, _ = made(folder, RowEncoder(("x",), (X,)))
    assert [row for batch in read(train, 1, start, rows, 2) for row in batch] == expected


def test_marked_rows_are_counted_apart(folder: Path) -> None:
    train, marked = made(folder, RowEncoder(("x",), (X,), marker="held"))
    assert (train.counts, marked.counts) == ((2, 3, 1, 0, 2), (2, 1, 1, 0, 1))
    assert [row for piece in range(5) for batch in read(marked, piece, 0, marked.counts[piece]) for row in batch] == [
        *(0, 3, 6, 9, 12)
    ]
    assert read(train, 1, 1, 2, 9) == [[5, 7]]


def test_rows_that_are_dropped_are_counted_as_they_are_read(folder: Path) -> None:
    train, marked = made(folder, RowEncoder(("gap",), (X,), nulls="drop"))
    assert (train.counts, sum(marked.counts)) == ((3, 3, 1, 0, 3), 0)
    assert [row for batch in read(train, 0, 1, 2) for row in batch] == [2, 3]
    with pytest.raises(DataError, match=r"row group 0 has 3 of the 4 rows from 0 on"):
        read(train, 0, 0, 4)


def test_a_null_is_reported_with_file_and_row_group(folder: Path) -> None:
    train, _ = made(folder, RowEncoder(("gap",), (X,)))
    with pytest.raises(DataError, match=r"a\.parquet, row group 1 \(rows are counted from its first one\): .*'?x'?"):
        read(train, 1, 0, 4)


def test_a_file_that_has_changed_is_refused_also_with_its_footer_kept(folder: Path) -> None:
    train, _ = made(folder, RowEncoder(("x",), (X,)))
    assert read(train, 4, 0, 3) == [[10, 11, 12]]
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.0, 2.0]}), folder / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet has changed"):
        read(train, 4, 0, 3)
    (folder / "a.parquet").unlink()
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: FileNotFoundError"):
        read(train, 0, 0, 4)


def test_some_fields_read_their_columns_alone(folder: Path) -> None:
    train, _ = made(folder, RowEncoder(("x", "y"), (X, Y)))
    only = train.select_fields([1])
    assert only.rows.encoder.read == ["y"] and only.counts == train.counts
    assert [len(batch) for batch in only.read(2, 0, 2, 9, 1 << 14)] == [1]
    assert read(only, 2, 0, 2) == [[8, 9]]
    both = train.select_fields([1, 0])
    assert [[matrix.ravel().tolist() for matrix in batch] for batch in both.read(2, 0, 2, 9, 1 << 14)] == [
        [[8, 9], [8.0, 9.0]]
    ]


def test_some_fields_of_rows_that_are_dropped_need_all_columns(folder: Path) -> None:
    train, _ = made(folder, RowEncoder(("gap", "y"), (X, Y), nulls="drop"))
    only = train.select_fields([1])
    assert only.rows.encoder.read == ["gap", "y"]
    assert read(only, 0, 0, 3) == [[0, 2], [3]], "the same rows as those of all fields"


def test_a_reader_that_stops_closes_the_file(folder: Path) -> None:
    import os

    def is_open() -> bool:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return any(os.path.exists(link) and os.readlink(link).startswith(str(folder)) for link in links)

    train, _ = made(folder, RowEncoder(("x",), (X,)))
    batches = train.read(0, 0, 4, 1, 1 << 14)
    next(batches)
    assert is_open()
    batches.close()
    assert not is_open()
