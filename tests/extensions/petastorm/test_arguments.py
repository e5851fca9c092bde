"""Arguments of petastorm's readers: columns that they name, and arguments without effect or that are refused."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.arguments import (
    check_others,
    choose_columns,
    choose_fields,
    warn_without_effect,
)
from spark_estimator.extensions.petastorm.dataset import find_dataset
from spark_estimator.extensions.petastorm.unischema import UnischemaField

COLUMNS = ("id", "image_1", "image_2", "price($)", "a.b")


@pytest.mark.parametrize(
    ("schema_fields", "expected"),
    [
        (None, list(COLUMNS)),
        (["image_2", "id"], ["id", "image_2"]),
        (["image.*", "id", "id"], ["id", "image_1", "image_2"]),
        (["a.b"], ["a.b"]),
        (["price($)"], ["price($)"]),
        ([UnischemaField("price($)", numpy.int32)], ["price($)"]),
        ([SimpleNamespace(name="a.b"), ".*_1"], ["image_1", "a.b"]),
        (("id",), ["id"]),
        ((name for name in ["id"]), ["id"]),
    ],
)
def test_columns_in_the_order_of_the_files(schema_fields: Any, expected: list[str]) -> None:
    assert choose_columns(COLUMNS, schema_fields) == expected


def test_a_name_that_is_no_pattern() -> None:
    assert choose_columns(["x", "a[", "y"], ["a["]) == ["a["]
    with pytest.raises(ValueError, match=r"schema_fields: 'b\[' is no column of 'x', and no regular expression: "):
        choose_columns(["x"], ["b["])


def test_a_dot_in_a_field_s_name_is_no_pattern() -> None:
    assert choose_columns(["axb", "a.b"], [UnischemaField("a.b", numpy.int32)]) == ["a.b"]
    assert choose_columns(["axb", "a.b"], ["a.b"]) == ["axb", "a.b"], "a text is a pattern, as in petastorm"


@pytest.mark.parametrize("schema_fields", ["id", 7])
def test_what_is_no_list(schema_fields: Any) -> None:
    with pytest.raises(ValueError, match=f"must be a list of names, patterns or fields; got {schema_fields!r}"):
        choose_columns(COLUMNS, schema_fields)


def test_entries_that_are_no_columns() -> None:
    with pytest.raises(ValueError, match="schema_fields is an empty list: name at least one column"):
        choose_columns(COLUMNS, [])
    with pytest.raises(ValueError, match="it has 3"):
        choose_columns(COLUMNS, ["id", 3])
    with pytest.raises(DataError, match=r"'image' is no column of .*Did you mean 'image_"):
        choose_columns(COLUMNS, ["image"])
    with pytest.raises(DataError, match="'id' is no column of "):
        choose_columns([], ["id"])


def test_fields_of_files_and_columns_without_arrays(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"x": [1], "pair": [[1.0, 2.0]], "deep": [{"a": 1}]}), tmp_path / "a")
    files = find_dataset(str(tmp_path / "a"))
    with pytest.warns(UserWarning, match=r"^folder: column 'deep' has type struct<a: int64>.* is left out"):
        schema = choose_fields(files, None, "folder")
    assert {name: (field.numpy_dtype, field.shape) for name, field in schema.fields.items()} == {
        "x": (numpy.int64, ()),
        "pair": (numpy.float64, (None,)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(choose_fields(files, ["pair"], "folder").fields) == ["pair"]
    for named in ("deep", UnischemaField("deep", numpy.int64)):
        with pytest.raises(DataError, match=r"column 'deep' has type struct<a: int64>.*: flatten it first"):
            choose_fields(files, ["x", named], "folder")


def test_arguments_without_effect_are_listed_once() -> None:
    with pytest.warns(UserWarning, match=re.escape("cache_type, pyarrow_serialize: petastorm's, and without effect")):
        check_others("make_reader", {"pyarrow_serialize": True, "cache_type": "null", "hdfs_driver": None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_others("make_reader", {"pyarrow_serialize": True, "rowgroup_selector": None, "ngram": None})
        warn_without_effect([])


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_estimator.extensions.petastorm.arguments._warned", set())


@pytest.mark.parametrize(
    ("name", "advice"),
    [("rowgroup_selector", "use a predicate or filters"), ("filesystem", "storage_options"), ("ngram", "make windows")],
)
def test_arguments_that_change_rows_are_refused(name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=f"^make_reader: {name} is not supported; .*{advice}"):
        check_others("make_reader", {name: object()})


def test_unknown_arguments_are_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match=re.escape("make_reader() got an unexpected keyword argument 'worker_count'")):
        check_others("make_reader", {"worker_count": None})
