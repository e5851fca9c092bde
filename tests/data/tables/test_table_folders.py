"""Folders of Delta, Hudi and Iceberg tables are refused, however deep, and by every reader of files."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")

from spark_estimator.data import make_torch_dataloader
from spark_estimator.data.parquet import find_files
from spark_estimator.data.petastorm import make_batch_reader
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore

_UUID = uuid.UUID(int=7)
#: The file that makes a folder a table, and where its data is below it.
TABLES = {
    "Iceberg by its catalog": (f"metadata/00002-{_UUID}.metadata.json", "data"),
    "Iceberg by its file system": ("metadata/v3.metadata.json", "data/p=1/q=2"),
    "Iceberg, compressed": (f"metadata/00002-{_UUID}.gz.metadata.json", "data/0101"),
    "Hudi": (".hoodie/hoodie.properties", "year=2024"),
    "Delta": ("_delta_log/00000000000000000000.json", "year=2024/month=1"),
}
READERS: dict[str, Callable[[str], object]] = {
    "files_at": find_files,
    "make_torch_dataloader": lambda path: make_torch_dataloader(path, 10),
    "make_batch_reader": lambda path: make_batch_reader(Path(path).as_uri() if path.startswith("/") else path),
}


def write_table(folder: Path, marker: str, data: str) -> Path:
    """Write two files, of which the table's metadata would list one. Return their folder."""
    (folder / marker).parent.mkdir(parents=True)
    (folder / marker).write_text("{}")
    files = folder / data
    files.mkdir(parents=True)
    for name, rows in (("kept", 1000), ("replaced", 2000)):
        pyarrow.parquet.write_table(pyarrow.table({"n": list(range(rows))}), files / f"{name}.parquet")
    return files


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", TABLES)
def test_a_folder_of_a_table_is_refused_by_name(tmp_path: Path, kind: str, reader: str) -> None:
    files = write_table(tmp_path / "table", *TABLES[kind])
    link = tmp_path / "link"
    link.symlink_to(files)
    for path in (files, link):
        message = f"{path} belongs to the {kind.split()[0].strip(',')} table {tmp_path}/table. "
        with pytest.raises(DataError, match=re.escape(message)) as caught:
            READERS[reader](str(path))
        assert "spark." in str(caught.value) and "df.write.parquet" in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["Iceberg by its catalog", "Hudi"])
def test_the_folder_of_the_table_itself_is_refused_by_name(tmp_path: Path, kind: str, reader: str) -> None:
    write_table(tmp_path / "table", *TABLES[kind])
    with pytest.raises(DataError, match=f"belongs to the {kind.split()[0]} table"):
        READERS[reader](str(tmp_path / "table"))


def test_tables_of_other_file_systems_are_found() -> None:
    filesystem = fsspec.filesystem("memory")
    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), content)
    for name in ("plain/data/a.parquet", "iceberg/data/a.parquet", "hudi/p=1/a.parquet"):
        filesystem.pipe_file(f"/tables/{name}", content.getvalue().to_pybytes())
    filesystem.pipe_file(f"/tables/iceberg/metadata/0-{_UUID}.metadata.json", b"{}")
    filesystem.pipe_file("/tables/hudi/.hoodie/hoodie.properties", b"")
    try:
        assert find_files("memory://tables/plain/data").rows == 2
        for path, table in (("iceberg/data", "Iceberg table memory://tables/iceberg"), ("hudi/p=1", "Hudi table")):
            with pytest.raises(DataError, match=table):
                find_files(f"memory://tables/{path}")
    finally:
        filesystem.rm("/tables", recursive=True)


def test_what_is_no_table_is_read(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "other", "metadata/description.json", "data")
    assert find_files(str(folder)).rows == 3000
    table = write_table(tmp_path / "table", *TABLES["Iceberg by its catalog"])
    named = str(table / "kept.parquet")  # as a catalog lists them
    assert find_files([named]).rows == 1000
    with make_batch_reader([Path(named).as_uri()], num_epochs=1) as reader:
        assert sum(len(batch.n) for batch in reader) == 1000


@pytest.mark.parametrize(
    ("marker", "data"),
    [
        ("_delta_log/empty.txt", "year=2024"),
        ("_delta_log/00000000000000000000.json", "exports/today"),
        (".hoodie/empty.txt", "data"),
        ("metadata/v3.metadata.json", "exports/data"),
    ],
)
def test_a_folder_that_no_table_would_make_is_read(tmp_path: Path, marker: str, data: str) -> None:
    """Other programs write below a table's folder, and an empty folder of a log makes no table."""
    assert find_files(str(write_table(tmp_path / "lake", marker, data))).rows == 3000


def test_each_folder_is_looked_at_once(tmp_path: Path) -> None:
    paths = [str(write_table(tmp_path / "many" / str(number), "other", "data")) for number in range(5)]

    class Counted(FilesystemStore):
        asked: list[str] = []

        def exists(self, path: str) -> bool:
            self.asked.append(path)
            return super().exists(path)

    find_files(paths, Counted(str(tmp_path)))
    above = [path for path in Counted.asked if path.startswith(f"{tmp_path}/_delta_log")]
    assert len(above) == 1 and len(set(Counted.asked)) > 10
