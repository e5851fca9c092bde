"""Both packages of Lightning, in fresh interpreters: which is imported when, and the error if none is."""

from __future__ import annotations

import pytest

from tests.compat.interpreter import fresh


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
