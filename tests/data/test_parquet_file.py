"""One Parquet file: its footer, paths of all forms, batches, and errors that name the file."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.parquet_file import DataFile, name_errors, open_store, slice_rows, to_local_form
from spark_estimator.errors import DataError


@pytest.fixture
def path(tmp_path: Path) -> str:
    """n = 0 ... 9 in row groups of 4 rows, and s."""
    table = pyarrow.table({"n": pyarrow.array(range(10), pyarrow.int32()), "s": [str(n) for n in range(10)]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    return str(tmp_path / "rows.parquet")


def test_the_footer_describes_the_file(path: str) -> None:
    file = DataFile.read(path, open_store(path))
    assert (file.groups, file.rows, file.kinds) == ((4, 4, 2), 10, {"n": "int", "s": "string"})
    assert file.size == Path(path).stat().st_size
    assert DataFile.read(path, open_store(path), size=file.size) == pickle.loads(pickle.dumps(file)) == file


def test_a_file_without_rows_and_one_without_columns(tmp_path: Path) -> None:
    no_rows = pyarrow.schema([("n", pyarrow.int32())]).empty_table()
    for name, table in (("rows", no_rows), ("none", pyarrow.table({}))):
        path = str(tmp_path / name)
        pyarrow.parquet.write_table(table, path)
        assert DataFile.read(path, open_store(path)).rows == 0


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    path = str(tmp_path / "twice.parquet")
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["n", "n"])
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(DataError, match=r"twice\.parquet has two columns of one name: n, n"):
        DataFile.read(path, open_store(path))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"no Parquet file at all", b"\x00" * 100])
def test_files_that_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=r"x cannot be read: .*It is damaged, or no Parquet file"):
        DataFile.read(str(tmp_path / "x"), open_store(str(tmp_path)))


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_all_rows_of_a_row_group_in_batches(path: str, batch_rows: int) -> None:
    file, store = DataFile.read(path, open_store(path)), open_store(path)
    with file.open_file(store) as opened:
        for group, first in enumerate((0, 4, 8)):
            batches = list(file.read_group(opened, group, ["s", "n"], batch_rows))
            assert max(batch.num_rows for batch in batches) <= batch_rows
            assert {tuple(batch.schema.names) for batch in batches} == {("s", "n")}
            rows = [row for batch in batches for row in batch.column(1).to_pylist()]
            assert rows == list(range(first, first + file.groups[group]))


def test_columns_that_are_not_in_the_file(path: str) -> None:
    plain = DataFile.read(path, open_store(path))
    file = plain.add_constants({"day": pyarrow.scalar(7), "empty": pyarrow.scalar(None, pyarrow.string())})
    assert file.kinds == {"n": "int", "s": "string", "day": "bigint", "empty": "string"}
    assert plain.constants == {} and "day" not in plain.kinds
    with file.open_file(open_store(path)) as opened:
        (batch,) = file.read_group(opened, 2, ["day", "n", "empty"], 100)
        assert batch.to_pydict() == {"day": [7, 7], "n": [8, 9], "empty": [None, None]}
        (alone,) = file.read_group(opened, 2, ["day"], 100)
        assert alone.to_pydict() == {"day": [7, 7]}


def test_a_file_that_was_replaced(path: str) -> None:
    store = open_store(path)
    file = DataFile.read(path, store)
    with file.open_file(store) as opened:
        footer = opened.metadata
    with file.open_file(store, footer=footer) as again:
        assert again.metadata.equals(footer)
    pyarrow.parquet.write_table(pyarrow.table({"n": [1]}), path)
    with (
        pytest.raises(DataError, match=rf"has changed: it had {file.size} bytes, and now has \d+"),
        file.open_file(store, footer=footer),
    ):
        pass
    changed = r"its row groups had \(4, 4, 2\) rows, and now have \(1,\)"
    with pytest.raises(DataError, match=changed), file.open_file(store):
        pass


def test_errors_name_the_file() -> None:
    original = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DataError, match=r"a/b cannot be read: OSError: .*No space left") as of_disk, name_errors("a/b"):
        raise original
    assert of_disk.value.__cause__ is original and "no Parquet file" not in str(of_disk.value)
    with pytest.raises(DataError, match=r"a/b cannot be read: OSError: footer\. It is damaged"), name_errors("a/b"):
        raise OSError("footer.")
    known = DataError("column 'x' is missing")
    with pytest.raises(DataError) as same, name_errors("a/b"):
        raise known
    assert same.value is known
    with pytest.raises(KeyboardInterrupt), name_errors("a/b"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("dbfs:/a", "/dbfs/a"),
        ("s3a://bucket/s3a://", "s3://bucket/s3a://"),
        ("s3n://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
    ],
)
def test_paths_as_programs_of_this_machine_have_them(path: str, expected: str) -> None:
    assert to_local_form(path) == expected


def test_quoted_uris_are_those_of_files_that_exist(tmp_path: Path) -> None:
    quoted, as_written = tmp_path / "a b=c", tmp_path / "a%20b"
    assert "%20" in quoted.as_uri() and to_local_form(quoted.as_uri()) == f"/{quoted.as_uri()[8:]}", "neither exists"
    quoted.mkdir()
    assert to_local_form(quoted.as_uri()) == to_local_form(f"file://{quoted}") == str(quoted)
    as_written.mkdir()
    assert to_local_form(f"file://{as_written}") == to_local_form(as_written.as_uri()) == str(as_written)


def stream(*sizes: int) -> Iterator[pyarrow.RecordBatch]:
    row = 0
    for size in sizes:
        yield pyarrow.RecordBatch.from_pydict({"n": list(range(row, row + size))})
        row += size


@pytest.mark.parametrize("start", range(7))
@pytest.mark.parametrize("rows", range(1, 7))
def test_some_rows_of_a_stream(start: int, rows: int) -> None:
    sizes = (2, 0, 1, 3)
    if start + rows > sum(sizes):
        with pytest.raises(ValueError, match=f"{start + rows - max(6, start)} rows less than its footer lists"):
            list(slice_rows(stream(*sizes), start, rows))
        return
    pieces = list(slice_rows(stream(*sizes), start, rows))
    assert [n for piece in pieces for n in piece.column("n").to_pylist()] == list(range(start, start + rows))
    assert all(piece.num_rows for piece in pieces)


def test_a_stream_is_not_read_further_than_needed() -> None:
    batches = stream(2, 2, 2)
    assert [piece.num_rows for piece in slice_rows(batches, 1, 3)] == [1, 2]
    assert next(batches).column("n").to_pylist() == [4, 5]
