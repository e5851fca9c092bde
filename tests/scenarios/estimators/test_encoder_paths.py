"""The same rows by every path: Spark's tasks, files and streams; ``transform``, ``predict`` and MLflow's models.

A model that returns what it is given shows the numbers that prediction makes; they are, bit for bit, those of the
training's matrices.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from spark_estimator import TorchEstimator, TorchModel
from spark_estimator.data.fields import Array
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.rank.spool import SpoolFeed, write_spools
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.stream.pieces import make_pieces
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.row_plan import RowPlan, plan_files, plan_frame
from spark_estimator.estimators.rows.row_source import choose_source
from spark_estimator.estimators.rows.sources import collect_batch
from spark_estimator.estimators.tracking.flavour import PyfuncModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)


def decode(content: bytes) -> Array:
    return numpy.frombuffer(content, numpy.uint8).reshape(2, 2)


def decode_floats(content: bytes) -> Array:
    return numpy.frombuffer(content, numpy.uint8).astype(numpy.float32) / 7


_WORDS = st.sampled_from(["ash", "beech", "\u00e9rable", "", "oak"])
_TIMES = st.datetimes(datetime.datetime(1678, 1, 1), datetime.datetime(2262, 1, 1))  # what `toPandas` gives
_FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
#: A type of Spark, and its values, by the column's name.
COLUMNS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "tiny": ("tinyint", st.integers(-128, 127)),
    "small": ("smallint", st.integers(-(1 << 15), (1 << 15) - 1)),
    "whole": ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    "long": ("bigint", st.integers(-(1 << 53), 1 << 53)),
    "single": ("float", _FLOATS),
    "double": ("double", st.floats(-1e30, 1e30)),
    "price": ("decimal(9,2)", st.decimals(-1000, 1000, places=2)),
    "flag": ("boolean", st.booleans()),
    "day": ("date", st.dates(datetime.date(1970, 1, 1), datetime.date(2040, 1, 1))),
    "instant": ("timestamp", _TIMES),
    "local": ("timestamp_ntz", _TIMES),
    "pair": ("array<double>", st.lists(_FLOATS, min_size=2, max_size=2)),
    "ragged": ("array<int>", st.lists(st.integers(-9, 9), max_size=3)),
    "place": ("struct<x:double,n:int>", st.tuples(_FLOATS, st.integers(0, 9))),
    "image": ("binary", st.binary(min_size=4, max_size=4)),
    "sound": ("binary", st.binary(min_size=3, max_size=3)),
    "tree": ("string", _WORDS),
    "code": ("int", st.integers(0, 5)),
    "trees": ("array<string>", st.lists(_WORDS, max_size=3)),
}
_FEATURES = [*(name for name in COLUMNS if name != "place"), "place.x", "place.n", "vector"]
#: Without Spark, fields of structs are not read, and times without a zone are in UTC.
_NOT_IN_FILES = ("place.x", "place.n", "local")
#: In these a null may be: a policy of the estimator, by the column's name.
_NULLS: dict[str, Any] = {"whole": 7, "single": 0.25, "double": "mean", "small": "median", "tree": 0}
_OPTIONS: dict[str, Any] = {
    "feature_cols": _FEATURES,
    "label_cols": ["y"],
    "decoders": {"image": decode, "sound": decode_floats},
    "categories": {"tree": ["oak", "ash"], "code": {"hash": 50}, "trees": "tree"},
    "padding": {"ragged": -1, "trees": 0},
    "input_shapes": None,
}


class Echo(nn.Module):
    """Returns its inputs side by side, as doubles."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([each.reshape(len(each), -1).double() for each in inputs], 1)


@dataclass
class EchoTrial:
    """A model that takes anything, for the plan of rows.

    Attributes:
        inputs: how many it takes.
    """

    inputs: int
    floating: str = "float32"
    takes: str = "forward()"
    by_name: bool = False

    def count_positional(self) -> tuple[int, float]:
        return self.inputs, self.inputs

    def run(self, rows: pyarrow.RecordBatch, fields: Any) -> tuple[int, ...]:
        return (sum(field.width for field in fields.inputs),)


def rows_of() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows of all columns; null in those of `_NULLS` alone."""
    columns = {name: st.none() | values if name in _NULLS else values for name, (_, values) in COLUMNS.items()}
    return st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=9)


def frame_of(spark: SparkSession, rows: Sequence[dict[str, Any]]) -> DataFrame:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import StructField, StructType

    full: dict[str, Any] = {
        "tiny": 1, "small": 3, "whole": 4, "long": 5, "single": 0.1, "double": 0.3, "price": decimal.Decimal("1.10"),
        "flag": True, "day": datetime.date(2020, 2, 29), "instant": datetime.datetime(2020, 10, 25, 2, 30),
        "local": datetime.datetime(2020, 10, 25, 2, 30), "pair": [0.1, 0.2], "ragged": [1, 2, 3], "place": (0.7, 3),
        "image": b"\x00\x01\xfe\xff", "sound": b"abc", "tree": "oak", "code": 2, "trees": ["oak", "elm", "ash"],
    }  # fmt: skip
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    vectors = [
        Vectors.dense([1.0, number / 3]) if number % 2 else Vectors.sparse(2, [1], [number / 7])
        for number in range(len(rows) + 1)
    ]
    values = [
        (*(row[name] for name in COLUMNS), vector, float(number % 2), number)
        for number, (row, vector) in enumerate(zip([full, *rows], vectors, strict=True))
    ]
    kinds = spark.createDataFrame([], f"{schema}, y double, id int").schema
    kinds = StructType([*kinds.fields[:-2], StructField("vector", VectorUDT()), *kinds.fields[-2:]])
    return spark.createDataFrame(values, kinds).coalesce(1)


def through_feed(feed: Any, frame: DataFrame) -> list[Array]:
    """The matrices of a rank that Spark's task feeds."""
    assert isinstance(feed, SpoolFeed)
    batches = [feed.name_columns(collect_batch(frame))]
    return list(write_spools(feed.encoder.encode_batches(batches, 3), feed.encoder)[0].to_spool().matrices)


def from_files(source: FileRows) -> list[Array]:
    return list(source.read(0, 1)[0].matrices)


def from_stream(source: FileRows) -> list[Array]:
    pieces, _ = make_pieces(source)
    parts = [part for piece, count in enumerate(pieces.counts) for part in pieces.read(piece, 0, count, 2, 1 << 12)]
    return [numpy.concatenate(each) for each in zip(*parts, strict=True)]


def by_input(matrices: Sequence[Array], encoder: RowEncoder, inputs: int) -> dict[str, Array]:
    """The inputs' numbers as doubles, of the tensors that the fields are for."""
    return {
        field.name: matrix.astype(field.dtype).astype(numpy.float64)
        for matrix, field in zip(matrices[:inputs], encoder.fields[:inputs], strict=True)
    }


def assert_same(got: Array, wanted: Array, what: str) -> None:
    assert got.shape == wanted.shape, what
    different = numpy.argwhere(got.view(numpy.int64) != wanted.view(numpy.int64))
    assert not len(different), f"{what}: {[(*at, got[tuple(at)], wanted[tuple(at)]) for at in different[:5].tolist()]}"


def model_of(plan: RowPlan, features: Sequence[str], options: dict[str, Any]) -> TorchModel:
    model = TorchModel(
        model=Echo(),
        inputs=plan.fields.inputs,
        outputs=plan.fields.outputs,
        label_types=["double"],
        feature_columns=list(features),
        label_columns=["y"],
        decoders=options.get("decoders"),
        **plan.model_params(),
    )
    model._known.zone = "Europe/Berlin"
    return model


def plans_of(frame: DataFrame, folder: str, trial: EchoTrial, options: dict[str, Any]) -> dict[str, RowPlan]:
    frame.write.mode("overwrite").parquet(folder)
    estimator = TorchEstimator(**options)
    request = RowRequest.from_parameters(estimator._value, None)
    flat = [name for name in options["feature_cols"] if name not in _NOT_IN_FILES]
    of_files = replace(request, features=tuple(flat))
    common: dict[str, Any] = {"store": None, "size": 1}
    read = frame.sparkSession.read.parquet(folder)
    return {
        "tasks": plan_frame(frame, request, trial, partial(choose_source, read_files=False, **common)),
        "files": plan_frame(
            read, of_files, replace(trial, inputs=len(flat)), partial(choose_source, read_files=True, **common)
        ),
        "store": plan_files(find_files(folder), None, of_files, replace(trial, inputs=len(flat))),
    }


def trained_matrices(plans: dict[str, RowPlan]) -> dict[str, dict[str, Array]]:
    """What ranks train on, by the path and the input."""
    result = {}
    for name, plan in plans.items():
        inputs, source = len(plan.fields.inputs), plan.source
        if source.rows is not None:
            matrices = through_feed(source.rows.feed, source.rows.frame)
            result[name] = by_input(matrices, plan.columns.encoder, inputs)
            continue
        assert source.source is not None
        for way, read in (("", from_files), (", streamed", from_stream)):
            result[f"{name}{way}"] = by_input(read(source.source), source.source.encoder, inputs)
    return result


def predictions(model: TorchModel, frame: DataFrame) -> dict[str, Array]:
    """[rows, values] what the model is given, by the way to predict."""
    output = "y__output"
    rows = model.transform(frame).orderBy("id").select(output).collect()
    table = frame.orderBy("id").toPandas()
    flat = {name: table[name] for name in table.columns if name != "place"}
    flat.update({f"place.{part}": [place[part] for place in table["place"]] for part in ("x", "n")})
    result = {"transform": numpy.array([row[0].toArray() for row in rows])}
    known = {name: flat[name] for name in model.getFeatureColumns()}
    result["predict a dict"] = numpy.asarray(model.predict(known), numpy.float64)
    by_mlflow = PyfuncModel(model).predict(known)[output]
    result["MLflow"] = numpy.array([list(values) for values in by_mlflow], numpy.float64)
    return result


@pytest.mark.slow
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # a smaller example would take many jobs to find
)
@given(rows=rows_of())
def test_training_and_prediction_make_the_same_bits(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """Each column is a separate input."""
    folder = str(tmp_path_factory.mktemp("rows") / "rows")
    frame = frame_of(spark, rows)
    nulls = {**_NULLS}
    nulls.pop("tree")  # in categories null is a value
    plans = plans_of(frame, folder, EchoTrial(len(_FEATURES)), {**_OPTIONS, "nulls": nulls})
    trained = trained_matrices(plans)
    first = trained.pop("tasks")
    for path, matrices in trained.items():
        for name, matrix in matrices.items():
            assert_same(matrix, first[name], f"{name}, training by {path}")
    # Numbers of the user's replace nulls in training alone.
    complete = [n for n, row in enumerate([None, *rows]) if row is None or None not in (row["whole"], row["single"])]
    model = model_of(plans["tasks"], _FEATURES, _OPTIONS)
    complete_frame = frame.where(frame.id.isin(complete))
    wanted = numpy.concatenate([first[name] for name in _FEATURES], axis=1)[complete]
    for path, matrix in predictions(model, complete_frame).items():
        assert_same(matrix, wanted, path)


def _pass_row(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _pass_frame(frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame


@pytest.mark.parametrize("function", [None, _pass_row, _pass_frame])
def test_a_transformation_that_changes_nothing_changes_no_number(spark: SparkSession, function: Any) -> None:
    """Days stay days, beside null too; and times without a zone are in that of the session."""
    day, wall = datetime.date(2020, 2, 29), datetime.datetime(2020, 6, 1, 2, 30)
    instant = datetime.datetime(2020, 6, 1, 2, 30, tzinfo=datetime.timezone.utc)
    values = [(day, wall, day, wall, instant, 1.0), (day, wall, None, None, instant, 0.0)]
    kinds = "a date, b timestamp_ntz, c date, d timestamp_ntz, e timestamp, y double"
    frame = spark.createDataFrame(values, kinds).coalesce(1)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        names = ["a", "b", "c", "d", "e"]
        nulls = dict.fromkeys("cd", 7)
        estimator = TorchEstimator(feature_cols=names, label_cols=["y"], transformation_fn=function, nulls=nulls)
        request = RowRequest.from_parameters(estimator._value, None)
        choose = partial(choose_source, read_files=False, store=None, size=1)
        plan = plan_frame(frame, request, EchoTrial(len(names)), choose)
        assert plan.source.rows is not None
        matrices = through_feed(plan.source.rows.feed, plan.source.rows.frame)
        if plan.columns.kept is not None:
            matrices = list(plan.columns.kept.encode_kept(matrices[0]))
        options = {name: value for name, value in plan.model_params().items() if name != "null_values"}
        model = model_of(plan, names, options)
        predicted = [row.y__output for row in model.transform(frame.where("c is not null")).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    seconds = wall.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-7))).timestamp()
    days = (day - datetime.date(1970, 1, 1)).days
    trained = [matrix.ravel().tolist() for matrix in matrices[: len(names)]]
    at = instant.timestamp()
    assert trained == [[days, days], [seconds, seconds], [days, 7], [seconds, 7], [at, at]]
    assert [list(row.toArray()) for row in predicted] == [[days, seconds, days, seconds, at]]
    ntz = "timestamp_ntz"
    assert [field.times for field in plan.fields.inputs] == [(each,) for each in ("date", ntz, "date", ntz, "")]
