"""Parameters of estimators: names, checks, and Spark ML's handling of them."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import TorchEstimator, TorchModel
from spark_estimator.estimators.params import WITHOUT_EFFECT
from spark_estimator.store import Store
from tests.estimators.torch_models import model_of


def test_setters_chain_and_getters_give_back() -> None:
    estimator = TorchEstimator(num_proc=2).setEpochs(3).setBatchSize(16).setFeatureCols(["a", "b"])
    assert (estimator.getNumProc(), estimator.getEpochs(), estimator.getBatchSize()) == (2, 3, 16)
    assert estimator.getFeatureCols() == ["a", "b"]
    assert estimator.getValidation() is None


def test_defaults_are_horovod_s() -> None:
    estimator = TorchEstimator()
    assert (estimator.getBatchSize(), estimator.getEpochs(), estimator.getVerbose()) == (32, 1, 1)
    assert estimator.getShuffle() is True
    assert estimator.getBackwardPassesPerStep() == 1


def test_none_is_the_default() -> None:
    """Code that passes options on sets None for those that its own caller left out."""
    estimator = TorchEstimator(epochs=None, shuffle=None, nulls=None, metrics=None)  # type: ignore[arg-type]
    estimator.setBatchSize(None)  # type: ignore[arg-type]
    chosen = [estimator.getEpochs(), estimator.getShuffle(), estimator.getNulls(), estimator.getBatchSize()]
    assert chosen == [1, True, "error", 32]
    assert estimator.getOrDefault("epochs") == estimator.getOrDefault(estimator.epochs) == 1
    assert estimator.copy({estimator.epochs: 3}).getEpochs() == 3


def test_the_signature_shows_the_parameters() -> None:
    signature = inspect.signature(TorchEstimator)
    assert signature.parameters["batch_size"].default == 32
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in signature.parameters.values())


def test_copies_do_not_share() -> None:
    first = TorchEstimator(epochs=1)
    second = first.copy({first.epochs: 5})
    assert (first.getEpochs(), second.getEpochs()) == (1, 5)


def test_estimators_and_models_are_pickled() -> None:
    made = TorchEstimator(model=nn.Linear(3, 1), feature_cols=["x"], label_cols=["y"], epochs=7)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.uid, copy.getEpochs()) == (made.uid, 7)
    with pytest.raises((TypeError, ValueError), match="epochs"):
        copy.setEpochs("many")
    model = model_of(nn.Linear(3, 1))
    features = numpy.ones((2, 3), numpy.float32)
    loaded = pickle.loads(pickle.dumps(model))
    assert numpy.array_equal(loaded.predict(features), model.predict(features))
    assert loaded.copy({loaded.batch_size: 3}).getBatchSize() == 3 and loaded.getParam("batch_size") == model.batch_size


def test_explain_params_tells_each() -> None:
    text = TorchEstimator().explainParams()
    assert "batch_size: rows per batch on each process (default: 32)" in text


def test_parameters_are_named_and_a_store_may_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"takes keyword arguments only, as in TorchEstimator\(model=...\)"):
        TorchEstimator(torch.nn.Linear(2, 1))
    store = TorchEstimator(store=str(tmp_path)).getStore()
    assert isinstance(store, Store) and store.get_runs_path() == str(tmp_path / "runs")


def test_what_has_no_effect_is_said_at_once() -> None:
    names = sorted(WITHOUT_EFFECT)[:3]
    with pytest.warns(UserWarning) as caught:
        TorchEstimator(**dict.fromkeys(names, 1))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert all(f"{name} has no effect: " in str(caught[0].message) for name in names)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_what_horovod_needed_is_taken_and_explained(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect: "):
        TorchEstimator(**{name: 1})


def test_a_clients_columns_of_spark_ml_stay_its_own() -> None:
    """Horovod has none of these names. SynapseML mixes in Spark ML's, or a class with a Param of this name."""
    from pyspark.ml.base import _PredictorParams
    from pyspark.ml.param import Param, Params

    class Mixed(TorchModel, _PredictorParams):
        def __init__(self, **values: object) -> None:
            super().__init__()
            self._setDefault(predictionCol="prediction")
            self._set(**values)

    class HasOwn(Params):
        prediction_col: Param[str] = Param(Params._dummy(), "prediction_col", "its own")

        def getPredictionCol(self) -> str:
            return f"own {self.getOrDefault('prediction_col')}"

    class Named(TorchModel, HasOwn):
        pass

    assert (Mixed().getPredictionCol(), Mixed(predictionCol="p").getPredictionCol()) == ("prediction", "p")
    named = Named()
    named._set(prediction_col="p")
    assert named.getPredictionCol() == "own p" and not named._has_own("prediction_col")
    assert named.setRawPredictionCol("r").getRawPredictionCol() == "r" and named._has_own("raw_prediction_col")
    assert TorchModel().setPredictionCol("p").getPredictionCol() == "p" and TorchModel()._has_own("prediction_col")
