"""A run that has finished: the same fit again trains nothing and warns, also at verbose=0; how to train on.

The right weights are those of full batches in plain NumPy: SGD with momentum, whose velocity shows whether the
optimizer's state is there.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from tests.estimators.conftest import ROWS, line_rows, linear

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE, MOMENTUM, RANKS = 0.05, 0.9, 2
FIRST, SECOND = slice(0, 120), slice(120, 203)
pytestmark = pytest.mark.timeout(300)


def part(spark: SparkSession, rows: slice) -> DataFrame:
    """Some of the rows of `line_rows`."""
    features, labels = line_rows()
    values = [([float(x) for x in row], float(y)) for row, y in zip(features[rows], labels[rows], strict=True)]
    return spark.createDataFrame(values, "features array<float>, y float")


def expected(weights: Any, bias: Any, *epochs: slice) -> tuple[Any, Any]:
    """Weights and bias after an epoch on each of some rows."""
    features, labels = (array.astype(numpy.float64) for array in line_rows())
    numbers = numpy.array([*numpy.asarray(weights, numpy.float64).reshape(-1), float(numpy.asarray(bias).reshape(()))])
    velocity = numpy.zeros_like(numbers)
    for rows in epochs:
        inputs = numpy.c_[features[rows], numpy.ones(len(labels[rows]))]
        gradient = 2 * inputs.T @ (inputs @ numbers - labels[rows]) / len(inputs)
        velocity = MOMENTUM * velocity + gradient
        numbers = numbers - RATE * RANKS * velocity
    return numbers[:-1], numbers[-1]


def numbers_of(model: Any) -> Any:
    """Weights and bias of a linear module of PyTorch."""
    return numpy.concatenate([value.detach().numpy().reshape(-1) for value in model.state_dict().values()])


def fresh(epochs: tuple[slice, ...]) -> Any:
    net = linear()
    return numpy.append(*expected(net.weight.detach(), net.bias.detach(), *epochs))


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Fails at a warning about a run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="run_id=")
        yield


def momentum(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), RATE, momentum=MOMENTUM)


SHARED: dict[str, Any] = {
    "num_proc": RANKS,
    "feature_cols": ["features"],
    "label_cols": ["y"],
    "batch_size": ROWS,
    "random_seed": 7,
    "verbose": 0,
    "run_id": "run",
}


def test_pytorch(spark: SparkSession, tmp_path: Path) -> None:
    def estimator(**changed: Any) -> TorchEstimator:
        net = changed.pop("model", None) or linear()
        parameters = {"optimizer": momentum(net), "loss": nn.MSELoss(), "store": str(tmp_path), "epochs": 2}
        return TorchEstimator(**{**SHARED, "model": net, **parameters, **changed})

    first, second = part(spark, FIRST), part(spark, SECOND)
    with silent():
        trained = estimator().fit(first)
    numpy.testing.assert_allclose(numbers_of(trained.getModel()), fresh((FIRST, FIRST)), rtol=1e-4)

    other = nn.Linear(3, 1)
    with pytest.warns(UserWarning, match="run_id='run' has finished before, after 2 epochs: nothing was tr") as caught:
        again = estimator(model=other, num_proc=1, random_seed=8).fit(first)
    assert (
        "Without effect: random_seed=8 (the run has 7), num_proc=1 (the run had 2), the model's weights (the run began "
        "with others)." in str(caught[-1].message)
    )
    assert caught[-1].filename == __file__
    assert (numbers_of(again.getModel()) == numbers_of(trained.getModel())).all()

    with pytest.raises(DataError, match=r"set resume_on_other_rows=True to continue the run with these rows"):
        estimator(epochs=4).fit(second)
    right = fresh((FIRST, FIRST, SECOND, SECOND))
    with silent():
        continued = estimator(epochs=4, resume_on_other_rows=True).fit(second)
    assert [entry["epoch"] for entry in continued.getHistory()] == [0, 1, 2, 3]
    numpy.testing.assert_allclose(numbers_of(continued.getModel()), right, rtol=1e-4)
    with silent():
        # Without a store: the optimizer has its state.
        model, optimizer = trained.getModel(), trained.getOptimizer()
        new = estimator(model=model, optimizer=optimizer, store=None, run_id=None).fit(second)
    assert [entry["epoch"] for entry in new.getHistory()] == [0, 1]
    numpy.testing.assert_allclose(numbers_of(new.getModel()), right, rtol=1e-4)


def test_lightning(spark: SparkSession, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from spark_estimator.lightning import TorchEstimator as LightningEstimator

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.inner(features)
            return output

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return nn.functional.mse_loss(self(batch["features"]).reshape(-1), batch["y"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return momentum(self)

    def estimator(**changed: Any) -> LightningEstimator:
        return LightningEstimator(**{**SHARED, "model": Module(), "store": str(tmp_path), "epochs": 2, **changed})

    with silent():
        trained = estimator().fit(part(spark, FIRST))
    with pytest.warns(UserWarning, match="run_id='run' has finished before, after 2 epochs: nothing was trained"):
        again = estimator().fit(part(spark, FIRST))
    assert (numbers_of(again.getModel()) == numbers_of(trained.getModel())).all()
    with silent():
        continued = estimator(epochs=4, resume_on_other_rows=True).fit(part(spark, SECOND))
    numpy.testing.assert_allclose(numbers_of(continued.getModel()), fresh((FIRST, FIRST, SECOND, SECOND)), rtol=1e-4)


def test_keras(spark: SparkSession, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    from spark_estimator import KerasEstimator

    net = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    sgd = keras.optimizers.SGD(RATE, momentum=MOMENTUM)

    def estimator(**changed: Any) -> KerasEstimator:
        parameters = {"model": net, "optimizer": sgd, "loss": "mse", "store": str(tmp_path), "epochs": 2}
        return KerasEstimator(**{**SHARED, **parameters, **changed})

    def numbers(model: Any) -> Any:
        return numpy.concatenate([value.reshape(-1) for value in model.get_weights()])

    begun = [value.copy() for value in net.get_weights()]
    with silent():
        trained = estimator().fit(part(spark, FIRST)).getModel()
    with pytest.warns(UserWarning, match="run_id='run' has finished before, after 2 epochs: nothing was trained"):
        again = estimator().fit(part(spark, FIRST)).getModel()
    assert (numbers(again) == numbers(trained)).all()
    right = numpy.append(*expected(*begun, FIRST, FIRST, SECOND, SECOND))
    with silent():
        continued = estimator(epochs=4, resume_on_other_rows=True).fit(part(spark, SECOND)).getModel()
    numpy.testing.assert_allclose(numbers(continued), right, rtol=1e-4)
    with silent():
        # Without a store: the model is compiled with its optimizer, which has its state.
        new = estimator(model=trained, optimizer=None, store=None, run_id=None).fit(part(spark, SECOND)).getModel()
    numpy.testing.assert_allclose(numbers(new), right, rtol=1e-4)


def test_transformers(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from spark_estimator import TransformersEstimator
    from tests.scenarios.huggingface import tiny

    def texts(seed: int) -> DataFrame:
        rows = [(row["text"], "good" if row["label"] else "bad") for row in tiny.sentences(40, seed=seed)]
        return spark.createDataFrame(rows, "text string, kind string")

    torch.manual_seed(1)
    net = tiny.classifier()

    def estimator(**changed: Any) -> TransformersEstimator:
        parameters = {"num_proc": RANKS, "batch_size": 40, "max_length": 16, "random_seed": 1, "verbose": 0}
        of_run = {"store": str(tmp_path), "run_id": "run", "epochs": 2, "label_col": "kind"}
        return TransformersEstimator(model=net, tokenizer=tiny.tokenizer(), **{**parameters, **of_run, **changed})

    def steps() -> set[float]:
        kept = torch.load(tmp_path / "runs" / "run" / "checkpoint", weights_only=True)
        return {float(state["step"]) for state in kept["optimizer"]["state"].values()}

    with silent():
        estimator().fit(texts(1))
    assert steps() == {2}
    with pytest.warns(UserWarning, match="run_id='run' has finished before, after 2 epochs: nothing was trained"):
        estimator().fit(texts(1))
    with silent():
        continued = estimator(epochs=3, resume_on_other_rows=True).fit(texts(2))
    assert steps() == {3} and len(continued.getHistory()) == 3
