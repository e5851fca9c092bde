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
    "spark_estimator.TorchEstimator": (TorchEstimator, "torch_estimator"),
    "spark_estimator.TorchModel": (TorchModel, "torch_model"),
    "spark_estimator.KerasEstimator": (KerasEstimator, "keras_estimator"),
    "spark_estimator.KerasModel": (KerasModel, "keras_model"),
    "spark_estimator.lightning.TorchEstimator": (of_lightning.TorchEstimator, "lightning_estimator"),
    "spark_estimator.lightning.TorchModel": (of_lightning.TorchModel, "lightning_model"),
}


class Mine(TorchEstimator):
    pass


@pytest.mark.parametrize("path", KINDS)
def test_a_class_is_named_by_its_public_path_and_found_under_the_former_one(path: str) -> None:
    kind, former = KINDS[path]
    assert get_public_path(kind) == path
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is kind
    assert getattr(importlib.import_module(f"spark_estimator.estimators.{former}"), name) is kind


def test_a_subclass_is_named_by_its_own_module() -> None:
    assert get_public_path(Mine) == f"{__name__}.Mine"


@pytest.mark.parametrize("saved_as", ["spark_estimator.TorchEstimator", "spark_estimator.estimators.torch_estimator"])
def test_a_pipeline_is_loaded_that_names_either(spark: SparkSession, tmp_path: Path, saved_as: str) -> None:
    net = torch.nn.Linear(2, 1)
    estimator = TorchEstimator(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), batch_size=7)
    Pipeline(stages=[estimator]).save(str(tmp_path / "pipeline"))
    (file,) = (tmp_path / "pipeline" / "stages").glob("*/metadata/part-00000")
    metadata = json.loads(file.read_text())
    assert metadata["class"] == "spark_estimator.TorchEstimator"
    if "estimators" in saved_as:
        file.write_text(json.dumps({**metadata, "class": f"{saved_as}.TorchEstimator"}))
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    (loaded,) = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert type(loaded) is TorchEstimator and loaded.getBatchSize() == 7
