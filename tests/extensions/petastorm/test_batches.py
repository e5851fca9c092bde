"""Batches of one shard as numpy arrays: from rows that were decoded once, and from pages; columns as tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.arguments import choose_fields
from spark_estimator.extensions.petastorm.batches import ShardBatches, are_plain, make_tensor_fields, rebatch
from spark_estimator.extensions.petastorm.dataset import find_dataset
from spark_estimator.extensions.petastorm.pages import Page
from spark_estimator.extensions.petastorm.plan import ReadPlan


@pytest.fixture
def plan(tmp_path: Path) -> ReadPlan:
    """11 rows: n = 0, 1, ... and pairs [n, -n]."""
    table = pyarrow.table({"n": range(11), "pair": [[float(n), -float(n)] for n in range(11)]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    files = find_dataset(str(tmp_path))
    schema = choose_fields(files, None, "folder")
    return ReadPlan(files, schema, schema)


def read(plan: ReadPlan, batch_size: int, mixed: bool = False, **changes: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in ShardBatches(replace(plan, **changes), batch_size, mixed)]


def test_batches_run_on_into_the_next_epoch(plan: ReadPlan) -> None:
    batches = ShardBatches(replace(plan, num_epochs=2), 4, mixed=False)
    arrays = list(batches)
    assert [batch["n"].tolist() for batch in arrays] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 0],
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10],
    ]
    assert len(batches) == len(arrays)
    assert all(numpy.array_equal(batch["pair"][:, 0], batch["n"]) for batch in arrays)


def test_a_smaller_shard_repeats_a_row_to_have_as_many_batches(plan: ReadPlan) -> None:
    assert [read(plan, 5, shard=shard, shards=2) for shard in range(2)] == [
        [[0, 1, 2, 3, 4], [5]],
        [[6, 7, 8, 9, 10], [6]],
    ]


def test_a_batch_larger_than_several_epochs(plan: ReadPlan) -> None:
    (batch,) = read(plan, 64, True, num_epochs=3)
    assert sorted(batch) == sorted(list(range(11)) * 3)


def test_orders_differ_and_are_repeated_by_the_seed(plan: ReadPlan) -> None:
    def two_iterations(seed: int) -> list[list[int]]:
        batches = ShardBatches(replace(plan, seed=seed), 11, mixed=True)
        return [batch["n"].tolist() for _ in range(2) for batch in batches]

    first, second = two_iterations(3)
    assert first != second and sorted(first) == sorted(second) == list(range(11))
    assert two_iterations(3) == [first, second] != two_iterations(4)


def test_rows_are_read_once_until_they_are_released(plan: ReadPlan) -> None:
    batches = ShardBatches(plan, 11, mixed=False)
    (batch,) = batches
    batch["n"] += 100  # a copy
    path = Path(plan.files.files[0].path)
    content = path.read_bytes()
    path.unlink()
    assert next(iter(batches))["n"].tolist() == list(range(11))
    batches.release()
    path.write_bytes(content)
    assert next(iter(batches))["n"].tolist() == list(range(11))


def test_no_length_without_an_end(plan: ReadPlan) -> None:
    with pytest.raises(TypeError, match="with num_epochs=None there is no end"):
        len(ShardBatches(replace(plan, num_epochs=None), 4, mixed=False))


def some(*sizes: int) -> list[Page]:
    """Pages of these numbers of rows: 0, 1, 2, ..."""
    ends = numpy.cumsum(sizes)
    return [{"n": numpy.arange(end - size, end)} for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("sizes", [(1,), (5, 5, 5), (2, 1, 1, 9, 1), (4, 4), (30,), (3,) * 10])
@pytest.mark.parametrize("capacity", [0, 6])
def test_batches_have_all_rows_once(sizes: tuple[int, ...], capacity: int) -> None:
    batches = [batch["n"].tolist() for batch in rebatch(iter(some(*sizes)), 4, capacity)]
    rows = [n for batch in batches for n in batch]
    assert all(len(batch) == 4 for batch in batches[:-1]) and 0 < len(batches[-1]) <= 4
    assert sorted(rows) == list(range(sum(sizes))) and (capacity or rows == sorted(rows))


def test_a_queue_mixes_what_is_near() -> None:
    rows = [n for batch in rebatch(iter(some(*[5] * 200)), 10, 100, seed=1) for n in batch["n"].tolist()]
    distances = numpy.abs(numpy.array(rows) - numpy.arange(1000))
    assert sorted(rows) == list(range(1000)) and 10 < numpy.median(distances) < 200


def test_rows_of_different_shapes_have_an_error_that_says_so() -> None:
    source = iter([{"x": numpy.ones((3, 2))}, {"x": numpy.ones((3, 4))}])
    with pytest.raises(DataError, match=r"column 'x' has rows of different shapes: \[2\], \[4\]"):
        list(rebatch(source, 4))


TYPES = {
    "i8": ("int8", pyarrow.int8()),
    "i16": ("int16", pyarrow.int16()),
    "i32": ("int32", pyarrow.int32()),
    "i64": ("int64", pyarrow.int64()),
    "u8": ("uint8", pyarrow.uint8()),
    "f32": ("float32", pyarrow.float32()),
    "f64": ("float64", pyarrow.float64()),
    "flag": ("uint8", pyarrow.bool_()),
    "money": ("float64", pyarrow.decimal128(6, 2)),
}


def make_plan(folder: Path, table: pyarrow.Table, *columns: str) -> ReadPlan:
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    files = find_dataset(str(folder))
    schema = choose_fields(files, columns or None, "folder")
    return ReadPlan(files, schema, schema)


def typed(folder: Path, *columns: str) -> ReadPlan:
    arrays = {name: pyarrow.array([0, 1]).cast(kind) for name, (_, kind) in TYPES.items() if name != "money"}
    arrays["money"] = pyarrow.array([0, 1], pyarrow.int64()).cast(pyarrow.decimal128(19)).cast(TYPES["money"][1])
    return make_plan(folder, pyarrow.table(arrays), *columns)


def test_scalars_keep_their_types(tmp_path: Path) -> None:
    fields = make_tensor_fields(typed(tmp_path))
    assert {field.name: field.dtype for field in fields} == {name: dtype for name, (dtype, _) in TYPES.items()}
    assert {field.shape for field in fields} == {()}
    assert [field.columns for field in fields] == [(f"c{number}",) for number in range(len(TYPES))]


def test_fractions_in_the_precision_of_the_plan(tmp_path: Path) -> None:
    half = replace(typed(tmp_path, "f64", "money", "i64"), precision="float32")
    assert [field.dtype for field in make_tensor_fields(half)] == ["int64", "float32", "float32"], "in the files' order"


@pytest.mark.parametrize("width", [0, 1, 3])
def test_arrays_of_one_length_have_a_shape(tmp_path: Path, width: int) -> None:
    lists = pyarrow.array([[1] * width, [2] * width], pyarrow.list_(pyarrow.int16()))
    (field,) = make_tensor_fields(make_plan(tmp_path, pyarrow.table({"v": lists})))
    assert (field.shape, field.width, field.dtype) == ((width,), width, "int16")


@pytest.mark.parametrize("rows", [[[1.0], [1.0, 2.0]], [[1.0], None]])
def test_arrays_of_different_lengths_are_refused(tmp_path: Path, rows: list[list[float] | None]) -> None:
    with pytest.raises(DataError, match="column 'v' holds"):
        make_tensor_fields(
            make_plan(tmp_path, pyarrow.table({"v": pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))}))
        )


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.binary(), pyarrow.list_(pyarrow.string())])
def test_columns_that_hold_no_numbers_are_refused(tmp_path: Path, kind: pyarrow.DataType) -> None:
    column = pyarrow.array([None], kind)
    with pytest.raises(DataError, match="'s'"):
        make_tensor_fields(make_plan(tmp_path, pyarrow.table({"x": [1], "s": column})))


def test_plain_columns_are_those_that_the_spool_keeps_in_their_type(tmp_path: Path) -> None:
    kinds = {
        "list": pyarrow.list_(pyarrow.float32()),
        "u16": pyarrow.uint16(),
        "s": pyarrow.string(),
        "day": pyarrow.date32(),
        "money": pyarrow.decimal128(5, 2),
    }
    table = pyarrow.table({name: pyarrow.array([None], kind) for name, kind in kinds.items()})
    plain = {name: are_plain(make_plan(tmp_path, table, name)) for name in kinds}
    assert plain == {"list": True, "u16": False, "s": False, "day": False, "money": False}
    assert are_plain(typed(tmp_path, *(name for name in TYPES if name != "money")))
    assert not are_plain(make_plan(tmp_path, table, "list", "s")), "one column decides for all"
