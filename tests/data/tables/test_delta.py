"""Delta tables without Spark: which files, rows and values a version has, and what is refused."""

from __future__ import annotations

import datetime
import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.data.delta_tables import delete_rows, edit_columns, find_adds, make_protocol
from spark_estimator.data import make_torch_dataloader
from spark_estimator.data.materialize import find_data_set
from spark_estimator.data.parquet import find_files
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import find_dataset
from spark_estimator.store import LocalStore

#: delta-rs wrote it: n (0 to 13, 2, 9 and 13 deleted), partition columns part (n % 2) and kind (null where n % 4 == 3),
#: z from 8 on; a checkpoint at version 2, and two versions after it.
TABLE = Path(__file__).parent / "delta_written" / "table"
LEFT = [0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 12]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TABLE, tmp_path / "table"))


def rows(folder: Path, columns: list[str], **arguments: Any) -> list[tuple[float, ...]]:
    (batch,) = make_torch_dataloader(str(folder), 100, columns=columns, shuffle=False, **arguments)
    assert isinstance(batch, dict)
    return sorted(zip(*(batch[name].tolist() for name in columns), strict=True))


def change(table: Path, version: int, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edits each action of a version, which a checkpoint must not hide."""
    for path in table.glob("_delta_log/*checkpoint*"):
        path.unlink()
    path = table / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        edit(action)
    path.write_text("\n".join(json.dumps(action) for action in actions))


@pytest.mark.parametrize("checkpoint", [True, False])
def test_removed_files_are_not_read(table: Path, checkpoint: bool) -> None:
    if not checkpoint:
        change(table, 0, lambda action: None)
    assert rows(table, ["n", "part"]) == [(n, n % 2) for n in LEFT]
    assert len(list(table.rglob("part-*.parquet"))) == 9 and len(find_files(str(table)).files) == 6


def test_its_log_makes_a_table_a_whole_data_set(table: Path) -> None:
    """For ``fit_on_parquet``, which refuses what a write may have left half done."""
    assert len(find_data_set(LocalStore(str(table.parent)), str(table)).files) == 6


def test_versions_that_a_checkpoint_holds_may_be_gone(table: Path) -> None:
    for version in range(3):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    assert rows(table, ["n"]) == [(n,) for n in LEFT]
    (table / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(DataError, match=r"table: the log of the Delta table cannot be read: .*Read it with Spark"):
        rows(table, ["n"])


def test_a_version_is_read_again(table: Path) -> None:
    first = rows(table, ["n"], version=0)
    assert first and first != rows(table, ["n"]) == rows(table, ["n"], version=4)
    assert rows(table, ["n"], version=datetime.datetime(2100, 1, 1)) == rows(table, ["n"])
    assert rows(table, ["n"], version="2100-01-01") == rows(table, ["n"])
    for version, message in (
        (77, "has no version 77: they are 0 to 4"),
        (-1, "has no version -1"),
        ("yesterday", "version='yesterday' of the Delta table .* is neither a number nor a moment"),
        ("2001-01-01T00:00:00Z", "the first version"),
    ):
        with pytest.raises(DataError, match=message):
            rows(table, ["n"], version=version)
    with pytest.raises(DataError, match=r"parquet is no Delta table, and has no version 1"):
        rows(next(table.rglob("part-*.parquet")), ["n"], version=1)


def test_a_column_that_came_later_is_null_before(table: Path) -> None:
    files = find_files(str(table))
    assert list(files.kinds.items()) == [("n", "bigint"), ("part", "int"), ("kind", "string"), ("z", "double")]
    with pytest.raises(DataError, match="column 'z' holds null"):
        rows(table, ["n", "z"])
    assert rows(table, ["n", "z"], nulls="drop") == [(8, 0.5), (10, 0.5), (11, 0.5), (12, 1.5)]
    assert rows(table, ["n", "z"], nulls=-1)[0] == (0, -1)


def test_values_of_partitions(table: Path) -> None:
    kinds = {file.constants["kind"].as_py() for file in find_files(str(table)).files}
    assert kinds == {"a b0", "a b1", None}


@pytest.mark.parametrize("inline", [True, False])
def test_deleted_rows(table: Path, inline: bool) -> None:
    """The number of rows is known before they are read; a deletion vector of all rows leaves none."""
    edit_columns(table, lambda column: None, **make_protocol(["deletionVectors"]))
    assert rows(table, ["n"]) == [(n,) for n in LEFT]
    before = find_files(str(table))
    add = find_adds(table)[0]
    delete_rows(table, add, [0], inline)
    files = pickle.loads(pickle.dumps(find_files(str(table))))
    assert files.rows == len(LEFT) - 1 == len(rows(table, ["n"]))
    gone = next(iter(before.read_batches(["n"], 0, 1, 1))).column("n")[0].as_py()
    assert rows(table, ["n"]) == [(n,) for n in LEFT if n != gone]
    delete_rows(table, find_adds(table)[0], range(before.files[0].rows), inline)
    assert find_files(str(table)).rows == len(LEFT) - before.files[0].rows == len(rows(table, ["part"]))


def test_files_elsewhere_have_to_be_allowed(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move(table / "part=0", tmp_path / "part=0")

    def move(prefix: str) -> Callable[[dict[str, Any]], None]:
        def edit(action: dict[str, Any]) -> None:
            for kind in ("add", "remove"):
                if kind in action and "part=0" in action[kind]["path"]:
                    action[kind]["path"] = prefix + "part=0" + action[kind]["path"].partition("part=0")[2]

        return edit

    for prefix in (f"file:{tmp_path}/", "../"):
        for version in range(5):
            change(table, version, move(prefix))
        monkeypatch.delenv("SPARK_ESTIMATOR_TABLE_FOLDERS", raising=False)
        with pytest.raises(DataError, match=r"not below its folder.*SPARK_ESTIMATOR_TABLE_FOLDERS"):
            find_files(str(table))
        monkeypatch.setenv("SPARK_ESTIMATOR_TABLE_FOLDERS", f"s3://bucket/x, {tmp_path}")
        assert rows(table, ["n"]) == [(n,) for n in LEFT]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["typeWidening", "deletionVectors"], "both typeWidening and deletionVectors"),
        (["ofTomorrow"], "ofTomorrow"),
    ],
)
def test_features_are_refused_by_name(table: Path, features: list[str], message: str) -> None:
    edit_columns(table, lambda column: None, **make_protocol(features))
    with pytest.raises(DataError, match=f"{message}.*Read it with Spark"):
        find_files(str(table))


def test_types_that_were_not_widened_are_refused(table: Path) -> None:
    def edit(column: dict[str, Any]) -> None:
        column["type"] = "double" if column["name"] == "n" else column["type"]

    edit_columns(table, edit)
    assert find_files(str(table)).kinds["n"] == "bigint"


def test_the_extra_is_named_where_it_is_missing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(DataError, match=r"pip install 'deltalake>=.*the extra delta"):
        find_files(str(table))


def test_petastorms_readers_refuse_a_table(table: Path) -> None:
    with pytest.raises(DataError, match="belongs to the Delta table"):
        find_dataset(str(table))
