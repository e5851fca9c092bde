"""Epochs on a rank: tensors of a batch, what an epoch begins with, and the learning rates of its steps."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.persistence.checkpoint import Checkpoint
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.trainer import Trainer, to_tensor
from spark_estimator.estimators.torch.training import train
from spark_estimator.store import Store
from tests.estimators.specs import X, Y, spec_of
from tests.estimators.torch_models import Draws
from tests.torch.rank_pool import RankPool

RATE = 0.05
ROWS = 24


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_tensors_share_memory_unless_the_spool_has_a_smaller_type() -> None:
    matrix = numpy.ones((2, 6), numpy.float32)
    tensor = to_tensor(matrix, Field(("x",), ("c0",), (6,), "float32", (2, 3)))
    matrix[0, 0] = 7
    assert tensor.shape == (2, 2, 3) and tensor[0, 0, 0] == 7
    pixels = to_tensor(matrix.astype(numpy.uint8), Field(("x",), ("c0",), (6,), "float32", (6,), (), "uint8"))
    assert pixels.dtype == torch.float32 and pixels[0, 0] == 7


@pytest.mark.usefixtures("alone")
def test_an_epoch_commits_before_its_first_step_and_after_each() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5), Draws())
    parts = TorchParts(net, torch.optim.SGD(net.parameters(), lr=0.01), [nn.MSELoss()], [1.0], [[]])
    spec = dataclasses.replace(spec_of(batch_size=4, framework=parts), backward_passes_per_step=2, shuffle=False)
    features = numpy.random.default_rng(1).normal(size=(18, 3)).astype(numpy.float32)
    rows = RankRows(([features], [features.sum(1, keepdims=True)]), numpy.arange(18), (18,))
    trainer = Trainer(spec)
    commits: list[tuple[int, dict[str, torch.Tensor], int]] = []

    def commit(done: int) -> None:
        commits.append((done, trainer.get_rank_state(), trainer.sums.rows))

    trainer.train(rows, 0, 0, lambda *_: None, commit)
    assert [(done, counted) for done, _, counted in commits] == [(0, 0), (2, 8), (4, 15), (5, 18)]
    after = {name: value.clone() for name, value in net.state_dict().items()}
    # The same epoch from its second step on, where the first has left parameters, generators and sums.
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5), Draws())
    again = Trainer(
        dataclasses.replace(
            spec,
            framework=dataclasses.replace(parts, model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.01)),
        )
    )
    with pytest.raises(InterruptedError):
        again.train(rows, 0, 0, lambda *_: None, interrupting(2))
    again.resume_within(commits[1][1])
    again.train(rows, 0, 2, lambda *_: None)
    for name, value in other.state_dict().items():
        assert torch.equal(value, after[name]), name


def interrupting(at: int) -> Callable[[int], None]:
    def commit(done: int) -> None:
        if done == at:
            raise InterruptedError

    return commit


# --- learning rates: compared with plain PyTorch, which has the joint batch and the rate times the number of ranks ---


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def ranks(size: int) -> Iterator[RankPool]:
    created = RankPool(size)
    yield created
    created.close()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rates") / "rows.parquet"
    x, y = table()
    pyarrow.parquet.write_table(pyarrow.table({"x": x.tolist(), "y": y.reshape(-1).tolist()}), path)
    return str(path)


def table() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)


def net_of(rate: float, **groups: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    return net, torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias], **groups}], lr=rate, momentum=0.5)


def fitted(path: str, make: Callable[[torch.optim.Optimizer], dict[str, Any]], **changed: Any) -> Any:
    """What `train` returns; each epoch is one step on all rows.

    Args:
        make: more of `TorchParts`, for the optimizer.
    """
    net, optimizer = net_of(RATE)
    usual = {"model": net, "optimizer": optimizer, "losses": [nn.MSELoss()], "loss_weights": [1.0], "metrics": [[]]}
    parts = TorchParts(**{**usual, **make(optimizer)})
    source = FileRows(find_files(path), RowEncoder(("x", "y"), (X, Y)))
    return train(spec_of(**{"source": source, "batch_size": ROWS, "epochs": 4, "framework": parts, **changed}))


def weights_of(result: Any) -> list[float]:
    state = torch.load(io.BytesIO(result.state), weights_only=True)
    return [*state["model"]["weight"].reshape(-1).tolist(), *state["model"]["bias"].tolist()]


def plain_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = table()
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()


def numbers(net: Any) -> list[float]:
    return [*net.weight.reshape(-1).tolist(), *net.bias.tolist()]


class SetsRates(Callback):
    """Sets a rate after the first epoch, and halves the present one after the second."""

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.groups = optimizer.param_groups
        self.seen = [group["lr"] for group in self.groups]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        for group in self.groups:
            group["lr"] = [0.03, group["lr"] / 2][min(epoch, 1)]


class StepsASchedule(Callback):
    """Steps a schedule of the user's in a hook of the optimizer's."""

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.register_step_post_hook(lambda *_: schedule.step())


@pytest.mark.parametrize("kind", [Callback, SetsRates, StepsASchedule])
def test_rates_that_callbacks_read_and_set_are_in_force(
    size: int, ranks: RankPool, rows: str, kind: type[Callback]
) -> None:
    def check(rank: int) -> Any:
        return fitted(rows, lambda _: {"callbacks": [kind()]})

    net, optimizer = net_of(RATE * size)
    callback = kind()
    callback.on_train_begin(net, optimizer)
    for epoch in range(4):
        plain_step(net, optimizer)
        callback.on_epoch_end(epoch, {})
    assert weights_of(ranks.run(check)[0]) == pytest.approx(numbers(net), rel=1e-5)


Step = Callable[..., Any]


def sets_a_rate() -> Step:
    def step(model: Any, optimizer: Any, transform: Any, loss_fn: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        assert isinstance(optimizer, torch.optim.Optimizer)
        optimizer.zero_grad()
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = RATE
        optimizer.step()
        return outputs, loss

    return step


def steps_a_schedule() -> Step:
    schedules: list[Any] = []

    def step(model: Any, optimizer: Any, transform: Any, loss_fn: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        schedules[:] = schedules or [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
        optimizer.zero_grad()
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        optimizer.step()
        schedules[0].step()
        return outputs, loss

    return step


def scales_the_loss() -> Step:
    scalers: list[Any] = []

    def step(model: Any, optimizer: Any, transform: Any, loss_fn: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        scalers[:] = scalers or [torch.amp.GradScaler("cpu", init_scale=8.0)]
        optimizer.zero_grad()
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        scalers[0].scale(loss).backward()
        scalers[0].unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scalers[0].step(optimizer)
        scalers[0].update()
        return outputs, loss

    return step


def never_zeroes_gradients() -> Step:
    def step(model: Any, optimizer: Any, transform: Any, loss_fn: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        optimizer.step()
        return outputs, loss

    return step


@pytest.mark.parametrize("make", [sets_a_rate, steps_a_schedule, scales_the_loss, never_zeroes_gradients])
def test_a_minibatch_function_has_the_real_optimizer(
    size: int, ranks: RankPool, rows: str, make: Callable[[], Step]
) -> None:
    def check(rank: int) -> Any:
        return fitted(rows, lambda _: {"minibatch": make()})

    net, optimizer = net_of(RATE * size)
    x, y = table()
    step = make()
    for _ in range(4):
        step(net, optimizer, lambda *pair: pair, lambda o, labels, _: nn.functional.mse_loss(o, labels), [x], y, None)
        optimizer.zero_grad()
    assert weights_of(ranks.run(check)[0]) == pytest.approx(numbers(net), rel=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4, eta_min=0.01),
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0, min_lr=0.02),
    ],
)
def test_the_rates_of_lr_scheduler_are_multiplied(
    size: int, ranks: RankPool, rows: str, make: Callable[..., Any]
) -> None:
    def check(rank: int) -> Any:
        return fitted(rows, lambda optimizer: {"scheduler": make(optimizer)})

    net, optimizer = net_of(RATE)
    schedule = make(optimizer)
    for _ in range(4):
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= size
        plain_step(net, optimizer)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            schedule.step(1.0)
        else:
            schedule.step()
    assert weights_of(ranks.run(check)[0]) == pytest.approx(numbers(net), rel=1e-5)


def test_a_run_resumes_with_the_rate_of_its_ranks_and_returns_that_of_one(rows: str, tmp_path: Path) -> None:
    """Two ranks, one, and two again; after the first epoch a callback sets a rate, which changes with the ranks."""
    pools = {1: RankPool(1), 2: RankPool(2)}

    def check(rank: int, epochs: int) -> Any:
        changed = {"epochs": epochs, "store": Store.create(str(tmp_path / "store"))}
        step_lr = torch.optim.lr_scheduler.StepLR
        return fitted(rows, lambda optimizer: {"scheduler": step_lr(optimizer, 3, 0.5)}, **changed)

    net, optimizer = net_of(RATE)
    try:
        for size, epochs, rates in ((2, 2, [0.1, 0.1]), (1, 4, [0.05, 0.025]), (2, 5, [0.05])):
            result = pools[size].run(check, epochs)[0]
            for rate in rates:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                plain_step(net, optimizer)
            assert weights_of(result) == pytest.approx(numbers(net), rel=1e-5)
        state = torch.load(io.BytesIO(result.state), weights_only=True)
        assert [group["lr"] for group in state["optimizer"]["param_groups"]] == [RATE / 2] * 2
    finally:
        for pool in pools.values():
            pool.close()


def test_sizes_checkpoints_and_groups(size: int, ranks: RankPool) -> None:
    def check(rank: int) -> None:
        net, optimizer = net_of(RATE)
        trainer = Trainer(spec_of(framework=TorchParts(net, optimizer, [nn.MSELoss()], [1.0], [[]])))
        plain = trainer.get_state()
        trainer.take_size()
        assert trainer.rate_factor == size and optimizer.defaults["lr"] == RATE * size

        def rates() -> list[float]:
            return [group["lr"] for group in optimizer.param_groups]

        assert rates() == [RATE * size] * 2
        trainer.take_size(trainer.rate_factor)
        assert rates() == [RATE * size] * 2, "once"
        for state, expected in (
            ({**plain, "rate_factor": 1}, size),
            ({**plain, "rate_factor": 4}, size / 4),
        ):
            trainer.take(Checkpoint({}, 5, state, [], None, []), within=False)
            assert rates() == pytest.approx([RATE * expected] * 2)
        joint = TorchParts(*net_of(RATE), [nn.MSELoss()], [1.0], [[]], rate_is_joint=True)
        unscaled = Trainer(spec_of(framework=joint))
        unscaled.take_size()
        assert joint.optimizer.param_groups[0]["lr"] == RATE and unscaled.rate_factor == 1

    ranks.run(check)


def test_a_schedule_without_known_rates_is_named_once(size: int, ranks: RankPool) -> None:
    class Own:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def state_dict(self) -> dict[str, Any]:
            return {}

    def check(rank: int) -> list[str]:
        lines: list[str] = []

        class Lines(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        net, optimizer = net_of(RATE)
        parts = TorchParts(net, optimizer, [nn.MSELoss()], [1.0], [[]], scheduler=Own(optimizer))
        trainer, handler = Trainer(spec_of(framework=parts)), Lines()
        logging.getLogger("spark_estimator").addHandler(handler)
        try:
            trainer.take_size()
            trainer.take_size(trainer.rate_factor)
        finally:
            logging.getLogger("spark_estimator").removeHandler(handler)
        return lines

    first, *others = ranks.run(check)
    assert len(first) == (size > 1) and not any(others)
    assert all("Own has no base_lrs" in line and "all 2 processes" in line for line in first)
