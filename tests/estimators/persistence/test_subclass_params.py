"""What a user's subclass adds to a saved folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.param import Param, Params
from torch import nn

from spark_estimator import DataError, TorchEstimator
from spark_estimator.estimators.params import TableParams
from spark_estimator.estimators.persistence.subclass_params import make_instance, write_subclass


class Adding(TorchEstimator):
    plain = Param(Params._dummy(), "plain", "a list")
    special = Param(Params._dummy(), "special", "a function")

    def __init__(self, needed: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._setDefault(plain=[1], special=None, epochs=4)
        self.needed = needed


def test_values_that_json_has_need_no_trust(tmp_path: Path) -> None:
    made = Adding(1)
    assert write_subclass(made, tmp_path)["subclass_params"]["defaults"] == {"plain": [1], "special": None, "epochs": 4}
    assert not list(tmp_path.iterdir())
    made._set(plain=["a", {"b": None}])
    made.save(str(tmp_path / "saved"))
    loaded = Adding.load(str(tmp_path / "saved"))
    assert loaded.getOrDefault("plain") == ["a", {"b": None}] and loaded.getEpochs() == 4
    assert not hasattr(loaded, "needed"), "its constructor is not called"


def test_other_values_need_trust(tmp_path: Path) -> None:
    made = Adding(1)
    made._set(special=lambda: 3, plain=(1, 2))
    made.save(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="loading its parameters plain, special could run any code"):
        Adding.load(str(tmp_path / "saved"))
    loaded = Adding.load(str(tmp_path / "saved"), trust=True)
    assert loaded.getOrDefault("special")() == 3 and loaded.getOrDefault("plain") == (1, 2)


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    made = Adding(1)
    made._set(special=(number for number in [1]))
    with pytest.raises(DataError, match="special cannot be saved: TypeError"):
        made.save(str(tmp_path / "saved"))


def test_a_plain_estimator_adds_nothing(tmp_path: Path) -> None:
    assert write_subclass(TorchEstimator(model=nn.Linear(1, 1)), tmp_path) == {}
    assert make_instance(Adding, TableParams, epochs=2).getEpochs() == 2
