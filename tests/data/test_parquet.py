"""Parquet files without Spark: equal shares, file systems, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.fields import Field, make_matrix
from spark_estimator.data.numbers import make_file_readable
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.parquet_file import to_local_form
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.env import SPOOL_VARIABLE
from spark_estimator.errors import DataError
from tests.store.hadoop import core_site

NUMBER = Field(("n",), ("c0",), (1,), "int64")
BOTH = Field(("v", "n"), ("c1", "c0"), (2, 1), "float32", (3,))


def write(folder: Path, rows: int, *files: int, **more: Any) -> None:
    """`rows` rows with n = 0, 1, ... in files of `per_file` rows, in row groups of 7; v = [n, -n]."""
    folder.mkdir(parents=True, exist_ok=True)
    place = 0
    for number, count in enumerate([*files, rows - sum(files)]):
        n = list(range(place, place + count))
        table = pyarrow.table(
            {
                "n": pyarrow.array(n, pyarrow.int64()),
                "v": pyarrow.array([[float(number), -float(number)] for number in n], pyarrow.list_(pyarrow.float32())),
                "held": pyarrow.array([number % 4 == 0 for number in n]),
                "a.b": pyarrow.array(n, pyarrow.int32()),
                **{name: pyarrow.array([value] * count) for name, value in more.items()},
            }
        )
        pyarrow.parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=7)
        place += count


@pytest.mark.parametrize("size", [1, 3, 8])
def test_ranks_read_equal_shares_into_their_spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    write(tmp_path / "data", 61, 20, 0, 30)
    (tmp_path / "data" / "_SUCCESS").touch()
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "spool"))
    rows = FileRows(find_files(str(tmp_path / "data")), RowEncoder(("n", "v"), (NUMBER, BOTH)))
    spools = [rows.read(rank, size)[0] for rank in range(size)]
    assert {spool.rows for spool in spools} <= {61 // size, 61 // size + 1}
    assert [n for spool in spools for n in spool.matrices[0].ravel().tolist()] == list(range(61))
    for spool in spools:
        n = spool.matrices[0].ravel()
        assert numpy.array_equal(spool.matrices[1], numpy.stack([n, -n, n], axis=1))
    assert not list((tmp_path / "spool").iterdir())


def test_marked_rows_and_a_name_with_a_dot(tmp_path: Path) -> None:
    write(tmp_path, 30)
    train, held = FileRows(find_files(str(tmp_path)), RowEncoder(("a.b",), (NUMBER,), marker="held")).read(0, 1)
    assert held.matrices[0].ravel().tolist() == list(range(0, 30, 4))
    assert train.matrices[0].ravel().tolist() == [n for n in range(30) if n % 4]


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    write(tmp_path, 2)
    rows = FileRows(find_files(str(tmp_path)), RowEncoder(("n",), (NUMBER,)))
    assert [rows.read(rank, 4)[0].rows for rank in range(4)] == [1, 1, 0, 0]


def test_a_path_that_the_cluster_takes_for_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path / "conf", fs__defaultFS="hdfs://name:8020")))
    path = str(tmp_path / "none")
    with pytest.raises(
        DataError, match=rf"{path}: .*does not exist.*this machine's disk.*it is hdfs://name:8020{path}\."
    ):
        find_files(path)
    with pytest.raises(DataError) as error:
        find_files(f"file://{path}")
    assert "name:8020" not in str(error.value)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file or folder does not exist"):
        find_files(str(tmp_path / "none"))
    with pytest.raises(DataError, match="there are no Parquet files"):
        find_files(str(tmp_path))
    write(tmp_path / "data", 10)
    whole = find_files(str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"no column 'x': the files have 'n', 'v', 'held', 'a\.b'"):
        make_file_readable(whole.kinds, "x")
    with pytest.raises(DataError, match=r"no column 'N': .* Did you mean 'n'\? Capital letters count"):
        make_file_readable(whole.kinds, "N")
    with pytest.raises(DataError, match=r"'s' has type string.*StringIndexer"):
        make_file_readable({"s": "string"}, "s")
    write(tmp_path / "data" / "day=1", 10)
    with pytest.raises(DataError, match="the folder 'day=1' inside, by the values of a column"):
        find_files(str(tmp_path / "data"))
    (tmp_path / "text").write_text("no Parquet")
    with pytest.raises(DataError, match=r"text cannot be read: ArrowInvalid: .*It is damaged, or no Parquet file"):
        find_files(str(tmp_path / "text"))
    write(tmp_path / "data", 9)
    with pytest.raises(DataError, match=r"part-0\.parquet has changed: its row groups had \(7, 3\) rows, and now"):
        FileRows(whole, RowEncoder(("n",), (NUMBER,))).read(0, 1)
    torn = tmp_path / "data" / "part-0.parquet"
    torn.write_bytes(torn.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"part-0\.parquet cannot be read: ArrowInvalid"):
        FileRows(whole, RowEncoder(("n",), (NUMBER,))).read(0, 1)
    pyarrow.parquet.write_table(pyarrow.table({"n": [0.5]}), tmp_path / "other.parquet")
    write(tmp_path / "more", 3)
    with pytest.raises(DataError, match=r"'n' is double in .*other\.parquet, and bigint in .*part-0"):
        find_files([str(tmp_path / "other.parquet"), str(tmp_path / "more")]).check(["n"])


def test_damage_is_reported_with_the_file_s_name_and_gives_no_other_values(tmp_path: Path) -> None:
    """One bit of another value, anywhere: pages have checksums, and footers make Arrow raise anything."""
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"n": list(range(100)), "s": ["a"] * 100})
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)
    whole = path.read_bytes()
    error_types = set()
    for position in range(4, len(whole), 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :])
        try:
            batches = list(find_files(str(path)).read_batches(["n"], 0, 1, 1000))
        except DataError as error:
            text = str(error)
            assert str(path) in text
            error_types.add(text.removeprefix(f"{path} cannot be read: ").partition(":")[0])
        else:
            assert [n for batch in batches for n in batch.column(0).to_pylist()] == list(range(100)), position
    assert {"OSError", "ArrowInvalid"} <= error_types


def test_other_file_systems_and_spark_s_names(tmp_path: Path) -> None:
    import fsspec

    write(tmp_path, 12)
    memory = fsspec.filesystem("memory")
    memory.pipe("/parquet_test/x.parquet", (tmp_path / "part-0.parquet").read_bytes())
    files = find_files("memory://parquet_test")
    assert files.rows == 12
    batches = [batch.rename_columns(["c0"]) for batch in files.read_batches(["n"], 1, 2, 100)]
    assert [make_matrix(batch, NUMBER).ravel().tolist() for batch in batches] == [[6], [7, 8, 9, 10, 11]]
    assert to_local_form("file:///a/b") == to_local_form("file:/a/b") == "/a/b"
    assert to_local_form("dbfs:/a") == "/dbfs/a"
    assert to_local_form("s3a://bucket/a") == "s3://bucket/a"
