"""Data that the tests of estimators share."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 203
TRUTH = numpy.array([1.5, -2.0, 0.5])


def line_rows() -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """[203, 3] features and [203] labels that a linear model can learn, as exact as float32 is."""
    features = numpy.random.default_rng(5).standard_normal((ROWS, 3)).astype(numpy.float32)
    return features, (features @ TRUTH + 0.25).astype(numpy.float32)


@pytest.fixture(scope="session")
def line(spark: SparkSession) -> DataFrame:
    """Columns x0, x1, x2, features (array), y, w (0 or 2), held (boolean: every fourth row)."""
    features, labels = line_rows()
    rows = [
        (*map(float, x), [float(value) for value in x], float(y), float(2 * (number % 2)), number % 4 == 0)
        for number, (x, y) in enumerate(zip(features, labels, strict=True))
    ]
    schema = "x0 float, x1 float, x2 float, features array<float>, y float, w float, held boolean"
    return spark.createDataFrame(rows, schema).cache()


def rewritten(folder: Path, name: str, content: bytes) -> None:
    """Changes a file of a saved folder, and its digest, as an attacker would."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "spark_estimator.json").read_text())
    manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / "spark_estimator.json").write_text(json.dumps(manifest))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that hostile code makes when it runs."""
    return tmp_path / "code has run"


class Poison:
    """An object whose unpickling makes the file `marker`."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self._marker,)


def saved_by_torch(content: object) -> bytes:
    """What torch.save makes of it."""
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def linear() -> nn.Module:
    """The same numbers each time."""
    torch.manual_seed(3)
    return nn.Linear(3, 1)


@pytest.fixture
def estimator() -> Callable[..., TorchEstimator]:
    """Makes an estimator for `line`; keywords change it."""

    def make(**changed: Any) -> TorchEstimator:
        net = changed.pop("model", None)
        net = linear() if net is None else net  # a compiled one is neither true nor false
        parameters = {
            "num_proc": 2,
            "model": net,
            "optimizer": torch.optim.SGD(net.parameters(), lr=0.05),
            "loss": nn.MSELoss(),
            "feature_cols": ["features"],
            "label_cols": ["y"],
            "batch_size": 16,
            "epochs": 2,
            "random_seed": 7,
            "verbose": 0,
        }
        return TorchEstimator(**{**parameters, **changed})

    return make
