"""Large models, which executors get as one file that their Python workers map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError
from spark_estimator.estimators.inference import model_file
from spark_estimator.estimators.torch.predictor import TorchPredictor
from tests.estimators.specs import ENCODER
from tests.estimators.torch_models import model_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


class Maps(nn.Linear):
    """A linear layer that also returns how many files of models its process has mapped."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        from pathlib import Path

        files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".model" in line}
        return torch.cat([super().forward(input), input.new_full((len(input), 1), len(files))], 1)


def test_it_is_sent_once_and_mapped(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "LARGE", 1000)
    sent: set[Any] = set()
    monkeypatch.setattr(model_file, "_sent", sent)
    torch.manual_seed(3)
    net = Maps(3, 1)
    frame = spark.range(40, numPartitions=4).selectExpr("array(cast(id as float), 1f, 2f) as features")
    for _ in range(2):
        rows = model_of(net, 2).transform(frame).collect()
        features = torch.tensor([row.features for row in rows])
        expected = nn.functional.linear(features, net.weight, net.bias).detach().numpy().reshape(-1)
        assert numpy.array_equal(numpy.array([row.y__output[0] for row in rows], numpy.float32), expected)
        assert {row.y__output[1] for row in rows} == {1.0}, "a worker maps it once"
    assert len(sent) == 1


def test_small_models_are_part_of_the_function(spark: SparkSession) -> None:
    known = TorchPredictor.of(nn.Linear(3, 1), ENCODER, (1,), 8)
    assert known.send(spark) is known and len(known.payload) < 10_000


def test_equal_models_have_equal_bytes() -> None:
    torch.manual_seed(1)
    net = nn.Linear(3, 1)
    assert TorchPredictor.of(net, ENCODER, (1,), 8)._key == TorchPredictor.of(net, ENCODER, (1,), 8)._key
    other = TorchPredictor.of(nn.Linear(3, 1), ENCODER, (1,), 8)
    assert other._key != TorchPredictor.of(net, ENCODER, (1,), 8)._key


def test_a_file_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkFiles

    monkeypatch.setattr(SparkFiles, "get", lambda name: str(tmp_path / name))
    known = replace(TorchPredictor.of(nn.Linear(3, 1), ENCODER, (1,), 8), payload=b"", file="x.model")
    with pytest.raises(DataError, match=r"x\.model is missing: Spark sends a model of more than 16 MiB"):
        known.get_model()
