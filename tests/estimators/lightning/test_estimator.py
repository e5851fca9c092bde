"""Lightning's `TorchEstimator` on a real session: fit, transform, a rank that is killed, refusals, folders."""

from __future__ import annotations

import inspect
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

import spark_estimator.torch as hvd
from spark_estimator import DataError
from spark_estimator.env import ATTEMPT_VARIABLE, JOB_VARIABLE
from spark_estimator.estimators import backends
from spark_estimator.lightning import TorchEstimator, TorchModel
from spark_estimator.observe.status_line import Log
from spark_estimator.store import Store
from tests.estimators.conftest import TRUTH, line_rows, linear
from tests.estimators.histories import drop_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(500)


class Line(pl.LightningModule):  # type: ignore[misc]
    """Learns `line`'s y. It kills its process in the first attempt, on rank 1, in the second epoch, if it shall."""

    def __init__(self, mortal: bool = False, rate: float = 0.1) -> None:
        super().__init__()
        self.net = linear()
        self.mortal = mortal
        self.rate = rate

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        first = os.environ.get(JOB_VARIABLE) and os.environ[ATTEMPT_VARIABLE] == "1"
        if self.mortal and first and os.environ["HOROVOD_RANK"] == "1" and (self.current_epoch, number) == (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._loss(batch, "train_loss")

    def validation_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        return self._loss(batch, "val_loss")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.rate)

    def _loss(self, batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        errors = self(batch["features"]).reshape(-1) - batch["y"]
        loss = errors.square().mean()
        self.log(name, loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(errors))
        return loss


class SlowLine(Line):
    """Takes steps long enough for several progress reports."""

    def _loss(self, batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        time.sleep(0.2)
        loss = super()._loss(batch, name)
        self.log("error", loss.detach().sqrt(), on_step=False, on_epoch=True, sync_dist=True)
        return loss


def estimator(**changed: Any) -> TorchEstimator:
    parameters = {
        "num_proc": 2,
        "model": Line(),
        "feature_cols": ["features"],
        "label_cols": ["y"],
        "batch_size": 16,
        "epochs": 2,
        "random_seed": 7,
        "verbose": 0,
    }
    return TorchEstimator(**{**parameters, **changed})


def plain_estimator(**changed: Any) -> TorchEstimator:
    net = linear()
    of_torch = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.05), "loss": nn.MSELoss()}
    return estimator(**{**of_torch, **changed})


@pytest.mark.slow
def test_progress(line: DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Log, "interval", 0.2)
    estimator(model=SlowLine(), validation="held", epochs=3, verbose=1).fit(line)
    errors = capsys.readouterr().err.splitlines()
    lines = "\n".join(text for text in errors if text.startswith("spark_estimator: epoch "))
    assert re.search(r"epoch \d/3 \[#*\.*\], (validation )?step \d/[25], [^;]*loss \d", lines), lines
    assert re.search(r" rows/s, ETA [\d:]+, .*; epoch \d: loss [\d.]+, val_loss [\d.]+, error [\d.]+", lines), lines


@pytest.mark.slow
def test_a_module_learns_survives_a_lost_rank_and_is_saved(
    line: DataFrame, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as if no rank had been lost; with a callback of Lightning's, and a line for each epoch."""
    monkeypatch.setattr(backends, "replaces_ranks", lambda *_: False)  # as where executors do not reach the driver
    store = Store.create(str(tmp_path / "store"))
    parameters = {"validation": "held", "epochs": 6, "callbacks": [pl.callbacks.EarlyStopping("val_loss", patience=2)]}
    model = estimator(model=Line(mortal=True), store=store, run_id="run", max_restarts=1, verbose=1, **parameters).fit(
        line
    )
    lines = "".join(capfd.readouterr())
    assert "run 'run' resumes from its checkpoint after epoch 1" in lines
    assert "epoch 2/6, train loss " in lines and "GPU available" not in lines
    assert lines.count("The learning rate is multiplied by 2, the number of ranks: SGD lr ") == 2, "in each attempt"
    undisturbed = estimator(**parameters).fit(line)
    assert drop_times(model.getHistory()) == drop_times(undisturbed.getHistory())
    for parameter, other in zip(model.getModel().parameters(), undisturbed.getModel().parameters(), strict=True):
        assert torch.equal(parameter, other)
    assert numpy.allclose(model.getModel().net.weight.detach().ravel(), TRUTH, atol=0.1)  # type: ignore[union-attr]
    history = model.getHistory()
    assert [entry["epoch"] for entry in history] == list(range(6))
    assert history[-1]["validation"]["loss"] == pytest.approx(history[-1]["logged"]["val_loss"], rel=1e-4)
    assert history.to_rows()[-1]["val_loss"] == history[-1]["logged"]["val_loss"]

    # What it predicts, here and on Spark, of a frame and of a row.
    assert isinstance(model, TorchModel)
    features, _ = line_rows()
    row = line.first()
    (output,) = model.get_prediction_fn()(model.getModel(), row)
    assert output == pytest.approx(float(model.predict(features[:1])[0, 0]), abs=1e-6)
    first = model.transform(line).select("y__output").first()
    assert first is not None and first[0] == pytest.approx(float(output), abs=1e-6)

    # Its class is no class of PyTorch's: it is read into a module, or with trust.
    model.save(str(tmp_path / "model"))
    with pytest.raises(DataError, match=r"classes other than torch\.nn's own"):
        TorchModel.load(str(tmp_path / "model"))
    filled = TorchModel.load(str(tmp_path / "model"), model=Line())
    assert isinstance(filled, TorchModel)
    assert numpy.array_equal(filled.predict(features), model.predict(features))


@pytest.mark.slow
def test_gradients_travel_as_it_is_said(line: DataFrame) -> None:
    """In 16 bits, which round them: the weights are near those of whole gradients, and not the same."""
    whole, rounded = (
        estimator(epochs=1, gradient_compression=compression).fit(line).getModel().net.weight.detach()  # type: ignore[union-attr]
        for compression in (None, hvd.Compression.fp16)
    )
    assert not torch.equal(whole, rounded)
    assert torch.allclose(whole, rounded, atol=1e-2)


@pytest.mark.slow
def test_a_plain_module_is_trained_as_by_torch_estimator(line: DataFrame, tmp_path: Path) -> None:
    """Columns side by side, sample weights, metrics: the same numbers; estimator and model can be loaded again."""
    from spark_estimator import TorchEstimator as OfTorch

    parameters = {
        "feature_cols": ["x0", "x1", "x2"],
        "metrics": [nn.L1Loss()],
        "sample_weight_col": "w",
        "validation": 0.2,
        "prediction_col": "prediction",
    }
    ours = plain_estimator(**parameters)
    ours.save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"))
    model = loaded.fit(line)
    net = linear()
    of_torch = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.05), "loss": nn.MSELoss()}
    common = {"num_proc": 2, "label_cols": ["y"], "batch_size": 16, "epochs": 2, "random_seed": 7, "verbose": 0}
    theirs = OfTorch(**{**of_torch, **common, **parameters}).fit(line)
    assert drop_times(model.getHistory()) == drop_times(theirs.getHistory())
    for parameter, other in zip(model.getModel().parameters(), theirs.getModel().parameters(), strict=True):
        assert torch.equal(parameter, other)
    assert type(model.getModel()) is nn.Linear
    model.save(str(tmp_path / "model"))
    again = TorchModel.load(str(tmp_path / "model"))
    assert again.transform(line).select("prediction").first() == model.transform(line).select("prediction").first()


@pytest.mark.slow
def test_the_other_package_several_labels_and_the_store(spark: SparkSession, tmp_path: Path) -> None:
    """`pytorch_lightning`, whose classes are others; doubles that are classes; the model is returned through a file."""
    old = pytest.importorskip("pytorch_lightning")

    class Two(old.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(5, 4)
            self.kind, self.odd = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, item: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            both = torch.cat([self.items(item), x], dim=1)
            return self.kind(both), torch.sigmoid(self.odd(both))

        def training_step(self, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
            kind, odd = self(batch["item"], batch["x"])
            assert self.trainer.world_size >= 1
            loss = nn.functional.cross_entropy(kind, batch["kind"])
            return {"loss": loss + nn.functional.binary_cross_entropy(odd.reshape(-1), batch["odd"].float())}

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01 * self.trainer.world_size)

    rows = [(n % 5, [float(n % 3), 1.0], float(n % 3), n % 2) for n in range(40)]
    frame = spark.createDataFrame(rows, "item long, x array<double>, kind double, odd int")
    model = estimator(
        model=Two(),
        feature_cols=["item", "x"],
        label_cols=["kind", "odd"],
        epochs=1,
        store=Store.create(str(tmp_path)),
        trainer_args={"gradient_clip_val": 1.0},
    ).fit(frame)
    assert isinstance(model.getModel(), old.LightningModule)
    predicted = model.transform(frame).select("kind__output", "odd__output").first()
    assert predicted is not None and len(predicted.kind__output) == 3
    assert 0 < predicted.odd__output < 1, "the module's loss is not known: nothing is rounded"


class NoForward(Line):
    forward = pl.LightningModule.forward


class NoStep(Line):
    training_step = pl.LightningModule.training_step


class Strange(Line):
    """Asks for a column that there is none of."""

    def training_step(self, batch: Any, number: int) -> Any:
        return self._loss({"features": batch["features"], "y": batch["label"]}, "train_loss")


class ByRow(Line):
    def training_step(self, batch: Any, number: int) -> Any:
        return (self(batch["features"]).reshape(-1) - batch["y"]) ** 2


class Endless(Line):
    def training_step(self, batch: Any, number: int) -> Any:
        return super().training_step(batch, number) / 0


class NoTensor(Line):
    def training_step(self, batch: Any, number: int) -> Any:
        return {"loss": float(super().training_step(batch, number))}


class Manual(Line):
    automatic_optimization = False


class Named(Line):
    def forward(self, x: torch.Tensor) -> Any:
        return {"y": self.net(x)}


class Old(Line):
    """Has a hook of Lightning 1."""

    def training_step_end(self, output: Any) -> Any:
        raise AssertionError("nothing calls it")


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"model": None}, TypeError, "model must be a LightningModule, or a torch.nn.Module with optimizer and loss"),
        ({"model": NoForward()}, ValueError, r"NoForward has no forward\(\), which predicts"),
        ({"model": NoStep()}, ValueError, r"NoStep has no training_step\(\)"),
        ({"label_cols": None}, ValueError, "label_cols is required"),
        (
            {"callbacks": [print]},
            TypeError,
            "callbacks are Callbacks of lightning.pytorch, as the model is; one was <b",
        ),
        ({"data_module": Line()}, ValueError, r"data_module is not supported, got .*data\.loader\(batch_size\)"),
        (
            {"model": torch.compile(Line())},
            ValueError,
            "model was wrapped by torch.compile: pass the module itself, and compile=True",
        ),
        ({"num_gpus": 2}, ValueError, "num_gpus=2: each process has one GPU; ask for more of them by num_proc"),
        ({"trainer_args": {"strategy": "ddp"}}, ValueError, r"trainer_args\['strategy'\] = 'ddp' is not taken: the ra"),
        (
            {"trainer_args": {"devices": 2}},
            ValueError,
            r"trainer_args\['devices'\] = 2 is not taken: each rank has one",
        ),
        (
            {"trainer_args": {"max_epoch": 2}},
            TypeError,
            "has 'max_epoch', which no Trainer of .* Did you mean 'max_epo",
        ),
        ({"trainer_args": 5}, TypeError, "trainer_args must be a dict of arguments of the Trainer; got 5"),
        ({"checkpoint_every_steps": 5}, ValueError, "checkpoint_every_steps needs a store"),
        ({"model": Manual(), "backward_passes_per_step": 2}, ValueError, "Manual optimizes by hand"),
        ({"model": Strange()}, DataError, "asked its batch for 'label': it is a dict of 'features', 'y'"),
        ({"model": ByRow()}, DataError, r"the loss has the shape \[100\]; it has to be one number"),
        ({"model": Endless()}, DataError, "the loss of the first 100 rows is inf"),
        ({"model": NoTensor()}, DataError, r"training_step returned .* of type float: return the loss"),
        ({"model": Named()}, DataError, "the model returned a dict of 'y'|don't fit the columns"),
        ({"feature_cols": ["x0", "x1"]}, DataError, "asked its batch for 'features': it is a dict of 'x0', 'x1', 'y'"),
        ({"store": 5}, TypeError, "store must be a Store"),
        (
            {"model": Old()},
            ValueError,
            r"Old has training_step_end\(\), which Lightning 2 does not call: return from training_step\(\)",
        ),
    ],
)
def test_refused_before_any_rank_starts(
    line: DataFrame, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        estimator(**changed).fit(line)


def test_a_plain_module_needs_its_parts(line: DataFrame) -> None:
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim optimizer"):
        plain_estimator(optimizer=None).fit(line)
    with pytest.raises(
        TypeError, match=r"model is a Linear, a torch\.nn\.Module and not a LightningModule: give it op"
    ):
        estimator(model=nn.Linear(3, 1)).fit(line)


def test_what_has_no_effect_is_said(line: DataFrame) -> None:
    for name in ("loader_num_epochs", "debug_data_loader", "train_async_data_loader_queue_size", "reader_pool_type"):
        with pytest.warns(UserWarning, match=f"{name} has no effect: ") as caught:
            TorchEstimator(**{name: 2})
        assert caught[0].filename == __file__
    with (
        pytest.warns(UserWarning, match="loss: no effect, as Line is a LightningModule"),
        pytest.raises(DataError, match="no column 'nothing'"),
    ):
        estimator(loss=nn.MSELoss(), feature_cols=["nothing"]).fit(line)
    assert {"logger", "num_gpus", "data_module", "trainer_args"} <= set(inspect.signature(TorchEstimator).parameters)
    assert estimator(num_gpus=0).getUseGpu() is False
    assert estimator().setTrainerArgs({"max_epochs": 3}).getTrainerArgs() == {"max_epochs": 3}


def test_horovods_parameters_without_effect() -> None:
    from spark_estimator.lightning import TorchEstimator

    made = TorchEstimator().setNumGPUs(1)
    assert made.getNumGPUs() == 1
    for accessor in (
        "DebugDataLoader",
        "LoaderNumEpochs",
        "TrainAsyncDataLoaderQueueSize",
        "TrainMinibatchFn",
        "ValAsyncDataLoaderQueueSize",
    ):
        with pytest.warns(UserWarning, match=" has no effect: "):
            getattr(made, f"set{accessor}")(3)
        assert getattr(made, f"get{accessor}")() == 3
