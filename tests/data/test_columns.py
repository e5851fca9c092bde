"""The table at the head of ``data/columns.py``, row by row: through Spark, and from bare Parquet files."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy
import pyarrow
import pytest

pytest.importorskip("pyspark")

from spark_estimator.data.columns import cast_columns, find_dropping_columns, make_readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field, make_matrix
from spark_estimator.data.first_rows import fit_decoders
from spark_estimator.data.nulls import Nulls
from spark_estimator.data.numbers import make_file_readable
from spark_estimator.data.parquet import DataFiles, FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder, find_dtypes
from spark_estimator.data.spark_rows import feed_columns
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Array = numpy.ndarray[Any, Any]
UTC = datetime.timezone.utc
DAYS = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2024, 2, 29)]
TIMES = [datetime.datetime(1999, 5, 4, 3, 2, 1), datetime.datetime(2024, 2, 29, 12, 0, 0, 500000)]
TIMES += [datetime.datetime(1969, 12, 31, 23, 59, 59)]
SECONDS = [time.replace(tzinfo=UTC).timestamp() for time in TIMES]
#: Spark type: three values, the tensor's type, what the values are there.
TABLE: dict[str, tuple[list[Any], str, list[float]]] = {
    "tinyint": ([1, -128, 127], "int64", [1, -128, 127]),
    "smallint": ([1, -(2**15), 2**15 - 1], "int64", [1, -(2**15), 2**15 - 1]),
    "int": ([0, -(2**31), 2**31 - 1], "int64", [0, -(2**31), 2**31 - 1]),
    "bigint": ([2**53 + 1, -(2**63), 2**63 - 1], "int64", [2**53 + 1, -(2**63), 2**63 - 1]),
    "float": ([0.1, -2.5, 3e38], "float32", [0.1, -2.5, 3e38]),
    "double": ([0.1, -2.5, 1e30], "float32", [0.1, -2.5, 1e30]),
    "decimal(9,2)": (list(map(decimal.Decimal, ("0.25", "-1.75", "99.67"))), "float32", [0.25, -1.75, 99.67]),
    "boolean": ([True, False, True], "int64", [1, 0, 1]),
    "date": (DAYS, "int64", [-1, 0, 19782]),
    "timestamp": ([time.replace(tzinfo=UTC) for time in TIMES], "float64", SECONDS),
    "timestamp_ntz": (TIMES, "float64", SECONDS),
}


def pairs(values: list[Any]) -> list[list[Any]]:
    return [[values[n], values[(n + 1) % 3]] for n in range(3)]


def decode(content: bytes) -> Array:
    return numpy.frombuffer(content, numpy.uint8).reshape(1, 2)


def table(spark: SparkSession) -> tuple[DataFrame, dict[str, tuple[str, Array]]]:
    """Three rows of all of it: the frame, and by name the tensor's type and its values, [3, width]."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import StructType, _parse_datatype_string

    columns: dict[str, tuple[Any, list[Any]]] = {}
    right: dict[str, tuple[str, Array]] = {}
    for kind, (values, dtype, numbers) in TABLE.items():
        name = kind.partition("(")[0]
        columns[name] = (_parse_datatype_string(kind), values)
        columns[f"{name}s"] = (_parse_datatype_string(f"array<{kind}>"), pairs(values))
        right[name] = dtype, numpy.array(numbers, dtype).reshape(3, 1)
        right[f"{name}s"] = dtype, numpy.array(pairs(numbers), dtype)
    columns["a.b"] = (_parse_datatype_string("int"), [1, 2, 3])
    columns["s"] = (_parse_datatype_string("struct<n: int, t: struct<x: double>>"), [(n, (n / 2,)) for n in range(3)])
    columns["dense"] = VectorUDT(), [Vectors.dense([n, 0.5, -n]) for n in range(3)]
    sparse = [Vectors.sparse(3, {1: 2.0}), Vectors.dense([1, 2, 3]), Vectors.sparse(3, {})]
    columns["sparse"] = VectorUDT(), sparse
    columns["image"] = _parse_datatype_string("binary"), [bytes([n, 255]) for n in range(3)]
    right["a.b"] = "int64", numpy.array([[1], [2], [3]])
    right["s.n"] = "int64", numpy.array([[0], [1], [2]])
    right["s.t.x"] = "float32", numpy.array([[0], [0.5], [1]])
    right["dense"] = "float32", numpy.array([[n, 0.5, -n] for n in range(3)])
    right["sparse"] = "float32", numpy.array([[0, 2, 0], [1, 2, 3], [0, 0, 0]])
    right["image"] = "float32", numpy.array([[0, 255], [1, 255], [2, 255]])
    schema = StructType()
    for name, (kind, _) in columns.items():
        schema = schema.add(name, kind)
    rows = list(zip(*(values for _, values in columns.values()), strict=True))
    return spark.createDataFrame(rows, schema).coalesce(1), right


def fields_of(right: dict[str, tuple[str, Array]]) -> list[Field]:
    return [
        Field((name,), (f"c{n}",), (values.shape[1],), dtype, (values.shape[1],), stored="uint8" * (name == "image"))
        for n, (name, (dtype, values)) in enumerate(right.items())
    ]


def batch_of(frame: DataFrame) -> pyarrow.RecordBatch:
    return frame.toArrow().combine_chunks().to_batches()[0]


def encoder_of(names: list[str], nulls: Nulls = "error") -> RowEncoder:
    decoders = {name: Decoder(name, decode) for name in names if name == "image"}
    return RowEncoder(tuple(names), nulls=nulls, decoders=decoders)


def through_spark(frame: DataFrame, names: list[str], nulls: Nulls = "error") -> pyarrow.RecordBatch:
    """As a training's ranks get the rows."""
    columns = [make_readable(frame.schema, name, name == "image") for name in names]
    dtypes = [column.dtype for column in columns]
    selected, feed = feed_columns(encoder_of(names, nulls), columns, dtypes)
    return feed.encoder.to_numbers(feed.name_columns(batch_of(frame.select(*selected))), dtypes=dtypes)


def sampled(frame: DataFrame, names: list[str], nulls: Nulls = "error") -> pyarrow.RecordBatch:
    """As the driver gets the first rows."""
    columns = [make_readable(frame.schema, name, name == "image") for name in names]
    cast = frame.select(*cast_columns(columns, [column.dtype for column in columns], nulls))
    dropping = find_dropping_columns(columns, nulls)
    cast = cast.dropna(subset=dropping) if dropping else cast
    return fit_decoders(batch_of(cast), columns, encoder_of(names, nulls))[0]


def from_files(files: DataFiles, names: list[str], nulls: Nulls = "error") -> pyarrow.RecordBatch:
    columns = [make_file_readable(files.kinds, name, name == "image") for name in names]
    rows = FileRows(files, encoder_of(names, nulls))
    return rows.read_first_rows([column.dtype for column in columns], 100)


def test_every_row_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    frame, right = table(spark)
    frame.write.parquet(str(tmp_path / "rows"))
    files = find_files(str(tmp_path / "rows"))
    for way in (through_spark, sampled, from_files):
        by_spark = way is not from_files
        names = [name for name in right if by_spark or not name.startswith("s.")]
        schema = frame.schema if by_spark else files.kinds
        rows = way(frame if by_spark else files, names)  # type: ignore[arg-type]
        for field in fields_of({name: right[name] for name in names}):
            name, (dtype, values) = field.name, right[field.name]
            column = (make_readable if by_spark else make_file_readable)(schema, name, name == "image")  # type: ignore[operator]
            assert column.dtype == dtype, (way, name)
            matrix = make_matrix(rows, field)
            if name.startswith("timestamp_ntz") and by_spark:
                zone = ZoneInfo(str(spark.conf.get("spark.sql.session.timeZone")))
                moved = [when.replace(tzinfo=zone).timestamp() for when in TIMES]
                values = numpy.array(moved if values.shape[1] == 1 else pairs(moved)).reshape(values.shape)
            assert matrix.dtype == field.stored_dtype and matrix.shape == values.shape, (way, name)
            assert numpy.array_equal(matrix, values.astype(field.stored_dtype)), (way, name, matrix)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spark_and_files_round_alike(spark: SparkSession, tmp_path: Path, dtype: str) -> None:
    """Vectors in a model of doubles, and decimals between two floating-point numbers, to the last bit."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import ArrayType, DecimalType, StructType

    kind = DecimalType(20, 18)
    schema = StructType().add("v", VectorUDT()).add("d", kind).add("a", ArrayType(kind))
    numbers = ["0.285714285714285714", "1.000000059604644775", "0.100000000000000001", "7.300000000000000003"]
    rows = [
        (Vectors.sparse(3, {0: 1 / (n + 3), 1: -0.0}) if n % 2 else Vectors.dense([0.1, 1e-50, -0.0]), value, [value])
        for n, value in enumerate(map(decimal.Decimal, numbers))
    ]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.parquet(str(tmp_path / "rows"))
    files = find_files(str(tmp_path / "rows"))
    names = ["v", "d", "a"]
    encoder = encoder_of(names)
    columns = [make_readable(frame.schema, name) for name in names]
    selected, feed = feed_columns(encoder, columns, [dtype] * 3)
    sent = feed.encoder.to_numbers(feed.name_columns(batch_of(frame.select(*selected))), dtypes=[dtype] * 3)
    read = FileRows(files, encoder).read_first_rows([dtype] * 3, 100)
    for number, (name, width) in enumerate(zip(names, (3, 1, 1), strict=True)):
        field = Field((name,), (f"c{number}",), (width,), dtype, (width,))
        assert make_matrix(sent, field).tobytes() == make_matrix(read, field).tobytes(), name
        if name != "v":
            right = numpy.array(numbers, "float64").astype(dtype)
            assert make_matrix(read, field).ravel().tolist() == right.tolist(), name


def test_nulls_by_each_policy(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, 0.5, [1.0], b"ab"), (None, 1.5, [2.0], b"cd"), (3, None, [3.0], b"ef"), (4, float("nan"), [4.0], b"gh")]
    frame = spark.createDataFrame(rows, "n int, x double, v array<float>, image binary").coalesce(1)
    frame.write.parquet(str(tmp_path / "rows"))
    files = find_files(str(tmp_path / "rows"))
    names = ["n", "x", "v", "image"]
    n, x = Field(("n",), ("c0",), (1,), "int64"), Field(("x",), ("c1",), (1,), "float32")
    for batch_with in (
        lambda nulls: through_spark(frame, names, nulls),
        lambda nulls: sampled(frame, names, nulls),
        lambda nulls: from_files(files, names, nulls),
    ):
        with pytest.raises(DataError, match="column 'n' holds null in row 1 "):
            make_matrix(batch_with("error"), n)
        assert batch_with("drop").column("c0").to_pylist() == [1]
        by_column = batch_with({"n": 7, "x": "drop"})
        assert by_column.column("c0").to_pylist() == [1, 7]
        filled = batch_with(7.0)
        assert make_matrix(filled, n).ravel().tolist() == [1, 7, 3, 4]
        assert make_matrix(filled, x).ravel().tolist() == [0.5, 1.5, 7.0, 7.0], "as Spark's fillna, which replaces NaN"


def test_scalars_of_one_type_come_as_one_array(spark: SparkSession) -> None:
    """An error in one of them names its column."""
    names = ["a", "b", "n", "v", "d", "e", "k", "m"]
    rows = [
        (0.5, 1.5, 2, [3.0, 4.0], 5.0, 6.0, 7.0, 8.0),
        (10.5, 11.5, 12, [13.0, 14.0], None, 16.0, 17.0, 18.25),
    ]
    kinds = "a float, b double, n int, v array<float>, d float, e float, k double, m double"
    frame = spark.createDataFrame(rows, kinds).coalesce(1)
    columns = tuple(f"c{number}" for number in range(8))
    x = Field(tuple(names[:6]), columns[:6], (1, 1, 1, 2, 1, 1), "float32", (7,))
    labels = Field(("k", "m"), columns[6:], (1, 1), "int64", (2,))
    chosen = [make_readable(frame.schema, name) for name in names]

    def matrices(nulls: Nulls, packed: tuple[tuple[int, ...], ...]) -> list[list[list[float]]]:
        encoder = RowEncoder(tuple(names), (x, labels), nulls=nulls)
        columns, feed = feed_columns(encoder, chosen, find_dtypes([x, labels]))
        selected = frame.select(*columns)
        assert selected.columns == [f"c{number}" for number in range(len(packed))]
        assert feed.encoder.packed == packed
        return [matrix.tolist() for matrix in feed.encoder.encode(feed.name_columns(batch_of(selected)), 100)]

    by_type = (0, 1, 2, 4, 5), (3,), (6, 7)

    with pytest.raises(DataError, match=r"column 'd' holds null in row 101 of this rank's rows\. Filter these rows"):
        matrices("error", by_type)
    with pytest.raises(DataError, match=r"column 'm' holds whole numbers in the first rows.* row 101 .* holds 18\.25"):
        matrices(15.0, by_type)
    assert matrices("drop", by_type) == [[[0.5, 1.5, 2, 3, 4, 5, 6]], [[7, 8]]]
    frame = frame.withColumn("m", frame.m.cast("int"))  # Spark has casts of two types now: they stay apart
    chosen = [make_readable(frame.schema, name) for name in names]
    inputs, whole = matrices(15.0, ((0, 1, 2, 4, 5), (3,), (6,), (7,)))
    assert inputs[1] == [10.5, 11.5, 12, 13, 14, 15, 16] and whole[1] == [17, 18]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("string", r"type string, .*StringIndexer \(and OneHotEncoder\)"),
        ("array<string>", r"type array<string>"),
        ("binary", r"type binary, .*decoders=\{'column': function\}"),
        ("map<string,int>", r"type map<string,int>, which has no tensor type"),
        ("interval day to second", r"type interval day to second, which has no tensor type"),
        ("array<array<float>>", r"type array<array<float>>, an array of arrays. Flatten it"),
        ("struct<a:int>", r"type struct<a:int>, .*'column\.field'"),
    ],
)
def test_what_is_no_number_is_refused(spark: SparkSession, kind: str, words: str) -> None:
    from pyspark.sql.types import StructType, _parse_datatype_string

    with pytest.raises(DataError, match=f"column 'x' has {words}"):
        make_readable(StructType().add("x", _parse_datatype_string(kind)), "x")
    with pytest.raises(DataError, match=r"column 'x' has type"):
        make_file_readable({"x": "struct" if kind.startswith("struct") else kind}, "x")
    if kind == "string":
        with pytest.raises(DataError, match=r"decoders refers to column 'x' \(string\)"):
            make_file_readable({"x": kind}, "x", decoded=True)
