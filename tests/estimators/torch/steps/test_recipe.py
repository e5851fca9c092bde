"""How steps are made of the joint gradient: against a plain loop on all rows, on one rank and on two."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

import spark_estimator.torch as hvd
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.errors import DataError
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from spark_estimator.estimators.torch.steps.schedules import Rates, read_schedule, try_schedule
from spark_estimator.estimators.torch.trainer import Trainer
from spark_estimator.store import Store
from tests.estimators.specs import spec_of
from tests.estimators.torch.test_trainer import RATE, ROWS, alone, fitted, net_of, numbers, rows, table, weights_of
from tests.torch.rank_pool import RankPool

__all__ = ["alone", "rows"]


@pytest.fixture(scope="module", params=[1, 2])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def ranks(size: int) -> Iterator[RankPool]:
    created = RankPool(size)
    yield created
    created.close()


class Seeing(Callback):
    """Keeps the gradient that each step uses, for all processes to compare."""

    seen: list[list[float]]

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.seen = []
        self.optimizer = optimizer
        optimizer.register_step_pre_hook(self.see)

    def see(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.seen.append(torch.cat([grad.reshape(-1) for grad in grads]).tolist() if grads else [])


@pytest.mark.parametrize("recipe", [StepRecipe(clip_norm=0.5), StepRecipe(clip_value=0.3)])
def test_the_joint_gradient_is_clipped(size: int, ranks: RankPool, rows: str, recipe: StepRecipe) -> None:
    def check(rank: int) -> Any:
        return fitted(rows, lambda _: {"recipe": recipe})

    net, optimizer = net_of(RATE * size)
    x, y = table()
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        if recipe.clip_norm:
            assert nn.utils.clip_grad_norm_(net.parameters(), recipe.clip_norm) > recipe.clip_norm, "it clips"
        else:
            nn.utils.clip_grad_value_(net.parameters(), recipe.clip_value)
        optimizer.step()
    assert weights_of(ranks.run(check)[0]) == pytest.approx(numbers(net), rel=1e-5)


@pytest.mark.parametrize("more", [{}, {"compression": hvd.Compression.fp16}, {"compression": hvd.Compression.int8}])
def test_each_step_is_clipped_after_its_passes_and_its_compression(
    size: int, ranks: RankPool, rows: str, more: dict[str, Any]
) -> None:
    """The last step of an epoch has fewer passes than the others, and exchanges what they have computed itself."""

    def check(rank: int) -> Any:
        callback = Seeing()
        fitted(
            rows,
            lambda _: {"recipe": StepRecipe(clip_norm=0.25), "callbacks": [callback], **more},
            batch_size=-(-ROWS // hvd.size() // 5),
            backward_passes_per_step=3,
        )
        return callback.seen

    seen = ranks.run(check)
    assert all(other == seen[0] for other in seen) and len(seen[0]) == 8
    norms = [torch.tensor(gradient).norm().item() for gradient in seen[0]]
    assert max(norms) <= 0.25 + 1e-5 and sum(norm > 0.2499 for norm in norms) > 4


def test_ranks_that_step_alone_clip_their_own_gradients(size: int, ranks: RankPool, rows: str) -> None:
    def check(rank: int) -> Any:
        callback = Seeing()
        more = {"recipe": StepRecipe(clip_norm=0.25), "callbacks": [callback], "sync": "diloco", "inner_steps": 2}
        fitted(rows, lambda _: more)
        return callback.seen

    for seen in ranks.run(check):
        assert [torch.tensor(gradient).norm().item() for gradient in seen] == pytest.approx([0.25] * 4, rel=1e-4)


def curve(name: str, warmup: int, total: int) -> list[float]:
    """The rates of each step, by transformers, of an optimizer with the rate 1."""
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    name = "constant_with_warmup" if name == "constant" and warmup else name
    schedule = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


class Rated(Callback):
    """Keeps the rate of each step."""

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.rates: list[float] = []
        optimizer.register_step_pre_hook(lambda *_: self.rates.append(optimizer.param_groups[0]["lr"]))


def rates_of(path: str, schedule: Any, **changed: Any) -> list[float]:
    """The rates of each step, in epochs of six batches: a step of four passes, and one of two."""
    callback = Rated()

    def make(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        chosen, scheduler = read_schedule({"warmup_steps": 0, "warmup_ratio": 0.0, **schedule(optimizer)}.__getitem__)
        return {"recipe": StepRecipe(schedule=chosen), "scheduler": scheduler, "callbacks": [callback]}

    fitted(path, make, **{"batch_size": ROWS // hvd.size() // 6, "epochs": 6, "backward_passes_per_step": 4, **changed})
    return callback.rates


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
@pytest.mark.parametrize(("steps", "ratio", "warmup"), [(0, 0.0, 0), (5, 0.0, 5), (0, 0.1, 2)])
def test_schedules_by_name_are_hugging_face_s(
    size: int, ranks: RankPool, rows: str, name: str, steps: int, ratio: float, warmup: int
) -> None:
    def check(rank: int) -> list[float]:
        values = {"lr_scheduler": name, "warmup_steps": steps, "warmup_ratio": ratio}
        return rates_of(rows, lambda _: values)

    expected = [RATE * size * factor for factor in curve(name, warmup, 12)]
    assert ranks.run(check)[-1] == pytest.approx(expected)


def test_schedules_of_functions_and_objects(size: int, ranks: RankPool, rows: str) -> None:
    """Rates that a function sets are those of one process, as those of a scheduler are."""

    def check(rank: int) -> list[list[float]]:
        forms: list[Callable[..., Any]] = [
            lambda optimizer: lambda optimizer, steps: schedules.CosineAnnealingLR(optimizer, steps, eta_min=0.01),
            lambda optimizer: {"scheduler": schedules.CosineAnnealingLR(optimizer, 12, 0.01), "interval": "step"},
            lambda optimizer: lambda optimizer: schedules.StepLR(optimizer, 1, 0.5),
            lambda optimizer: {"scheduler": lambda _, epochs: schedules.LinearLR(_, 1, 0, epochs), "interval": "epoch"},
            lambda optimizer: {"scheduler": "linear", "interval": "epoch"},
        ]
        return [rates_of(rows, lambda optimizer, form=form: {"lr_scheduler": form(optimizer)}) for form in forms]

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12, eta_min=0.01)
    cosine = []
    for _ in range(12):
        cosine.append(size * optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    halved = [RATE * size * 0.5**epoch for epoch in range(6) for _ in range(2)]
    linear = [RATE * size * (1 - epoch / 6) for epoch in range(6) for _ in range(2)]
    for rates, expected in zip(ranks.run(check)[0], [cosine, cosine, halved, linear, linear], strict=True):
        assert rates == pytest.approx(expected)


def make_warm(optimizer: torch.optim.Optimizer, warm: int, *, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Rises in some steps, and needs the number of all."""
    assert steps != 1000 and warm < steps, f"{warm} steps of {steps}"
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / warm) * (1 - step / steps))


@pytest.mark.usefixtures("alone")
def test_a_function_is_judged_by_the_true_number_of_steps(rows: str) -> None:
    """It is called as functools.partial leaves it, on the driver with another number, which it may refuse."""
    function = functools.partial(make_warm, warm=4)
    values: dict[str, Any] = {"warmup_steps": 0, "warmup_ratio": 0.0, "lr_scheduler": function}
    schedule, _ = read_schedule(values.__getitem__)
    assert schedule is not None and str(schedule) == "make_warm by step"
    values |= {"epochs": 6, "validation": None, "monitor": None}
    recipe, optimizer = StepRecipe(schedule=schedule), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    recipe.check_schedule(None, optimizer, values.__getitem__, [])
    factors = [min(1.0, step / 4) * (1 - step / 12) for step in range(12)]
    assert rates_of(rows, lambda _: {"lr_scheduler": function}) == pytest.approx([RATE * each for each in factors])
    late = functools.partial(make_warm, warm=12)
    with pytest.raises(DataError, match="make_warm raised AssertionError for 12 steps: 12 steps of 12"):
        rates_of(rows, lambda _: {"lr_scheduler": late})
    plateau = {"lr_scheduler": lambda optimizer, steps: schedules.ReduceLROnPlateau(optimizer, patience=steps)}
    with pytest.raises(ValueError, match="a ReduceLROnPlateau does not move"):
        rates_of(rows, lambda _: plateau)


@pytest.mark.usefixtures("alone")
def test_a_warm_up_as_long_as_the_training_is_reported(rows: str, caplog: pytest.LogCaptureFixture) -> None:
    for warmup, lines in ((11, 0), (12, 1)):
        values = {"lr_scheduler": "cosine", "warmup_steps": warmup}
        rates_of(rows, lambda _, values=values: values)
        messages = [record.getMessage() for record in caplog.records if "warmup" in record.getMessage()]
        assert (
            messages
            == ["warmup_steps=12: the training has 12 steps, and ends before the learning rate is reached."] * lines
        )


def test_the_curve_of_a_run_that_resumes(tmp_path: Path, rows: str) -> None:
    """On as many ranks it is the same; on others it continues where its share of the training is."""
    pools = {1: RankPool(1), 2: RankPool(2)}

    def check(rank: int, run: str, epochs: int, batch: int) -> list[float]:
        store = Store.create(str(tmp_path / "store"))
        values = {"lr_scheduler": "cosine", "warmup_ratio": 0.25}
        more = {
            "store": store,
            "run_id": run,
            "epochs": epochs,
            "train_steps": batch,
            "batch_size": 2,
            "backward_passes_per_step": 2,
        }
        return rates_of(rows, lambda _: values, **more)

    try:
        whole = pools[2].run(check, "whole", 4, 6)[0]
        assert whole == pytest.approx([RATE * 2 * factor for factor in curve("cosine", 3, 12)])
        # The number of epochs is part of the curve: the first run has had another one.
        pools[2].run(check, "same", 1, 6)
        assert pools[2].run(check, "same", 4, 6)[0] == pytest.approx(whole[3:])
        pools[2].run(check, "fewer", 2, None)
        fewer = pools[1].run(check, "fewer", 4, None)[0]
        assert fewer == pytest.approx([RATE * factor for factor in curve("cosine", 6, 24)[12:]])
    finally:
        for pool in pools.values():
            pool.close()


@pytest.mark.parametrize("skipped", [0, 2])
def test_an_epoch_that_begins_again_begins_at_its_own_rate(skipped: int) -> None:
    """The checkpoint was taken at step 21 of 39, 8 steps after the beginning of the second epoch."""

    def make() -> tuple[Any, Rates]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        values = {"lr_scheduler": "linear", "warmup_steps": 0, "warmup_ratio": 0.0}
        return optimizer, Rates(*read_schedule(values.__getitem__), optimizer)

    optimizer, rates = make()
    rates.begin_epoch(0, 39, 1)
    for step in range(21):
        rates.end_step(taken=step >= skipped)
    kept, rate = rates.state_dict(), optimizer.param_groups[0]["lr"]
    for done, expected in ((13, 1 - (13 - skipped) / 39), (21, rate)):
        optimizer, rates = make()
        optimizer.param_groups[0] |= {"lr": rate, "initial_lr": 1.0}  # as a checkpoint has them
        rates.load_state_dict(kept)
        rates.begin_epoch(done, 39, 1)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        rates.end_step(taken=True)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected - 1 / 39)


def test_a_rate_that_is_a_tensor_stays_the_users() -> None:
    """PyTorch's schedulers write into it: the driver's trial, and a second making, must not begin at what they left."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.5))
    values: dict[str, Any] = {"lr_scheduler": "linear", "warmup_steps": 4, "warmup_ratio": 0.0}
    schedule, _ = read_schedule(values.__getitem__)
    assert schedule is not None
    try_schedule(schedule, optimizer, 1)
    assert optimizer.param_groups[0]["lr"] == 0.5 and "initial_lr" not in optimizer.param_groups[0]
    rates = Rates(schedule, None, optimizer)
    for total in (8, 12, 16):
        rates.begin_epoch(4, total, 1)
        assert optimizer.param_groups[0]["lr"] == 0.5 and optimizer.param_groups[0]["initial_lr"] == 0.5


def test_a_plateau_looks_at_the_number_that_it_is_told() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0)
    values = {"scheduler": plateau, "monitor": "validation.accuracy"}
    schedule, scheduler = read_schedule({"lr_scheduler": values, "warmup_steps": 0, "warmup_ratio": 0.0}.__getitem__)
    rates = Rates(schedule, scheduler, optimizer)
    for accuracy, rate in ((0.5, 1.0), (0.6, 1.0), (0.6, 0.5), (0.7, 0.5), (0.1, 0.25)):
        rates.end_step(taken=True)
        rates.end_epoch({"train": {"loss": 1}, "validation": {"loss": 1, "metrics": {"accuracy": accuracy}}})
        assert optimizer.param_groups[0]["lr"] == rate


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"precision": "fp16"}])
def test_200_steps_are_those_of_a_plain_loop(size: int, ranks: RankPool, rows: str, more: dict[str, Any]) -> None:
    """AdamW, warm-up, cosine and clipping, two passes a step; in fp16 with a scaler, as a plain loop has it."""
    values = {"lr_scheduler": "cosine", "warmup_steps": 0, "warmup_ratio": 0.1}
    epochs = 100  # of four passes, two steps

    def make_net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def check(rank: int) -> Any:
        net, seen = make_net(), Losses()
        parts = {"model": net, "optimizer": torch.optim.AdamW(net.parameters(), 0.02), "rate_is_joint": True}
        recipe = StepRecipe(clip_norm=0.5, schedule=read_schedule(values.__getitem__)[0])
        changed = {"batch_size": ROWS // size // 4, "epochs": epochs, "backward_passes_per_step": 2}
        fitted(rows, lambda _: {**parts, **more, "recipe": recipe, "callbacks": [seen]}, **changed)
        return seen.inputs, seen.losses

    of_ranks = ranks.run(check)
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), 0.02)
    schedule = read_schedule(values.__getitem__)[0]
    assert schedule is not None and schedule.make is not None
    scheduler = schedule.make(optimizer, epochs * 2)
    scaler = torch.amp.GradScaler("cpu", enabled=bool(more))
    expected, losses = [], []
    for number in range(epochs * 4):
        x = torch.tensor([row for inputs, _ in of_ranks for row in inputs[number]])
        with torch.autocast("cpu", torch.float16, enabled=bool(more)):
            output = net(x)
        loss = nn.functional.mse_loss(output.float(), x.sum(1, keepdim=True))
        expected.append(loss.item())
        losses.append(sum(of_rank[number] for _, of_rank in of_ranks) / size)
        scaler.scale(loss / 2).backward()
        if number % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= before:
                scheduler.step()
            optimizer.zero_grad()
    if size == 1 or not more:  # the scale is that of the rank with the largest gradients
        assert losses == pytest.approx(expected, abs=1e-5 if not more else 5e-3)
    assert losses[-1] < 0.1 < losses[0]


class Losses(Callback):
    """Keeps what the model gets in each batch, and its loss."""

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.inputs: list[list[list[float]]] = []
        self.losses: list[float] = []
        model.register_forward_pre_hook(lambda _, inputs: self.inputs.append(inputs[0].tolist()))

    def on_batch_end(self, step: int, loss: float) -> None:
        self.losses.append(loss)


@pytest.mark.usefixtures("alone")
def test_the_model_is_compiled_and_in_its_memory_format() -> None:
    graphs: list[int] = []
    formats: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        return graph.forward

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Conv2d(3, 2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.image(x).sum((2, 3)).sum(1, keepdim=True)

    def epoch(recipe: StepRecipe) -> tuple[float, nn.Module]:
        torch.manual_seed(0)
        net = Net()
        net.register_forward_pre_hook(
            lambda _, inputs: formats.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
        )
        parts = TorchParts(net, torch.optim.SGD(net.parameters(), 0.1), [nn.MSELoss()], [1.0], [[]], recipe=recipe)
        x = Field(("x",), ("c0",), (27,), "float32", (3, 3, 3))
        pixels = numpy.random.default_rng(1).normal(size=(8, 27)).astype(numpy.float32)
        images = RankRows(([pixels], [pixels.sum(1, keepdims=True)]), numpy.arange(8), (8,))
        trainer = Trainer(spec_of(inputs=(x,), batch_size=4, framework=parts))
        calls: list[int] = []
        loss: float = trainer.train(images, 0, 0, lambda *_: None, batch_calls=(calls.append, None))["loss"]
        assert calls == [0, 1]
        return loss, net

    plain, _ = epoch(StepRecipe())
    assert not graphs and formats == [False, False]
    loss, net = epoch(StepRecipe(compile={"backend": backend}, channels_last=True))
    assert graphs and formats[2:] and all(formats[2:]) and loss == pytest.approx(plain, rel=1e-5)
    assert net.image.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]
    assert list(net.state_dict()) == ["image.weight", "image.bias"]
    graphs.clear()
    line = nn.Sequential(nn.Linear(3, 1))
    recipe = StepRecipe(compile={"backend": backend})
    parts = TorchParts(line, torch.optim.SGD(line.parameters(), 0.1), [nn.MSELoss()], [1.0], [[]], recipe=recipe)
    Trainer(spec_of(framework=parts)).model(torch.ones(2, 3))
    assert graphs, "also a module of torch.nn's own"
