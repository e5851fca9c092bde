"""Random Delta tables have the rows that deltalake itself reads, in equal shares of ranks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import deltalake
import deltalake.exceptions
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.data.delta_tables import delete_rows, edit_columns, find_adds, make_protocol
from spark_estimator.data.parquet import find_files

EXAMPLES = int(os.environ.get("SPARK_ESTIMATOR_TEST_EXAMPLES", "25"))
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.floats(width=32, allow_nan=False),
        st.sampled_from([None, "a", "b c/%", "é"]),
        st.none() | st.lists(st.integers(-9, 9), max_size=2),
    ),
    min_size=1,
    max_size=30,
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("delete"), st.integers(0, 4)),
        st.tuples(st.just("update"), st.integers(0, 4)),
        st.tuples(st.just("merge"), st.integers(0, 4)),
        st.tuples(st.just("vector"), st.tuples(st.integers(0, 99), st.booleans())),
        st.tuples(st.just("rename"), st.sampled_from(["x", "v"])),
        st.tuples(st.just("checkpoint"), st.none()),
        st.tuples(st.just("optimize"), st.none()),
    ),
    max_size=6,
)


class Table:
    """A Delta table that is changed at random; `n` numbers its rows."""

    def __init__(self, folder: Path, mapped: str, partitioned: bool) -> None:
        self.folder, self.mapped, self.partitioned, self.next = folder, mapped, partitioned, 0
        self.names = {"x": "x", "v": "v"}
        self.options: dict[str, Any] = {"partition_by": ["k"]} if partitioned else {}
        self.configuration = {"delta.columnMapping.mode": mapped} if mapped != "none" else {}

    def make_rows(self, rows: Sequence[tuple[Any, ...]]) -> pyarrow.Table:
        n = range(self.next, self.next + len(rows))
        self.next += len(rows)
        i, x, k, v = zip(*rows, strict=True)
        return pyarrow.table(
            {
                "n": pyarrow.array(n, pyarrow.int64()),
                "i": pyarrow.array(i, pyarrow.int32()),
                self.names["x"]: pyarrow.array(x, pyarrow.float32()),
                "k": pyarrow.array(k, pyarrow.string()),
                self.names["v"]: pyarrow.array(v, pyarrow.list_(pyarrow.int32())),
            }
        )

    def append(self, rows: Sequence[tuple[Any, ...]]) -> None:
        properties = deltalake.WriterProperties(max_row_group_size=7)
        deltalake.write_deltalake(
            self.folder,
            self.make_rows(rows),
            mode="append",
            writer_properties=properties,
            configuration=self.configuration,
            **self.options,
        )

    def change(self, kind: str, value: Any) -> None:
        table = deltalake.DeltaTable(self.folder)
        if kind == "append":
            self.append(value)
        elif kind == "delete":
            table.delete(f"n % 5 = {value}")
        elif kind == "update":
            table.update({"i": "7"}, predicate=f"n % 5 = {value}")
        elif kind == "merge":
            source = self.make_rows([(1, 2.5, "a", [3])] * 3)
            numbers = pyarrow.array([value, value + 5, self.next], pyarrow.int64())
            merger = table.merge(source.set_column(0, "n", numbers), "t.n = s.n", source_alias="s", target_alias="t")
            merger.when_matched_update({"i": "s.i"}).when_not_matched_insert_all().execute()
            self.next += 1
        elif kind == "vector":
            random, inline = Random(value[0]), value[1]
            adds = [add for add in find_adds(self.folder) if "deletionVector" not in add]
            if adds:
                add = random.choice(adds)
                count = pyarrow.parquet.read_metadata(self.folder / unquote(add["path"])).num_rows
                delete_rows(self.folder, add, random.sample(range(count), random.randint(1, count)), inline)
        elif kind == "rename" and self.mapped != "none":
            old = self.names[value]
            self.names[value] = f"{old} new"

            def rename(column: dict[str, Any]) -> None:
                column["name"] = self.names[value] if column["name"] == old else column["name"]

            edit_columns(self.folder, rename)
        elif kind == "checkpoint":
            table.create_checkpoint()
        elif kind == "optimize":
            table.optimize.compact()


def read_shares(folder: Path, size: int, batch_rows: int, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows that `size` ranks read, after the shares were found to be equal, and to be those announced."""
    files = find_files(str(folder), version=version)
    shares = [
        [row for batch in files.read_batches(list(files.kinds), rank, size, batch_rows) for row in batch.to_pylist()]
        for rank in range(size)
    ]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1 and sum(map(len, shares)) == files.rows
    return [row for share in shares for row in share]


def sort_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mapped=st.sampled_from(["none", "name", "id"]),
    partitioned=st.booleans(),
    first=ROWS,
    changes=CHANGES,
    size=st.integers(1, 3),
    batch_rows=st.integers(1, 11),
)
def test_rows_are_those_of_deltalake(
    mapped: str, partitioned: bool, first: Any, changes: Any, size: int, batch_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        table = Table(Path(name) / "table", mapped, partitioned)
        table.append(first)
        features = ["deletionVectors", *([] if mapped == "none" else ["columnMapping"])]
        edit_columns(table.folder, lambda column: None, **make_protocol(features))
        for kind, value in changes:
            try:
                table.change(kind, value)
            except deltalake.exceptions.DeltaError as error:  # it does not write all that it reads
                assert "support" in str(error), error
        read = deltalake.DeltaTable(table.folder)
        expected = pyarrow.table(read.scan()).to_pylist()
        if not find_adds(table.folder):
            return
        rows = read_shares(table.folder, size, batch_rows)
        assert sort_rows(rows) == sort_rows(expected)
        assert read_shares(table.folder, 1, 100) == rows, "their order does not depend on the ranks"
        of_first = pyarrow.table(deltalake.DeltaTable(table.folder, version=0).scan()).to_pylist()
        assert sort_rows(read_shares(table.folder, 1, 9, version=0)) == sort_rows(of_first)


@pytest.mark.parametrize("feature", ["typeWidening", "typeWidening-preview"])
def test_widened_types(tmp_path: Path, feature: str) -> None:
    deltalake.write_deltalake(
        tmp_path / "t",
        pyarrow.table(
            {
                "i": pyarrow.array([1, None], pyarrow.int32()),
                "f": pyarrow.array([0.5, 1.5], pyarrow.float32()),
                "v": pyarrow.array([[1], [2, None]], pyarrow.list_(pyarrow.int16())),
            }
        ),
    )
    wider = {"i": "double", "f": "double", "v": {"type": "array", "elementType": "long", "containsNull": True}}

    def widen(column: dict[str, Any]) -> None:
        column["type"] = wider[column["name"]]
        column["metadata"] = {"delta.typeChanges": [{"fromType": "short", "toType": "long"}]}

    edit_columns(tmp_path / "t", widen, **make_protocol([feature]))
    files = find_files(str(tmp_path / "t"))
    assert files.kinds == {"i": "double", "f": "double", "v": "array<bigint>"}
    assert read_shares(tmp_path / "t", 2, 10) == [
        {"i": 1.0, "f": 0.5, "v": [1]},
        {"i": None, "f": 1.5, "v": [2, None]},
    ]
