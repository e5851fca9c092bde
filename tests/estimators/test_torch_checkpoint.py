"""What outlives an epoch: checkpoints, resumed runs, early stopping, schedules; and what is left of a killed one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from spark_estimator import TorchEstimator, WorkerFailedError
from spark_estimator.env import ATTEMPT_VARIABLE, JOB_VARIABLE
from spark_estimator.store import Store

from .conftest import linear

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)


def chancy() -> nn.Module:
    """Its training depends on chance."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def test_a_run_goes_on_from_its_checkpoint_to_the_very_same_numbers(
    line: DataFrame, estimator: Make, tmp_path: Path
) -> None:
    def run(store: Store, epochs: int) -> Any:
        net = chancy()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        given = {"lr_scheduler": scheduler, "store": store, "run_id": "run", "epochs": epochs, "validation": 0.2}
        return estimator(model=net, optimizer=optimizer, **given, random_seed=None if epochs > 2 else 9).fit(line)

    store = Store.create(str(tmp_path / "store"))
    run(store, 2)
    resumed = run(store, 4)  # the seed is the checkpoint's
    assert [entry["epoch"] for entry in resumed.getHistory()] == [0, 1, 2, 3]
    kept = torch.load(tmp_path / "store" / "runs" / "run" / "checkpoint", weights_only=True)
    assert (kept["epoch"], kept["seed"]) == (3, 9)
    assert kept["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.01 / 16), "four epochs; nothing of the ranks"

    net = chancy()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    whole = estimator(
        model=net, optimizer=optimizer, lr_scheduler=scheduler, epochs=4, validation=0.2, random_seed=9
    ).fit(line)
    assert whole.getHistory() == resumed.getHistory()
    for name, value in whole.getModel().state_dict().items():
        assert torch.equal(value, resumed.getModel().state_dict()[name]), name
    again = run(store, 4)
    assert again.getHistory() == resumed.getHistory(), "there was nothing left to do"


def test_early_stopping_brings_back_the_best(line: DataFrame, estimator: Make) -> None:
    """A learning rate that makes it worse each epoch: the first one is the best."""
    net = linear()
    growing = torch.optim.SGD(net.parameters(), lr=0.45)
    scheduler = torch.optim.lr_scheduler.LambdaLR(growing, lambda epoch: 1.4**epoch)
    model = estimator(
        model=net,
        optimizer=growing,
        lr_scheduler=scheduler,
        epochs=30,
        batch_size=60,
        early_stopping_patience=2,
        restore_best=True,
        validation=0.25,
    ).fit(line)
    losses = [entry["validation"]["loss"] for entry in model.getHistory()]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 30
    held = line.count()
    predicted = model.transform(line).selectExpr("avg(pow(y__output - y, 2)) AS loss").first()
    assert held and predicted is not None
    assert predicted.loss < losses[-1], "not the last epoch's model"


def test_a_file_that_is_no_checkpoint(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    store.write(store.get_checkpoint_path("run") or "", b"nonsense")
    with pytest.raises(WorkerFailedError, match="is no checkpoint that this training could go on from"):
        estimator(store=store, run_id="run").fit(line)
    assert store.read(store.get_checkpoint_path("run") or "") == b"nonsense"


# 102 rows in batches of 16 are 7 steps an epoch.
DEADLY_BATCH = 7 * 2 + 3


@pytest.mark.parametrize("changed", ["rows", "batch_size"])
def test_another_training_s_checkpoint_is_not_gone_on_from(
    line: DataFrame, estimator: Make, tmp_path: Path, changed: str
) -> None:
    """As the folds of a CrossValidator, or several ParamMaps, would."""
    store = Store.create(str(tmp_path))
    estimator(store=store, run_id="run", epochs=1).fit(line)
    with pytest.raises(WorkerFailedError, match=r"run_id='run': the store has a checkpoint of that name.*another"):
        if changed == "rows":
            estimator(store=store, run_id="run", epochs=2).fit(line.withColumn("y", -line.y))
        else:
            estimator(store=store, run_id="run", epochs=2, batch_size=8).fit(line)


class Suicidal(nn.Module):
    """Kills its process in a batch, on a rank, and not on the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()
        self.batches = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        on_rank = os.environ.get(JOB_VARIABLE) and os.environ["HOROVOD_RANK"] == "1"
        if on_rank and os.environ[ATTEMPT_VARIABLE] == "1" and self.batches == DEADLY_BATCH:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def test_a_killed_rank_is_named_and_leaves_nothing(
    line: DataFrame, estimator: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", str(tmp_path))
    with pytest.raises(WorkerFailedError, match=r"(?s)rank 1.*SIGKILL"):
        estimator(model=Suicidal(), epochs=5).fit(line)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_killed_in_the_third_epoch_of_five_changes_nothing(
    line: DataFrame, estimator: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Store.create(str(tmp_path))
    disturbed = estimator(model=Suicidal(), epochs=5, max_restarts=1, store=store, run_id="run", verbose=1).fit(line)
    assert "goes on from its checkpoint, after epoch 2" in "".join(capfd.readouterr())
    undisturbed = estimator(epochs=5).fit(line)
    assert disturbed.getHistory() == undisturbed.getHistory()
    for one, other in zip(disturbed.getModel().parameters(), undisturbed.getModel().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"store": "/tmp/x"}, TypeError, r"store is a Store, for example Store\.create"),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(linear().parameters(), 0.1), 1)},
            ValueError,
            "lr_scheduler is a scheduler of the optimizer that is given",
        ),
    ],
)
def test_refused(line: DataFrame, estimator: Make, given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        estimator(**given).fit(line)
