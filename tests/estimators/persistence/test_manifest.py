"""The class in saved folders, which Spark ML finds again, also after modules have moved."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from pyspark.ml import Pipeline

from spark_estimator import KerasEstimator, KerasModel, TorchEstimator, TorchModel
from spark_estimator import lightning as of_lightning
from spark_estimator.estimators.persistence.manifest import get_public_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = {
    "spark_estimator.TorchEstimator": TorchEstimator,
    "spark_estimator.TorchModel": TorchModel,
    "spark_estimator.KerasEstimator": KerasEstimator,
    "spark_estimator.KerasModel": KerasModel,
    "spark_estimator.lightning.TorchEstimator": of_lightning.TorchEstimator,
    "spark_estimator.lightning.TorchModel": of_lightning.TorchModel,
}


class Mine(TorchEstimator):
    pass


@pytest.mark.parametrize("path", KINDS)
def test_a_class_is_named_by_its_public_path(path: str) -> None:
    assert get_public_path(KINDS[path]) == path
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is KINDS[path]


def test_a_subclass_is_named_by_its_own_module() -> None:
    assert get_public_path(Mine) == f"{__name__}.Mine"


def test_a_pipeline_names_the_public_path(spark: SparkSession, tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    estimator = TorchEstimator(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), batch_size=7)
    Pipeline(stages=[estimator]).save(str(tmp_path / "pipeline"))
    (file,) = (tmp_path / "pipeline" / "stages").glob("*/metadata/part-00000")
    assert json.loads(file.read_text())["class"] == "spark_estimator.TorchEstimator"
    (loaded,) = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert type(loaded) is TorchEstimator and loaded.getBatchSize() == 7
