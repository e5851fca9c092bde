"""The table of old names: what it leads to exists, and what it does not serve has advice."""

from __future__ import annotations

import importlib

import pytest

from spark_estimator.compat.aliases import INSTEAD, MODULES, PACKAGES, ROOTS, advice


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_modules_exist(old: str, new: str) -> None:
    assert importlib.import_module(new).__name__ == new


@pytest.mark.parametrize(
    ("old", "target"), [(f"{old}.{name}", target) for old, names in PACKAGES.items() for name, target in names.items()]
)
def test_names_exist(old: str, target: str) -> None:
    module, _, name = target.partition(":")
    assert getattr(importlib.import_module(module), name).__name__ == name


def test_every_parent_is_served() -> None:
    for old in (*MODULES, *PACKAGES):
        parent = old.rpartition(".")[0]
        assert not parent or parent in PACKAGES or parent in MODULES, old


def test_no_submodule_hides_a_name_of_the_package_that_it_leads_to() -> None:
    # Importing horovod.torch.x sets the attribute x of spark_estimator.torch.
    package = importlib.import_module("spark_estimator.torch")
    for old in MODULES:
        parent, _, name = old.rpartition(".")
        if parent == "horovod.torch":
            assert name not in package.__all__, old


def test_there_is_advice_for_everything_else() -> None:
    assert set(INSTEAD) >= ROOTS
    assert "TensorFlow binding is not there yet (served: horovod, " in advice("horovod.tensorflow.keras.callbacks")
    assert "see `spark_estimator.spark`" in advice("horovod.spark.torch")
    assert "served: sparkdl, sparkdl.horovod" in advice("sparkdl.estimators")
    served = {*MODULES, *PACKAGES}
    assert not [name for name in INSTEAD if name in served and name not in {*ROOTS, "horovod.torch", "horovod.spark"}]
