"""The ids of categories: by a vocabulary, and by a hash that is the same everywhere."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pytest

from spark_estimator.data.categories import (
    Hashing,
    Vocabulary,
    make_encoder,
    make_encoders,
    set_largest_ids,
)
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CITIES = Vocabulary("city", ("Rome", "Örebro", ""))
CODES = Vocabulary("code", (7, -1, 2**62))
USERS = Hashing("user", 1000)


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()])
def test_texts_have_the_ids_of_their_places(kind: pyarrow.DataType) -> None:
    values = pyarrow.array(["Örebro", None, "rome", "Rome", "", "Örebro"], kind)
    ids = CITIES.find_ids(values)
    assert ids.type == pyarrow.int64() and ids.to_pylist() == [2, 0, 0, 1, 3, 2]
    assert CITIES.find_ids(values.slice(3, 2)).to_pylist() == [1, 3]
    assert CITIES.find_ids(values[:0]).to_pylist() == []


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (pyarrow.array([7, 8, None, -1], pyarrow.int16()), [1, 0, 0, 2]),
        (pyarrow.array([2**62, 2**62 + 1]), [3, 0]),
        (pyarrow.array([7.0, None]), [1, 0]),  # pandas' column of integers with a null
        (pyarrow.array([True, False, None]), [0, 0, 0]),
        (pyarrow.nulls(2), [0, 0]),
    ],
)
def test_whole_numbers(values: pyarrow.Array, ids: list[int]) -> None:
    assert CODES.find_ids(values).to_pylist() == ids


@pytest.mark.parametrize(
    ("value", "kind", "digits"),
    [
        (2**53, pyarrow.float64(), 53),
        (2**24, pyarrow.float32(), 24),
        (2**11, pyarrow.float16(), 11),
    ],
)
def test_floats_that_may_have_been_other_whole_numbers(value: int, kind: pyarrow.DataType, digits: int) -> None:
    """pandas makes floats of whole numbers where one is null: 2**53 and 2**53 + 1 are the same float."""
    less = pyarrow.array(numpy.array([value // 2, 2**digits - 1], kind.to_pandas_dtype()))
    assert USERS.find_ids(less).to_pylist() == USERS.find_ids(pyarrow.array([value // 2, 2**digits - 1])).to_pylist()
    values = pyarrow.array(numpy.array([7, value], kind.to_pandas_dtype()))
    with pytest.raises(DataError, match=rf"column 'user' holds .* has no whole numbers apart from 2\*\*{digits} on"):
        USERS.find_ids(values)
    with pytest.raises(DataError, match="no whole numbers apart"):
        USERS.find_ids(pyarrow.array([-(2.0**63)]))


def test_booleans_are_the_numbers_0_and_1() -> None:
    flags = Vocabulary("flag", (1, 0))
    assert flags.find_ids(pyarrow.array([True, False, None])).to_pylist() == [1, 2, 0]


def test_arrays_of_categories() -> None:
    values = pyarrow.array([["x"], ["Rome", "", None], None, [], ["Rome", "Örebro"]])
    assert CITIES.find_ids(values).to_pylist() == [[0], [1, 3, 0], None, [], [1, 2]]
    assert CITIES.find_ids(values.slice(1, 3)).to_pylist() == [[1, 3, 0], None, []]
    assert CITIES.find_ids(values.slice(4)).to_pylist() == [[1, 2]]


@pytest.mark.parametrize(
    ("encoder", "values", "words"),
    [
        (CITIES, pyarrow.array([1]), "'city' is of type int64; its categories are texts"),
        (CODES, pyarrow.array(["7"]), "'code' is of type string; its categories are whole numbers"),
        (CODES, pyarrow.array([7.5]), "'code' holds a number that is no whole number"),
        (USERS, pyarrow.array([b"x"]), "'user' is of type binary; its categories are texts or whole numbers"),
    ],
)
def test_values_of_another_type(encoder: Any, values: pyarrow.Array, words: str) -> None:
    with pytest.raises(DataError, match=words):
        encoder.find_ids(values)


def test_a_hash_never_changes() -> None:
    """These ids are in saved models."""
    ids = USERS.find_ids(pyarrow.array(["ada", "Örebro", "", None, "42"])).to_pylist()
    assert ids == [490, 456, 1, 0, 396]
    assert USERS.find_ids(pyarrow.array([42, -5, None])).to_pylist() == [396, 980, 0]
    assert Hashing("user", 2).find_ids(pyarrow.array(["a", None])).to_pylist() == [1, 0]


def test_spark_has_the_same_hash(spark: SparkSession) -> None:
    names = [f"user {number}" for number in range(50)] + ["Örebro", ""]
    frame = spark.createDataFrame([(name, len(name) - 7) for name in names], "name string, number int")
    rows = frame.selectExpr(
        "name", "number", "1 + crc32(name) % 999 AS a", "1 + crc32(cast(number AS string)) % 999 AS b"
    ).collect()
    assert USERS.find_ids(pyarrow.array([row.name for row in rows])).to_pylist() == [row.a for row in rows]
    assert USERS.find_ids(pyarrow.array([row.number for row in rows])).to_pylist() == [row.b for row in rows]


def test_text_that_is_not_utf_8_is_an_unknown_value() -> None:
    torn = pyarrow.StringArray.from_buffers(
        1, pyarrow.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pyarrow.py_buffer(b"\xff\xfe")
    )
    assert CITIES.find_ids(torn).to_pylist() == [0]


@pytest.mark.parametrize(
    ("encoder", "kind", "words"),
    [
        (CITIES, "double", r"'x' \(double\), but categories are texts, whole numbers or booleans.*Cast the column"),
        (USERS, "array<date>", r"'x' \(array<date>\), but categories"),
        (CITIES, "int", "of column 'x' are texts, such as 'Rome', but its type is int. Cast it to string"),
        (CODES, "array<string>", "are whole numbers, such as 7, but its type is array<string>.*bigint"),
    ],
)
def test_types_of_columns(encoder: Any, kind: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        encoder.check("x", kind)
    for of_texts in ("string", "varchar(3)", "string collate UNICODE", "array<string>"):
        CITIES.check("x", of_texts)
        USERS.check("x", of_texts)
    for of_numbers in ("tinyint", "bigint", "boolean", "array<int>"):
        CODES.check("x", of_numbers)
        USERS.check("x", of_numbers)


def test_an_encoder_is_sent_without_what_it_has_computed() -> None:
    before = len(pickle.dumps(CITIES))
    CITIES.find_ids(pyarrow.array(["Rome"]))
    assert len(pickle.dumps(CITIES)) == before
    assert pickle.loads(pickle.dumps(CITIES)) == CITIES
    assert "Rome" not in repr(CITIES)


def test_entries_of_the_parameter() -> None:
    entries = {"a": ["x", "y"], "b": [3, 4], "c": {"hash": 9}, "d": 10}
    encoders = make_encoders(entries)
    assert {name: encoder.entry for name, encoder in encoders.items()} == entries
    assert [encoder.size for encoder in encoders.values()] == [3, 3, 9, 10]
    assert make_encoders(None) == {}
    assert encoders["a"].summary.startswith("a: 3 ids, checksum ")
    assert encoders["a"].summary != make_encoder("a", ["y", "x"]).summary


def test_a_batch_with_ids() -> None:
    batch = pyarrow.RecordBatch.from_pydict({"c0": ["Rome", None], "c1": [1.5, 2.5], "c2": [["x"], ["Rome"]]})
    ids = RowEncoder(("c0", "c1", "c2"), categories={"c0": CITIES, "c2": CITIES}).to_numbers(batch)
    assert ids.to_pydict() == {"c0": [1, 0], "c1": [1.5, 2.5], "c2": [[0], [1]]}
    largest = set_largest_ids(ids, [4, 0, 9])
    assert largest.to_pydict() == {"c0": [3, 0], "c1": [1.5, 2.5], "c2": [[8], [1]]}
    assert set_largest_ids(ids[:0], [4, 0, 9]).num_rows == 0


@pytest.mark.parametrize("entry", [["Rome", "Örebro"], {"hash": 9}])
def test_a_column_with_the_ids_of_another(entry: Any) -> None:
    encoders = make_encoders({"before": "city", "city": entry, "code": [7]})
    assert list(encoders) == ["before", "city", "code"]
    city, before = encoders["city"], pickle.loads(pickle.dumps(encoders))["before"]
    assert (before.name, before.size, before.entry) == ("before", city.size, "city")
    visits = pyarrow.array([["Rome", None], None, ["Örebro", "Rome", "Oslo"]])
    assert before.find_ids(visits).to_pylist() == city.find_ids(visits).to_pylist() != [[0, 0], None, [0, 0, 0]]


def test_a_column_with_the_ids_of_another_is_of_its_type() -> None:
    before = make_encoders({"before": "city", "city": ["Rome"]})["before"]
    before.check("before", "array<string>")
    with pytest.raises(DataError, match=r"of column 'before' are texts, such as 'Rome', but its type is array<int>"):
        before.check("before", "array<int>")
    with pytest.raises(DataError, match="column 'before' is of type int64; its categories are texts"):
        before.find_ids(pyarrow.array([1]))
