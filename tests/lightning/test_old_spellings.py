"""Arguments of Trainers of Lightning 1 that asked for Horovod."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from spark_estimator import compat
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.local import run_local
from spark_estimator.lightning.old_spellings import translate
from tests.compat.interpreter import fresh
from tests.lightning.training import loader, module_of, package, trainer_of

WRITE = r"write Trainer\(strategy=HorovodStrategy\(scale_lr=True\), accelerator='cpu'\)"


@pytest.fixture
def installed() -> Iterator[None]:
    compat.install(lightning=True)
    compat.install(lightning=True)
    yield
    compat.uninstall()


@pytest.mark.parametrize("flavour", ["lightning.pytorch", "pytorch_lightning"])
def test_trainers_take_them_as_long_as_that_is_wanted(installed: None, flavour: str) -> None:
    from spark_estimator.lightning import strategy_class

    trainer_class = package(flavour).Trainer
    quiet = {"logger": False, "enable_checkpointing": False, "max_epochs": 1}
    for old in ({"accelerator": "horovod"}, {"distributed_backend": "horovod"}, {"strategy": "horovod", "gpus": 0}):
        with pytest.warns(DeprecationWarning, match=WRITE) as message:
            trainer = trainer_class(**old, **quiet)
        assert message[0].filename == __file__
        assert isinstance(trainer.strategy, strategy_class(flavour)) and trainer.strategy.scale_lr
    assert trainer_class(strategy="horovod", accelerator="cpu", **quiet).strategy.scale_lr
    assert not isinstance(trainer_class(accelerator="cpu", **quiet).strategy, strategy_class(flavour))
    with pytest.raises(TypeError):
        trainer_class(gpus=1, **quiet)  # Horovod is not requested
    assert "max_epochs" in inspect.signature(trainer_class.__init__).parameters
    compat.uninstall()
    with pytest.raises(ValueError, match="horovod"):
        trainer_class(accelerator="horovod", **quiet)
    trainer = trainer_of(flavour)
    assert trainer.strategy.root_device == torch.device("cpu") and not trainer.strategy.scale_lr


@pytest.mark.parametrize("flavour", ["lightning.pytorch", "pytorch_lightning"])
def test_a_strategy_that_is_an_object_beside_them(installed: None, flavour: str) -> None:
    from spark_estimator.lightning import strategy_class

    trainer_class, base = package(flavour).Trainer, strategy_class(flavour)
    derived = type("Derived", (base,), {})
    quiet = {"logger": False, "enable_checkpointing": False}
    for strategy, scaled in ((base(), True), (derived(), True), (base(scale_lr=False), False)):
        with pytest.warns(DeprecationWarning, match=WRITE):
            trainer = trainer_class(accelerator="horovod", strategy=strategy, **quiet)
        assert trainer.strategy is strategy and strategy.scale_lr is scaled
    with pytest.warns(DeprecationWarning, match="leave progress_bar_refresh_rate out"):
        trainer_class(strategy=(alone := base()), accelerator="cpu", progress_bar_refresh_rate=2, **quiet)
    assert not alone.scale_lr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"accelerator": "horovod", "gpus": 1}, {"strategy": "horovod", "accelerator": "gpu"}),
        ({"distributed_backend": "horovod", "accelerator": "cpu"}, {"strategy": "horovod", "accelerator": "cpu"}),
        ({"accelerator": "horovod", "gpus": None, "max_steps": 3},
         {"strategy": "horovod", "accelerator": "cpu", "max_steps": 3}),
        ({"strategy": "ddp", "gpus": 2}, {"strategy": "ddp", "gpus": 2}),
    ],
)  # fmt: skip
def test_what_they_become(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert translate(old)[0] == new


@pytest.mark.parametrize("flavour", ["lightning.pytorch", "pytorch_lightning"])
def test_a_gpu_that_is_not_there(installed: None, flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine's GPU cannot be hidden from a process that runs")
    trainer_class = package(flavour).Trainer
    with (
        pytest.warns(DeprecationWarning, match="spelling of Lightning 1"),
        pytest.raises(RuntimeError, match=r"^gpus=1 was requested, but this process has no GPU. Remove gpus"),
    ):
        trainer_class(accelerator="horovod", gpus=1)


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ({"progress_bar_refresh_rate": 0}, {"enable_progress_bar": False}, "write Trainer(enable_progress_bar=False)"),
        ({"progress_bar_refresh_rate": 20}, {}, "leave progress_bar_refresh_rate out"),
        ({"checkpoint_callback": True}, {"enable_checkpointing": True}, "write Trainer(enable_checkpointing=True)"),
        ({"checkpoint_callback": False}, {"enable_checkpointing": False}, "write Trainer(enable_checkpointing=False)"),
        ({"weights_summary": None}, {"enable_model_summary": False}, "write Trainer(enable_model_summary=False)"),
        ({"weights_summary": "top"}, {}, "leave weights_summary out"),
        ({"resume_from_checkpoint": None}, {}, "leave resume_from_checkpoint out"),
        ({"accelerator": "horovod", "weights_summary": "top", "checkpoint_callback": False},
         {"strategy": "horovod", "accelerator": "cpu", "enable_checkpointing": False},
         "write Trainer(strategy=HorovodStrategy(scale_lr=True), accelerator='cpu', enable_checkpointing=False) and "
         "leave weights_summary out"),
    ],
)  # fmt: skip
def test_what_stands_beside_it(old: dict[str, Any], new: dict[str, Any], advice: str) -> None:
    became, text = translate({"max_epochs": 2, **old})
    assert became == {"max_epochs": 2, **new}
    assert text.endswith(f" is a spelling of Lightning 1; {advice}.")


def test_a_trainer_takes_what_stands_beside_it(installed: None) -> None:
    old = {"progress_bar_refresh_rate": 0, "checkpoint_callback": False, "weights_summary": None}
    trainer_class = package().Trainer
    with pytest.warns(DeprecationWarning, match="enable_progress_bar=False"):
        trainer = trainer_class(accelerator="horovod", logger=False, **old)
    assert trainer.progress_bar_callback is None and trainer.checkpoint_callback is None
    assert not [callback for callback in trainer.callbacks if "Summary" in type(callback).__name__]


@pytest.mark.parametrize("flavour", ["lightning.pytorch", "pytorch_lightning"])
def test_a_checkpoint_callback_joins_the_callbacks(installed: None, flavour: str) -> None:
    trainer_class, names = package(flavour).Trainer, package(flavour).callbacks
    kept, other = names.ModelCheckpoint(), names.Timer()
    for passed, joined in ((None, [kept]), (other, [other, kept]), ([other], [other, kept])):
        became, text = translate({"checkpoint_callback": kept, "callbacks": passed})
        assert became == {"callbacks": joined}
    assert text == (
        "Trainer(checkpoint_callback=ModelCheckpoint(...)) is a spelling of Lightning 1; write "
        "Trainer(callbacks=[Timer(...), ModelCheckpoint(...)])."
    )
    with pytest.warns(DeprecationWarning, match="checkpoint_callback"):
        trainer = trainer_class(checkpoint_callback=kept, logger=False, accelerator="cpu")
    assert trainer.checkpoint_callback is kept and trainer.callbacks.count(kept) == 1


def test_a_trainer_names_hooks_that_lightning_2_does_not_call(installed: None) -> None:
    old = type("Old", (package().Callback,), {"on_init_start": lambda self, trainer: None})()
    module = module_of(on_epoch_end=lambda self: None)
    trainer = trainer_of(callbacks=[old], fast_dev_run=True)
    with pytest.warns(UserWarning, match="no effect, as Lightning 2 does not call it") as messages:
        trainer.fit(module, loader(8))
    texts = [str(message.message) for message in messages if "no effect" in str(message.message)]
    assert [text.partition(":")[0] for text in texts] == ["Module.on_epoch_end()", "Old.on_init_start()"]


@pytest.mark.parametrize(
    ("old", "text"),
    [
        ({"resume_from_checkpoint": "a.ckpt"}, r"fit\(module, ckpt_path='a.ckpt'\)"),
        ({"checkpoint_callback": object()}, r"must be True, False or a callback; got <object"),
        ({"checkpoint_callback": True, "enable_checkpointing": False}, "choose one of the two"),
    ],
)
def test_what_is_said_elsewhere_today(old: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        translate(old)


def test_two_strategies_at_once() -> None:
    with pytest.raises(ValueError, match=r"strategy='ddp'\): choose one"):
        translate({"accelerator": "horovod", "strategy": "ddp"})


def test_the_estimators_old_name_restores_what_clients_import() -> None:
    fresh(
        """
        import spark_estimator.compat
        spark_estimator.compat.install()
        import horovod.spark.lightning
        from pytorch_lightning.utilities import _module_available
        assert _module_available("horovod") and not _module_available("no_such_package")
        """
    )


def test_ranks_have_the_driver_s_switch(installed: None) -> None:
    def understood() -> str:
        import lightning.pytorch as pl

        import spark_estimator.torch as hvd

        hvd.init()
        return type(pl.Trainer(strategy="horovod", accelerator="cpu", logger=False).strategy).__name__

    assert run_local(understood, 2) == ["HorovodStrategy"]
    compat.uninstall()
    with pytest.raises(WorkerFailedError, match="invalid strategy name"):
        run_local(understood, 2)
