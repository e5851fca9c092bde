"""Parameters of estimators: names, checks, Spark ML's own ways with them."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy
import pytest
import torch

from spark_estimator import TorchEstimator
from spark_estimator.estimators.params import WITHOUT_EFFECT
from spark_estimator.estimators.torch.parts import check_numbers
from spark_estimator.store import Store


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


def test_the_signature_shows_the_parameters() -> None:
    signature = inspect.signature(TorchEstimator)
    assert signature.parameters["batch_size"].default == 32
    assert all(one.kind is one.KEYWORD_ONLY for one in signature.parameters.values())


def test_copies_do_not_share() -> None:
    first = TorchEstimator(epochs=1)
    second = first.copy({first.epochs: 5})
    assert (first.getEpochs(), second.getEpochs()) == (1, 5)


def test_explain_params_tells_each() -> None:
    text = TorchEstimator().explainParams()
    assert "batch_size: rows of a batch, on each process (default: 32)" in text


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"epochs": 0}, ValueError, "epochs is at least 1; it was 0"),
        ({"epochs": 1.5}, TypeError, r"epochs is a whole number; it was 1\.5"),
        ({"num_proc": True}, TypeError, "num_proc is a whole number"),
        ({"feature_cols": "x"}, TypeError, r"feature_cols is a list of column names.*say \['x'\]"),
        ({"feature_cols": ["x", "x"]}, ValueError, "feature_cols names 'x' twice"),
        ({"validation": 1.0}, ValueError, "validation as a share of the rows is at least 0 and less than 1"),
        ({"validation": [0.1]}, ValueError, "validation is a share of the rows, or a column's name"),
        ({"input_shapes": [[20]]}, ValueError, r"shapes that begin with -1.*it holds \[20\]"),
        ({"nulls": "ignore"}, ValueError, "nulls is 'error', 'drop', or a number"),
        ({"padding": {"x": "0"}}, TypeError, "padding is a number that fills shorter arrays up, or a dict"),
        ({"decoders": {"x": 1}}, TypeError, "decoders is a dict with a function for each of some columns"),
        ({"loss_weights": "1"}, TypeError, "loss_weights is a list of numbers; it was '1'"),
        ({"transformation_fn": "f"}, TypeError, "transformation_fn is a function; it was 'f'"),
        ({"transformation_edit_fields": [("x", "no type")]}, ValueError, "is a list of .name, numpy type, shape"),
        ({"shuffle": "yes"}, TypeError, "shuffle is True or False"),
        (
            {"epoch": 3},
            TypeError,
            r"has no parameter 'epoch' \(did you mean 'epochs'\?\); it has .*epochs",
        ),
        ({"lr": 0.1}, TypeError, r"no parameter 'lr' \(did you mean 'learning_rate'\?\)"),
    ],
)
def test_bad_values_are_refused_at_once(given: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TorchEstimator(**given)


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"nulls": numpy.int64(0), "padding": numpy.float32(0.5), "learning_rate": numpy.float64(0.1)}
    estimator = TorchEstimator(**given, validation=numpy.float32(0.25), shuffle=numpy.bool_(False))
    assert (estimator.getNulls(), estimator.getPadding(), estimator.getLearningRate()) == (0.0, 0.5, 0.1)
    assert (estimator.getValidation(), estimator.getShuffle()) == (0.25, False)


def test_a_complex_buffer_that_does_not_travel_is_none_of_our_business() -> None:
    model = torch.nn.Linear(2, 1)
    model.register_buffer("turns", torch.ones(2, dtype=torch.complex64), persistent=False)
    check_numbers(model)
    model.register_buffer("kept", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"the model's kept is of torch\.complex64"):
        check_numbers(model)


def test_parameters_are_named_and_a_store_may_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"takes its parameters by name, as in TorchEstimator\(model=...\)"):
        TorchEstimator(NET)
    store = TorchEstimator(store=str(tmp_path)).getStore()
    assert isinstance(store, Store) and store.get_runs_path() == str(tmp_path / "runs")


def test_what_has_no_effect_is_said_at_once() -> None:
    names = sorted(WITHOUT_EFFECT)[:3]
    with pytest.warns(UserWarning) as caught:
        TorchEstimator(**dict.fromkeys(names, 1))
    assert len(caught) == 1 and all(f"{name} has no effect: " in str(caught[0].message) for name in names)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_what_horovod_needed_is_taken_and_explained(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect: "):
        TorchEstimator(**{name: 1})


NET = torch.nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"model": None}, TypeError, "model is a torch.nn.Module; it was None"),
        ({"optimizer": torch.optim.SGD}, TypeError, "optimizer is an optimizer of torch.optim, made with the model's"),
        ({"optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)}, ValueError, "not the model's"),
        ({"label_cols": None}, ValueError, "label_cols names the columns"),
        ({"label_cols": ["a", "b"]}, ValueError, "losses: 1 for 2 label columns"),
        ({"loss": None}, ValueError, "loss says what the model is trained for"),
        ({"loss": torch.nn.MSELoss}, TypeError, r"loss has the class MSELoss, and needs an object: MSELoss\(\)"),
        ({"metrics": ["accuracy"]}, TypeError, "metrics has functions of .*; one was 'accuracy'"),
        ({"loss_weights": [1, 2]}, ValueError, "2 loss_weights were given for 1 losses"),
        (
            {"model": torch.nn.LazyLinear(1)},
            ValueError,
            "model's weight has no shape yet.* call the model",
        ),
        ({"model": torch.nn.Linear(2, 1, dtype=torch.complex64)}, ValueError, "weight is of torch.complex64"),
        ({"store": Store.create("/tmp"), "run_id": "../other"}, ValueError, "run_id names a folder; it was '../other'"),
        ({"metrics": [[], []]}, ValueError, "metrics has 2 lists for 1 label columns"),
        ({"backend": object(), "num_proc": 2}, ValueError, "num_proc and backend were both given"),
        ({"backend": object()}, TypeError, r"backend is a SparkBackend, or another Backend with run\(\) and"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(
    changed: dict[str, object], error: type[Exception], words: str
) -> None:
    given = {
        "model": NET,
        "optimizer": torch.optim.SGD(NET.parameters(), 0.1),
        "loss": torch.nn.MSELoss(),
        "label_cols": ["y"],
        **changed,
    }
    with pytest.raises(error, match=words):
        TorchEstimator(**given)._fit(None)  # type: ignore[arg-type]  # it is not looked at
