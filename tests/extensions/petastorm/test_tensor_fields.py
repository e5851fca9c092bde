"""Columns of a reader as tensors: types, shapes, and what cannot be one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.arguments import choose_fields
from spark_estimator.extensions.petastorm.dataset import find_dataset
from spark_estimator.extensions.petastorm.plan import ReadPlan
from spark_estimator.extensions.petastorm.tensor_fields import are_plain, make_tensor_fields

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


def plan(folder: Path, table: pyarrow.Table, *columns: str) -> ReadPlan:
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    files = find_dataset(str(folder))
    schema = choose_fields(files, columns or None, "folder")
    return ReadPlan(files, schema, schema)


def typed(folder: Path, *columns: str) -> ReadPlan:
    arrays = {name: pyarrow.array([0, 1]).cast(kind) for name, (_, kind) in TYPES.items() if name != "money"}
    arrays["money"] = pyarrow.array([0, 1], pyarrow.int64()).cast(pyarrow.decimal128(19)).cast(TYPES["money"][1])
    return plan(folder, pyarrow.table(arrays), *columns)


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
    (field,) = make_tensor_fields(plan(tmp_path, pyarrow.table({"v": lists})))
    assert (field.shape, field.width, field.dtype) == ((width,), width, "int16")


@pytest.mark.parametrize("rows", [[[1.0], [1.0, 2.0]], [[1.0], None]])
def test_arrays_of_different_lengths_are_refused(tmp_path: Path, rows: list[list[float] | None]) -> None:
    with pytest.raises(DataError, match="column 'v' holds"):
        make_tensor_fields(plan(tmp_path, pyarrow.table({"v": pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))})))


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.binary(), pyarrow.list_(pyarrow.string())])
def test_columns_that_hold_no_numbers_are_refused(tmp_path: Path, kind: pyarrow.DataType) -> None:
    column = pyarrow.array([None], kind)
    with pytest.raises(DataError, match="'s'"):
        make_tensor_fields(plan(tmp_path, pyarrow.table({"x": [1], "s": column})))


def test_plain_columns_are_those_that_the_spool_keeps_in_their_type(tmp_path: Path) -> None:
    kinds = {
        "list": pyarrow.list_(pyarrow.float32()),
        "u16": pyarrow.uint16(),
        "s": pyarrow.string(),
        "day": pyarrow.date32(),
        "money": pyarrow.decimal128(5, 2),
    }
    table = pyarrow.table({name: pyarrow.array([None], kind) for name, kind in kinds.items()})
    plain = {name: are_plain(plan(tmp_path, table, name)) for name in kinds}
    assert plain == {"list": True, "u16": False, "s": False, "day": False, "money": False}
    assert are_plain(typed(tmp_path, *(name for name in TYPES if name != "money")))
    assert not are_plain(plan(tmp_path, table, "list", "s")), "one column decides for all"
