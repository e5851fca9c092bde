"""Learning rates that are multiplied by the number of ranks, as by the strategies of Lightning 1."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as schedules

from tests.lightning.training import loader, module_of, package, trainer_of
from tests.torch.rank_pool import RankPool

FLAVOURS = ["lightning.pytorch", "pytorch_lightning"]
EPOCHS = 6


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[RankPool]:
    created = RankPool(3)
    yield created
    created.close()


def old_trainer(flavour: str = FLAVOURS[0], **arguments: Any) -> Any:
    """A Trainer that is made with the spelling of Lightning 1."""
    from spark_estimator import compat

    package(flavour)
    compat.install(lightning=True)
    try:
        return trainer_of(flavour, **{"accelerator": "horovod", "strategy": None, "max_epochs": EPOCHS, **arguments})
    finally:
        compat.uninstall()


class Recorded:
    """The module's methods that record the rates of each parameter group, as floats.

    Attributes:
        at_start: when training starts.
        epochs: in each epoch, as it starts.
    """

    def __init__(self, configure: Callable[[Any], Any]) -> None:
        self.at_start: list[float] = []
        self.epochs: list[list[float]] = []
        recorded = self

        def on_train_start(self: Any) -> None:
            recorded.at_start = rates(self.trainer)

        def on_train_epoch_start(self: Any) -> None:
            recorded.epochs.append(rates(self.trainer))

        self.methods = {
            "configure_optimizers": configure,
            "on_train_start": on_train_start,
            "on_train_epoch_start": on_train_epoch_start,
        }


def rates(trainer: Any) -> list[float]:
    return [float(group["lr"]) for optimizer in trainer.optimizers for group in optimizer.param_groups if "lr" in group]


class Logged(logging.Handler):
    """The lines that are logged in its context."""

    def __enter__(self) -> list[str]:
        self.lines: list[str] = []
        logging.getLogger("spark_estimator").addHandler(self)
        return self.lines

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("spark_estimator").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def sgd(module: Any, lr: float = 0.02) -> Optimizer:
    first, second = module.net[0], module.net[2]
    return SGD([{"params": first.parameters()}, {"params": second.parameters(), "lr": lr / 4}], lr=lr, momentum=0.9)


def with_schedule(make: Callable[[Optimizer], Any], interval: str = "epoch") -> Callable[[Any], Any]:
    def configure_optimizers(self: Any) -> Any:
        optimizer = sgd(self)
        return [optimizer], [{"scheduler": make(optimizer), "interval": interval, "monitor": "constant"}]

    return configure_optimizers


def warm_up(optimizer: Optimizer) -> Any:
    return schedules.SequentialLR(
        optimizer,
        [
            schedules.LinearLR(optimizer, start_factor=0.25, total_iters=2),
            schedules.StepLR(optimizer, 1, 0.5),
            schedules.CosineAnnealingLR(optimizer, 3, eta_min=0.001),
        ],
        [2, 4],
    )


def chained(optimizer: Optimizer) -> Any:
    return schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.7)], optimizer
    )


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
    "multiplicative": lambda optimizer: schedules.MultiplicativeLR(optimizer, lambda epoch: 0.8),
    "step": lambda optimizer: schedules.StepLR(optimizer, 2, 0.1),
    "multi-step": lambda optimizer: schedules.MultiStepLR(optimizer, [1, 3], 0.3),
    "polynomial": lambda optimizer: schedules.PolynomialLR(optimizer, 5, 2.0),
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 3, eta_min=0.003),
    "restarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 2, eta_min=0.003),
    "one cycle": lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=EPOCHS + 1),
    "cyclic": lambda optimizer: schedules.CyclicLR(optimizer, 0.01, 0.05, step_size_up=2),
    "plateau": lambda optimizer: schedules.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, min_lr=0.004),
    "warm-up": warm_up,
    "chained": chained,
}


def trajectory(trainer: Any, flavour: str, configure: Callable[[Any], Any], **fit: Any) -> Recorded:
    recorded = Recorded(configure)

    def training_step(self: Any, batch: Any, number: int) -> torch.Tensor:
        self.log("constant", 1.0, on_step=False, on_epoch=True)
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    trainer.fit(module_of(flavour, training_step=training_step, **recorded.methods), loader(24), **fit)
    return recorded


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_each_step_has_the_rate_of_one_process_times_the_ranks(three_ranks: RankPool, flavour: str) -> None:
    def check(rank: int) -> dict[str, tuple[Recorded, Recorded, list[str]]]:
        import spark_estimator.torch as hvd

        rates = {}
        for name, make in SCHEDULES.items():
            configure = with_schedule(make)
            alone = trainer_of(flavour, strategy="auto", max_epochs=EPOCHS, devices=1)
            with Logged() as lines:
                scaled = trajectory(old_trainer(flavour), flavour, configure)
            plain = trajectory(alone, flavour, configure)
            assert hvd.size() == 3
            rates[name] = (scaled.at_start, scaled.epochs), (plain.at_start, plain.epochs), lines
        return rates

    for rank, actual in enumerate(three_ranks.run(check)):
        for name, (scaled, plain, lines) in actual.items():
            assert len(plain[1]) == EPOCHS and any(each != plain[1][0] for each in plain[1]), name
            assert scaled[0] == pytest.approx([3 * rate for rate in plain[0]]), name
            assert scaled[1] == [pytest.approx([3 * rate for rate in epoch]) for epoch in plain[1]], name
            lines = [line for line in lines if "multiplied" in line]
            assert len(lines) == (rank == 0), name
            if rank == 0:
                old, new = (", ".join(dict.fromkeys(f"{rate:g}" for rate in side[0])) for side in (plain, scaled))
                assert lines[0].startswith("The learning rate is multiplied by 3, the number of ranks: SGD lr "), name
                assert f" lr {old} -> {new}. scale_lr=False leaves" in lines[0], name


def test_who_scales(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[tuple[list[float], int]]:
        from spark_estimator.lightning import HorovodStrategy

        rates = []
        for trainer in (
            trainer_of(),
            trainer_of(strategy=HorovodStrategy()),
            trainer_of(strategy=HorovodStrategy(scale_lr=False)),
            old_trainer(strategy=HorovodStrategy(scale_lr=False), max_epochs=1),
            trainer_of(strategy=HorovodStrategy(scale_lr=True)),
            trainer_of(strategy=type("Derived", (HorovodStrategy,), {})(scale_lr=True)),
            old_trainer(max_epochs=1),
            old_trainer(accelerator="cpu", strategy="horovod", max_epochs=1),
        ):
            with Logged() as lines:
                recorded = trajectory(trainer, FLAVOURS[0], sgd)
            rates.append((recorded.at_start, len(lines)))
        return rates

    for rank, actual in enumerate(two_ranks.run(check)):
        assert actual[:4] == [([0.02, 0.005], 0)] * 4
        assert actual[4:] == [([0.04, 0.01], int(rank == 0))] * 4


def test_kinds_of_optimizers(two_ranks: RankPool) -> None:
    class WithoutRate(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if closure is not None:
                with torch.enable_grad():
                    closure()

    def by_hand(self: Any, batch: Any, number: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(torch.nn.functional.mse_loss(self(batch[0]), batch[1]))
            optimizer.step()

    def several(self: Any) -> Any:
        first, second = self.net[0], self.net[2]
        # PyTorch gives both groups of Adam the same tensor.
        adam = Adam([{"params": [first.weight]}, {"params": [first.bias]}], lr=torch.tensor(0.01))
        return adam, WithoutRate([second.bias]), SGD([second.weight], lr=0.5)

    def without(self: Any) -> Any:
        return WithoutRate(self.parameters())

    def check(rank: int) -> tuple[list[float], list[str], list[str], list[float]]:
        recorded = Recorded(several)
        module = module_of(training_step=by_hand, automatic_optimization=False, **recorded.methods)
        with Logged() as lines:
            old_trainer(max_epochs=1).fit(module, loader())
        with Logged() as none:
            trajectory(old_trainer(max_epochs=1), FLAVOURS[0], without)
        trainer = old_trainer(max_epochs=1)
        trainer.fit(module_of(), loader())
        (optimizer,) = trainer.optimizers
        later = torch.nn.Linear(1, 1)
        optimizer.add_param_group({"params": list(later.parameters())})
        return recorded.at_start, lines, none, rates(trainer)

    (first, lines, none, later), (second, *_) = two_ranks.run(check)
    assert first == second == pytest.approx([0.02, 0.02, 1.0])
    (line,) = lines
    assert "Adam lr 0.01 -> 0.02; SGD lr 0.5 -> 1." in line and not none
    assert later == [0.02, 0.02]


def test_a_schedule_that_hides_its_rates(two_ranks: RankPool) -> None:
    class Own:
        """As timm's: not a schedule of PyTorch's."""

        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer = optimizer
            self.base_values = [group["lr"] for group in optimizer.param_groups]

        def step(self, *args: Any) -> None:
            for group, value in zip(self.optimizer.param_groups, self.base_values, strict=True):
                group["lr"] = value

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def lr_scheduler_step(self: Any, scheduler: Any, metric: Any) -> None:
        scheduler.step()

    def check(rank: int) -> list[str]:
        methods = {"configure_optimizers": with_schedule(Own), "lr_scheduler_step": lr_scheduler_step}
        with Logged() as lines:
            old_trainer(max_epochs=1).fit(module_of(**methods), loader())
        return lines

    (line,), none = two_ranks.run(check)
    assert "; Own has no base_lrs and may set other rates." in line and not none


def test_nothing_but_training_scales(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[str]:
        def validation_step(self: Any, batch: Any, number: int) -> None:
            assert not self.trainer.optimizers

        module = module_of(validation_step=validation_step, test_step=validation_step)
        trainer = old_trainer(max_epochs=1)
        with Logged() as lines:
            trainer.validate(module, loader(), verbose=False)
            trainer.test(module, loader(), verbose=False)
            trainer.predict(module, [next(iter(loader()))[0]])
        return lines

    assert two_ranks.run(check) == [[], []]


def test_one_rank_scales_nothing() -> None:
    with Logged() as lines:
        recorded = trajectory(old_trainer(max_epochs=1), FLAVOURS[0], sgd)
    assert recorded.at_start == [0.02, 0.005] and not lines


@pytest.mark.parametrize("same", [False, True], ids=["new optimizers", "the same optimizers"])
def test_fit_twice(two_ranks: RankPool, same: bool) -> None:
    def check(rank: int) -> list[list[float]]:
        saved: list[Any] = []

        def configure_optimizers(self: Any) -> Any:
            if not saved or not same:
                optimizer = sgd(self)
                saved[:] = [optimizer, schedules.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))]
            return [saved[0]], [saved[1]]

        recorded = Recorded(configure_optimizers)
        module = module_of(**recorded.methods)
        first = old_trainer(max_epochs=2)
        rates = []
        for trainer, epochs in ((first, 2), (first, 4), (old_trainer(max_epochs=2), 2), (trainer_of(), 1)):
            recorded.epochs.clear()
            trainer.fit_loop.max_epochs = epochs
            trainer.fit(module, loader())
            rates.append([epoch[0] for epoch in recorded.epochs])
        return rates

    first, second = two_ranks.run(check)
    assert first == second
    if same:  # whose schedule continues
        factors = [2 / 1, 2 / 2, 2 / 3, 2 / 4, 2 / 5, 2 / 6, 1 / 7]
    else:
        factors = [2 / 1, 2 / 2, 2 / 1, 2 / 2, 2 / 1, 2 / 2, 1]
    assert [rate for fit in first for rate in fit] == pytest.approx([0.02 * factor for factor in factors])


@pytest.mark.parametrize("kind", ["lambda", "one cycle", "warm-up", "plateau", "cosine"])
def test_resumed_from_a_checkpoint(two_ranks: RankPool, tmp_path: Path, kind: str) -> None:
    def check(rank: int) -> tuple[list[list[float]], list[list[float]], list[str]]:
        configure = with_schedule(SCHEDULES[kind])
        straight = trajectory(old_trainer(), FLAVOURS[0], configure)
        begun = old_trainer(max_epochs=3)
        trajectory(begun, FLAVOURS[0], configure)
        begun.save_checkpoint(tmp_path / "begun.ckpt")
        with Logged() as lines:
            resumed = trajectory(old_trainer(), FLAVOURS[0], configure, ckpt_path=tmp_path / "begun.ckpt")
        return straight.epochs[3:], resumed.epochs, lines

    for rank, (straight, resumed, lines) in enumerate(two_ranks.run(check)):
        assert resumed == [pytest.approx(epoch) for epoch in straight]
        assert len(lines) == (rank == 0)


@pytest.mark.slow
def test_checkpoints_of_other_factors(two_ranks: RankPool, three_ranks: RankPool, tmp_path: Path) -> None:
    configure = with_schedule(SCHEDULES["step"])

    def write(rank: int, name: str, scaled: bool) -> None:
        trainer = old_trainer(max_epochs=1) if scaled else trainer_of()
        trajectory(trainer, FLAVOURS[0], configure)
        trainer.save_checkpoint(tmp_path / name)

    def go_on(rank: int, name: str, scaled: bool) -> tuple[list[list[float]], list[str], Any]:
        trainer = old_trainer(max_epochs=3) if scaled else trainer_of(max_epochs=3)
        with Logged() as lines:
            resumed = trajectory(trainer, FLAVOURS[0], configure, ckpt_path=tmp_path / name)
        trainer.save_checkpoint(tmp_path / "again.ckpt")
        return resumed.epochs, lines, torch.load(tmp_path / "again.ckpt").get("spark_estimator_lr_factor")

    two_ranks.run(write, "two.ckpt", True)
    two_ranks.run(write, "plain.ckpt", False)

    # PyTorch and Lightning read it without this package.
    checkpoint = torch.load(tmp_path / "two.ckpt", weights_only=True)
    (state,) = checkpoint["optimizer_states"]
    assert [group["lr"] for group in state["param_groups"]] == [0.04, 0.01]
    assert checkpoint["lr_schedulers"][0]["base_lrs"] == [0.04, 0.01]
    alone = trainer_of(strategy="auto", devices=1, max_epochs=3)
    resumed = trajectory(alone, FLAVOURS[0], configure, ckpt_path=tmp_path / "two.ckpt")
    assert resumed.epochs == [[0.04, 0.01], pytest.approx([0.004, 0.001])]

    # As with Horovod, the rates of the checkpoint stay.
    results = three_ranks.run(go_on, "two.ckpt", True)
    for rank, (epochs, lines, factor) in enumerate(results):
        assert epochs == [[0.04, 0.01], pytest.approx([0.004, 0.001])] and factor == 2
        assert len(lines) == 2 * (rank == 0)
    assert results[0][1][1] == (
        "The training continues with the learning rate of the checkpoint, 0.04, 0.01. The factor of the checkpoint is "
        "2; the factor of this job is 3."
    )
    (epochs, lines, factor), _ = two_ranks.run(go_on, "plain.ckpt", True)
    assert epochs[0] == [0.02, 0.005] and factor is None
    assert "checkpoint, 0.02, 0.005. The factor of the checkpoint is unknown; the factor of this job is 2." in lines[1]
    (epochs, lines, factor), _ = two_ranks.run(go_on, "two.ckpt", False)
    assert epochs[0] == [0.04, 0.01] and factor == 2
    assert "The factor of the checkpoint is 2; the factor of this job is 1." in lines[0]
    (epochs, lines, factor), _ = two_ranks.run(go_on, "plain.ckpt", False)
    assert epochs[0] == [0.02, 0.005] and factor is None and not lines


def test_rates_become_plain_again() -> None:
    """Without ranks, with the schedule that keeps its rates in the parameter groups."""
    from spark_estimator.lightning import rates as under_test

    net = torch.nn.Linear(2, 2)
    optimizer = SGD(net.parameters(), lr=0.1)
    schedule = schedules.OneCycleLR(optimizer, max_lr=1.0, total_steps=4)
    before = {key: value for key, value in optimizer.param_groups[0].items() if "lr" in key}
    under_test.rescale([optimizer], [schedule], 1, 2)
    after = optimizer.param_groups[0]
    assert {key: after[key] for key in before} == {key: pytest.approx(2 * value) for key, value in before.items()}
    under_test.make_plain(net)
    assert {key: after[key] for key in before} == {key: pytest.approx(value) for key, value in before.items()}
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["param_groups"][0]["lr"] == pytest.approx(before["lr"])
