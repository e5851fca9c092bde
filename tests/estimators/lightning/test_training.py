"""What the ranks of Lightning's estimator run: without Spark, many trainings on rows of a Parquet file in two ranks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from spark_estimator.errors import DataError
from spark_estimator.store import Store
from tests.estimators.histories import drop_times
from tests.estimators.torch_models import Draws
from tests.ranks import run_ranks

ROWS, WIDTH = 203, 3
FLAVOUR = "lightning.pytorch"


def network() -> nn.Module:
    """Its training depends on chance, and its validation on what each rank has counted."""
    torch.manual_seed(3)
    # The gradient of a bias before a batch normalization would be nothing but rounding errors, which Adam amplifies.
    return nn.Sequential(
        nn.Linear(WIDTH, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), Draws(), nn.Linear(8, 1)
    )


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(WIDTH, 1)


def module(net: nn.Module | None = None, lr: float = 0.05, **methods: Any) -> Any:
    """A LightningModule that learns y from x; `methods` replace its own."""
    import lightning.pytorch as pl

    class Learner(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = net or linear()
            self.batches = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            assert set(batch) == {"x", "y"}
            self.batches += 1
            loss = nn.functional.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
            self.log("own_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch["y"]), sync_dist=True)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            loss = nn.functional.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
            self.log("val_loss", loss, batch_size=len(batch["y"]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.3)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "own_loss"}}

    return type("Learner", (Learner,), methods)(lr)


def spec_of(folder: str, **changed: Any) -> Any:
    from spark_estimator.data.fields import Field
    from spark_estimator.data.parquet import FileRows, find_files
    from spark_estimator.data.row_encoder import RowEncoder
    from spark_estimator.estimators.train_spec import TrainSpec

    rows = changed.pop("rows", "rows")
    x, y = Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,)), Field(("y",), ("c1",), (1,), "float32", ())
    parameters = {
        "inputs": (x,),
        "labels": (y,),
        **dict.fromkeys(("weight", "train_steps", "validation_steps", "patience", "held_source", "checkpoint_steps")),
        "held_share": 0.2,
        "seed": 5,
        "batch_size": 8,
        "val_batch_size": 8,
        "epochs": 3,
        "shuffle": True,
        "verbose": 0,
        "backward_passes_per_step": 1,
        "use_gpu": False,
        "restore_best": False,
        "large": 1 << 40,
        "store": None,
        "run_id": "run",
        "source": FileRows(find_files(f"{folder}/{rows}.parquet"), RowEncoder(("x", "y"), (x, y))),
    }
    return TrainSpec(**{**parameters, **changed})


def trained(folder: str, model: nn.Module, changed: dict[str, Any] | None = None, **parts: Any) -> Any:
    """The result of `train` on this rank."""
    from spark_estimator.estimators.lightning.parts import LightningParts
    from spark_estimator.estimators.lightning.training import train

    framework = LightningParts(FLAVOUR, model, **{"plain": None, **parts})
    return train(spec_of(folder, framework=framework, **(changed or {})))


def plain(net: nn.Module, **changed: Any) -> dict[str, Any]:
    from spark_estimator.estimators.torch.losses import TorchParts

    parameters = {
        "model": net,
        "optimizer": torch.optim.Adam(net.parameters(), lr=0.01),
        "losses": [nn.MSELoss()],
        "loss_weights": [1.0],
        "metrics": [[nn.L1Loss()]],
    }
    return {"plain": TorchParts(**{**parameters, **changed})}


def same(value: Any, other: Any) -> bool:
    """Two results of rank 0, bit for bit; equal on other ranks, which return nothing."""
    if value is None:
        return other is None
    numbers, others = numbers_of(value), numbers_of(other)
    equal = numbers.keys() == others.keys() and all(torch.equal(numbers[name], others[name]) for name in numbers)
    return equal and json.dumps(drop_times(value.history)) == json.dumps(drop_times(other.history))


def alike(value: Any, other: Any) -> bool:
    """As `same`, up to rounding."""
    if value is None:
        return other is None
    numbers, others = numbers_of(value), numbers_of(other)
    torch.testing.assert_close(numbers, others, rtol=1e-4, atol=1e-5)
    for entry, expected in zip(value.history, other.history, strict=True):
        for part in ("train", "validation"):
            assert entry[part]["loss"] == pytest.approx(expected[part]["loss"], rel=1e-4)
    return True


def numbers_of(result: Any) -> dict[str, torch.Tensor]:
    """The model's state; TorchEstimator's ranks return the optimizer's beside it."""
    state = torch.load(io.BytesIO(result.state), weights_only=True)
    return dict(state.get("model", state))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rows")
    write_rows(made)
    return made


def write_rows(made: Path) -> None:
    numbers = numpy.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(numpy.float32)
    table = pyarrow.table({"x": numbers.tolist(), "y": numbers.sum(1)})
    pyarrow.parquet.write_table(table, made / "rows.parquet")
    pyarrow.parquet.write_table(table.slice(0, 3), made / "few.parquet")


def in_two_ranks(rank: int, folder: str) -> dict[str, Any]:
    import lightning.pytorch as pl

    results: dict[str, Any] = {}
    torch.set_num_threads(1)
    # A plain module is trained as TorchEstimator does it.
    from spark_estimator.estimators.torch.training import train as torch_train

    for name, changed in {"plain": {}, "added up": {"backward_passes_per_step": 3, "restore_best": True}}.items():
        net = network()
        ours = trained(folder, net, changed, **plain(net))
        theirs = torch_train(spec_of(folder, framework=plain(network())["plain"], **changed))
        # Lightning divides the losses of accumulated batches, and rounds differently.
        results[name] = (same if name == "plain" else alike)(ours, theirs)

    # One batch of everything: 102 rows here, 101 there.
    whole = {"batch_size": ROWS, "held_share": 0.0, "epochs": 4}
    result = trained(folder, module(), whole)
    if rank == 0:
        results["weights"] = torch.load(io.BytesIO(result.state), weights_only=True)
        results["history"] = result.history

    # Fewer rows than ranks have room for: the second of two steps has a row on one rank only.
    few = trained(folder, module(), {"rows": "few", "batch_size": 1, "epochs": 1, "held_share": 0.0})
    results["few"] = few and few.history[0]["train"]["loss"]

    # Resumed after each epoch, and after one that was left in its middle.
    kept = {"store": Store.create(f"{folder}/store"), "backward_passes_per_step": 2, "epochs": 4, "restore_best": True}

    def stopping() -> dict[str, Any]:
        return {"callbacks": [pl.callbacks.EarlyStopping("val_loss", patience=3)]}

    straight = trained(folder, module(network()), {**kept, "store": None}, **stopping())
    for epochs in (1, 3):
        trained(folder, module(network()), {**kept, "epochs": epochs}, **stopping())

    def interrupted(self: Any, batch: Any, number: int) -> Any:
        if self.trainer.current_epoch == 3 and number == 4:
            raise InterruptedError
        return super(type(self), self).training_step(batch, number)

    with pytest.raises(InterruptedError):
        trained(folder, module(network(), training_step=interrupted), kept, **stopping())
    results["resumed"] = same(straight, trained(folder, module(network()), kept, **stopping()))
    results["had its epochs"] = same(straight, trained(folder, module(network()), kept, **stopping()))
    if rank == 0:
        checkpoint = torch.load(f"{folder}/store/runs/run/checkpoint", weights_only=True)
        results["callbacks"] = list(checkpoint["lightning"]["callbacks"])
        results["rate"] = checkpoint["lightning"]["optimizer_states"][0]["param_groups"][0]["lr"]
    with pytest.raises(DataError) as refused:
        trained(folder, module(network(), lr=0.1), kept)
    results["refused"] = str(refused.value)

    # A callback on one rank ends the training on all; so does patience.
    class Ending(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            if rank == 1 and trainer.current_epoch == 1 and args[-1] == 2:
                trainer.should_stop = True

    ended = module()
    nine = {"epochs": 9, "store": Store.create(f"{folder}/store"), "run_id": "ended"}
    run = trained(folder, ended, nine, callbacks=[Ending()])
    results["ended"] = ended.batches, run and len(run.history)
    results["ended for good"] = same(run, trained(folder, module(), nine, callbacks=[Ending()]))
    patient = trained(folder, module(lr=0.0), {"epochs": 9, "patience": 2})
    results["patience"] = patient and len(patient.history)

    # The Trainer's own arguments.
    limited = module()
    arguments = {"limit_train_batches": 3, "precision": "bf16-mixed", "gradient_clip_val": 0.1, "max_epochs": 2}
    trained(folder, limited, {}, trainer_args=arguments)
    results["limited"] = limited.batches
    # Each rank's would write to another folder.
    logger = pl.loggers.CSVLogger(f"{folder}/logs", name=f"rank{rank}")
    trained(folder, module(), {"epochs": 1}, logger=logger, log_every_n_steps=2)

    # Optimization by hand.
    def by_hand(self: Any, batch: Any, number: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
        self.manual_backward(loss)
        optimizer.step()
        self.log("train_loss", loss, on_epoch=True, on_step=False, batch_size=len(batch["y"]))

    manual = module(training_step=by_hand, automatic_optimization=False)
    result = trained(folder, manual, whole)
    if rank == 0:
        results["manual"] = torch.load(io.BytesIO(result.state), weights_only=True)
        results["manual losses"] = [entry["train"]["loss"] for entry in result.history]

    for stop, words in ((False, "loss of epoch"), (True, "terminate_on_nan")):
        with pytest.raises(DataError, match=words):
            trained(folder, module(lr=1e30), {"epochs": 2}, stop_on_nan=stop)
    return results


def alone_in_two_ranks(rank: int, folder: str) -> list[bool]:
    """Ranks that step by their own gradients: as in TorchEstimator, and resumed between two exchanges."""
    from spark_estimator.estimators.torch.training import train as torch_train

    def sgd(self: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    torch.set_num_threads(1)
    # A checkpoint has rank 0's state of the inner optimizer only.
    without_state = {"configure_optimizers": sgd}
    results = []
    for sync in ("local_sgd", "diloco"):
        alone: dict[str, Any] = {"sync": sync, "inner_steps": 4}
        of_torch = {**alone, "rate_is_joint": True}
        net = network()
        ours = trained(folder, net, scale_lr=False, **alone, **plain(net, **of_torch))
        theirs = torch_train(spec_of(folder, framework=plain(network(), **of_torch)["plain"]))
        results.append(same(ours, theirs))
        straight = trained(folder, module(network(), **without_state), scale_lr=False, **alone)
        stored = {"store": Store.create(f"{folder}/store"), "run_id": sync}
        for epochs in (1, 3):
            changed = {**stored, "epochs": epochs}
            resumed = trained(folder, module(network(), **without_state), changed, scale_lr=False, **alone)
        results.append(same(straight, resumed))
    return results


@pytest.mark.slow
def test_ranks_that_step_alone(folder: Path) -> None:
    assert run_ranks(2, alone_in_two_ranks, 240, args=(str(folder),)) == [[True] * 4] * 2


def unfreezing() -> Any:
    """A callback that adds a layer to the optimizer in the second epoch, and changes the mode of another."""
    import lightning.pytorch as pl

    class Unfreezing(pl.callbacks.BaseFinetuning):  # type: ignore[misc]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.net[0])

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.01)
                pl_module.net[3].eval()

    return Unfreezing()


def unfrozen_in_two_ranks(rank: int, folder: str) -> bool:
    """Resumed after a callback has unfrozen a layer, set its mode and the accumulation."""
    import lightning.pytorch as pl

    def callbacks() -> dict[str, Any]:
        callbacks = [unfreezing(), pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})]
        return {"callbacks": callbacks, "trainer_args": {"max_steps": 1000}}

    torch.set_num_threads(1)
    straight = trained(folder, module(network()), {"epochs": 4}, **callbacks())
    stored = {"store": Store.create(f"{folder}/store"), "run_id": "unfrozen"}
    for epochs in (2, 4):
        resumed = trained(folder, module(network()), {**stored, "epochs": epochs}, **callbacks())
    return same(straight, resumed)


@pytest.mark.slow
def test_a_run_resumes_with_what_callbacks_have_changed(folder: Path) -> None:
    assert run_ranks(2, unfrozen_in_two_ranks, 240, args=(str(folder),)) == [True] * 2


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return run_ranks(2, in_two_ranks, 240, args=(str(folder),))


def by_hand_on_all_rows(folder: Path) -> tuple[nn.Module, list[float]]:
    """The network after 4 steps on all rows, in this process."""
    table = pyarrow.parquet.read_table(folder / "rows.parquet")
    x, y = torch.tensor(table["x"].to_pylist()), torch.tensor(table["y"].to_pylist())
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=2 * 0.05, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x).reshape(-1), y)
        loss.backward()
        optimizer.step()
        plateau.step(loss.item())
        losses.append(loss.item())
    return net, losses


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_plain_module_is_trained_as_torch_estimator_does_it(results: list[dict[str, Any]]) -> None:
    assert all(result["plain"] and result["added up"] for result in results), "with chance and batch normalization"


def test_two_ranks_are_one_on_the_joint_batch(results: list[dict[str, Any]], folder: Path) -> None:
    net, losses = by_hand_on_all_rows(folder)
    first = results[0]
    for name, value in net.state_dict().items():
        assert torch.allclose(first["weights"][f"net.{name}"], value, rtol=1e-4, atol=1e-6)
    assert numpy.allclose([entry["train"]["loss"] for entry in first["history"]], losses, rtol=1e-5)
    assert numpy.allclose([entry["logged"]["own_loss"] for entry in first["history"]], losses, rtol=1e-5)


def test_optimization_by_hand_is_weighed_too(results: list[dict[str, Any]], folder: Path) -> None:
    table = pyarrow.parquet.read_table(folder / "rows.parquet")
    x, y = torch.tensor(table["x"].to_pylist()), torch.tensor(table["y"].to_pylist())
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=2 * 0.05, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x).reshape(-1), y).backward()
        optimizer.step()
    for name, value in net.state_dict().items():
        assert torch.allclose(results[0]["manual"][f"net.{name}"], value, rtol=1e-4, atol=1e-6)
    assert len(results[0]["manual losses"]) == 4 and results[0]["manual losses"][3] < results[0]["manual losses"][0]


def test_a_rank_without_rows_takes_part(results: list[dict[str, Any]]) -> None:
    assert results[0]["few"] > 0


def test_a_run_goes_on_to_the_very_same_bits(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["resumed"] and result["had its epochs"]
    assert results[0]["rate"] < 2 * 0.05, "its schedule, which looks at what was logged, has moved"
    assert any("EarlyStopping" in key for key in results[0]["callbacks"])
    assert "model's hyperparameters: lr=0.05 in the checkpoint, lr=0.1 now" in results[0]["refused"]


def test_who_ends_early_ends_it_for_all(results: list[dict[str, Any]]) -> None:
    # 203 rows, 41 of them for validation: 81 here and there, in 11 batches an epoch.
    assert [result["ended"][0] for result in results] == [11 + 3] * 2
    assert results[0]["ended"][1] == 2
    assert all(result["ended for good"] for result in results), "the same run again is as it was"
    assert results[0]["patience"] == 3


def test_arguments_of_the_trainer(results: list[dict[str, Any]], folder: Path) -> None:
    assert [result["limited"] for result in results] == [2 * 3] * 2
    assert [path.name for path in folder.glob("logs/*")] == ["rank0"], "one log, of rank 0"
    (metrics,) = folder.glob("logs/rank0/version_*/metrics.csv")
    assert "own_loss" in metrics.read_text()


def compiled_alone(rank: int, folder: str) -> list[bool]:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plainly, learner = trained(folder, module()), module()
    compiled = trained(folder, learner, compile={"backend": backend})
    had = len(graphs)
    # The largest loss is that of the first epoch.
    chosen = {"monitor": "own_loss", "mode": "max", "restore_best": True, "validation_steps": 1}
    best = trained(folder, module(), chosen)
    first = trained(folder, module(), {"epochs": 1})
    torch._dynamo.reset()  # the same graph has been compiled above
    net = linear()
    trained(folder, net, compile={"backend": backend}, **plain(net))
    weights = [torch.cat([value.reshape(-1) for value in numbers_of(each).values()]) for each in (best, first, plainly)]
    return [
        had > 1,
        len(graphs) > had,
        alike(compiled, plainly),
        learner.batches == 3 * -(-(ROWS - 41) // 8),
        torch.equal(weights[0], weights[1]),
        not torch.equal(weights[0], weights[2]),
    ]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_module_is_compiled_and_what_it_logs_chooses_the_best(folder: Path) -> None:
    assert run_ranks(1, compiled_alone, 300, args=(str(folder),)) == [[True] * 6]


def rates_of_epochs(rank: int, folder: str, epochs: int, **parts: Any) -> tuple[list[float], list[float], list[str]]:
    """The rates of a run's epochs, its schedule's last, and what is logged of rates."""
    import logging

    torch.set_num_threads(1)
    rates: list[float] = []
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("spark_estimator").addHandler(Lines())

    def on_train_epoch_start(self: Any) -> None:
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        bases.append(self.trainer.lr_scheduler_configs[0].scheduler.base_lrs[0])

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))]

    bases: list[float] = []
    learner = module(on_train_epoch_start=on_train_epoch_start, configure_optimizers=configure_optimizers)
    store = Store.create(f"{folder}/rates")
    trained(folder, learner, {"epochs": epochs, "store": store, "run_id": f"rates {parts}"}, **parts)
    return rates, bases, [line for line in lines if "learning rate" in line]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_learning_rate_follows_the_number_of_ranks(folder: Path) -> None:
    """Also if a run resumes from its checkpoint on another number."""
    for ranks, epochs, expected in (
        (2, 2, [2 / 1, 2 / 2]),
        (3, 4, [3 / 3, 3 / 4]),
        (1, 5, [1 / 5]),
        (2, 6, [2 / 6]),
    ):
        results = run_ranks(ranks, rates_of_epochs, 120, args=(str(folder), epochs))
        for rank, (rates, bases, lines) in enumerate(results):
            assert rates == pytest.approx([0.05 * factor for factor in expected])
            assert bases == pytest.approx([0.05 * ranks] * len(expected))
            assert len(lines) == (rank == 0 and ranks > 1)
        if ranks > 1:
            assert f"multiplied by {ranks}, the number of ranks: SGD lr 0.05 -> {0.05 * ranks:g}." in results[0][2][0]


def plain_rates(rank: int, folder: str) -> tuple[list[float], list[float], list[str]]:
    return rates_of_epochs(rank, folder, 2, scale_lr=False)


@pytest.mark.slow
def test_the_learning_rate_stays_if_that_is_wanted(folder: Path) -> None:
    for result in run_ranks(2, plain_rates, 120, args=(str(folder),)):
        assert result == (pytest.approx([0.05, 0.025]), [0.05, 0.05], [])
