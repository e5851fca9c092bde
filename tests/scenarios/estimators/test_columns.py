"""Columns that need more than a cast: arrays of different lengths, images, what a function makes of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.sampling import sample_files, sample_frame
from spark_estimator.estimators.rows.shapes import find_fields
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.parts import make_parts
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)
RAGGED = [([float(n)] * (n % 4 + 1), [n] * (n % 2), float(n)) for n in range(130)]
RAGGED[120] = ([0.5] * 6, [1, 2, 3], 1.0)  # beyond the first rows


def request_of(estimator: TorchEstimator) -> RowRequest:
    return RowRequest.from_parameters(lambda name: estimator.getOrDefault(name), None)


@pytest.mark.slow
def test_arrays_are_filled_up_to_the_longest_of_all_rows(spark: SparkSession, estimator: Make, tmp_path: Path) -> None:
    """Through Spark and from files; also in the model's predictions, here and from its saved folder."""
    frame = spark.createDataFrame(RAGGED, "v array<float>, n array<int>, y float").coalesce(1)
    frame.write.parquet(f"{tmp_path}/rows")
    net = nn.Linear(6, 1)
    still: dict[str, Any] = {
        "model": net,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.0),
        "feature_cols": ["v"],
        "epochs": 1,
        "padding": -1,
    }
    padded = torch.tensor([v + [-1.0] * (6 - len(v)) for v, _, _ in RAGGED])
    with torch.no_grad():
        outputs = net(padded).reshape(-1)
        loss = nn.functional.mse_loss(outputs, torch.tensor([y for _, _, y in RAGGED])).item()
    model = estimator(**still).fit(frame)
    assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss, rel=1e-5)
    model.save(f"{tmp_path}/model")
    loaded = TorchModel.load(f"{tmp_path}/model")
    predicted = [row.y__output for row in loaded.transform(frame).collect()]
    assert numpy.allclose(predicted, outputs, atol=1e-5)
    assert numpy.allclose(loaded.predict({"v": [v for v, _, _ in RAGGED]}).reshape(-1), outputs, atol=1e-5)
    longer = spark.createDataFrame([([1.0] * 7,)], "v array<float>")
    with pytest.raises(Exception, match=r"'v' has 7 values in row 0 .* room for 6"):
        loaded.transform(longer).collect()

    made = estimator(feature_cols=["v", "n"], padding={"v": 0, "n": 9})
    files = find_files(f"{tmp_path}/rows")
    spool, _ = FileRows(files, RowEncoder(("v",), model._inputs)).read(0, 1)
    assert numpy.array_equal(spool.matrices[0], padded)
    for sample in (sample_frame(frame, request_of(made)), sample_files(files, request_of(made))):
        assert (sample.widths, sample.padding) == ((6, 3, 1), (0, 9, None))
    # Shapes that are declared are not searched: of one column, of one among others side by side, of a label.
    shaped = made.copy({made.input_shapes: [[-1, 8], [-1, 2, 2]]})
    assert sample_files(files, request_of(shaped)).widths == (8, 4, 1)
    shaped = made.setParams(feature_cols=["v", "y"], padding=0, label_cols=["n"], label_shapes=[[-1, 5]])
    assert sample_files(files, request_of(shaped.setInputShapes([[-1, 10]]))).widths == (9, 1, 5)
    for changed, words in (
        ({"padding": 0.5}, r"padding=0\.5 isn't valid for integer column 'n' \(array<(int|bigint)>\)\. Use a whole"),
        ({"padding": {"v": 0}}, "'n' has arrays of different lengths.*padding=0"),
    ):
        with pytest.raises(DataError, match=words):
            sample_frame(frame, request_of(shaped.setParams(**changed)))


class Mean(nn.Module):
    """Of an image's pixels and a number, times a factor; it refuses what has not the shape of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        assert image.shape[1:] == (2, 3) and image.dtype == torch.float32
        return self.factor * image.mean(dim=(1, 2))


def decode(content: bytes) -> numpy.ndarray[Any, Any]:
    return numpy.frombuffer(content, numpy.uint8).reshape(2, 3)


LABEL = Field(("y",), ("c1",), (1,), "float32")
IMAGES = [(bytes([n, n + 1, n + 2, 0, 255, 7]), float(n)) for n in range(120)]


def still(estimator: Make, net: nn.Module, **changed: Any) -> TorchEstimator:
    """Its loss is that of the model as it is."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    return estimator(model=net, optimizer=optimizer, epochs=1, **changed)


@pytest.mark.slow
def test_images_are_decoded_where_rows_are_read(spark: SparkSession, estimator: Make, tmp_path: Path) -> None:
    """Through Spark and from files; they stay bytes in the spool, and the model decodes, too."""
    from pyspark.sql import functions

    frame = spark.createDataFrame(IMAGES, "image binary, y float")
    frame.write.parquet(f"{tmp_path}/images")
    outputs = numpy.array([decode(content).mean() for content, _ in IMAGES])
    loss = ((outputs - numpy.array([y for _, y in IMAGES])) ** 2).mean()
    made = still(estimator, Mean(), feature_cols=["image"], decoders={"image": decode}, num_proc=1, padding=0)
    model = made.fit(frame)
    assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss, rel=1e-5)
    (field,) = model._inputs
    assert (field.stored, field.dtype, field.shape) == ("uint8", "float32", (2, 3))
    files = find_files(f"{tmp_path}/images")
    mask = still(estimator, nn.Linear(1, 6), feature_cols=["y"], label_cols=["image"], decoders={"image": decode})
    fields = find_fields(sample_files(files, request_of(mask)), TorchTrial(make_parts(mask.getOrDefault)[0]), None)
    assert [(field.stored, field.dtype, field.shape) for field in fields.labels] == [("uint8", "int64", (2, 3))]
    encoder = sample_files(files, request_of(made)).columns.encoder.with_fields([field, LABEL])
    spool, _ = FileRows(files, encoder).read(0, 1)
    assert spool.matrices[0].dtype == "uint8"
    assert sorted(map(bytes, spool.matrices[0])) == [content for content, _ in IMAGES]

    model.save(f"{tmp_path}/model")
    with pytest.raises(DataError, match=r"columns image have decoders.*decoders=.*trust=True"):
        TorchModel.load(f"{tmp_path}/model", model=Mean())
    for loaded in (
        TorchModel.load(f"{tmp_path}/model", model=Mean(), decoders={"image": decode}),
        TorchModel.load(f"{tmp_path}/model", trust=True).setBatchSize(50),
    ):
        predicted = {row.y: row.y__output for row in loaded.transform(frame).collect()}
        assert numpy.allclose([predicted[y] for _, y in IMAGES], outputs)
    assert numpy.allclose(model.predict({"image": [content for content, _ in IMAGES]}).reshape(-1), outputs)
    assert numpy.allclose(model.predict(numpy.stack([decode(content) for content, _ in IMAGES])).reshape(-1), outputs)

    path = f"{tmp_path}/estimator"
    made.save(path)
    with pytest.raises(DataError, match="trust=True"):
        TorchEstimator.load(path)
    assert TorchEstimator.load(path, trust=True).getDecoders()["image"](IMAGES[0][0]).shape == (2, 3)

    torn = frame.withColumn(
        "image", functions.when(functions.col("y") == 3, functions.lit(b"abc")).otherwise(frame.image)
    )
    for bad, changed, words in (
        (torn, {}, r"(?s)decoder of column 'image' failed in row \d+ .*on 3 bytes: ValueError.*reshape\(2, 3\)"),
        (frame, {"decoders": None}, r"'image' has type binary.*decoders=\{'column': function\}"),
        (frame, {"decoders": {"y": decode, "image": decode}}, r"decoders refers to column 'y' \(float\)"),
        (frame, {"decoders": {"x": decode, "image": decode}}, "decoders refers to 'x', which isn't a column"),
    ):
        with pytest.raises(DataError, match=words):
            made.copy().setParams(**changed).fit(bad)
    with pytest.raises(Exception, match=r"on 3 bytes: ValueError"):
        made.fit(torn.orderBy(functions.desc("y")))  # beyond the first rows
    with pytest.raises(Exception, match=r"decoder of column 'image' failed in row \d+ of a batch of rows"):
        model.transform(torn).collect()


def transform(rows: Any) -> Any:
    """Keeps every row but those of a multiple of 7, once more those of 5; makes numbers of words."""
    rows = rows[rows["y"] % 7 != 0]
    rows = pandas.concat([rows, rows[rows["y"] % 5 == 0]])
    rows["x"] = [numpy.array([len(word), number]) for word, number in zip(rows["word"], rows["number"], strict=True)]
    return rows.drop(columns=["word", "number"])


@pytest.mark.slow
def test_a_function_changes_the_rows_once(spark: SparkSession, estimator: Make, tmp_path: Path) -> None:
    """Through Spark, through a store, from its files alone; with more rows or fewer."""
    rows = [("ab" * (n % 3), n, float(n), n % 4 == 0) for n in range(150)]
    kept = [row for row in rows if row[2] % 7]
    kept += [row for row in kept if row[2] % 5 == 0]
    net = nn.Linear(2, 1)

    def expected(held: bool) -> float:
        chosen = [row for row in kept if row[3] == held]
        with torch.no_grad():
            outputs = net(torch.tensor([[float(len(word)), float(n)] for word, n, _, _ in chosen])).reshape(-1)
        return nn.functional.mse_loss(outputs, torch.tensor([y for _, _, y, _ in chosen])).item()

    frame = spark.createDataFrame(rows, "word string, number int, y float, held boolean")
    store = Store.create(f"{tmp_path}/store")
    made = still(
        estimator,
        net,
        feature_cols=["x"],
        validation="held",
        transformation_fn=transform,
        transformation_edit_fields=[("x", numpy.int64, (2,), False)],
        transformation_removed_fields=["word", "number"],
    )
    models = [made.fit(frame), made.setParams(store=store).copy().setMaterialize(True).setNumProc(1).fit(frame)]
    models += [made.fit_on_parquet()]
    for model in models:
        (entry,) = model.getHistory()
        assert entry["train"]["loss"] == pytest.approx(expected(False), rel=1e-4)
        assert entry["validation"]["loss"] == pytest.approx(expected(True), rel=1e-4)
    predicted = models[0].transform(spark.createDataFrame([([1, 2],)], "x array<int>")).first()
    assert predicted is not None and predicted.y__output == pytest.approx(
        net(torch.tensor([1.0, 2.0])).item(), rel=1e-5
    )

    def fails(rows: Any) -> Any:
        raise KeyError("nothing")

    for changed, words in (
        ({"transformation_fn": fails}, r"(?s)transformation_fn failed on \d+ rows.*KeyError: 'nothing'.*in fails"),
        ({"transformation_fn": lambda rows: rows}, "transformation_fn returned no column 'x'"),
        (
            {"transformation_fn": lambda rows: 1},
            r"transformation_fn returns a pandas\.DataFrame, or a dict for each row; it returned int",
        ),
        ({"transformation_fn": lambda rows: transform(rows)[:0]}, "returned no row for the first"),
        (
            {"transformation_edit_fields": [("x", numpy.float32, (3,), False)]},
            r"declares 'x' with shape \[3\], but .* returned \[2\]",
        ),
        (
            {"transformation_edit_fields": [("x", numpy.uint8, (2,), False)]},
            r"declares 'x' as uint8, but transformation_fn returned int64",
        ),
        (
            {"transformation_removed_fields": ["word", "number", "y"]},
            "transformation_removed_fields lists 'y', but",
        ),
        ({"padding": 0}, "padding of column 'x', which transformation_fn returns, .* set input_shapes"),
        ({"transformation_fn": None}, "no column 'x'|need transformation_fn, which is None"),
    ):
        with pytest.raises((DataError, ValueError), match=words):
            made.copy().setParams(**changed).fit_on_parquet()
