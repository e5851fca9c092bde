"""Delta tables without Spark: which files and values the log names, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from spark_estimator.data import make_torch_dataloader
from spark_estimator.data.parquet import find_files
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import find_dataset

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


def test_versions_that_a_checkpoint_holds_may_be_gone(table: Path) -> None:
    for version in range(3):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    assert rows(table, ["n"]) == [(n,) for n in LEFT]
    (table / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(DataError, match="lacks versions: after 3"):
        rows(table, ["n"])


def test_a_column_that_came_later_is_null_before(table: Path) -> None:
    files = find_files(str(table))
    assert files.kinds == {"n": "bigint", "part": "int", "kind": "string", "z": "double"}
    with pytest.raises(DataError, match="column 'z' holds null"):
        rows(table, ["n", "z"])
    assert rows(table, ["n", "z"], nulls="drop") == [(8, 0.5), (10, 0.5), (11, 0.5), (12, 1.5)]
    assert rows(table, ["n", "z"], nulls=-1)[0] == (0, -1)


def test_values_of_partitions(table: Path) -> None:
    kinds = {file.constants["kind"].as_py() for file in find_files(str(table)).files}
    assert kinds == {"a b0", "a b1", None}


def test_an_absolute_path_is_followed(table: Path, tmp_path: Path) -> None:
    other = shutil.move(table / "part=0", tmp_path / "part=0")

    def move(action: dict[str, Any]) -> None:
        for kind in ("add", "remove"):
            if kind in action and action[kind]["path"].startswith("part=0"):
                action[kind]["path"] = f"file:{tmp_path}/{action[kind]['path']}"

    for version in range(5):
        change(table, version, move)
    assert other and rows(table, ["n"]) == [(n,) for n in LEFT]


def with_vector(action: dict[str, Any]) -> None:
    if "add" in action:
        action["add"]["deletionVector"] = {
            "storageType": "u",
            "pathOrInlineDv": "x",
            "sizeInBytes": 1,
            "cardinality": 1,
        }


def with_mapping(action: dict[str, Any]) -> None:
    if "metaData" in action:
        action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"


def with_feature(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["variantType"]}


@pytest.mark.parametrize(
    ("version", "edit", "message"),
    [
        (3, with_vector, "has a deletion vector.*REORG TABLE"),
        (1, with_mapping, "column mapping .*mode=name"),
        (0, with_feature, "needs variantType, which is not known"),
    ],
)
def test_what_is_refused(table: Path, version: int, edit: Callable[[dict[str, Any]], None], message: str) -> None:
    change(table, version, edit)
    with pytest.raises(DataError, match=message):
        find_files(str(table))


def test_a_checkpoint_of_another_format_is_refused_where_it_is_needed(table: Path) -> None:
    path = next(table.glob("_delta_log/*.checkpoint.parquet"))
    path.rename(path.with_name(path.name.replace("checkpoint.", "checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.")))
    assert rows(table, ["n"]) == [(n,) for n in LEFT], "all versions are there"
    (table / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(DataError, match="V2 format, or incomplete"):
        find_files(str(table))


def test_petastorms_readers_refuse_a_table(table: Path) -> None:
    with pytest.raises(DataError, match="belongs to the Delta table"):
        find_dataset(str(table))
