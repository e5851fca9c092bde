"""A client package in the shape of SynapseML's deep-learning module: fit, transform, save, load."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from spark_estimator import DataError, compat
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("aliases", "functions_travel_by_value")]
WORDS = {0: ("bad", "awful", "poor"), 1: ("good", "fine", "great")}


@pytest.fixture
def aliases() -> Iterator[None]:
    pytest.importorskip("lightning")
    compat.install()
    yield
    compat.uninstall()


def client(name: str) -> Any:
    return importlib.import_module(f"tests.compat.client.{name}")


def texts(spark: SparkSession) -> DataFrame:
    rows = [
        (f"a {WORDS[label][number % 3]} film {'and long' * (number % 4)}", label)
        for number in range(40)
        for label in (0, 1)
    ]
    return spark.createDataFrame(rows, "text string, label int")


def fit_texts(spark: SparkSession, tmp_path: Path) -> None:
    text = client("text")
    classifier = text.TextClassifier(
        num_classes=2,
        tokenizer=text.Tokenizer(),
        num_proc=2,
        store=Store.create(str(tmp_path / "store")),
        epochs=4,
        batch_size=8,
        learning_rate=0.1,
        verbose=0,
        callbacks=None,
        validation=0.1,
        partitions_per_process=None,
    )
    frame = texts(spark)
    model = classifier.fit(frame)
    assert type(model) is text.TextModel
    history = model.getHistory()
    assert len(history) == 4 and history[-1]["train"]["loss"] < history[0]["train"]["loss"]
    assert 0 < history[0]["logged"]["avg_val_loss"] < 9 and "validation" in history[0]
    rows = model.transform(frame).collect()
    assert [row["prediction"] for row in rows] == [float(row["label"]) for row in rows]
    assert len(rows[0]["output"]) == 2 and rows[0]["text"].startswith("a ")

    model.write().overwrite().save(str(tmp_path / "model"))
    with pytest.raises(DataError, match="trust=True"):
        text.TextModel.load(str(tmp_path / "model"))
    again = text.TextModel.load(str(tmp_path / "model"), trust=True)
    assert again.transform(frame).collect() == rows


@pytest.mark.slow
def test_texts_on_classic_spark(spark: SparkSession, tmp_path: Path) -> None:
    fit_texts(spark, tmp_path)


def images(spark: SparkSession, folder: Path) -> DataFrame:
    """Bright images are of class 1."""
    rows = []
    for number in range(24):
        path = folder / f"image{number}.npy"
        numpy.save(path, numpy.random.default_rng(number).random((4, 4)) / 10 + (1 if number % 2 else -1))
        rows.append((str(path), number % 2))
    return spark.createDataFrame(rows, "image string, label bigint")


@pytest.mark.slow
def test_images_with_the_package_s_default_backend(spark: SparkSession, tmp_path: Path) -> None:
    vision = client("vision")
    frame = images(spark, tmp_path)
    classifier = vision.VisionClassifier(
        num_proc=1, store=Store.create(str(tmp_path / "store")), epochs=6, batch_size=6, verbose=0
    )
    model = classifier.fit(frame)
    rows = model.transform(frame).collect()
    assert [int(numpy.argmax(row["output"])) for row in rows] == [row["label"] for row in rows]
    model.write().overwrite().save(str(tmp_path / "model"))
    # Its constructor fails without arguments.
    again = vision.VisionModel.load(str(tmp_path / "model"), trust=True)
    assert again.transform(frame).collect() == rows
