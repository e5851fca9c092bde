"""Petastorm itself, where it works (`make test-petastorm`): our batches are the same, and it reads for us."""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import itertools
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")
try:
    importlib.metadata.version("petastorm")  # an import could find the alias of this package
except importlib.metadata.PackageNotFoundError:
    pytest.skip("petastorm itself is not installed here", allow_module_level=True)

import petastorm
import torch
from petastorm import codecs
from petastorm.etl.dataset_metadata import materialize_dataset
from petastorm.pytorch import DataLoader
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row

from spark_estimator.data import petastorm as ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")


def sorted_rows(loader: Any, by: str = "id") -> dict[str, torch.Tensor]:
    """All batches as one, in the order of a column."""
    batches = list(loader)
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    order = whole[by].argsort(stable=True)
    return {name: values[order] for name, values in whole.items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(theirs)
    for name, values in theirs.items():
        assert ours[name].dtype == values.dtype, name
        assert torch.equal(ours[name], values), name


def test_a_data_set_is_read_as_petastorm_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import types

    schema = Unischema(
        "Numbers",
        [
            UnischemaField("id", numpy.int64, (), codecs.ScalarCodec(types.LongType()), False),
            UnischemaField("small", numpy.int8, (), codecs.ScalarCodec(types.ByteType()), False),
            UnischemaField("true", numpy.bool_, (), codecs.ScalarCodec(types.BooleanType()), False),
            UnischemaField("exact", numpy.float64, (), None, False),
            UnischemaField("matrix", numpy.float32, (2, None), codecs.NdarrayCodec(), False),
            UnischemaField("mask", numpy.bool_, (3,), codecs.NdarrayCodec(), False),
            UnischemaField("packed", numpy.uint16, (4,), codecs.CompressedNdarrayCodec(), False),
            UnischemaField("grey", numpy.uint8, (5, 6), codecs.CompressedImageCodec("png"), False),
            UnischemaField("deep", numpy.uint16, (5, 6), codecs.CompressedImageCodec("png"), False),
            UnischemaField("colours", numpy.uint8, (5, 6, 3), codecs.CompressedImageCodec("png"), False),
        ],
    )
    chance = numpy.random.default_rng(0)
    rows = [
        {
            "id": number,
            "small": number % 100 - 50,
            "true": number % 3 == 0,
            "exact": chance.random(),
            "matrix": chance.random((2, 3), numpy.float32),
            "mask": chance.random(3) > 0.5,
            "packed": chance.integers(0, 1 << 16, 4, numpy.uint16),
            "grey": chance.integers(0, 256, (5, 6), numpy.uint8),
            "deep": chance.integers(0, 1 << 16, (5, 6), numpy.uint16),
            "colours": chance.integers(0, 256, (5, 6, 3), numpy.uint8),
        }
        for number in range(40)
    ]
    url = f"file://{tmp_path}/set"
    with materialize_dataset(spark, url, schema, 1):
        encoded = spark.sparkContext.parallelize(rows, 3).map(lambda row: dict_to_spark_row(schema, row))
        spark.createDataFrame(encoded, schema.as_spark_schema()).write.parquet(url)
    with DataLoader(petastorm.make_reader(url, reader_pool_type="dummy"), 7) as loader:
        theirs = sorted_rows(loader)
    with ours.DataLoader(ours.make_reader(url, trust=True), 7) as loader:
        assert_same(sorted_rows(loader), theirs)


def test_a_converter_gives_what_petastorm_s_gives(spark: SparkSession, tmp_path: Path) -> None:
    from petastorm.spark import make_spark_converter
    from pyspark.ml.feature import VectorAssembler

    spark.conf.set(ours.SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    columns = ["id", "cast(id as int) count", "cast(id as smallint) few", "id % 2 = 0 even", "sqrt(id) root"]
    frame = spark.range(100).selectExpr(*columns, "array(cast(id as float), 0.5F) pair")
    frame = VectorAssembler(inputCols=["root", "few"], outputCol="vector").transform(frame)
    with make_spark_converter(frame).make_torch_dataloader(16, 1, reader_pool_type="dummy") as loader:
        theirs = sorted_rows(loader)
    converter = ours.make_spark_converter(frame)
    with converter.make_torch_dataloader(16, 2) as loader:
        batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [16] * 12 + [8]
    assert_same({name: values[::2] for name, values in sorted_rows(batches).items()}, theirs)


N = 20
COLUMNS: dict[str, Any] = {
    "i8": pyarrow.array(range(N), pyarrow.int8()),
    "u8": pyarrow.array(range(N), pyarrow.uint8()),
    "i16": pyarrow.array(range(N), pyarrow.int16()),
    "i32": pyarrow.array(range(N), pyarrow.int32()),
    "i64": pyarrow.array([None if n % 5 == 0 else n for n in range(N)], pyarrow.int64()),
    "f32": pyarrow.array([None if n % 7 == 0 else n / 3 for n in range(N)], pyarrow.float32()),
    "f64": pyarrow.array([n / 3 for n in range(N)], pyarrow.float64()),
    "true": [n % 2 == 0 for n in range(N)],
    "maybe": [None if n % 7 == 0 else n % 2 == 0 for n in range(N)],
    "text": [f"text {n}" for n in range(N)],
    "bytes": pyarrow.array([b"x" * n for n in range(N)], pyarrow.binary()),
    "price": pyarrow.array([Decimal(n) / 4 for n in range(N)], pyarrow.decimal128(10, 2)),
    "time": pyarrow.array([datetime.datetime(2020, 1, 1 + n) for n in range(N)], pyarrow.timestamp("us")),
    "zoned": pyarrow.array([datetime.datetime(2020, 1, 1 + n) for n in range(N)], pyarrow.timestamp("us", "UTC")),
    "day": [datetime.date(2020, 1, 1 + n) for n in range(N)],
    "vector": pyarrow.array([[n, -n] for n in range(N)], pyarrow.list_(pyarrow.float32())),
    "words": [[f"a{n}", f"b{n}"] for n in range(N)],
}
IN_ORDER: dict[str, Any] = {"reader_pool_type": "dummy", "shuffle_row_groups": False}


@pytest.fixture
def files(tmp_path: Path) -> str:
    """All types, in row groups of eight."""
    (tmp_path / "all").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(COLUMNS), tmp_path / "all" / "rows.parquet", row_group_size=8)
    return f"file://{tmp_path}/all"


def both(url: str, **arguments: Any) -> tuple[list[Any], list[Any]]:
    """All batches of petastorm's reader and of this package's."""
    results = []
    for make in (petastorm.make_batch_reader, ours.make_batch_reader):
        with make(url, **IN_ORDER, **arguments) as reader:
            results.append(list(reader))
    return results[0], results[1]


def assert_same_batches(theirs: list[Any], batches: list[Any]) -> None:
    assert len(batches) == len(theirs)
    for expected, batch in zip(theirs, batches, strict=True):
        assert set(batch._fields) == set(expected._fields)
        for name in expected._fields:
            values, wanted = getattr(batch, name), getattr(expected, name)
            assert values.shape == wanted.shape and values.dtype == wanted.dtype, name
            numpy.testing.assert_array_equal(values, wanted, name)


def test_batches_of_all_types_are_petastorm_s(files: str) -> None:
    theirs, batches = both(files)
    assert batches[0]._fields == theirs[0]._fields == tuple(COLUMNS)
    assert_same_batches(theirs, batches)
    theirs, batches = both(files, num_epochs=2, schema_fields=["i.*", "vector"])
    assert_same_batches(theirs, batches)
    results = []
    for make in (petastorm.make_batch_reader, ours.make_batch_reader):
        with make(files, **IN_ORDER) as reader:
            fields = [(field.name, field.numpy_dtype, field.shape) for field in reader.schema.fields.values()]
            assert (reader.batched_output, reader.is_batched_reader, reader.last_row_consumed) == (True, True, False)
        results.append(fields)
    assert results[0] == results[1]


def test_rows_are_petastorm_s(files: str) -> None:
    rows = []
    for make in (petastorm.make_reader, ours.make_reader):
        with make(files, **IN_ORDER) as reader:
            rows.append(list(reader))
    for expected, row in zip(*rows, strict=True):
        assert set(row._fields) == set(expected._fields)
        for name in set(expected._fields) - {"words"}:  # petastorm makes one text of an array of texts
            numpy.testing.assert_array_equal(getattr(row, name), getattr(expected, name), name)


def test_transforms_give_what_petastorm_s_give(files: str) -> None:
    def image(frame: Any) -> Any:
        frame["image"] = frame["i32"].map(lambda n: numpy.full((2, 3), n, numpy.float32))
        return frame.drop(columns=["vector"])

    specs: list[dict[str, Any]] = [
        {"func": lambda frame: frame},
        {"func": lambda frame: frame.iloc[:3]},
        {"removed_fields": ["vector"]},
        {"func": lambda frame: frame[["i32"]], "selected_fields": ["i32"]},
        {"func": image, "edit_fields": [("image", numpy.float32, (2, 3), False)], "removed_fields": ["vector"]},
        {
            "func": lambda frame: frame.assign(i32=frame["i32"] / 2, text="t"),
            "edit_fields": [("i32", numpy.float64, (), False), ("text", numpy.str_, (), False)],
        },
    ]
    for arguments in specs:
        results = []
        for module in (petastorm, ours):
            spec = module.TransformSpec(**arguments)
            columns = ["i32", "vector"]
            with module.make_batch_reader(files, columns, transform_spec=spec, **IN_ORDER) as reader:
                results.append(list(reader))
        assert_same_batches(*results)


def test_partitions_and_predicates_choose_as_petastorm_s(files: str, tmp_path: Path) -> None:
    for year, name in itertools.product((1, 2), "ab"):
        folder = tmp_path / "years" / f"year={year}" / f"name={name}"
        folder.mkdir(parents=True)
        pyarrow.parquet.write_table(
            pyarrow.table({"x": [float(10 * year + n) for n in range(5)]}), folder / "p.parquet"
        )
    url = f"file://{tmp_path}/years"

    def chosen(**arguments: Any) -> list[list[Any]]:
        theirs, batches = both(url, **arguments)
        assert [list(batch._fields) for batch in batches] == [list(batch._fields) for batch in theirs]
        # Petastorm's are pandas' categories.
        rows = [[[list(values) for values in batch] for batch in result] for result in (theirs, batches)]
        assert rows[0] == rows[1]
        return rows[0]

    assert len(chosen()) == 4
    assert len(chosen(filters=[("year", "=", 1)])) == 2
    parts: dict[str, list[list[Any]]] = {}
    for module in (petastorm, ours):
        predicates = importlib.import_module(f"{module.__name__}.predicates")
        smaller = predicates.in_lambda(["x"], lambda x: x < 12)
        with module.make_batch_reader(url, predicate=smaller, **IN_ORDER) as reader:
            assert [list(batch.x) for batch in reader] == [[10, 11]] * 2
        # Petastorm's make_reader has no columns of partitions where there is a predicate.
        for field in ("i16", "f64", "text"):
            part = predicates.in_pseudorandom_split([0.3, 0.7], 1, field)
            with module.make_reader(files, ["i16", field], predicate=part, **IN_ORDER) as reader:
                parts.setdefault(field, []).append([int(row.i16) for row in reader])
    assert all(theirs == batches and theirs for theirs, batches in parts.values())


def test_what_differs_from_petastorm(tmp_path: Path) -> None:
    """The claims of docs/how-to/petastorm.md on it."""
    pyarrow.parquet.write_table(pyarrow.table({"s": ["a", None], "n": [1, 2]}), tmp_path / "rows.parquet")
    theirs, batches = both(f"file://{tmp_path}")
    assert theirs[0].s.tolist() == ["a", "None"] and batches[0].s.tolist() == ["a", None]
    predicates = importlib.import_module("petastorm.predicates")
    with petastorm.make_batch_reader(
        f"file://{tmp_path}", predicate=predicates.in_lambda(["n"], lambda n: n < 2), **IN_ORDER
    ) as reader:
        assert next(reader).n.dtype == "float64", "whole numbers become fractions"
    with petastorm.make_batch_reader(f"file://{tmp_path}", predicate=predicates.in_set([1], "n"), **IN_ORDER) as reader:
        with pytest.raises(TypeError, match="unhashable"):
            next(reader)
    with petastorm.make_batch_reader(f"file://{tmp_path}", filters=[("n", ">", 1)], **IN_ORDER) as reader:
        assert len(next(reader).n) == 2, "filters of other columns than partitions have no effect"
