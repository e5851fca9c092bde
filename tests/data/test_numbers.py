"""Columns of Parquet files as numbers: vectors, dates, timestamps, decimals, nulls, and the types' names."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow
import pytest

from spark_estimator.data.numbers import apply_null_rules, get_kind, is_exact, make_file_readable, to_numbers
from spark_estimator.errors import DataError

VECTOR = pyarrow.struct(
    [
        ("type", pyarrow.int8()),
        ("size", pyarrow.int32()),
        ("indices", pyarrow.list_(pyarrow.int32())),
        ("values", pyarrow.list_(pyarrow.float64())),
    ]
)


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size: int, **at: float) -> dict[str, Any]:
    return {"type": 0, "size": size, "indices": [int(name[1:]) for name in at], "values": list(at.values())}


@pytest.mark.parametrize(
    ("vectors", "lists"),
    [
        ([dense(1, 2), dense(3, 4)], [[1, 2], [3, 4]]),
        ([sparse(3, _1=5.0), sparse(3), sparse(3, _0=1.0, _2=2.0)], [[0, 5, 0], [0, 0, 0], [1, 0, 2]]),
        ([dense(1, 2, 3), sparse(3, _2=9.0), dense(4, 5, 6)], [[1, 2, 3], [0, 0, 9], [4, 5, 6]]),
        ([dense(1, 2), None, sparse(2, _1=3.0)], [[1, 2], None, [0, 3]]),
        ([sparse(2, _0=1.0), dense(1, 2, 3)], [[1, 0], [1, 2, 3]]),
    ],
)
def test_vectors(vectors: list[Any], lists: list[Any]) -> None:
    array = pyarrow.array([dense(0), *vectors], VECTOR)
    assert get_kind(array.type) == "vector"
    assert to_numbers(array).to_pylist()[1:] == lists
    assert to_numbers(array[1:]).to_pylist() == lists, "a slice has offsets of its own"


def test_dates_timestamps_decimals() -> None:
    when = datetime.datetime(2020, 1, 2, 3, 4, 5, 250000, tzinfo=datetime.timezone.utc)
    columns = {
        "day": pyarrow.array([datetime.date(1970, 1, 3), None]),
        "when": pyarrow.array([when, None], pyarrow.timestamp("ns", "UTC")),
        "price": pyarrow.array([decimal.Decimal("1.25"), None]),
    }
    values = [to_numbers(column).to_pylist()[0] for column in columns.values()]
    assert values == [2, when.timestamp(), 1.25]
    kinds = {name: get_kind(column.type) for name, column in columns.items()}
    assert kinds == {"day": "date", "when": "timestamp", "price": "decimal(3,2)"}
    assert [make_file_readable(kinds, name).dtype for name in kinds] == ["int64", "float64", "float32"]


def test_nulls_as_spark_has_them() -> None:
    batch = pyarrow.RecordBatch.from_pydict(
        {"c0": [1, None, 3, 4], "c1": [1.0, 2.0, float("nan"), None], "marker": [True, None, False, True]}
    )
    assert apply_null_rules(batch, [("error", "int64"), ("error", "float32")]) is batch
    assert apply_null_rules(batch, [("drop", "int64"), ("drop", "float32")]).to_pydict() == {
        "c0": [1],
        "c1": [1.0],
        "marker": [True],
    }
    filled = apply_null_rules(batch, [(0.5, "int64"), (0.5, "float32")]).to_pydict()
    assert filled["c0"] == [1, 0, 3, 4] and filled["c1"] == [1.0, 2.0, 0.5, 0.5] and filled["marker"][1] is None
    mixed = apply_null_rules(batch, [(7, "int64"), ("drop", "float32")]).to_pydict()
    assert mixed == {"c0": [1, 7], "c1": [1.0, 2.0], "marker": [True, None]}


def test_a_number_for_nulls_beside_large_whole_numbers() -> None:
    large = (1 << 60) + 1
    for kind, dtype in (
        ("int64", "float32"),
        ("int64", "float64"),
        ("uint64", "float32"),
        ("int64", "int64"),
        ("float64", "int64"),
    ):
        batch = pyarrow.RecordBatch.from_pydict(
            {"c0": pyarrow.array([large, None]).cast(getattr(pyarrow, kind)(), safe=False)}
        )
        filled = apply_null_rules(batch, [(float(1 << 60), dtype)]).column("c0")
        assert filled.to_pylist() == [large if kind == dtype else 1 << 60, 1 << 60]


def test_dates_in_milliseconds_are_days_too() -> None:
    days = [datetime.date(2020, 2, 29), datetime.date(1969, 12, 31), None]
    of_days, of_milliseconds = (pyarrow.array(days, kind) for kind in (pyarrow.date32(), pyarrow.date64()))
    assert get_kind(of_milliseconds.type) == "date"
    assert to_numbers(of_milliseconds).to_pylist() == to_numbers(of_days).to_pylist()
    lists = pyarrow.array([days[:2], None], pyarrow.list_(pyarrow.date64()))
    assert to_numbers(lists).to_pylist() == [to_numbers(of_days).to_pylist()[:2], None]


def test_rows_with_all_values_are_the_same_batch_after_dropping() -> None:
    batch = pyarrow.RecordBatch.from_pydict({"c0": [1, 2]})
    assert apply_null_rules(batch, [("drop", "int64")]) is batch


def test_a_fraction_in_a_column_of_whole_numbers_is_kept_for_the_check() -> None:
    """Only the replacement is converted to the tensor's type; the spool then refuses the fraction."""
    batch = pyarrow.RecordBatch.from_pydict({"c0": [0.5, None]})
    assert apply_null_rules(batch, [(7, "int64")]).column(0).to_pylist() == [0.5, 7.0]


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pyarrow.uint8(), "smallint"),
        (pyarrow.uint32(), "bigint"),
        (pyarrow.large_string(), "string"),
        (pyarrow.list_(pyarrow.float32(), 3), "array<float>"),
        (pyarrow.large_list(pyarrow.list_(pyarrow.int8())), "array<array<tinyint>>"),
        (pyarrow.timestamp("us"), "timestamp_ntz"),
        (pyarrow.struct([("a", pyarrow.int8())]), "struct"),
    ],
)
def test_types_in_spark_s_words(arrow: pyarrow.DataType, spark: str) -> None:
    assert get_kind(arrow) == spark


def test_types_that_are_equal_here_and_in_spark() -> None:
    assert all(map(is_exact, ("bigint", "array<float>", "vector", "binary")))
    assert not any(map(is_exact, ("date", "timestamp", "decimal(9,2)", "array<vector>", "array<array<int>>")))


def test_arrays_of_dates_and_null_inside() -> None:
    days = pyarrow.array([[datetime.date(1970, 1, 2), None], None, [], [datetime.date(1969, 12, 31)]])
    assert to_numbers(days).to_pylist() == [[1, None], None, [], [-1]]
    assert to_numbers(days[2:]).to_pylist() == [[], [-1]]


def test_a_decoder_needs_bytes() -> None:
    assert make_file_readable({"image": "binary"}, "image", decoded=True).is_array
    with pytest.raises(DataError, match=r"decoders refers to column 'n' \(bigint\)"):
        make_file_readable({"n": "bigint"}, "n", decoded=True)
