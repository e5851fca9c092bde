"""A Lightning estimator's training in a job that replaces lost ranks: the numbers of a training without a loss."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from spark_estimator.elastic.rounds import Terms
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.estimators.lightning.test_training import folder, network, plain, trained, unfreezing
from tests.ranks import run_ranks

__all__ = ["folder"]

# Each process that replaces one imports Lightning first, which takes ten seconds on a slow machine.
pytestmark = pytest.mark.timeout(400)

#: A rank kills itself at its n-th call (from 1) of a hook in this process: (rank, hook, n).
Kills = list[tuple[int, str, int]]


class Killing:
    """Kills its process at some calls, at each of them once in a job."""

    def __init__(self, marks: str, kills: Kills) -> None:
        self._marks = marks
        self._kills = kills
        self._calls: dict[str, int] = {}

    def __call__(self, hook: str) -> None:
        import spark_estimator.torch as hvd

        self._calls[hook] = self._calls.get(hook, 0) + 1
        for number, kill in enumerate(self._kills):
            mark = Path(self._marks, f"killed-{number}")
            if kill == (hvd.rank(), hook, self._calls[hook]) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)


def module(killing: Killing, marks: str) -> Any:
    """Logs in all ways, and keeps outputs in an attribute, as Lightning 2 recommends."""
    import lightning.pytorch as pl
    import torchmetrics

    class Learner(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.outputs: list[torch.Tensor] = []
            self.error = torchmetrics.MeanAbsoluteError()
            self.validation_error = torchmetrics.MeanSquaredError()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def setup(self, stage: str) -> None:
            killing("setup")

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            killing("training_step")
            output = self(batch["x"]).reshape(-1)
            loss = nn.functional.mse_loss(output, batch["y"])
            self.error(output, batch["y"])
            self.log("error", self.error, on_step=False, on_epoch=True)
            self.log("synced", loss, on_step=True, on_epoch=True, batch_size=len(output), sync_dist=True)
            self.log("lone", loss, on_step=False, on_epoch=True, batch_size=len(output))
            self.outputs.append(loss.detach())
            return loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            killing("on_before_optimizer_step")

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            killing("on_train_batch_end")
            self.log("drawn", torch.rand(()), on_step=False, on_epoch=True, batch_size=1)

        def validation_step(self, batch: Any, number: int) -> None:
            killing("validation_step")
            output = self(batch["x"]).reshape(-1)
            self.validation_error(output, batch["y"])
            self.log("validation_error", self.validation_error)
            self.log("val_loss", nn.functional.mse_loss(output, batch["y"]), batch_size=len(output), sync_dist=True)

        def on_validation_epoch_end(self) -> None:
            killing("on_validation_epoch_end")

        def on_train_epoch_end(self) -> None:
            killing("on_train_epoch_end")
            self.log("of_outputs", torch.stack(self.outputs).sum(), sync_dist=True)
            self.log("outputs", float(len(self.outputs)))
            self.outputs.clear()

        def on_train_end(self) -> None:
            total = self.trainer.strategy.reduce(torch.tensor(1.0), reduce_op="sum")
            Path(marks, f"end-{self.global_rank}-{int(total)}").touch()
            killing("on_train_end")
            self.trainer.strategy.barrier()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
            steps = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "step"}}

    return Learner()


def counting() -> Any:
    """A callback whose count is logged: a batch that is repeated must count once."""
    import lightning.pytorch as pl

    class Counting(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begun = 0

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, number: int) -> None:
            self.begun += 1

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.log("begun", float(self.begun))

    return Counting()


def numbers(folder: str, marks: str, kills: Kills, changed: dict[str, Any], arguments: dict[str, Any]) -> Any:
    import lightning.pytorch as pl

    torch.set_num_threads(1)  # the order of sums depends on it
    callbacks = [counting(), pl.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0)]
    arguments = dict(arguments)
    callbacks += [make() for make in arguments.pop("callbacks", ())]
    learner = arguments.pop("make", module)(Killing(marks, kills), marks)
    result = trained(folder, learner, {"epochs": 4, **changed}, callbacks=callbacks, trainer_args=arguments)
    return None if result is None else (json.dumps(result.history), result.state)


def in_ranks(rank: int, *arguments: Any) -> Any:
    return numbers(*arguments)


def check(folder: Path, marks: Path, kills: Kills, changed: dict[str, Any] | None = None, **arguments: Any) -> None:
    """A training with losses has the numbers of one without."""
    more = (changed or {}, arguments)
    undisturbed = run_ranks(2, in_ranks, 120, args=(str(folder), str(marks), [], *more))[0]
    terms = Terms(2, 2, replace=True, reset_limit=len(kills) + 1)
    results = run_elastic_local(numbers, terms, JobOptions(args=(str(folder), str(marks), kills, *more)))
    assert [Path(marks, f"killed-{number}").exists() for number in range(len(kills))] == [True] * len(kills)
    assert json.loads(results[0][0]) == json.loads(undisturbed[0])
    assert results[0][1] == undisturbed[1]


@pytest.mark.slow
def test_a_loss_in_a_step(folder: Path, tmp_path: Path) -> None:
    check(folder, tmp_path, [(1, "training_step", 4)])


@pytest.mark.slow
def test_losses_everywhere(folder: Path, tmp_path: Path) -> None:
    # 11 batches of training in an epoch, and 3 of validation. A new process counts from its own first call.
    kills = [
        (0, "setup", 1),  # before the training begins
        (1, "on_before_optimizer_step", 1),  # in the first step
        (0, "training_step", 4),
        (1, "validation_step", 2),
        (0, "on_validation_epoch_end", 1),
        (1, "on_train_epoch_end", 1),
        (0, "training_step", 2),
        (1, "training_step", 3),
    ]
    check(folder, tmp_path, kills)


@pytest.mark.slow
def test_a_loss_in_the_hooks_at_the_end(folder: Path, tmp_path: Path) -> None:
    check(folder, tmp_path, [(0, "on_train_end", 1)])
    ends = sorted(path.name for path in tmp_path.glob("end-*"))
    # As one of two ranks, and alone after the loss.
    assert ends == ["end-0-1", "end-0-2", "end-1-1", "end-1-2"]


@pytest.mark.slow
def test_losses_where_gradients_wait_for_their_step(folder: Path, tmp_path: Path) -> None:
    # Validation within the epoch, also between two passes of a step.
    kills = [(1, "training_step", 6), (0, "validation_step", 2), (0, "training_step", 3), (1, "training_step", 2)]
    check(folder, tmp_path, kills, {"backward_passes_per_step": 2, "restore_best": True}, val_check_interval=3)


@pytest.mark.slow
def test_a_loss_of_a_plain_module(folder: Path, tmp_path: Path) -> None:
    undisturbed = run_ranks(2, plain_in_ranks, 120, args=(str(folder), str(tmp_path), []))[0]
    options = JobOptions(args=(str(folder), str(tmp_path), [(1, "loss", 17), (0, "loss", 5)]))
    results = run_elastic_local(plain_numbers, Terms(2, 2, replace=True, reset_limit=3), options)
    assert [Path(tmp_path, f"killed-{number}").exists() for number in range(2)] == [True, True]
    assert json.loads(results[0][0]) == json.loads(undisturbed[0])
    assert results[0][1] == undisturbed[1]


class KillingLoss(nn.MSELoss):
    def __init__(self, killing: Killing) -> None:
        super().__init__()
        self._killing = killing

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        self._killing("loss")
        return super().forward(output, label)


def plain_numbers(folder: str, marks: str, kills: Kills) -> Any:
    import lightning.pytorch as pl

    torch.set_num_threads(1)
    net = network()
    # The display of a new rank 0 is another one.
    bars = [pl.callbacks.RichProgressBar() if importlib.util.find_spec("rich") else pl.callbacks.TQDMProgressBar()]
    result = trained(folder, net, **plain(net, losses=[KillingLoss(Killing(marks, kills))]), callbacks=bars)
    return None if result is None else (json.dumps(result.history), result.state)


def plain_in_ranks(rank: int, *arguments: Any) -> Any:
    return plain_numbers(*arguments)


@pytest.mark.slow
def test_a_loss_after_layers_were_unfrozen(folder: Path, tmp_path: Path) -> None:
    """A callback has changed the module, the optimizer and the Trainer in the epoch of the loss."""
    check(folder, tmp_path, [(1, "training_step", 20)], {}, callbacks=[unfreezing, accumulating])


def accumulating() -> Any:
    import lightning.pytorch as pl

    return pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})


@pytest.mark.slow
def test_a_loss_in_a_collective_after_the_step_ends_the_round_for_all(folder: Path, tmp_path: Path) -> None:
    """The step is made, and its hooks are not: where no rank was before the step, the job starts again."""
    with pytest.raises(WorkerFailedError, match="no rank has parameters and attributes that belong together"):
        run_elastic_local(
            averaging, Terms(2, 2, replace=True, reset_limit=2), JobOptions(args=(str(folder), str(tmp_path)))
        )


def averaging(folder: str, marks: str) -> Any:
    import lightning.pytorch as pl

    import spark_estimator.torch as hvd

    class Averaging(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, number: int) -> None:
            killing("callback")
            hvd.allreduce(torch.ones(1), name="of a callback")

    killing = Killing(marks, [(1, "callback", 3)])
    return trained(folder, module(Killing(marks, []), marks), callbacks=[Averaging()])


@pytest.mark.slow
def test_losses_while_weights_are_swapped(folder: Path, tmp_path: Path) -> None:
    """A callback that averages weights validates the average, and changes weights when an epoch begins."""
    import lightning.pytorch as pl

    if not hasattr(pl.callbacks, "WeightAveraging"):
        pytest.skip("this Lightning has no WeightAveraging")
    kills = [(1, "validation_step", 2), (0, "training_step", 8), (1, "on_train_epoch_end", 1)]
    check(folder, tmp_path, kills, {}, callbacks=[averaging_weights])


def averaging_weights() -> Any:
    import lightning.pytorch as pl

    class Averaging(pl.callbacks.WeightAveraging):  # type: ignore[misc]
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            with torch.no_grad():
                pl_module.net[0].weight.mul_(0.9)

    return Averaging()


class Counted(nn.Linear):
    """A part of a module that counts in an attribute."""

    calls = 0


def rich_module(killing: Killing, marks: str) -> Any:
    """As `module`, with state in all places where users have it."""
    import torchmetrics
    from torchmetrics import classification

    learner = module(killing, marks)
    kind = type(learner)

    class Rich(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.last = Counted(1, 1)
            self.collection = torchmetrics.MetricCollection(
                [classification.BinaryAUROC(), classification.BinaryAveragePrecision()]
            )
            alone = {"sync_on_compute": False}
            self.extremes = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric(**alone), **alone)
            self.register_buffer("seen", torch.zeros(0), persistent=False)
            self.shared: list[float] = []
            shared = self.shared
            self.last.register_forward_hook(lambda *_: shared.append(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(super().forward(x))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = super().training_step(batch, number)
            self.last.calls += 1
            self.collection.update(batch["x"][:, 0].sigmoid(), batch["y"] > 0)
            self.extremes.update(loss.detach())
            self.extremes.compute()
            self.seen = torch.cat([self.seen, loss.detach().reshape(1)])
            self.smooth = 0.9 * getattr(self, "smooth", float(loss)) + 0.1 * float(loss)  # made in the first step
            return loss

        def optimizer_step(self, epoch: int, number: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            if number % 5 == 3:
                optimizer_closure()  # gradients add up to those of the next batch
            else:
                super().optimizer_step(epoch, number, optimizer, optimizer_closure)

        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            self.log_dict({name: float(value) for name, value in self.collection.compute().items()})
            self.log_dict({name: float(value) for name, value in self.extremes.compute().items()})
            values = {"calls": self.last.calls, "seen": float(self.seen.sum()), "shared": len(self.shared)}
            self.log_dict({name: float(value) for name, value in {**values, "smooth": self.smooth}.items()})
            self.collection.reset()

    return Rich()


@pytest.mark.slow
def test_losses_of_a_module_with_state_in_all_places(folder: Path, tmp_path: Path) -> None:
    # Validation and new loaders every other epoch: a new process has those of the epoch that it enters.
    kills = [(1, "training_step", 1), (0, "training_step", 16), (1, "training_step", 20)]
    arguments = {"check_val_every_n_epoch": 2, "reload_dataloaders_every_n_epochs": 2, "max_steps": 30}
    check(folder, tmp_path, kills, **arguments, make=rich_module)


@pytest.mark.slow
def test_weights_that_change_before_the_optimizer_s_step_are_found(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match="changes weights that no optimizer has before the optimizer's step"):
        run_elastic_local(
            with_a_momentum_encoder,
            Terms(2, 2, replace=True, reset_limit=2),
            JobOptions(args=(str(folder), str(tmp_path))),
        )


def with_a_momentum_encoder(folder: str, marks: str) -> Any:
    import lightning.pytorch as pl

    class Following(pl.Callback):  # type: ignore[misc]
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            with torch.no_grad():
                pl_module.follower.weight.lerp_(pl_module.net[0].weight, 0.1)

    learner = module(Killing(marks, [(1, "training_step", 5)]), marks)
    learner.follower = nn.Linear(3, 8, bias=False).requires_grad_(False)
    learner.configure_optimizers = lambda: torch.optim.SGD(learner.net.parameters(), lr=0.01)
    return trained(folder, learner, callbacks=[Following()])
