"""Steps whose gradient is not finite on some rank: skipped on all, undone, counted, and explained."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.data.rank.epoch_rows import Batch
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.errors import DataError
from spark_estimator.estimators.torch import skipped_steps
from spark_estimator.estimators.torch.epoch_means import EpochMeans
from spark_estimator.estimators.torch.losses import JointLoss, TorchParts
from spark_estimator.estimators.torch.skipped_steps import SkippedSteps
from spark_estimator.estimators.torch.steps.recipe import MOST_SKIPPED, Stepper, StepRecipe
from spark_estimator.estimators.torch.steps.schedules import read_schedule
from spark_estimator.estimators.torch.trainer import Trainer
from tests.estimators.specs import spec_of
from tests.estimators.torch.test_trainer import ROWS, alone, fitted, rows, table
from tests.torch.rank_pool import RankPool

__all__ = ["alone", "rows"]
EPOCHS, STEPS = 8, 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    created = RankPool(2)
    yield created
    created.close()


class BadGradient(torch.autograd.Function):
    """Changes nothing, and has no gradient that is a number."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.nan


class Spoiling(nn.MSELoss):
    """A loss that is no number in some calls, or whose gradient is none; it keeps the labels of each batch."""

    def __init__(self, calls: dict[int, float]) -> None:
        super().__init__()
        self._calls = calls
        self.labels: list[list[float]] = []

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        loss = super().forward(output, label)
        if not torch.is_grad_enabled():
            return loss
        if label.reshape(-1).tolist() not in self.labels[-1:]:  # else a batch is computed again, to find the rank
            self.labels.append(label.reshape(-1).tolist())
        how = self._calls.get(len(self.labels) - 1)
        return loss if how is None else BadGradient.apply(loss) if how == 0 else loss + how


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def trained(path: str, calls: dict[int, float], **changed: Any) -> tuple[Any, list[list[float]]]:
    """The result of a training with momentum and a schedule, and the labels of each batch."""
    net, loss = network(), Spoiling(calls)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    schedule = read_schedule({"lr_scheduler": "cosine", "warmup_steps": 2, "warmup_ratio": 0.0}.__getitem__)[0]
    parts = {"model": net, "optimizer": optimizer, "losses": [loss], "rate_is_joint": True}
    recipe = StepRecipe(skips=True, schedule=schedule, clip_norm=0.5)
    result = fitted(
        path,
        lambda _: {"recipe": recipe, **parts},
        batch_size=ROWS // hvd.size() // STEPS,
        epochs=EPOCHS,
        **changed,
    )
    return result, loss.labels


def test_a_step_that_one_rank_spoils_is_as_if_it_were_not_there(ranks: RankPool, rows: str) -> None:
    spoiled = {1: (0, math.nan), 2: (1, math.inf), 9: (1, 0.0), 10: (0, -math.inf), STEPS * 2 - 1: (1, math.nan)}

    def check(rank: int) -> Any:
        result, labels = trained(rows, {call: how for call, (of, how) in spoiled.items() if of == rank})
        everywhere, _ = trained(rows, dict.fromkeys(spoiled, math.nan))
        history = None if result is None else result.history
        return history, None if result is None else (result.state, everywhere.state), labels

    (history, states, first), (_, _, second) = ranks.run(check)
    assert states[0] == states[1], "bit for bit, whichever rank it was"
    assert [entry["train"]["skipped_steps"] for entry in history] == [2, 1, 0, 2, 0, 0, 0, 0]
    assert all(math.isfinite(entry["train"]["loss"]) for entry in history)
    # Each rank normalizes by its own rows; the gradient is the ranks' average.
    x, y = table()
    nets = [network(), network()]
    optimizer = torch.optim.SGD(nets[0].parameters(), 0.05, momentum=0.9)
    schedule = read_schedule({"lr_scheduler": "cosine", "warmup_steps": 2, "warmup_ratio": 0.0}.__getitem__)[0]
    assert schedule is not None and schedule.make is not None
    scheduler = schedule.make(optimizer, EPOCHS * STEPS)
    for call, of_ranks in enumerate(zip(first, second, strict=True)):
        if call in spoiled:
            continue
        for net, labels in zip(nets, of_ranks, strict=True):
            net.zero_grad()
            chosen = torch.isin(y.reshape(-1), torch.tensor(labels))
            nn.functional.mse_loss(net(x[chosen]), y[chosen]).backward()
        for mine, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert mine.grad is not None and other.grad is not None
            mine.grad = (mine.grad + other.grad) / 2
        nn.utils.clip_grad_norm_(nets[0].parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for mine, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
                other.copy_(mine)
    state = torch.load(io.BytesIO(states[0]), weights_only=True)["model"]
    for name, value in nets[0].state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("passes", [1, 2])
def test_200_bad_batches_leave_no_trace(ranks: RankPool, passes: int) -> None:
    """Bit for bit as a training on the rows without these batches, also in what batch normalization has counted."""
    steps, size = 420, 4
    random = numpy.random.default_rng(3)
    bad = {
        int(step): (int(random.integers(2)), [math.nan, math.inf, -math.inf, 0.0][int(random.integers(4))])
        for step in random.choice(steps, 200, replace=False)
    }
    # A step is left out with all of its batches.
    gone = {first + other for step in bad for first in [step - step % passes] for other in range(passes)}

    def check(rank: int) -> Any:
        features = numpy.random.default_rng(rank).normal(size=(steps * size, 3)).astype(numpy.float32)
        labels = features.sum(axis=1, keepdims=True)

        def train(chosen: numpy.ndarray[Any, Any], calls: dict[int, float]) -> Any:
            net = network()
            optimizer = torch.optim.Adam(net.parameters(), 0.01)
            values = {"lr_scheduler": "constant", "warmup_steps": 20, "warmup_ratio": 0.0}
            recipe = StepRecipe(skips=True, clip_norm=1.0, schedule=read_schedule(values.__getitem__)[0])
            parts = TorchParts(net, optimizer, [Spoiling(calls)], [1.0], [[nn.L1Loss()]], recipe=recipe)
            spec = spec_of(framework=parts, batch_size=size, backward_passes_per_step=passes, shuffle=False, epochs=1)
            trainer = Trainer(spec)
            rows = RankRows(([features], [labels]), chosen, (len(chosen),) * 2, rank)
            result = trainer.train(rows, 0, 0, lambda *_: None)
            return result, {name: value.tolist() for name, value in net.state_dict().items()}, optimizer.state_dict()

        every = numpy.arange(steps * size)
        spoiled = train(every, {step: how for step, (of, how) in bad.items() if of == rank})
        kept = train(every[~numpy.isin(every // size, list(gone))], {})
        return spoiled, kept

    for (spoiled, state, optimizer), (kept, same, other) in ranks.run(check):
        assert spoiled.pop("skipped_steps") == len(gone) // passes and not kept.pop("skipped_steps")
        assert state == same and spoiled == kept
        for mine, theirs in zip(optimizer["state"].values(), other["state"].values(), strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_ranks_that_step_alone_skip_alone(ranks: RankPool, rows: str) -> None:
    def check(rank: int) -> Any:
        net, loss = network(), Spoiling({2: math.nan} if rank else {})
        parts = {"model": net, "optimizer": torch.optim.Adam(net.parameters(), 0.01), "losses": [loss]}
        more = {"recipe": StepRecipe(skips=True), "sync": "diloco", "inner_steps": 4, "rate_is_joint": True}
        return fitted(rows, lambda _: {**parts, **more}, batch_size=ROWS // 2 // STEPS, epochs=2)

    history = ranks.run(check)[0].history
    assert [entry["train"]["skipped_steps"] for entry in history] == [1, 0]


def test_an_overflow_in_fp16_is_skipped_on_all_ranks(ranks: RankPool, rows: str) -> None:
    """The loss of one rank alone overflows, until the scale is small enough."""

    class Larger(nn.MSELoss):
        def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return super().forward(output, label) * (100.0 if hvd.rank() else 1.0)

    def check(rank: int) -> Any:
        net = network()
        parts = {"model": net, "optimizer": torch.optim.Adam(net.parameters(), 0.01), "losses": [Larger()]}
        result = fitted(rows, lambda _: {**parts, "precision": "fp16"}, batch_size=2, epochs=3)
        digests = hvd.allgather_object([value.tolist() for value in net.parameters()])
        assert digests[0] == digests[1]
        return None if result is None else result.history

    history = ranks.run(check)[0]
    assert history[0]["train"]["skipped_steps"] > 0 == history[-1]["train"]["skipped_steps"]
    assert all(math.isfinite(entry["train"]["loss"]) for entry in history)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("passes", [1, 2])
def test_what_metrics_keep_is_not_copied_in_each_step(monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    """AUC keeps all outputs: a copy at each step would be of 1, 2, 3, ... batches. A bad batch is not counted."""
    classes: Any = pytest.importorskip("torchmetrics").classification
    copied = [0]
    copy_tensor = torch.Tensor.__deepcopy__

    def count(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        copied[0] += tensor.numel()
        return copy_tensor(tensor, memo)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(torch.Tensor, "__deepcopy__", count)

    def train(steps: int) -> tuple[int, dict[str, Any]]:
        random = numpy.random.default_rng(1)
        features = random.normal(size=(steps * 4, 3)).astype(numpy.float32)
        labels = (features.sum(axis=1, keepdims=True) > 0).astype(numpy.float32)
        features[5] = math.nan
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        recipe = StepRecipe(skips=True)
        metrics = [[classes.BinaryAUROC()]]
        parts = TorchParts(
            net, optimizer, [nn.BCEWithLogitsLoss()], [1.0], metrics, metric_names=[["auc"]], recipe=recipe
        )
        trainer = Trainer(spec_of(framework=parts, batch_size=4, backward_passes_per_step=passes, verbose=0))
        rows = RankRows(([features], [labels]), numpy.arange(len(features)), (len(features),))
        copied[0] = 0
        averages = trainer.train(rows, 0, 0, lambda *_: None)
        assert trainer.sums.rows == 4 * (steps - passes)
        return copied[0], averages

    few, averages = train(20)
    many, _ = train(40)
    assert many <= 2 * few + 100, "it grows with the steps, not with their square"
    assert averages["skipped_steps"] == 1 and 0 < averages["metrics"]["auc"] < 1


@pytest.mark.usefixtures("alone")
def test_too_many_in_a_row_are_an_error() -> None:
    weight = nn.Parameter(torch.ones(1))
    stepper = Stepper(
        StepRecipe(skips=True), hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.1)), steps_locally=False
    )
    undone: list[int] = []

    def step(loss: Callable[[], torch.Tensor], count: int) -> None:
        for _ in range(count):
            stepper.differentiate(loss(), is_finite=bool(loss().isfinite()))
            stepper.step(lambda is_made: None if is_made else undone.append(1))
            weight.grad = None

    step(lambda: (weight * math.nan).sum(), MOST_SKIPPED - 1)
    step(lambda: weight.sum(), 1)
    assert weight.item() == pytest.approx(0.9) and len(undone) == MOST_SKIPPED - 1
    with pytest.raises(DataError, match=f"{MOST_SKIPPED} steps in a row were skipped"):
        step(lambda: (weight * math.nan).sum(), MOST_SKIPPED)
    assert weight.item() == pytest.approx(0.9)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            "features",
            r"rank 0: the loss was nan: column 'x' contains nan in row 1 of its batch, counted",
        ),
        (
            "outputs",
            r"rank 0: the loss was nan: the model's output was not finite in its rows \[1\], the first ",
        ),
        ("loss", r"rank 0: the loss was inf: its 2 rows and their outputs were finite"),
        ("gradient", r"rank 0: the gradient was not finite: its 2 rows and their outputs were finite"),
    ],
)
def test_rank_and_rows_are_named(monkeypatch: pytest.MonkeyPatch, spoil: str, words: str) -> None:
    lines: list[str] = []
    monkeypatch.setattr(skipped_steps, "log_to_driver", lines.append)
    net = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1, affine=False))
    parts = TorchParts(net, torch.optim.SGD(net.parameters(), 0.1), [nn.MSELoss()], [1.0], [[]])
    sums = EpochMeans(parts, counts_skipped=True)
    features = numpy.ones((2, 3), numpy.float32)
    if spoil == "features":
        features[1, 0] = math.nan
    batch = Batch((features, numpy.zeros((2, 1), numpy.float32)), 1.0, 2)

    def compute(batch: Batch) -> torch.Tensor:
        loss = net(torch.from_numpy(batch.matrices[0])).square().sum()
        return BadGradient.apply(loss) if spoil == "gradient" else loss

    monkeypatch.setattr(skipped_steps, "_MOST_REPORTS", 2)
    skipped = SkippedSteps(sums, net, spec_of(verbose=1), compute)
    skipped.begin()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    outputs = torch.tensor([[1.0], [math.nan if spoil == "outputs" else 1.0]])
    loss = {"loss": math.inf, "gradient": 1.0}.get(spoil, math.nan)
    compute(batch)
    assert skipped.note(batch, JointLoss(torch.tensor(loss)), [outputs], []) == (spoil == "gradient")
    skipped.undo(0, 3)
    assert torch.equal(net.state_dict()["1.running_mean"], before["1.running_mean"])
    assert len(lines) == 1 and lines[0].startswith("epoch 1: the step of batch 3 was skipped: rank 0: ")
    assert re.search(words, lines[0]), lines[0]
    for done in (4, 5):
        skipped.begin()
        skipped.note(batch, JointLoss(torch.tensor(loss)), [outputs], [])
        skipped.undo(0, done)
    assert len(lines) == 3 and "batch 4" in lines[1]
    assert lines[2] == "rank 0 reports no more of them: the history counts skipped_steps"
