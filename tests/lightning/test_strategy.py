"""Trainer(strategy="horovod"): N ranks train as one process does on N times the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.lightning.training import (
    BATCH,
    loader,
    module_of,
    package,
    rows,
    trained_alone,
    trainer_of,
    weights,
)
from tests.torch.rank_pool import RankPool

FLAVOURS = ["lightning.pytorch", "pytorch_lightning"]
#: The numbers of the rows that two ranks' batches have together: Lightning's sampler shuffles the training's.
JOINT = list(torch.randperm(64, generator=torch.Generator().manual_seed(0)).split(2 * BATCH))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_two_ranks_are_one_process_with_twice_the_batch(two_ranks: RankPool, flavour: str) -> None:
    def check(rank: int) -> list[float]:
        from spark_estimator.lightning import strategy_class

        trainer = trainer_of(flavour, strategy=strategy_class(flavour)(), devices=1, num_nodes=1)
        assert (trainer.global_rank, trainer.world_size, trainer.local_rank) == (rank, 2, rank)
        assert trainer.is_global_zero == (rank == 0) and trainer.num_nodes == 1
        module = module_of(flavour)
        trainer.fit(module, loader())
        assert trainer.num_training_batches == len(JOINT)
        return weights(module)

    first, second = two_ranks.run(check)
    assert first == second
    assert first == pytest.approx(trained_alone([[numbers] for numbers in JOINT]), abs=1e-5)


def test_ranks_that_step_by_themselves_come_together(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> list[float]:
        from spark_estimator.lightning import HorovodStrategy

        saved: list[Any] = []

        def configure_optimizers(self: Any) -> Any:
            saved.append(torch.optim.SGD(self.parameters(), lr=0.01))
            return saved[0]

        strategy = HorovodStrategy(sync="diloco", sync_options={"inner_steps": 3})
        module = module_of(configure_optimizers=configure_optimizers)
        trainer = trainer_of(strategy=strategy, max_epochs=1)
        trainer.fit(module, loader())
        assert type(saved[0]) is torch.optim.SGD  # again
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        with pytest.raises(ValueError, match=r"sync='ddp' must be one of 'allreduce', 'local_sgd', 'diloco'"):
            HorovodStrategy(sync="ddp")
        with pytest.raises(ValueError, match=r"scale_lr=True and sync='diloco'"):
            HorovodStrategy(sync="diloco", scale_lr=True)
        return weights(module)

    first, second = two_ranks.run(check)
    assert first == second
    assert first != weights(module_of("lightning.pytorch"))


def test_after_a_run_a_backward_is_the_rank_s_own(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> list[float]:
        from spark_estimator.lightning import HorovodStrategy

        saved: list[Any] = []

        def configure_optimizers(self: Any) -> Any:
            saved.append(saved[0] if saved else torch.optim.Adam(self.parameters(), lr=0.01))
            return saved[0]

        module = module_of(configure_optimizers=configure_optimizers)
        for run in range(2):  # with the same optimizer
            trainer = trainer_of(strategy=HorovodStrategy(), gradient_clip_val=0.05)
            trainer.fit(module, loader())
            trainer.save_checkpoint(tmp_path / f"{run}.ckpt")
        ended = weights(module)
        assert type(saved[0]) is torch.optim.Adam
        if rank == 0:  # which checks its own gradients, and takes a step
            module.zero_grad()
            module(rows(4).tensors[0]).sum().backward()
            saved[0].step()
        hvd.barrier()
        state = torch.load(tmp_path / "1.ckpt", weights_only=False)["optimizer_states"][0]["state"]
        assert len(state) == 4 and all(float(each["step"]) == 16 for each in state.values())
        return ended

    first, second = two_ranks.run(check)
    assert first == second


def clip_norm(params: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(params, 0.05)


def clip_value(params: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_value_(params, 0.003)


@pytest.mark.parametrize(
    ("arguments", "passes", "before_step"),
    [
        ({"gradient_clip_val": 0.05}, 1, clip_norm),
        ({"gradient_clip_val": 0.003, "gradient_clip_algorithm": "value"}, 1, clip_value),
        # Eight batches: the last step has two only.
        ({"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}, 3, clip_norm),
    ],
    ids=["norm", "value", "accumulated"],
)
def test_clipping_and_accumulation(
    two_ranks: RankPool, arguments: dict[str, Any], passes: int, before_step: Any
) -> None:
    def check(rank: int) -> tuple[list[float], int, list[bool]]:
        alike: list[bool] = []

        def on_before_optimizer_step(self: Any, optimizer: Any) -> None:
            gradients = hvd.allgather_object([param.grad.tolist() for param in self.parameters()])
            alike.append(gradients[0] == gradients[1])

        module, trainer = module_of(on_before_optimizer_step=on_before_optimizer_step), trainer_of(**arguments)
        exchanges: list[int] = []

        def on_train_end(self: Any) -> None:
            exchanges.append(trainer.optimizers[0]._distributed.exchange.exchanges)

        type(module).on_train_end = on_train_end
        trainer.fit(module, loader())
        return weights(module), exchanges[0], alike

    (first, exchanges, alike), (second, _, _) = two_ranks.run(check)
    steps = [JOINT[start : start + passes] for start in range(0, len(JOINT), passes)]
    assert first == second and exchanges == len(steps) and all(alike)
    assert first == pytest.approx(trained_alone(steps, passes, before_step), abs=1e-5)


def test_gradient_scaler_and_bf16(two_ranks: RankPool) -> None:
    def check(rank: int) -> tuple[list[float], list[float], float]:
        plugins = package().plugins
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)  # the first steps overflow, and are skipped
        plugin = plugins.MixedPrecision("16-mixed", "cpu", scaler)
        scaled, half = module_of(), module_of()
        trainer_of(plugins=[plugin], gradient_clip_val=0.5).fit(scaled, loader())
        trainer_of(precision="bf16-mixed", gradient_clip_val=0.5).fit(half, loader())
        return weights(scaled), weights(half), scaler.get_scale()

    first, second = two_ranks.run(check)
    assert first == second
    assert first[2] < 2.0**120
    assert torch.tensor(first[0]).isfinite().all()
    assert first[1] == pytest.approx(trained_alone([[numbers] for numbers in JOINT]), abs=0.05)


def test_manual_optimization_with_two_optimizers(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        def training_step(self: Any, batch: Any, number: int) -> None:
            first, second = self.optimizers()
            # Two passes to a step, the first of which is averaged, too.
            with first.toggle_model():
                first.zero_grad()
                for part in (0, 1):
                    self.manual_backward(nn.functional.mse_loss(self(batch[0])[:, part], batch[1][:, part]))
                self.clip_gradients(first, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
                first.step()
            # Sums that stay on the rank until the last pass.
            self.toggle_optimizer(second)
            with self.trainer.strategy.block_backward_sync():
                self.manual_backward(nn.functional.mse_loss(self(batch[0]), batch[1]))
            self.manual_backward(nn.functional.l1_loss(self(batch[0]), batch[1]))
            second.step()
            second.zero_grad()
            self.untoggle_optimizer(second)

        def configure_optimizers(self: Any) -> list[torch.optim.Optimizer]:
            return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.net[0], self.net[2])]

        module = module_of(
            training_step=training_step, configure_optimizers=configure_optimizers, automatic_optimization=False
        )
        trainer_of().fit(module, loader())
        return weights(module)

    first, second = two_ranks.run(check)
    assert first == second
    assert first == pytest.approx(manually_alone(), abs=1e-5)


def manually_alone() -> list[float]:
    from tests.lightning.training import network, rows

    net = network()
    first, second = (torch.optim.Adam(part.parameters(), lr=0.01) for part in (net[0], net[2]))
    inputs, targets = rows(64).tensors
    for numbers in JOINT:
        net.zero_grad()
        for part in (0, 1):
            nn.functional.mse_loss(net(inputs[numbers])[:, part], targets[numbers][:, part]).backward()
        nn.utils.clip_grad_norm_(net[0].parameters(), 0.05)
        first.step()
        net.zero_grad()
        nn.functional.mse_loss(net(inputs[numbers]), targets[numbers]).backward()
        nn.functional.l1_loss(net(inputs[numbers]), targets[numbers]).backward()
        second.step()
    return weights(net)


def test_devices_and_hosts_that_there_are_not(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(ValueError, match=r"devices=2\).*one device.*horovodrun -np 2"):
            trainer_of(devices=2)
        with pytest.raises(ValueError, match=r"num_nodes=3\).*on 1 host"):
            trainer_of(num_nodes=3)
        package("pytorch_lightning")
        from spark_estimator.lightning import strategy_class

        with pytest.raises(ValueError, match="HorovodStrategy for pytorch_lightning; for a Trainer of another package"):
            trainer_of(strategy=strategy_class("pytorch_lightning")())

    two_ranks.run(check)


def test_gpus_by_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_estimator.lightning import strategy_class

    strategy = strategy_class("lightning.pytorch")(parallel_devices=[torch.device("cuda", 0)])
    assert strategy.root_device == torch.device("cuda", 0)
    monkeypatch.setattr(type(strategy), "world_size", 4)
    monkeypatch.setattr(type(strategy), "local_rank", 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert strategy.root_device == torch.device("cuda", 3)
    strategy.parallel_devices = [torch.device("cuda", number) for number in range(4)]  # devices="auto"
    strategy._check_devices()
    strategy.parallel_devices = strategy.parallel_devices[:2]
    with pytest.raises(ValueError, match=r"devices=2\)"):
        strategy._check_devices()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # each rank sees its own
    assert strategy.root_device == torch.device("cuda", 0)


def test_batch_norm_over_all_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        module = module_of()
        module.net = nn.Sequential(nn.BatchNorm1d(6, affine=False), module.net[0], module.net[1], module.net[2])
        trainer_of(sync_batchnorm=True).fit(module, loader())
        return module.net[0].running_mean.tolist() + weights(module)

    net = nn.BatchNorm1d(6, affine=False)
    for numbers in JOINT:
        net(loader().dataset[:][0][numbers])
    first, second = two_ranks.run(check)
    assert first == second
    assert first[:6] == pytest.approx(net.running_mean.tolist(), abs=1e-5)


def test_finders(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> float:
        lightning = package()
        module, trainer = module_of(), trainer_of(default_root_dir=tmp_path)
        module.lr = 0.01
        module.batch_size = 4
        finder = lightning.tuner.Tuner(trainer).lr_find(module, loader(), num_training=12, early_stop_threshold=None)
        with pytest.raises(Exception, match="not supported with distributed"):
            lightning.tuner.Tuner(trainer_of(default_root_dir=tmp_path)).scale_batch_size(module, loader())
        return float(finder.suggestion(skip_begin=1))

    first, second = two_ranks.run(check)
    assert first == second > 0
