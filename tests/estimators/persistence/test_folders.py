"""Estimators and models in folders: alone, in pipelines, with trust and without, and from hostile hands."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.ml.param import Param, Params
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from tests.estimators.conftest import Poison, linear, rewritten, saved_by_torch
from tests.store.crashes import INTERRUPT, KILL, NO_EXCHANGE, at_each_call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., TorchEstimator]


def test_hostile_folders_run_nothing(estimator: Make, tmp_path: Path, marker: Path) -> None:
    path = tmp_path / "estimator"
    estimator().save(str(path))
    poison = Poison(marker)
    whole = (path / "objects.pt").read_bytes()
    (path / "objects.pt").write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    with pytest.raises(DataError, match=r"objects\.pt is damaged: its \d+ bytes don't match"):
        TorchEstimator.load(str(path), trust=True)
    for content in ({"model": poison}, {"loss": [nn.MSELoss(), poison]}, poison):
        rewritten(path, "objects.pt", saved_by_torch(content))
        with pytest.raises(DataError, match=r"aren't PyTorch's own.*GLOBAL"):
            TorchEstimator.load(str(path))
    for wrong, words in (
        (saved_by_torch({"epochs": 3}), "'epochs', which a TorchEstimator doesn't have"),
        (saved_by_torch({"loss": 3, 4: 5}), "4, which a TorchEstimator doesn't have"),
        (saved_by_torch([]), "contains list instead of the objects"),
        (b"PK nonsense", "no file of PyTorch: 11 bytes"),
    ):
        rewritten(path, "objects.pt", wrong)
        with pytest.raises(DataError, match=words):
            TorchEstimator.load(str(path))
    rewritten(path, "objects.pt", whole)
    manifest = json.loads((path / "spark_estimator.json").read_text())
    for other, words in (
        ({**manifest, "kind": "TorchModel"}, "has kind 'TorchModel'"),
        ({**manifest, "format": 99}, "in format 99"),
        (["nonsense"], r"has kind \['nonsense'\]"),
        ({**manifest, "uid": 3}, "broken: 'uid' must be a text; it is 3"),
        ({**manifest, "params": {"nope": 1}}, "broken: 'params' .*no parameter 'nope'"),
    ):
        (path / "spark_estimator.json").write_text(json.dumps(other))
        with pytest.raises(DataError, match=words):
            TorchEstimator.load(str(path))
    assert not marker.exists()


def with_own_param(kind: type[Any]) -> type[Any]:
    """A subclass with a parameter that JSON does not hold."""

    class Own(kind):  # type: ignore[misc]
        special = Param(Params._dummy(), "special", "a function")

    return Own


@pytest.mark.parametrize("name", ["decoders.pkl", "subclass_params.pkl"])
def test_hostile_pickles_run_nothing(tmp_path: Path, marker: Path, name: str) -> None:
    """Each loader has its own test of the files that it alone has."""
    kind, path = with_own_param(TorchModel), tmp_path / "model"
    saved = kind(model=linear(), feature_columns=["x"], label_columns=["y"], decoders={"x": len})
    saved._set(special=len)
    saved.save(str(path))
    rewritten(path, name, pickle.dumps(Poison(marker)))
    passed = {"decoders": {"x": len}} if name == "subclass_params.pkl" else {}
    with pytest.raises(DataError, match=r"could run any code.*trust=True"):
        kind.load(str(path), **passed)
    assert not marker.exists()
    with pytest.raises(DataError, match=f"{name} (cannot be read|contains)"):
        kind.load(str(path), trust=True)
    assert marker.exists(), "it is a folder that runs code, if it is trusted"


def test_a_folder_of_lightning_runs_nothing(tmp_path: Path, marker: Path) -> None:
    pytest.importorskip("lightning")
    from spark_estimator import lightning

    path = tmp_path / "estimator"
    lightning.TorchEstimator(model=linear(), loss=nn.functional.mse_loss).save(str(path))
    rewritten(path, "objects.pt", saved_by_torch({"model": Poison(marker)}))
    with pytest.raises(DataError, match=r"aren't PyTorch's own.*GLOBAL"):
        lightning.TorchEstimator.load(str(path))
    assert not marker.exists()


def test_a_folder_without_a_name(estimator: Make) -> None:
    for path, error in ((None, TypeError), (3, TypeError), ("", DataError)):
        with pytest.raises(error, match="must be a path; got"):
            estimator().write().overwrite().save(path)


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
    ("fault", "options"),
    [
        (KILL, ()),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((KILL, NO_EXCHANGE), (INTERRUPT, ()), ("error=EIO", ()))
        ),
    ],
    ids=str,
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
        assert [entry.name for entry in path.parent.iterdir()] == ["estimator"], where

    calls = ("mkdir", "fsync", "rename", "renameat2", "unlinkat", "rmdir", "write")
    save = new.write().overwrite().save
    assert at_each_call(lambda: save(str(path)), check, fault, tmp_path / "log", *options, calls=calls) > 12
    assert seen == {1, 2}
