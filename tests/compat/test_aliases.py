"""The table of aliases: its targets exist, and each unavailable name has advice."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest

from spark_estimator import compat
from spark_estimator.collectives import context
from spark_estimator.compat.aliases import INSTEAD, MODULES, PACKAGES, ROOTS, advise

#: Old name -> the name of its target, where that has another one.
RENAMED = {
    "horovod.runner.launch.run_commandline": "main",
    "petastorm.NoDataAvailableError": "DataError",
    "petastorm.errors.NoDataAvailableError": "DataError",
    "petastorm.etl.dataset_metadata.PetastormMetadataError": "DataError",
    "petastorm.etl.dataset_metadata.PetastormMetadataGenerationError": "DataError",
}


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_modules_exist(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_a_backend(new, monkeypatch)
    if new.startswith("spark_estimator.tensorflow") or new.endswith(".tf_datasets"):
        pytest.skip("tests/tensorflow/test_old_names.py looks, where TensorFlow is loaded already")
    assert importlib.import_module(new).__name__ == new


@pytest.mark.parametrize(
    ("old", "target"), [(f"{old}.{name}", target) for old, names in PACKAGES.items() for name, target in names.items()]
)
def test_names_exist(old: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = target.partition(":")
    choose_a_backend(module, monkeypatch)
    value = getattr(importlib.import_module(module), name)
    assert isinstance(value, str) or getattr(value, "__name__", name) in (name, RENAMED.get(old))


@pytest.mark.parametrize("binding", ["keras", "lightning", "torch"])
def test_estimators_are_served_by_their_modules_too(binding: str) -> None:
    names = PACKAGES[f"horovod.spark.{binding}"]
    assert len(names) == 2
    assert names.items() <= PACKAGES[f"horovod.spark.{binding}.estimator"].items()


def test_scripts_can_compare_the_version_of_lightning() -> None:
    pytest.importorskip("lightning")
    from packaging.version import Version

    compat.install()
    try:
        minimum = importlib.import_module("horovod.spark.lightning.estimator").MIN_PL_VERSION
    finally:
        compat.uninstall()
    assert Version("1.9") < Version(minimum) <= Version(version("lightning"))
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    assert f'"lightning>={minimum}"' in project and f'"pytorch-lightning>={minimum}"' in project


def choose_a_backend(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if module.startswith(("spark_estimator.keras", "spark_estimator.estimators.keras")):
        if importlib.util.find_spec("keras") is None:
            pytest.skip("Keras is not installed here")
        monkeypatch.setenv("KERAS_BACKEND", "torch")  # which is; by default it looks for TensorFlow


def test_every_parent_is_served() -> None:
    for old in (*MODULES, *PACKAGES):
        parent = old.rpartition(".")[0]
        assert not parent or parent in PACKAGES or parent in MODULES, old


def test_no_submodule_hides_a_name_of_the_package_that_it_leads_to() -> None:
    # Importing horovod.torch.x sets the attribute x of spark_estimator.torch.
    for binding in ("torch", "tensorflow", "keras"):
        source = Path(importlib.util.find_spec(f"spark_estimator.{binding}").origin).read_text()  # type: ignore[union-attr,arg-type]
        listed = source.partition("__all__ = [\n    *_context.__all__,")[2].partition("]")[0]
        offered = [*context.__all__, *ast.literal_eval(f"[{listed}]")]
        assert len(offered) > 20
        for old in MODULES:
            parent, _, name = old.rpartition(".")
            if parent == f"horovod.{binding}":
                assert name not in offered, old


def test_there_is_advice_for_everything_else() -> None:
    assert set(INSTEAD) >= ROOTS
    assert "use `spark_estimator.keras` (available: horovod, " in advise("horovod.keras.nothing")
    assert "use `spark_estimator.spark`" in advise("horovod.spark.torch")
    assert "available: sparkdl, sparkdl.horovod" in advise("sparkdl.estimators")
    served = {*MODULES, *PACKAGES}
    bindings = {"horovod.torch", "horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras", "horovod.spark"}
    assert not [name for name in INSTEAD if name in served and name not in {*ROOTS, *bindings}]
