"""Columns of texts, integers and booleans, which become ids for embeddings, from `fit` to every way of predicting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)
SCHEMA = "city string, plan int, user string, tags array<string>, x float, y float, held boolean"
#: With and without nulls, in vocabularies and not.
ROWS = [
    (
        None if n % 10 == 3 else f"city {n % 10 % 4}",
        None if n % 6 == 5 else n % 6,
        None if n % 8 == 7 else f"user {n}",
        [f"tag {word}" if word else None for word in range(n % 4)],
        n / 50,
        n % 7 / 7,
        n % 5 == 0,
    )
    for n in range(150)
]
CATEGORIES: dict[str, Any] = {"city": 4, "plan": [3, 0, 4], "user": {"hash": 9}, "tags": 10}
USER = {"user 0": 4, "user 1": 7, None: 0}


class Net(nn.Module):
    """A sum of what tables have for the categories, and of a multiple of x."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.city, self.plan, self.user = nn.Embedding(4, 1), nn.Embedding(4, 1), nn.Embedding(9, 1)
        self.tags = nn.EmbeddingBag(10, 1, mode="sum", padding_idx=0)
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, city: Any, plan: Any, user: Any, tags: Any, x: Any) -> torch.Tensor:
        assert (city.dtype, city.shape, tags.shape[1]) == (torch.int64, plan.shape, 3)
        tables: torch.Tensor = self.city(city) + self.plan(plan) + self.user(user) + self.tags(tags)
        return tables + self.factor * x


def hash_of(user: str | None) -> int:
    """CRC-32, bit by bit."""
    if user is None:
        return 0
    crc = 0xFFFFFFFF
    for byte in user.encode():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return 1 + (crc ^ 0xFFFFFFFF) % 8


def by_hand(net: Net, rows: list[Any], counted: list[Any]) -> numpy.ndarray[Any, Any]:
    """[rows] what the model returns.

    Args:
        counted: the rows whose most frequent values are the vocabularies.
    """
    cities = Counter(row[0] for row in counted if row[0])
    tags = Counter(tag for row in counted for tag in row[3] if tag)
    tables = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    city_ids = {city: n + 1 for n, city in enumerate(sorted(cities, key=lambda each: (-cities[each], each))[:3])}
    tag_ids = {tag: n + 1 for n, tag in enumerate(sorted(tags, key=lambda each: (-tags[each], each))[:9])}
    bag = numpy.where(numpy.arange(10)[:, None] == 0, 0, tables["tags.weight"])
    return numpy.array(
        [
            tables["city.weight"][city_ids.get(city, 0), 0]
            + tables["plan.weight"][{3: 1, 0: 2, 4: 3}.get(plan, 0), 0]
            + tables["user.weight"][hash_of(user), 0]
            + sum(bag[tag_ids.get(tag, 0), 0] for tag in words)
            + tables["factor"] * x
            for city, plan, user, words, x, *_ in rows
        ]
    )


def still(make: Make, net: nn.Module, **changed: Any) -> TorchEstimator:
    """Its loss is that of the model as it is."""
    parameters = {
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.0),
        "feature_cols": ["city", "plan", "user", "tags", "x"],
        "categories": CATEGORIES,
        "padding": 0,
        "epochs": 1,
    }
    return make(model=net, **{**parameters, **changed})


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, SCHEMA).repartition(3)


NEW = [("city 9", 0, "user 0", ["tag 1", "new", None], 1.0), (None, None, None, [None] * 3, -1.0)]
NEW += [("city 0", 3, "user 1", ["tag 2"] * 3, 0.0)]


@pytest.mark.slow
def test_from_texts_to_predictions(spark: SparkSession, frame: DataFrame, estimator: Make, tmp_path: Path) -> None:
    """Every way of predicting returns the same bits."""
    net = Net()
    model = still(estimator, net).fit(frame)
    right = by_hand(net, ROWS, ROWS)
    loss = numpy.mean((right - [row[5] for row in ROWS]) ** 2)
    assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss, rel=1e-5)
    known = model.getCategories()
    assert known == {
        "city": ["city 0", "city 1", "city 2"],
        "plan": [3, 0, 4],
        "user": {"hash": 9},
        "tags": ["tag 1", "tag 2"],
    }
    rows = [*ROWS, *((*row, 0.0, False) for row in NEW)]
    predicted = model.transform(spark.createDataFrame(rows, SCHEMA).coalesce(1)).toPandas()
    transformed = predicted["y__output"].to_numpy()
    assert numpy.allclose(transformed, by_hand(net, rows, ROWS), atol=1e-6)
    model.save(f"{tmp_path}/model")
    loaded = TorchModel.load(f"{tmp_path}/model", model=Net())  # without trust
    assert loaded.getCategories() == known
    pandas_rows = pandas.DataFrame([row[:5] for row in rows], columns=["city", "plan", "user", "tags", "x"])
    pandas_rows["user"] = pandas_rows["user"].astype("category")
    assert pandas_rows["plan"].dtype == "float64"  # as pandas has integers with nulls
    short = pandas_rows.assign(tags=[[*words, *[None] * (3 - len(words))] for words in pandas_rows["tags"]])
    for each in (model, loaded):
        assert each.predict(pandas_rows).reshape(-1).tolist() == transformed.tolist()
        arrays = [short["city"], short["plan"], short["user"], list(short["tags"]), short["x"].to_numpy("float32")]
        assert each.predict(arrays).reshape(-1).tolist() == transformed.tolist()
        assert (
            each._make_frame_predictor().predict_frame(pandas_rows)["y__output"].tolist() == transformed.tolist()
        )  # MLflow's
    renamed = loaded.copy().setFeatureColumns(["town", "plan", "user", "tags", "x"])
    assert renamed.predict(pandas_rows.rename(columns={"city": "town"})).reshape(-1).tolist() == transformed.tolist()
    row_by_row = loaded.get_prediction_fn()
    assert [row_by_row(loaded.getModel(), row).item() for row in predicted.to_dict("records")][:9] == pytest.approx(
        transformed[:9].tolist()
    )


@pytest.mark.slow
def test_each_source_of_rows(spark: SparkSession, frame: DataFrame, estimator: Make, tmp_path: Path) -> None:
    """Rows through Spark, from files, from a store, streamed; with weights and rows for validation."""
    frame.write.parquet(f"{tmp_path}/rows")
    files = spark.read.parquet(f"{tmp_path}/rows")
    net = Net()
    trained = [row for row in ROWS if not row[6]]
    right = by_hand(net, ROWS, trained)
    errors = [(output - row[5]) ** 2 for output, row in zip(right, ROWS, strict=True)]
    loss = numpy.mean([error * row[4] for error, row in zip(errors, ROWS, strict=True) if not row[6]])
    held = numpy.mean([error * row[4] for error, row in zip(errors, ROWS, strict=True) if row[6]])
    made = still(estimator, net, validation="held", sample_weight_col="x")
    store = Store.create(f"{tmp_path}/store")
    models = [
        made.fit(files),
        made.fit(frame),
        made.copy().setParams(store=store, materialize=True).fit(frame),
        made.copy().setStore(store).fit_on_parquet(),
        made.copy().setParams(cache_bytes=2000, buffer_bytes=2000).fit(files),
    ]
    for model in models:
        (entry,) = model.getHistory()
        assert entry["train"]["loss"] == pytest.approx(loss, rel=1e-5)
        assert entry["validation"]["loss"] == pytest.approx(held, rel=1e-5)
        assert model.getCategories() == models[0].getCategories()


@pytest.mark.slow
def test_a_function_gets_ids(frame: DataFrame, estimator: Make) -> None:
    """Of frames and of rows; `transform`, which does not call it, reads categories."""

    def of_frames(rows: pandas.DataFrame) -> pandas.DataFrame:
        assert rows["city"].between(0, 3).all()
        return rows

    def of_rows(row: dict[str, Any]) -> dict[str, Any]:
        assert 0 <= row["city"] <= 3
        return row

    net = nn.Embedding(4, 1)
    table = net.weight.detach().reshape(-1)
    ids = torch.tensor([{"city 0": 1, "city 1": 2, "city 2": 3}.get(row[0], 0) for row in ROWS])
    loss = (table[ids] - torch.tensor([row[5] for row in ROWS])).square().mean().item()
    for function in (of_frames, of_rows):
        made = still(estimator, net, feature_cols=["city"], categories={"city": 4}, transformation_fn=function)
        model = made.fit(frame.select("city", "y"))
        assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss, rel=1e-5)
        predicted = model.transform(frame).toPandas().sort_values("x")["y__output"]
        assert predicted.tolist() == table[ids].tolist()


@pytest.mark.slow
def test_a_run_resumes_with_the_same_ids(frame: DataFrame, estimator: Make, tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    made = still(estimator, net, optimizer=optimizer, store=Store.create(str(tmp_path)), run_id="run")
    made.fit(frame)
    resumed = made.copy().setEpochs(2).fit(frame)
    assert len(resumed.getHistory()) == 2
    straight = made.copy().setParams(epochs=2, run_id="other").fit(frame)
    assert resumed.getModel().city.weight.tolist() == straight.getModel().city.weight.tolist()  # type: ignore[union-attr, operator]
    changed = made.copy().setEpochs(3).setCategories({**CATEGORIES, "plan": [0, 3, 4]})
    with pytest.raises(Exception, match=r"categories: plan: 4 ids, checksum \w+ in the checkpoint, plan: 4 ids"):
        changed.fit(frame)


@pytest.mark.slow
def test_each_fold_counts_its_own_rows(frame: DataFrame, estimator: Make) -> None:
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    made = still(
        estimator,
        nn.Embedding(500, 1),
        feature_cols=["user"],
        categories={"user": 500},
        prediction_col="prediction",
        num_proc=1,
    )
    folds = CrossValidator(
        estimator=made,
        estimatorParamMaps=ParamGridBuilder().addGrid(made.batch_size, [50]).build(),  # type: ignore[attr-defined]
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        seed=1,
        collectSubModels=True,
    ).fit(frame)
    first, second = (set(fold[0].getCategories()["user"]) for fold in folds.subModels)
    assert first and second and not first & second
    assert first | second == {row[2] for row in ROWS if row[2]}


def test_a_model_that_is_made_by_hand(spark: SparkSession) -> None:
    """It finds its columns by the first row."""
    net = Net()
    model = TorchModel(
        model=net.eval(),
        feature_columns=["city", "plan", "user", "tags", "x"],
        label_columns=["y"],
        categories={"city": ["city 0", "city 1", "city 2"], "plan": [3, 0, 4], "user": {"hash": 9}, "tags": ["tag 1"]},
    )
    frame = spark.createDataFrame(NEW, SCHEMA.partition(", y ")[0]).coalesce(1)
    predicted = [row.y__output for row in model.transform(frame).collect()]
    counted = [("city 0", 0, "", ["tag 1"])] * 3 + [("city 1", 0, "", [])] * 2 + [("city 2", 0, "", [])]
    assert numpy.allclose(predicted, by_hand(net, NEW, counted), atol=1e-6)
    with pytest.raises(TypeError, match=r"categories\['city'\] of a model must be a list of values, or a hash; got 5"):
        model.setCategories({"city": 5})


def test_columns_of_another_type_in_transform(spark: SparkSession) -> None:
    model = TorchModel(
        model=nn.Embedding(3, 1),
        feature_columns=["city"],
        label_columns=["y"],
        categories={"city": ["a", "b"]},
    )
    with pytest.raises(DataError, match=r"'city' are texts, such as 'a', but its type is int\. Cast it to str"):
        model.transform(spark.createDataFrame([(1,)], "city int"))
    with pytest.raises(DataError, match="no column 'city'"):
        model.transform(spark.createDataFrame([(1,)], "town int"))


@pytest.mark.slow
def test_keras(frame: DataFrame, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    from spark_estimator import KerasEstimator, KerasModel

    city, tags = keras.Input((), dtype="int64", name="city"), keras.Input((3,), dtype="int64", name="tags")
    x = keras.Input((1,), name="x")
    bag = keras.layers.Flatten()(keras.layers.Embedding(10, 2)(tags))
    both = keras.layers.Concatenate()([keras.layers.Embedding(4, 2)(city), bag, x])
    net = keras.Model([city, tags, x], keras.layers.Dense(1)(both))
    made = KerasEstimator(
        num_proc=2,
        model=net,
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        feature_cols=["city", "tags", "x"],
        label_cols=["y"],
        categories={"city": 4, "tags": 10},
        padding=0,
        epochs=1,
        verbose=0,
    )
    model = made.fit(frame)
    assert model.getCategories() == {"city": ["city 0", "city 1", "city 2"], "tags": ["tag 1", "tag 2"]}
    model.save(f"{tmp_path}/model")
    loaded = KerasModel.load(f"{tmp_path}/model")
    rows = pandas.DataFrame([(row[0], row[3], row[4]) for row in ROWS], columns=["city", "tags", "x"])
    city_ids = numpy.array([{"city 0": 1, "city 1": 2, "city 2": 3}.get(city, 0) for city in rows["city"]])
    tag_ids = numpy.zeros((len(rows), 3), numpy.int64)
    for number, words in enumerate(rows["tags"]):
        tag_ids[number, : len(words)] = [{"tag 1": 1, "tag 2": 2}.get(word, 0) for word in words]
    right = model.getModel().predict([city_ids, tag_ids, rows[["x"]].to_numpy("float32")], verbose=0).reshape(-1)
    predicted = model.transform(frame.coalesce(1)).toPandas().sort_values("x")["y__output"].to_numpy()
    assert numpy.allclose(predicted, right, atol=1e-6)
    assert loaded.predict(rows).reshape(-1).tolist() == predicted.tolist()


@pytest.mark.slow
def test_lightning(frame: DataFrame) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="the extra 'lightning' is not installed")
    from spark_estimator.lightning import TorchEstimator as LightningEstimator

    class Table(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.city = nn.Embedding(4, 1)

        def forward(self, city: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.city(city)
            return output

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return (self(batch["city"]).reshape(-1) - batch["y"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    common = {"feature_cols": ["city"], "label_cols": ["y"], "categories": {"city": 4}, "num_proc": 2, "verbose": 0}
    model = LightningEstimator(model=Table(), **common).fit(frame)
    assert model.getCategories() == {"city": ["city 0", "city 1", "city 2"]}
    table = model.getModel().city.weight.reshape(-1).tolist()  # type: ignore[union-attr, operator]
    cities = ["city 2", None, "city 0", "city 7"]
    assert model.predict({"city": cities}).reshape(-1).tolist() == [table[3], table[0], table[1], table[0]]


VISITS: list[tuple[Any, ...]] = [("a", ["b", "c"], 1.0), ("a", ["c", None, "c"], 2.0), ("b", ["c", "c"], 3.0)] * 20
VISITS += [(None, ["x"], 4.0), ("z", None, 5.0)]
VISIT_SCHEMA = "item string, history array<string>, y float"
#: By hand: the most frequent values of both columns.
VISIT_IDS = {"c": 1, "a": 2, "b": 3}


class SharedTable(nn.Module):
    """An item's number in a table, and the sum of those of earlier items."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(4, 1, padding_idx=0)

    def forward(self, item: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.table(item) + self.table(history).sum(1)
        return output


def shared_by_hand(table: Any, rows: list[Any]) -> list[float]:
    numbers = table.detach().reshape(-1).tolist()
    return [sum(numbers[VISIT_IDS.get(value, 0)] for value in [item, *history]) for item, history, *_ in rows]


@pytest.fixture(scope="module")
def visits(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(VISITS, VISIT_SCHEMA).where("history is not null").repartition(2)


def test_a_shared_vocabulary(spark: SparkSession, visits: DataFrame, estimator: Make, tmp_path: Path) -> None:
    """Every way of predicting returns the same bits, which are those of one table for both columns."""
    net = SharedTable()
    shared = {"history": "item", "item": 4}
    model = still(estimator, net, feature_cols=["item", "history"], categories=shared, num_proc=1).fit(visits)
    assert model.getCategories() == {"history": "item", "item": ["c", "a", "b"]}
    right = shared_by_hand(net.table.weight, VISITS[:-1])
    loss = numpy.mean([(output - row[2]) ** 2 for output, row in zip(right, VISITS, strict=False)])
    assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss, rel=1e-5)
    rows: list[tuple[Any, ...]] = [("c", ["a", "b", "z"], 0.0), ("b", [None, "c", "c"], 0.0), (None, ["b"] * 3, 0.0)]
    frame = spark.createDataFrame(rows, VISIT_SCHEMA).coalesce(1)
    transformed = [row.y__output for row in model.transform(frame).collect()]
    assert transformed == pytest.approx(shared_by_hand(net.table.weight, rows), abs=1e-6)
    model.save(f"{tmp_path}/model")
    loaded = TorchModel.load(f"{tmp_path}/model", model=SharedTable())  # without trust
    assert loaded.getCategories() == model.getCategories()
    in_pandas = frame.toPandas()
    renamed = in_pandas.rename(columns={"item": "bought", "history": "seen"})
    for each in (model, loaded):
        assert each.predict(in_pandas).reshape(-1).tolist() == transformed
        assert each.predict([in_pandas["item"], in_pandas["history"]]).reshape(-1).tolist() == transformed
        assert each._make_frame_predictor().predict_frame(in_pandas)["y__output"].tolist() == transformed  # MLflow's
        other = each.copy().setFeatureColumns(["bought", "seen"])
        assert other.predict(renamed).reshape(-1).tolist() == transformed
    by_hand = TorchModel(
        model=net.eval(),
        feature_columns=["item", "history"],
        label_columns=["y"],
        categories=model.getCategories(),
    )
    assert [row.y__output for row in by_hand.transform(frame).collect()] == transformed


@pytest.mark.slow
def test_a_shared_vocabulary_of_each_source_of_rows(
    spark: SparkSession, visits: DataFrame, estimator: Make, tmp_path: Path
) -> None:
    visits.write.parquet(f"{tmp_path}/rows")
    files = spark.read.parquet(f"{tmp_path}/rows")
    net = SharedTable()
    right = shared_by_hand(net.table.weight, VISITS[:-1])
    loss = numpy.mean([(output - row[2]) ** 2 for output, row in zip(right, VISITS, strict=False)])
    shared = {"history": "item", "item": 4}
    made = still(estimator, net, feature_cols=["item", "history"], categories=shared)
    store = Store.create(f"{tmp_path}/store")
    first = made.fit(files)
    for model in (
        first,
        made.copy().setCategories(first.getCategories()).fit(visits),
        made.copy().setParams(store=store, materialize=True).fit(visits),
        made.copy().setStore(store).fit_on_parquet(),
        made.copy().setParams(cache_bytes=2000, buffer_bytes=2000).fit(files),
    ):
        assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss, rel=1e-5)
        assert model.getCategories() == {"history": "item", "item": ["c", "a", "b"]}


@pytest.mark.slow
def test_a_shared_vocabulary_in_keras(visits: DataFrame, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    from spark_estimator import KerasEstimator, KerasModel

    item, history = (keras.Input((n,), dtype="int64", name=name) for n, name in ((1, "item"), (3, "history")))
    table = keras.layers.Embedding(4, 1)
    net = keras.Model([item, history], keras.ops.sum(table(item), 1) + keras.ops.sum(table(history), 1))
    model = KerasEstimator(
        num_proc=1,
        model=net,
        optimizer=keras.optimizers.SGD(0.01),
        loss="mse",
        feature_cols=["item", "history"],
        label_cols=["y"],
        categories={"item": 4, "history": "item"},
        padding=0,
        epochs=1,
        verbose=0,
    ).fit(visits)
    model.save(f"{tmp_path}/model")
    numbers = torch.tensor(model.getModel().get_weights()[0])
    right = [sum(numbers[VISIT_IDS.get(value, 0)].item() for value in ["a", "b", "c", "z"])]
    for each in (model, KerasModel.load(f"{tmp_path}/model")):
        assert each.getCategories() == {"item": ["c", "a", "b"], "history": "item"}
        predicted = each.predict({"item": ["a"], "history": [["b", "c", "z"]]})
        assert predicted.reshape(-1).tolist() == pytest.approx(right, abs=1e-6)


@pytest.mark.slow
def test_a_shared_vocabulary_in_lightning(visits: DataFrame) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="the extra 'lightning' is not installed")
    from spark_estimator.lightning import TorchEstimator as LightningEstimator

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = SharedTable()

        def forward(self, item: torch.Tensor, history: torch.Tensor) -> Any:
            return self.net(item, history)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return (self(batch["item"], batch["history"]).reshape(-1) - batch["y"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = LightningEstimator(
        model=Module(),
        feature_cols=["item", "history"],
        label_cols=["y"],
        categories={"item": 4, "history": "item"},
        padding=0,
        num_proc=1,
        verbose=0,
    ).fit(visits)
    assert model.getCategories() == {"item": ["c", "a", "b"], "history": "item"}
    rows = [("c", ["a", "b", "z"])]
    predicted = model.predict({"item": ["c"], "history": [["a", "b", "z"]]}).reshape(-1).tolist()
    table = model.getModel().net.table.weight  # type: ignore[union-attr, operator]
    assert predicted == pytest.approx(shared_by_hand(table, rows), abs=1e-6)
