"""The most frequent values of a training's categories, by Spark and from files."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy
import pyarrow
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from spark_estimator.data.parquet import find_files
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.row_plan import plan_frame
from spark_estimator.estimators.rows.row_source import choose_source
from spark_estimator.estimators.rows.sampling import Columns, sample_files, sample_frame
from spark_estimator.estimators.rows.vocabularies import count_files, count_frame
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.parts import make_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = "city string, code int, flag boolean, tags array<string>, sizes array<bigint>, x double, held boolean, y float"
Row = tuple[Any, ...]


def rows() -> list[Row]:
    """Values of many frequencies, with ties and nulls."""
    random = numpy.random.default_rng(8)
    made: list[Row] = []
    for number in range(400):
        words = [None if word == 5 else f"tag {word}" for word in random.geometric(0.4, number % 3).tolist()]
        made.append(
            (
                None if number % 9 == 0 else "Marked" if number % 4 == 0 else f"Straße {random.geometric(0.2)}",
                None if number % 7 == 0 else int(random.geometric(0.3)) - 3,
                None if number % 5 == 0 else bool(number % 3),
                None if number % 11 == 0 else words,
                None if number % 13 == 0 else [10, 9][: number % 3],
                None if number % 10 == 0 else float("nan") if number % 10 == 1 else 1.0,
                number % 4 == 0,
                0.5,
            )
        )
    return made


def most_frequent(values: list[Any], most: int) -> list[Any]:
    """The same in plain Python."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    counts = Counter(item for item in flat if item is not None)
    ranked = sorted(counts, key=lambda item: (-counts[item], item.encode() if isinstance(item, str) else item))
    return ranked[:most]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(rows(), KINDS).repartition(3)


SIZES = {"city": 6, "code": 4, "flag": 10, "tags": 5, "sizes": 3}


def request_of(marker: str | None = None, **changed: Any) -> RowRequest:
    parameters = {"feature_cols": [*SIZES, "x"], "label_cols": ["y"], "categories": SIZES, "padding": 0, "nulls": 0.5}
    return RowRequest.from_parameters(TorchEstimator(**{**parameters, **changed})._value, marker)


def values_of(columns: Columns) -> dict[str, Any]:
    return {name: encoder.entry for name, encoder in columns.encoder.categories.items()}


def both(frame: DataFrame, tmp_path: Path, request: RowRequest) -> dict[str, Any]:
    """The vocabularies: those of Spark, which are those of files."""
    frame.write.parquet(f"{tmp_path}/rows")
    files = find_files(f"{tmp_path}/rows")
    by_spark = values_of(count_frame(frame, sample_frame(frame, request).columns))
    assert values_of(count_files(files, sample_files(files, request).columns)) == by_spark
    return by_spark


def expected(kept: Callable[[Row], bool]) -> dict[str, Any]:
    names = KINDS.split(", ")
    places = {name: next(n for n, text in enumerate(names) if text.startswith(f"{name} ")) for name in SIZES}
    return {
        name: most_frequent([row[places[name]] for row in rows() if kept(row)], size - 1)
        for name, size in SIZES.items()
    }


def test_the_most_frequent_values_of_all_columns(frame: DataFrame, tmp_path: Path) -> None:
    vocabularies = both(frame, tmp_path, request_of())
    assert vocabularies == expected(lambda row: True)
    assert len(vocabularies["city"]) == 5 and vocabularies["sizes"] == [10, 9]
    assert vocabularies["flag"] == [1, 0]


def test_rows_that_are_not_trained_on_do_not_count(frame: DataFrame, tmp_path: Path) -> None:
    """Those for validation, and those that are dropped; a null category drops no row, and a null array does."""
    vocabularies = both(frame, tmp_path, request_of("held", nulls="drop"))

    def kept(row: Row) -> bool:
        x = row[5]
        return not row[6] and x is not None and x == x and row[3] is not None and row[4] is not None

    assert vocabularies == expected(kept) != expected(lambda row: True)


def test_policies_of_columns_decide_which_rows_count(frame: DataFrame, tmp_path: Path) -> None:
    vocabularies = both(frame, tmp_path, request_of(nulls={"tags": "drop", "x": 0, "city": "drop"}))
    assert vocabularies == expected(lambda row: row[3] is not None)


def test_lists_and_hashes_are_not_counted(frame: DataFrame) -> None:
    request = request_of(categories={"city": ["b", "a"], "code": {"hash": 9}}, feature_cols=["city", "code"])
    columns = sample_frame(frame, request).columns
    assert not columns.uncounted
    assert values_of(columns) == {"city": ["b", "a"], "code": {"hash": 9}}


def test_spark_reads_each_row_once_for_all_columns(spark: SparkSession) -> None:
    reads = spark.sparkContext.accumulator(0)

    def noted(batches: Any) -> Any:
        for batch in batches:
            reads.add(batch.num_rows)
            yield batch

    plain = spark.createDataFrame(
        [(f"a{n % 7}", n % 3, float(n)) for n in range(500)], "city string, code int, y float"
    )
    frame = plain.mapInArrow(noted, plain.schema)
    request = request_of(feature_cols=["city", "code"], categories={"city": 5, "code": 5})
    columns = sample_frame(frame, request).columns
    before = reads.value
    assert values_of(count_frame(frame, columns)) == {"city": ["a0", "a1", "a2", "a3"], "code": [0, 1, 2]}
    assert reads.value - before == 500


SHARED = {"item": 4, "history": "item", "code": 3, "before": "code"}


def visits(spark: SparkSession) -> DataFrame:
    """In `item` alone, z and b are the most frequent ones; in both columns, c and a."""
    rows = [("z", ["c", "a"], 1, 7), ("z", ["c", "c", None], 2, 7), ("b", ["a", "b"], 1, 9), (None, None, None, None)]
    return spark.createDataFrame(
        [(*row, 0.5) for row in rows], "item string, history array<string>, code int, before bigint, y float"
    )


def test_columns_that_share_a_vocabulary(spark: SparkSession, tmp_path: Path) -> None:
    """The values of both columns count, and their number is that of the column that has it."""
    request = request_of(feature_cols=list(SHARED), categories=SHARED)
    values = both(visits(spark), tmp_path, request)
    assert values == {"item": ["c", "a", "b"], "history": "item", "code": [1, 7], "before": "code"}
    columns = count_frame(visits(spark), sample_frame(visits(spark), request).columns)
    assert [column.ids for column in columns.features] == [4, 4, 3, 3]
    history = pyarrow.array([["c", "b", "z"]])
    assert columns.encoder.categories["history"].find_ids(history).to_pylist() == [[1, 3, 0]]


def test_columns_of_texts_and_numbers_share_no_vocabulary(frame: DataFrame) -> None:
    for entry in (9, {"hash": 9}):
        request = request_of(feature_cols=["code", "city"], categories={"code": entry, "city": "code"})
        with pytest.raises(DataError, match=r"is 'code', but 'city' has the type string and 'code' int: texts and"):
            sample_frame(frame, request)
    request = request_of(feature_cols=["city"], categories={"code": 9, "city": "code"})
    with pytest.raises(DataError, match="categories refers to 'code', which isn't a feature: city"):
        sample_frame(frame, request)


OVERLAPS = {
    "texts": ("city string, home string", [(f"c{n % 5}", f"c{max(n % 7, n % 3)}") for n in range(40)]),
    "numbers and arrays of them": ("item int, history array<int>", [(n % 5, [max(n % 7, n % 3)]) for n in range(40)]),
    "many numbers": ("item int, user int", [(n, n * n % 331) for n in range(300)]),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_columns_with_values_in_common_and_other_ids(spark: SparkSession, case: str, tmp_path: Path) -> None:
    kinds, made = OVERLAPS[case]
    frame = spark.createDataFrame([(*row, 0.5) for row in made], f"{kinds}, y float")
    first, second = frame.columns[:2]
    request = request_of(feature_cols=[first, second], categories={first: 400, second: 400})
    with pytest.warns(UserWarning, match=f"columns '{first}' and '{second}' have .* share an embedding, set cat"):
        both(frame, tmp_path, request)


@pytest.mark.parametrize(
    ("kinds", "made"),
    [
        ("month int, hour int", [(n % 12, n % 24) for n in range(48)]),
        ("smokes string, drinks string", [("no", "no"), ("yes", "yes"), ("no", "no")]),  # and the same ids
        ("smokes string, drinks string", [("no", "no"), ("yes", "yes"), ("no", "yes"), ("no", "yes")]),
        ("city string, plan string", [("none", "none"), ("a", "pro"), ("b", "free"), ("b", "free")]),
        ("city string, code int", [("1", 1), ("2", 2), ("2", 2)]),
    ],
)
def test_columns_without_a_warning(spark: SparkSession, kinds: str, made: list[Row]) -> None:
    frame = spark.createDataFrame([(*row, 0.5) for row in made], f"{kinds}, y float")
    first, second = frame.columns[:2]
    for entry in (400, first):
        if entry == first and kinds == "city string, code int":
            continue
        request = request_of(feature_cols=[first, second], categories={first: 400, second: entry})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            count_frame(frame, sample_frame(frame, request).columns)


@pytest.mark.parametrize(
    ("value", "categories", "words"),
    [
        (None, {"a": 5}, "column 'a' has no categories: it holds null alone in the rows to train on"),
        ("w" * 1001, {"a": 5}, "'a' has a frequent value of more than 1000 characters"),
    ],
)
def test_columns_without_categories(
    spark: SparkSession, tmp_path: Path, value: Any, categories: Any, words: str
) -> None:
    frame = spark.createDataFrame([(value, 0.5)] * 3, "a string, y float")
    request = request_of(feature_cols=["a"], categories=categories)
    frame.write.parquet(f"{tmp_path}/rows")
    files = find_files(f"{tmp_path}/rows")
    with pytest.raises(DataError, match=words):
        count_frame(frame, sample_frame(frame, request).columns)
    with pytest.raises(DataError, match=words):
        count_files(files, sample_files(files, request).columns)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"categories": {"City": 5}}, "categories refers to 'City', which isn't a feature: .* Did you mean 'city'"),
        ({"categories": {"y": 5}}, "categories refers to 'y', which is a label.*StringIndexer"),
        ({"feature_cols": ["x"], "categories": {"x": 5}}, r"categories refers to column 'x' \(double\), but"),
        ({"categories": {"city": [1, 2]}}, "of column 'city' are whole numbers, such as 1, but its type is"),
        ({"feature_cols": ["city", "x"], "categories": None}, r"'city' has type string.*categories=\{'column': 1000\}"),
        ({"feature_cols": ["code"], "categories": None, "label_cols": ["city"]}, "'city' has type string"),
    ],
)
def test_columns_that_have_no_categories(frame: DataFrame, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        sample_frame(frame, request_of(**changed))


class Embedding(nn.Module):
    """Of one column, in a table of fixed size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, 1)

    def forward(self, city: torch.Tensor) -> torch.Tensor:
        return self.table(city)


def embedding_estimator(size: int, categories: Any) -> TorchEstimator:
    """Of a model with an embedding of `size` ids for the column city."""
    net = Embedding(size)
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        feature_cols=["city"],
        label_cols=["y"],
        categories={"city": categories},
    )


def test_a_vocabulary_is_sent_once(frame: DataFrame) -> None:
    """To the tasks that read the rows, and not to the ranks that train on ids."""
    estimator = embedding_estimator(6, 6)
    trial = TorchTrial(make_parts(estimator._value)[0])
    choose = partial(choose_source, read_files=False, store=None, size=1)
    plan = plan_frame(frame, RowRequest.from_parameters(estimator._value, None), trial, choose)
    assert plan.source.rows is not None
    value = values_of(plan.columns)["city"][0].encode()
    assert cloudpickle.dumps(plan.source.rows.feed).count(value) == 1
    assert value not in cloudpickle.dumps(plan.fields)
    assert [column.kind for column in plan.columns.features] == ["string"], "as in MLflow's signature"


@pytest.mark.parametrize("categories", [50, {"hash": 50}, [f"c{n}" for n in range(49)]])
def test_an_embedding_that_is_too_small_is_an_error_on_the_driver(frame: DataFrame, categories: Any) -> None:
    """Also if the first rows have only small ids."""
    estimator = embedding_estimator(49, categories)
    with pytest.raises(
        DataError, match=r"IndexError: index out of range.*as there are ids of categories: 50 for 'city'"
    ):
        estimator.fit(frame)
