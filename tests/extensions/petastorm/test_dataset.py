"""Data sets: partition columns of folders, paths of all forms, columns that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.petastorm import make_batch_reader
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import find_dataset
from spark_estimator.extensions.petastorm.predicates import in_lambda, in_set

IN_ORDER = {"shuffle_row_groups": False, "reader_pool_type": "dummy"}


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    """x = 10, 11, ... of year 1 and 20, 21, ... of year 2, each in countries "a b" and null."""
    for year in (1, 2):
        for number, country in enumerate(("a%20b", "__HIVE_DEFAULT_PARTITION__")):
            folder = tmp_path / f"year={year}" / f"country={country}"
            folder.mkdir(parents=True)
            first = 10 * year + 3 * number
            pyarrow.parquet.write_table(pyarrow.table({"x": range(first, first + 3)}), folder / "part.parquet")
    return tmp_path


def read(url: Any, **arguments: Any) -> list[int]:
    with make_batch_reader(url, **IN_ORDER, **arguments) as reader:
        return [x for batch in reader for x in batch.x.tolist()]


def test_partition_columns_come_first_and_can_be_chosen_by(partitioned: Path) -> None:
    with make_batch_reader(f"file://{partitioned}", **IN_ORDER) as reader:
        assert list(reader.schema.fields) == ["year", "country", "x"] and reader.schema.country.nullable
        batches = list(reader)
    assert [batch.year.tolist() for batch in batches] == [[1] * 3, [1] * 3, [2] * 3, [2] * 3]
    assert {(str(value), batch.year.dtype.name) for batch in batches for value in batch.country} == {
        ("a b", "int64"),
        ("None", "int64"),
    }
    url = str(partitioned)
    second = [20, 21, 22, 23, 24, 25]
    for chosen in (
        {"predicate": in_set([2], "year")},
        {"predicate": in_lambda(["year", "x"], lambda year, x: (year == 2) & (x > 0))},
        {"filters": [("year", "=", 2)]},
        {"filters": [("year", "=", "2")]},
        {"filters": [("year", "in", ["2", "3"])]},
    ):
        assert sorted(read(url, **chosen)) == second
    assert read(url, filters=[("year", "=", 1), ("country", "=", "a b"), ("x", ">", 10)]) == [11, 12]
    # In the order of the folders' names.
    assert read(url, predicate=in_set([2], "year"), cur_shard=1, shard_count=2) == second[:3]
    assert read(url, predicate=in_set([2], "year"), schema_fields=["x"]) == second[3:] + second[:3]


def test_files_and_folders_have_quoted_uris(partitioned: Path) -> None:
    assert len(read(partitioned.as_uri())) == 12
    first = sorted((partitioned / "year=1").rglob("*.parquet"))
    assert all("%" in path.as_uri() for path in first)
    assert sorted(read([path.as_uri() for path in first])) == [10, 11, 12, 13, 14, 15]


def test_what_the_partition_alone_decides_reads_no_file(partitioned: Path) -> None:
    files = find_dataset(str(partitioned))
    for path in partitioned.rglob("*.parquet"):
        path.unlink()
    from spark_estimator.extensions.petastorm.selection import select_rows

    assert select_rows(files, in_set([1], "year"), [("country", "=", "a b")], by_row=False).rows == 3


def test_loaders_read_partition_columns(partitioned: Path) -> None:
    pytest.importorskip("torch")
    from spark_estimator.data.petastorm import DataLoader

    with DataLoader(make_batch_reader(str(partitioned), ["x", "year"]), 12) as loader:
        (batch,) = loader
    assert (batch["x"] // 10 == batch["year"]).all() and len(batch["x"]) == 12


def test_paths_of_all_forms_and_lists_of_them(numbers: str) -> None:
    plain = numbers.removeprefix("file://")
    for url in (numbers, plain, f"file:{plain}", [f"{numbers}/0.parquet", f"{numbers}/11.parquet"], f"{plain}/"):
        with make_batch_reader(url, ["n"], **IN_ORDER) as reader:
            assert [n for batch in reader for n in batch.n.tolist()] == list(range(25))
    with pytest.raises(DataError, match="no path of Parquet files was given"):
        make_batch_reader([])
    with pytest.raises(DataError, match="the file or folder does not exist"):
        make_batch_reader(f"{plain}/nothing")
    (Path(plain) / "other").mkdir()
    with pytest.raises(DataError, match="has the folder 'other' inside, whose name is not that of a partition"):
        make_batch_reader(plain)
    (Path(plain) / "other").rmdir()
    (Path(plain) / "year=1").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"n": [1]}), f"{plain}/year=1/rows.parquet")
    with pytest.raises(DataError, match=r"is in folders of the partition columns \['year'\], and .* of \[\]"):
        make_batch_reader(plain)


def test_two_readers_at_a_time_and_empty_row_groups(tmp_path: Path) -> None:
    schema = pyarrow.schema([("x", pyarrow.int64())])
    pyarrow.parquet.write_table(schema.empty_table(), tmp_path / "0.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"x": range(5)}), tmp_path / "1.parquet", row_group_size=2)
    first, second = (make_batch_reader(str(tmp_path), shuffle_row_groups=False) for _ in range(2))
    with first, second:
        pairs = [(left.x.tolist(), right.x.tolist()) for left, right in zip(first, second, strict=True)]
    assert pairs == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4], [4])]
    shards = [read(str(tmp_path), cur_shard=shard, shard_count=5) for shard in range(5)]
    assert shards == [[0], [1], [2], [3], [4]], "more shards than row groups"
    endless = make_batch_reader(str(tmp_path), num_epochs=None)
    with endless:
        assert sum(len(next(endless).x) for _ in range(30)) == 50


def test_columns_without_arrays_are_left_out(tmp_path: Path) -> None:
    table = pyarrow.table({"x": [1], "inside": [{"a": 1}], "deep": [[[1]]]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.warns(UserWarning, match="has no numpy array, and is left out") as warned:
        reader = make_batch_reader(str(tmp_path))
    assert [str(warning.message).partition("column ")[2][:8] for warning in warned] == ["'inside'", "'deep' ha"[:8]]
    assert reader.columns == ("x",)
    with pytest.raises(DataError, match=r"column 'inside' has type .*: flatten it first"):
        make_batch_reader(str(tmp_path), ["x", "inside"])
