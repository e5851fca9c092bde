"""Both packages of Lightning, in fresh interpreters: which is imported when, and the error if none is.

Also the strategy of ``lightning_horovod``, which multiplies the learning rate, as that package does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.compat.interpreter import fresh
from tests.lightning.training import module_of, network, rows, trainer_of
from tests.torch.rank_pool import RankPool

BATCH, RATE = 16, 0.05


def test_each_package_knows_the_strategy_in_whatever_order_they_come() -> None:
    fresh(
        """
        import sys
        import pytorch_lightning
        import spark_estimator.lightning as ours
        assert "lightning" not in sys.modules and "spark_estimator.lightning.strategy" not in sys.modules
        assert "horovod" in pytorch_lightning.strategies.StrategyRegistry
        # The one that is there, though the other one is installed, too.
        assert issubclass(ours.HorovodStrategy, pytorch_lightning.strategies.Strategy)
        assert "lightning" not in sys.modules
        import lightning.pytorch
        assert "horovod" in lightning.pytorch.strategies.StrategyRegistry
        assert issubclass(ours.HorovodStrategy, lightning.pytorch.strategies.Strategy)
        assert ours.HorovodStrategy is ours.strategy_class("lightning.pytorch")
        assert lightning.pytorch.__spec__.loader.get_source("lightning.pytorch")
        for package in (lightning.pytorch, pytorch_lightning):
            trainer = package.Trainer(strategy="horovod", accelerator="cpu", logger=False)
            assert type(trainer.strategy) is ours.strategy_class(package.__name__), package
        import pickle
        assert pickle.loads(pickle.dumps(ours.HorovodStrategy)) is ours.HorovodStrategy
        """
    )


@pytest.mark.slow
def test_the_strategy_is_asked_for_before_any_package_is_there() -> None:
    fresh(
        """
        import sys
        from spark_estimator.lightning import HorovodStrategy
        import spark_estimator.lightning
        import lightning.pytorch as pl
        assert "pytorch_lightning" not in sys.modules
        strategy = spark_estimator.lightning.HorovodStrategy()
        assert pl.Trainer(strategy=strategy, accelerator="cpu", logger=False).strategy is strategy
        try:
            spark_estimator.lightning.strategy_class("fabric")
        except ValueError as error:
            assert "lightning.pytorch and pytorch_lightning" in str(error)
        else:
            raise SystemExit("no such package")
        """
    )


@pytest.mark.parametrize(
    ("missing", "named"), [(("lightning", "pytorch_lightning"), "Lightning"), (("torch",), "PyTorch")]
)
def test_without_lightning_one_line_says_what_to_install(missing: tuple[str, ...], named: str) -> None:
    fresh(
        f"""
        import sys
        for name in {missing!r}:
            sys.modules[name] = None
        try:
            import spark_estimator.lightning
        except ModuleNotFoundError as error:
            start = "spark_estimator.lightning needs {named}, which is not installed: pip install "
            assert str(error).startswith(start), error
            assert "\\n" not in str(error)
        else:
            raise SystemExit("imported")
        """
    )


def numbers(net: Any) -> list[float]:
    return [float(value) for parameter in net.parameters() for value in parameter.detach().reshape(-1)]


def plain(steps: int, ranks: int, rate: float) -> list[float]:
    """The network after steps on the joint batches of all ranks, by PyTorch alone. Lightning deals rows out in turn."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    x, y = rows(steps * ranks * BATCH).tensors
    for step in range(steps):
        joint = slice(step * ranks * BATCH, (step + 1) * ranks * BATCH)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x[joint]), y[joint]).backward()
        optimizer.step()
    return numbers(net)


def trained(strategy: Any, steps: int = 3) -> list[float]:
    """The network after training on this rank's part of the same rows."""
    import spark_estimator.torch as hvd

    def configure_optimizers(self: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=RATE)

    def training_step(self: Any, batch: Any, number: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    module = module_of(configure_optimizers=configure_optimizers, training_step=training_step)
    dataset = rows(steps * hvd.size() * BATCH)
    sampler = torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank(), shuffle=False)
    data = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    trainer_of(strategy=strategy, max_epochs=1, use_distributed_sampler=False).fit(module, data)
    return numbers(module)


@pytest.mark.parametrize("size", [1, 2])
def test_the_add_on_s_strategy_multiplies_the_rate(size: int) -> None:
    def check(rank: int) -> list[list[float]]:
        from spark_estimator import compat

        compat.install(force=True)
        import lightning_horovod
        import lightning_horovod.strategy as module

        strategy = lightning_horovod.HorovodStrategy
        assert module.HorovodStrategy is strategy
        assert strategy(sync="local_sgd").scale_lr is None, "each rank steps with the rate of one process"
        results = [trained(strategy()), trained("horovod"), trained(strategy(scale_lr=False))]
        compat.install(force=True, lightning=True)
        return [*results, trained(strategy())]

    ranks = RankPool(size)
    try:
        of_ranks = ranks.run(check)
    finally:
        ranks.close()
    scaled, unscaled = plain(3, size, size * RATE), plain(3, size, RATE)
    assert (scaled == unscaled) == (size == 1)
    for results in of_ranks:
        for result, expected in zip(results, [scaled, scaled, unscaled, scaled], strict=True):
            assert result == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_name_is_the_add_on_s_from_its_import_on(package: str) -> None:
    fresh(
        f"""
        import pickle
        import spark_estimator.lightning
        import {package} as pl

        def made():
            return pl.Trainer(strategy="horovod", accelerator="cpu", logger=False, enable_checkpointing=False).strategy

        ours = spark_estimator.lightning.HorovodStrategy
        assert type(made()) is ours and not made().scale_lr
        from spark_estimator import compat
        compat.install(force=True)
        from lightning_horovod import HorovodStrategy
        assert type(made()) is HorovodStrategy and made().scale_lr and issubclass(HorovodStrategy, ours)
        assert pickle.loads(pickle.dumps(HorovodStrategy)) is HorovodStrategy
        compat.uninstall()
        assert type(made()) is ours
        """
    )
