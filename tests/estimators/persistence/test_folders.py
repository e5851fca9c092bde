"""Estimators and models in folders: alone, in pipelines, with trust and without, and from hostile hands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, trust_files
from spark_estimator.store import Store
from tests.estimators.conftest import linear, rewritten, saved_by_torch
from tests.store.crashes import INTERRUPT, KILL, NO_EXCHANGE, at_each_call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., TorchEstimator]


def test_an_estimator_of_known_classes_needs_no_trust(estimator: Make, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), linear())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.25)
    saved = estimator(
        model=net,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        loss=[nn.SmoothL1Loss(), nn.functional.mse_loss],
        label_cols=["y", "z"],
        store=Store.create(str(tmp_path / "store"), storage_options={"key": "canary"}),
        input_shapes=[[-1, 3]],
    )
    path = str(tmp_path / "estimator")
    with pytest.warns(UserWarning, match="store is not saved"):
        saved.save(path)
    assert not any(b"canary" in file.read_bytes() for file in Path(path).rglob("*") if file.is_file())
    loaded = TorchEstimator.load(path)
    assert (loaded.uid, loaded.getEpochs(), loaded.getLabelCols()) == (saved.uid, 2, ["y", "z"])
    assert (loaded.getStore(), loaded.getInputShapes()) == (None, [[-1, 3]])
    own = {id(parameter) for parameter in loaded.getModel().parameters()}
    groups = loaded.getOptimizer().param_groups
    assert {id(one) for group in groups for one in group["params"]} == own
    assert groups[0]["lr"] == 0.25
    assert loaded.getLrScheduler().optimizer is loaded.getOptimizer()
    assert loaded.getLoss()[1] is nn.functional.mse_loss
    assert torch.equal(loaded.getModel()[2].weight, linear().weight)
    with pytest.raises(FileExistsError, match=r"overwrite\(\)"):
        saved.save(path)
    saved.setStore(None).write().overwrite().save(path)
    assert TorchEstimator.read().load(path).getBatchSize() == 16


def test_functions_need_trust(estimator: Make, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    estimator(metrics=[lambda output, label: (output - label).abs().mean()]).save(path)
    with pytest.raises(DataError, match=r"other than PyTorch's own.*trust=True \(in a pipeline: with trust_files"):
        TorchEstimator.load(path)
    metric = TorchEstimator.load(path, trust=True).getMetrics()[0]
    assert metric(torch.ones(2), torch.zeros(2)) == 1
    with trust_files():
        assert len(TorchEstimator.load(path).getMetrics()) == 1
    with pytest.raises(DataError):
        TorchEstimator.load(path)


def test_what_cannot_be_saved_is_named(estimator: Make, tmp_path: Path) -> None:
    file = (tmp_path / "open").open("w")
    with pytest.raises(DataError, match="metrics cannot be saved: PicklingError"), file:
        estimator(metrics=[lambda output, label: file]).save(str(tmp_path / "estimator"))
    assert not (tmp_path / "estimator").exists()


def test_hostile_folders_run_nothing(estimator: Make, tmp_path: Path) -> None:
    path = tmp_path / "estimator"
    estimator().save(str(path))
    touched = tmp_path / "touched"

    class Poison:
        def __reduce__(self) -> Any:
            return (Path.touch, (touched,))

    whole = (path / "objects.pt").read_bytes()
    (path / "objects.pt").write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    with pytest.raises(DataError, match=r"objects\.pt is damaged: its \d+ bytes are not those"):
        TorchEstimator.load(str(path), trust=True)
    for content in ({"model": Poison()}, {"loss": [nn.MSELoss(), Poison()]}, Poison()):
        rewritten(path, "objects.pt", saved_by_torch(content))
        with pytest.raises(DataError, match=r"other than PyTorch's own.*GLOBAL"):
            TorchEstimator.load(str(path))
    for wrong, words in (
        (saved_by_torch({"epochs": 3}), "'epochs', which is no part"),
        (saved_by_torch({"loss": 3, 4: 5}), "4, which is no part"),
        (saved_by_torch([]), "holds list, and no parts"),
        (b"PK nonsense", "no file of PyTorch: 11 bytes"),
    ):
        rewritten(path, "objects.pt", wrong)
        with pytest.raises(DataError, match=words):
            TorchEstimator.load(str(path))
    rewritten(path, "objects.pt", whole)
    told = json.loads((path / "spark_estimator.json").read_text())
    for other, words in (
        ({**told, "kind": "TorchModel"}, "tells of 'TorchModel'"),
        ({**told, "format": 99}, "in format 99"),
        (["nonsense"], r"tells of \['nonsense'\]"),
        ({**told, "uid": 3}, "broken: 'uid' should be a text, and is 3"),
        ({**told, "params": {"nope": 1}}, "broken: 'params' .*no parameter 'nope'"),
    ):
        (path / "spark_estimator.json").write_text(json.dumps(other))
        with pytest.raises(DataError, match=words):
            TorchEstimator.load(str(path))
    assert not touched.exists()


def test_a_pipeline_that_is_not_fitted_yet(estimator: Make, spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import VectorAssembler

    assembler = VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="assembled")
    path = str(tmp_path / "pipeline")
    Pipeline(stages=[assembler, estimator(feature_cols=["assembled"])]).write().overwrite().save(path)
    loaded = Pipeline.load(path).getStages()[1]
    assert isinstance(loaded, TorchEstimator)
    assert loaded.getFeatureCols() == ["assembled"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "options"), [(KILL, ()), (KILL, NO_EXCHANGE), (INTERRUPT, ()), ("error=EIO", ())], ids=str
)
def test_a_fault_at_each_step_of_saving_leaves_the_old_one_or_the_new_one(
    estimator: Make, tmp_path: Path, fault: str, options: tuple[str, ...]
) -> None:
    path = tmp_path / "saved" / "estimator"
    old, new = estimator(epochs=1), estimator(epochs=2)
    old.save(str(path))
    seen = set()

    def check(where: str) -> None:
        seen.add(TorchEstimator.load(str(path)).getEpochs())
        assert seen <= {1, 2}, where
        old.write().overwrite().save(str(path))
        assert [one.name for one in path.parent.iterdir()] == ["estimator"], where

    calls = ("mkdir", "fsync", "rename", "renameat2", "unlinkat", "rmdir", "write")
    save = new.write().overwrite().save
    assert at_each_call(lambda: save(str(path)), check, fault, tmp_path / "log", *options, calls=calls) > 12
    assert seen == {1, 2}
