"""Trainings of Keras and Lightning that lose ranks within an epoch: the numbers are those of a training without a loss.

All ranks start again from the last checkpoint. Without Spark, on rows of a Parquet file.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("pyspark")

from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.store import Store
from tests.estimators import keras_ranks
from tests.estimators.histories import drop_times
from tests.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)

#: A rank kills itself at a batch of training, counted from 0: [kills] (rank, epoch, batch).
Kills = Sequence[tuple[int, int, int]]


class Killing:
    """Kills its process once at each of `kills`."""

    def __init__(self, marks: str, kills: Kills) -> None:
        self._marks = marks
        self._kills = kills

    def __call__(self, rank: int, epoch: int, batch: int) -> None:
        for number, kill in enumerate(self._kills):
            mark = Path(self._marks, f"killed-{number}")
            if tuple(kill) == (rank, epoch, batch) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class Raising(Killing):
    """Raises an error on all ranks in the place of a kill."""

    def __call__(self, rank: int, epoch: int, batch: int) -> None:
        if (epoch, batch) in [kill[1:] for kill in self._kills]:
            raise InterruptedError


def in_ranks(rank: int, numbers: Callable[..., Any], *arguments: Any) -> Any:
    return numbers(*arguments)


def undisturbed(numbers: Callable[..., Any], folder: Path, changed: dict[str, Any]) -> Any:
    return run_ranks(2, in_ranks, 200, args=(numbers, str(folder), Killing("", ()), {**changed, "run_id": "whole"}))[0]


def disturbed(numbers: Callable[..., Any], folder: Path, kills: Kills, changed: dict[str, Any]) -> Any:
    """In a job that replaces lost ranks."""
    terms = Terms(2, 2, replace=True, reset_limit=len(kills) + 1, timeout=timedelta(seconds=90), standby=1)
    options = JobOptions(args=(str(folder), Killing(str(folder), kills), changed))
    result = run_elastic_local(numbers, terms, options)[0]
    assert [Path(folder, f"killed-{number}").exists() for number in range(len(kills))] == [True] * len(kills)
    return result


def lines_of_losses(output: str) -> list[str]:
    return re.findall(r"run 'run' ((?:begins|continues) .*)", output)


# --- Keras ------------------------------------------------------------------------------------------------------------


def keras_numbers(folder: str, killing: Killing, changed: dict[str, Any]) -> Any:
    """History, and weights with the optimizer's variables, on rank 0."""
    import keras

    import spark_estimator.keras as hvd

    class Hooks(keras.callbacks.Callback):
        """Counts the batches that it has seen."""

        def __init__(self) -> None:
            super().__init__()
            self.epoch = self.seen = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            killing(hvd.rank(), self.epoch, batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["seen"] = self.seen

    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1000.0),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=1000.0, restore_best_weights=True),
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        Hooks(),
    ]
    settings = {
        "optimizer": keras.optimizers.Adam(0.05),
        "metrics": ["mae"],
        "held_share": 0.2,
        "epochs": 5,
        "callbacks": callbacks,
        "stored": True,
        "checkpoint_steps": 2,
        "backward_passes_per_step": 2,
        "verbose": 1,
    }
    result = keras_ranks.trained(folder, keras_ranks.chancy(), **{**settings, **changed})
    if result is None:
        return None
    model = keras_ranks.opened(result)
    variables = [*model.get_weights(), *(keras.ops.convert_to_numpy(each) for each in model.optimizer.variables)]
    return json.dumps(drop_times(result.history)), [numpy.asarray(value).tobytes() for value in variables]


@pytest.fixture(
    params=["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "tensorflow"))],
)
def keras_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    pytest.importorskip("keras")
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    for name, value in {
        "KERAS_BACKEND": request.param,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    keras_ranks.write_table(tmp_path)
    return tmp_path


def test_keras_continues_after_lost_ranks(keras_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """5 batches in an epoch, two of which make a step: the checkpoints are after batch 2 and 4."""
    expected = undisturbed(keras_numbers, keras_folder, {})
    capfd.readouterr()
    # Before the first checkpoint, and in the second epoch, on rank 0.
    result = disturbed(keras_numbers, keras_folder, [(1, 0, 1), (0, 1, 3)], {})
    assert json.loads(result[0]) == json.loads(expected[0])
    assert len(json.loads(result[0])) == 3, "a callback has ended it"
    assert result[1] == expected[1]
    first, second = lines_of_losses("".join(capfd.readouterr()))
    assert first == "begins again, without a checkpoint: a rank was lost in epoch 1, after step 1"
    # A pass of the first epoch waits for its step, so that the second epoch makes steps after 1, 3 and 5 batches.
    assert re.fullmatch("continues after epoch 1, step 3: a rank was lost in epoch 2, after step [34]", second), second


# --- Lightning --------------------------------------------------------------------------------------------------------


def lightning_numbers(folder: str, killing: Killing, changed: dict[str, Any]) -> Any:
    """History, and the model's state, on rank 0."""
    import lightning.pytorch as pl
    import torch
    import torchmetrics

    from tests.estimators.lightning.test_training import network, trained

    torch.set_num_threads(1)  # the order of sums depends on it

    class Learner(pl.LightningModule):  # type: ignore[misc]
        """Logs in all ways."""

        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.error = torchmetrics.MeanAbsoluteError()
            self.both = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.R2Score()])
            self.validation_error = torchmetrics.MeanSquaredError()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def on_after_batch_transfer(self, batch: Any, number: int) -> Any:
            return {**batch, "x": batch["x"] + 0.01 * torch.rand(())}

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            killing(self.global_rank, self.current_epoch, number)
            output = self(batch["x"]).reshape(-1)
            loss = torch.nn.functional.mse_loss(output, batch["y"])
            self.error(output, batch["y"])
            self.both.update(output, batch["y"])
            self.log("error", self.error, on_step=False, on_epoch=True)
            self.log("synced", loss, on_step=True, on_epoch=True, batch_size=len(output), sync_dist=True)
            self.log("alone", loss, on_step=False, on_epoch=True, batch_size=len(output))
            self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            self.log("drawn", torch.rand(()), on_step=False, on_epoch=True, batch_size=1)

        def validation_step(self, batch: Any, number: int) -> None:
            output = self(batch["x"]).reshape(-1)
            self.validation_error(output, batch["y"])
            self.log("validation_error", self.validation_error)
            self.log("val_loss", torch.nn.functional.mse_loss(output, batch["y"]), sync_dist=True)

        def on_train_epoch_end(self) -> None:
            self.log_dict({name: float(value) for name, value in self.both.compute().items()})
            self.both.reset()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
            steps = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
            return [optimizer], [
                {"scheduler": steps, "interval": "step"},
                {"scheduler": plateau, "monitor": "alone"},
            ]

    callbacks = [
        pl.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0),
        pl.callbacks.GradientAccumulationScheduler({0: 2, 1: 1}),
    ]
    settings = {"epochs": 6, "store": Store.create(f"{folder}/store"), "checkpoint_steps": 3, "verbose": 1}
    changed = {**settings, "restore_best": True, **changed}
    arguments = changed.pop("arguments", {})
    result = trained(folder, Learner(), changed, callbacks=callbacks, trainer_args=arguments)
    if result is None:
        return None
    state = torch.load(io.BytesIO(result.state), weights_only=True)
    return json.dumps(drop_times(result.history)), {name: value.numpy().tobytes() for name, value in state.items()}


@pytest.fixture
def lightning_folder(tmp_path: Path) -> Path:
    pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
    from tests.estimators.lightning import test_training

    test_training.write_rows(tmp_path)
    return tmp_path


def test_lightning_continues_after_lost_ranks(lightning_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """11 batches in an epoch, two of which make a step in the first one: the checkpoints are after batch 4 and 8."""
    expected = undisturbed(lightning_numbers, lightning_folder, {})
    capfd.readouterr()
    result = disturbed(lightning_numbers, lightning_folder, [(1, 0, 9), (0, 2, 1)], {})
    assert json.loads(result[0]) == json.loads(expected[0])
    assert len(json.loads(result[0])) == 4, "a callback has ended it"
    assert result[1] == expected[1]
    first, second = lines_of_losses("".join(capfd.readouterr()))
    assert re.fullmatch("continues after epoch 0, step 8: a rank was lost in epoch 1, after step (9|10)", first), first
    assert second == "continues after epoch 2: a rank was lost in epoch 3, after step 1"


def continued(rank: int, folder: str) -> list[Any]:
    """A run that ends within an epoch, and continues; and the same without an interruption."""
    changed = {"arguments": {"val_check_interval": 5, "max_steps": 45}, "epochs": 9}
    whole = lightning_numbers(folder, Killing("", ()), {**changed, "run_id": "whole"})
    for place in ((0, 0, 7), (0, 1, 9)):
        with pytest.raises(InterruptedError):
            lightning_numbers(folder, Raising("", [place]), changed)
    return [whole, lightning_numbers(folder, Killing("", ()), changed)]


def test_a_run_of_lightning_continues_within_an_epoch(lightning_folder: Path) -> None:
    whole, result = run_ranks(2, continued, 200, args=(str(lightning_folder),))[0]
    assert json.loads(result[0]) == json.loads(whole[0])
    assert result[1] == whole[1]


def shrinking(folder: str, killing: Killing) -> Any:
    """Two ranks wait in each step, so that a third process has time to begin."""
    import lightning.pytorch as pl
    import torch

    from tests.estimators.lightning.test_training import trained

    class Learner(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            killing(self.global_rank, self.current_epoch, number)
            time.sleep(0.5 if self.trainer.world_size == 2 else 0)
            self.log("ranks", float(self.trainer.world_size), on_epoch=True, batch_size=1)
            return (batch["y"] * self.bias.detach() + self.bias).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    settings = {"epochs": 12, "store": Store.create(f"{folder}/store"), "checkpoint_steps": 2, "verbose": 1}
    result = trained(folder, Learner(), settings)
    return None if result is None else [entry["logged"]["ranks"] for entry in result.history]


@pytest.mark.slow
def test_fewer_ranks_continue_and_others_join_after_an_epoch(
    lightning_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    terms = Terms(3, 1, replace=True, reset_limit=4, timeout=timedelta(seconds=90), patience=timedelta(0))
    options = JobOptions(args=(str(lightning_folder), Killing(str(lightning_folder), [(1, 1, 4)])))
    results = run_elastic_local(shrinking, terms, options)
    assert len(results) == 3, "it has grown again"
    ranks = next(result for result in results if result is not None)
    fewer = ranks.count(2.0)
    assert ranks == [3.0] + [2.0] * fewer + [3.0] * (11 - fewer) and 0 < fewer < 11
    lines = lines_of_losses("".join(capfd.readouterr()))
    assert len(lines) == 1, lines
    pattern = (
        "continues after epoch 1, step 4 of epoch 2, which restarts on another number of ranks: a rank was lost .*"
    )
    assert re.fullmatch(pattern, lines[0]), lines
