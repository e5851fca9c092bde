"""Times without a zone: what `predict` makes of pandas' ones is what `transform` makes of Spark's, to the bit."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy
import pandas
import pyarrow
import pyspark.sql
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.data.numbers import to_numbers
from spark_estimator.estimators.inference.times import get_zone, to_instants, to_times
from spark_estimator.estimators.tracking.flavour import PyfuncModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZONES = ("America/Los_Angeles", "Asia/Kolkata", "Australia/Lord_Howe", "UTC", "-03:00")
SETTING = "spark.sql.session.timeZone"
# A time is there twice in Los Angeles from 8:00 to 10:00 UTC of the first day; none is there from 2:00 to 3:00 of the
# second.
BACK, FORWARD = datetime(2020, 11, 1), datetime(2020, 3, 8)
INSTANTS = [BACK + timedelta(minutes=minutes) for minutes in (0, 7 * 60 + 59, 8 * 60, 8 * 60 + 59, 10 * 60, 24 * 60)]
INSTANTS += [FORWARD + timedelta(hours=hour) for hour in range(7, 12)] + [datetime(1969, 12, 31, 23, 59, 59, 999999)]
WALLS = [FORWARD + timedelta(minutes=minutes) for minutes in (119, 120, 150, 179, 180)] + [
    BACK,
    datetime(2020, 10, 4, 2, 15),
]
WALLS += [BACK + timedelta(minutes=minutes) for minutes in (59, 60, 90, 119, 120)]
NTZ = "timestamp_ntz"
HAS_ARROW = hasattr(pyspark.sql.DataFrame, "toArrow")  # Spark 4
FIELDS = [
    Field(("instant",), ("c0",), (1,), "float64", (1,)),
    Field(("wall",), ("c1",), (1,), "float64", (1,), times=(NTZ,)),
    Field(("instants", "walls"), ("c2", "c3"), (2, 2), "float64", (4,), times=("", NTZ)),
    Field(("day",), ("c4",), (1,), "int64", (1,), times=("date",)),
    Field(("days", "hour"), ("c5", "c6"), (2, 1), "float64", (3,), times=("date", "")),
]


class AsTheyAre(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.double() for tensor in inputs], 1)


def of_times() -> TorchModel:
    """Its prediction is the numbers of the columns."""
    return TorchModel(
        model=AsTheyAre().eval(),
        inputs=FIELDS,
        outputs=[10],
        label_types=["double"],
        feature_columns=[name for field in FIELDS for name in field.names],
        label_columns=["y"],
        output_type="vector",
    )


class Trained(nn.Module):
    """Two numbers of a row, of which none is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, when: torch.Tensor, day: torch.Tensor) -> torch.Tensor:
        return torch.stack([when.reshape(-1), day.reshape(-1)], 1).double() * self.factor


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get(SETTING)
    spark.conf.set(SETTING, request.param)
    yield request.param
    spark.conf.set(SETTING, before)


def frame_of(
    spark: SparkSession, instants: Sequence[datetime] = INSTANTS, walls: Sequence[datetime] = WALLS
) -> DataFrame:
    in_utc = [when.replace(tzinfo=timezone.utc) for when in instants]
    rows = [
        (when, wall, [when, in_utc[0]], [wall, walls[0]], when.date(), [when.date(), date(1960, 2, 29)], when.hour)
        for when, wall in zip(in_utc, walls, strict=True)
    ]
    times = "instant timestamp, wall timestamp_ntz, instants array<timestamp>, walls array<timestamp_ntz>"
    return spark.createDataFrame(rows, f"{times}, day date, days array<date>, hour int")


def of_one(name: str, kind: str = "double", time: str = "") -> TorchModel:
    """Its prediction is the number of a column."""
    return TorchModel(
        model=nn.Identity(),
        inputs=[Field((name,), ("c0",), (1,), "float64", (1,), times=(time,))],
        outputs=[1],
        label_types=[kind],
        feature_columns=[name],
        label_columns=["y"],
    )


@pytest.mark.parametrize("arrow", ["false", "true"])
def test_predict_reads_what_transform_reads(spark: SparkSession, zone: str, arrow: str) -> None:
    model, frame = of_times(), frame_of(spark).coalesce(1)
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", arrow)
    try:
        in_pandas, predicted = frame.toPandas(), model.transform(frame).toPandas()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.pyspark.enabled")
    right = numpy.stack([row.toArray() for row in predicted["y__output"]])
    seconds = [(when - datetime(1970, 1, 1)) / timedelta(seconds=1) for when in INSTANTS]
    assert right[:, 0].tolist() == seconds
    assert in_pandas["instant"].dt.tz is None and in_pandas["wall"].tolist() == WALLS
    for features in (in_pandas, in_pandas.assign(day=pandas.to_datetime(in_pandas["day"]))):  # as MLflow gives days
        assert model.predict(features).tolist() == right.tolist()
        flavour = PyfuncModel(model).predict(features)
        assert numpy.stack([*flavour["y__output"]]).tolist() == right.tolist()
    known = in_pandas.assign(instant=pandas.to_datetime(INSTANTS).tz_localize("UTC").tz_convert("Asia/Tokyo"))
    assert model.predict(known).tolist() == right.tolist()


def numbers_by(model: TorchModel, frame: DataFrame) -> list[list[float]]:
    return [row.y__output.toArray().tolist() for row in model.transform(frame).collect()]


def test_years_that_pandas_has_offsets_of(spark: SparkSession, zone: str) -> None:
    """``toPandas`` has instants by the rules of pandas, and times without a zone as they are."""
    times = [datetime(year, month, 8, 2, 30, 1, 5) for year in (1678, 1850, 1883, 2038, 2100, 2261) for month in (3, 7)]
    frame, model = frame_of(spark, times, times).coalesce(1), of_times()
    in_pandas, right = frame.toPandas(), numbers_by(model, frame)
    assert [row[0] for row in right] == [
        (time - datetime(1970, 1, 1)) // timedelta(microseconds=1) / 1e6 for time in times
    ]
    assert model.predict(in_pandas).tolist() == right
    assert numpy.stack([*PyfuncModel(model).predict(in_pandas)["y__output"]]).tolist() == right


def test_all_years(spark: SparkSession, zone: str) -> None:
    """Clocks are set forward and back in these hours, if the year has such rules."""
    times = [datetime(year, 11, day, 1, 30) for year in (1, 999, 2099, 2100, 2500, 9999) for day in range(1, 9)]
    times += [datetime(year, 3, day, 2, 30) for year in (1900, 2101, 2499, 9999) for day in range(8, 15)]
    times += [datetime(1, 1, 2), datetime(1600, 7, 1, 1, 2, 3, 4), datetime(9999, 12, 30, 23, 59, 59, 999999)]
    frame, model = frame_of(spark, times, times).coalesce(1), of_times()
    right = numbers_by(model, frame)
    in_utc = [time.replace(tzinfo=timezone.utc) for time in times]
    rows = {
        "instant": in_utc,
        "wall": times,
        "instants": [[time, in_utc[0]] for time in in_utc],
        "walls": [[time, times[0]] for time in times],
        "day": [time.date() for time in times],
        "days": [[time.date(), date(1960, 2, 29)] for time in times],
        "hour": [time.hour for time in times],
    }
    tables = [rows, {**rows, "wall": numpy.array(times, "M8[us]")}, *([frame.toArrow()] if HAS_ARROW else [])]
    for features in tables:
        assert model.predict(features).tolist() == right
        assert numpy.stack([*PyfuncModel(model).predict(features)["y__output"]]).tolist() == right
    wall = of_one("wall", time=NTZ)
    for array in (numpy.array(times, "M8[us]"), numpy.array(times, object)):
        assert wall.predict(array).reshape(-1).tolist() == [row[1] for row in right]


def test_rows_of_times_that_are_short_are_filled_up() -> None:
    """In the time zone of the training, as it has no session."""
    field = Field(("t",), ("c0",), (3,), "float64", (3,), padding=(-1.0,), times=(NTZ,))
    model = TorchModel(
        model=nn.Identity(),
        inputs=[field],
        outputs=[3],
        label_types=["array<double>"],
        feature_columns=["t"],
        label_columns=["y"],
    )
    zone = get_zone("UTC")
    times = numpy.array([[datetime(2500, 7, 1, 12), datetime(2500, 1, 1, 12)]], "M8[us]")
    seconds = to_numbers(to_instants(pyarrow.array(times[0]), zone, NTZ)).to_pylist()
    assert model.predict(times).tolist() == [[*seconds, -1.0]]


def test_an_array_of_several_kinds_of_times_is_refused() -> None:
    field = Field(("a", "b"), ("c0", "c1"), (1, 1), "float64", (2,), times=("date", NTZ))
    params = {"feature_columns": ["a", "b"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[2], label_types=["double"], **params)
    with pytest.raises(DataError, match="a, b are dates, times and others: give predict\\(\\) a frame"):
        model.predict(numpy.zeros((1, 2), "M8[us]"))


def test_a_time_that_was_there_twice_is_the_first(spark: SparkSession) -> None:
    """`toPandas` gives both instants the same time; with their zone, they differ."""
    before = spark.conf.get(SETTING)
    spark.conf.set(SETTING, "America/Los_Angeles")
    try:
        frame = spark.sql("select timestamp'2020-11-01T08:30:00Z' a union all select timestamp'2020-11-01T09:30:00Z' a")
        model = of_one("a")
        first, second = sorted(row.y__output for row in model.transform(frame).collect())
        assert second - first == 3600
        assert model.predict(frame.toPandas()).tolist() == [[first], [first]]
        for features in (frame.toPandas()["a"], frame.toPandas()["a"].to_numpy(), [datetime(2020, 11, 1, 1, 30)] * 2):
            assert model.predict(features).tolist() == [[first], [first]]
        if hasattr(frame, "toArrow"):
            assert sorted(model.predict(frame.toArrow()).reshape(-1)) == [first, second]
    finally:
        spark.conf.set(SETTING, before)


def test_predictions_that_are_times(spark: SparkSession, zone: str) -> None:
    """MLflow's model gives those that `toPandas` gives; and any, where that is none."""
    times = [*INSTANTS, *(datetime(year, 7, 1) for year in (1678, 1850, 2038, 2261))]
    seconds = [when.replace(tzinfo=timezone.utc).timestamp() for when in times]
    frame = spark.createDataFrame([(second,) for second in seconds], "features double").coalesce(1)
    for kind in ("timestamp", "timestamp_ntz"):
        model = of_one("features", kind)
        right = model.transform(frame).toPandas()["y__output"].tolist()
        assert PyfuncModel(model).predict(frame.toPandas())["y__output"].tolist() == right
        beyond = PyfuncModel(model).predict({"features": numpy.array([-9e12, 1e30, numpy.nan])})["y__output"]
        assert beyond.isna().tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
def test_python_has_the_same_instants(name: str) -> None:
    """With ``fold=0`` zoneinfo has the same rule."""
    zone = ZoneInfo(name)
    times = [datetime(2020, 1, 1) + timedelta(minutes=30 * n + 1) for n in range(366 * 48)]
    for kind in ("timestamp", NTZ):
        got = to_instants(pyarrow.array([*times, None]), name, kind)
        assert got.to_pylist() == [*(time.replace(tzinfo=zone).astimezone(timezone.utc) for time in times), None]
        back = to_times(got.cast("int64"), name, kind)
        assert back.to_pylist() == [
            *(
                time.replace(tzinfo=zone).astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None)
                for time in times
            ),
            None,
        ]


def test_zones_that_pandas_does_not_know() -> None:
    for function, kind in itertools.product((to_instants, to_times), ("timestamp", NTZ)):
        with pytest.raises(DataError, match="time zone of the session, 'GMT\\+8', which pandas cannot use"):
            function(pyarrow.array([0], pyarrow.timestamp("us")), "GMT+8", kind)


SERVING = """
import sys
import numpy, pandas
from spark_estimator import TorchModel
from spark_estimator.estimators.tracking.flavour import PyfuncModel
model = TorchModel.load(sys.argv[1], trust=True)
times = pandas.to_datetime(["2020-06-01T08:30:00", "2020-11-01T01:30:00"])
rows = pandas.DataFrame({"when": times, "day": pandas.to_datetime(["2020-06-01", "1969-12-31"])})
for predicted in (model.predict(rows), numpy.stack([*PyfuncModel(model).predict(rows)["y__output"]])):
    print(predicted.tolist())
"""


def test_serving_without_a_session(spark: SparkSession, tmp_path: Path) -> None:
    """The times are in the zone of the training's session, which the saved model has."""
    before = spark.conf.get(SETTING)
    spark.conf.set(SETTING, "America/Los_Angeles")
    try:
        rows = "select timestamp_ntz'2020-06-01 08:30:00' when, date'2020-06-01' day, array(0f, 0f) y"
        frame = spark.sql(
            f"{rows} union all select timestamp_ntz'2020-11-01 01:30:00', date'1969-12-31', array(0f, 0f)"
        )
        net = Trained()
        model = TorchEstimator(
            num_proc=1,
            model=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.0),
            loss=nn.MSELoss(),
            feature_cols=["when", "day"],
            label_cols=["y"],
            output_type="vector",
            verbose=0,
        ).fit(frame)
        right = [
            row.y__output.toArray().tolist() for row in model.transform(frame.coalesce(1)).orderBy("when").collect()
        ]
    finally:
        spark.conf.set(SETTING, before)
    assert right[0] == [datetime(2020, 6, 1, 15, 30, tzinfo=timezone.utc).timestamp(), 18414.0]
    assert right[1] == [datetime(2020, 11, 1, 8, 30, tzinfo=timezone.utc).timestamp(), -1.0]
    model.save(f"{tmp_path}/model")
    command = [sys.executable, "-c", SERVING, f"{tmp_path}/model"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines() == [str(right)] * 2, done.stderr
