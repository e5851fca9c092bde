"""Fits that lose a rank which was warned before: a checkpoint has what was done until then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import WorkerFailedError
from spark_estimator.store import Store
from tests.estimators.histories import drop_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Fit = Callable[[DataFrame, dict[str, Any], "Harm"], Any]

# 120 rows in batches of 3 on two ranks: 20 steps, in one epoch.
WARNED_AT, LOST_AT = 4, 12


class Harm:
    """Called before each step of a rank: warns rank 1 once, and kills it when there is a checkpoint.

    Args:
        folder: where each process writes down its steps.
        checkpoint: its path; "" for no harm.
    """

    def __init__(self, folder: Path, checkpoint: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.checkpoint = checkpoint

    def __call__(self, step: int) -> None:
        rank = int(os.environ["HOROVOD_RANK"])
        with (self.folder / f"{rank}-{os.getpid()}").open("a") as file:
            file.write(f"{step}\n")
        if not self.checkpoint or rank != 1:
            return
        if step == WARNED_AT:
            os.kill(os.getpid(), signal.SIGUSR2)
        if step == LOST_AT:
            while not os.path.exists(self.checkpoint):  # the test's time-out ends this
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)

    def list_steps(self) -> list[list[int]]:
        """The steps of each process of rank 1, first to last."""
        files = sorted(self.folder.glob("1-*"), key=lambda path: path.stat().st_mtime)
        return [[int(line) for line in path.read_text().split()] for path in files]


def fit_torch(frame: DataFrame, parameters: dict[str, Any], harm: Harm) -> Any:
    import torch

    from spark_estimator import TorchEstimator
    from spark_estimator.estimators.torch.callbacks import Callback

    class Harming(Callback):
        def on_batch_end(self, step: int, loss: float) -> None:
            harm(step)

    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return TorchEstimator(
        model=model, optimizer=optimizer, loss=torch.nn.MSELoss(), callbacks=[Harming()], **parameters
    ).fit(frame)


def fit_lightning(frame: DataFrame, parameters: dict[str, Any], harm: Harm) -> Any:
    pl: Any = pytest.importorskip("lightning.pytorch")
    import torch

    from spark_estimator.lightning import TorchEstimator

    class Learner(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def forward(self, x: Any) -> Any:
            return self.net(x.reshape(-1, 1))

        def training_step(self, batch: Any, number: int) -> Any:
            if "HOROVOD_RANK" in os.environ:  # not on the driver, which tries the module
                harm(number)
            loss = torch.nn.functional.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    torch.manual_seed(1)
    return TorchEstimator(model=Learner(), **parameters).fit(frame)


def fit_keras(frame: DataFrame, parameters: dict[str, Any], harm: Harm) -> Any:
    keras: Any = pytest.importorskip("keras")
    from spark_estimator import KerasEstimator

    class Harming(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            harm(batch)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    return KerasEstimator(
        model=model, optimizer=keras.optimizers.Adam(0.01), loss="mse", callbacks=[Harming()], **parameters
    ).fit(frame)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "fit",
    [fit_torch, pytest.param(fit_lightning, marks=pytest.mark.slow), pytest.param(fit_keras, marks=pytest.mark.slow)],
)
def test_a_warning_brings_a_checkpoint_from_which_the_run_continues(
    fit: Fit, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_PREEMPTION_SIGNAL", "USR2")
    frame = spark.range(120).selectExpr("float(sin(id)) x", "float(cos(id)) y")
    store = Store.create(str(tmp_path / "store"))
    parameters = {"feature_cols": ["x"], "label_cols": ["y"], "num_proc": 2, "batch_size": 3, "random_seed": 3}
    whole = fit(frame, {**parameters, "epochs": 1}, Harm(tmp_path / "whole"))
    harm = Harm(tmp_path / "warned", store.get_checkpoint_path("run"))
    kept = {**parameters, "epochs": 1, "store": store, "run_id": "run"}
    with pytest.raises(WorkerFailedError, match=r"rank 1 .* was killed by signal 9"):
        fit(frame, kept, harm)
    again = fit(frame, kept, Harm(tmp_path / "warned"))
    first, second = harm.list_steps()
    assert first[-1] == LOST_AT
    assert second in ([*range(WARNED_AT + 1, 20)], [*range(WARNED_AT + 2, 20)]), "of the rest, each step once"
    assert drop_times(again.getHistory()) == drop_times(whole.getHistory())
