"""Modules with the hooks of Lightning 1 that get what an epoch's steps returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spark_estimator.lightning.epoch_outputs import EpochOutputs, list_epoch_end_hooks
from tests.lightning.training import loader, module_of, package, trainer_of
from tests.torch.rank_pool import RankPool


def recording(**more: Any) -> Any:
    """A module whose hooks note what they get, and log a number."""

    def note(self: Any, hook: str, outputs: Any) -> None:
        if not self.trainer.sanity_checking:
            self.__dict__.setdefault("seen", []).append((hook, outputs))

    def validation_step(self: Any, batch: Any, number: int) -> dict[str, torch.Tensor]:
        return {"val_loss": (self(batch[0]) - batch[1]).square().mean()}

    def validation_epoch_end(self: Any, outputs: Any) -> None:
        note(self, "validation", outputs)
        self.log("average", torch.stack([output["val_loss"] for output in outputs]).mean(), sync_dist=True)

    def training_epoch_end(self: Any, outputs: Any) -> None:
        note(self, "training", outputs)
        self.log("trained", float(len(outputs)))

    def on_validation_epoch_end(self: Any) -> None:
        note(self, "hook of validation", None)

    def test_step(self: Any, batch: Any, number: int, dataloader_idx: int = 0) -> int | None:
        return dataloader_idx * 10 + number if number else None  # the first batch returns nothing

    def test_epoch_end(self: Any, outputs: Any) -> None:
        note(self, "test", outputs)

    methods = {
        "validation_step": validation_step,
        "validation_epoch_end": validation_epoch_end,
        "training_epoch_end": training_epoch_end,
        "on_validation_epoch_end": on_validation_epoch_end,
        "test_step": test_step,
        "test_epoch_end": test_epoch_end,
    }
    return module_of(**{**methods, **more})


def test_they_are_called_with_the_outputs_of_this_ranks_steps(two_ranks: RankPool) -> None:
    def check(rank: int) -> Any:
        class Monitor(package().Callback):  # type: ignore[misc,name-defined]
            def on_validation_end(self, trainer: Any, module: Any) -> None:
                averages.append(float(trainer.callback_metrics["average"]))

        averages: list[float] = []
        trainer, module = trainer_of(max_epochs=2, callbacks=[Monitor()]), recording()
        trainer.fit(module, loader(32), loader(16))
        trainer.test(module, [loader(16), loader(24)], verbose=False)
        hooks = [hook for hook, _ in module.seen]
        training = [outputs for hook, outputs in module.seen if hook == "training"]
        assert all(not entry["loss"].requires_grad for outputs in training for entry in outputs)
        (validation, *_) = (outputs for hook, outputs in module.seen if hook == "validation")
        (tests,) = (outputs for hook, outputs in module.seen if hook == "test")
        assert list_epoch_end_hooks(module) == ["training_epoch_end", "validation_epoch_end", "test_epoch_end"]
        assert not {"training_epoch_end", "validation_epoch_end"} & module.__dict__.keys()
        assert [type(callback).__name__ for callback in trainer.callbacks] == ["Monitor"]
        logged = float(trainer.callback_metrics.get("trained", 0))
        mine = float(torch.stack([output["val_loss"] for output in validation]).mean())
        return hooks, [len(outputs) for outputs in training], len(validation), tests, averages[1], mine, logged

    results = two_ranks.run(check)
    for hooks, training, validation, tests, _, _, _ in results:
        assert hooks == ["validation", "hook of validation", "training"] * 2 + ["test"]
        assert training == [4, 4] and validation == 2  # of 8 and 4 batches, which two ranks share
        assert tests == [[1], [11, 12]]
    (_, _, _, _, average, first, _), (_, _, _, _, same, second, _) = results
    assert first != second and average == same == pytest.approx((first + second) / 2)


def test_a_step_that_only_logs_gives_an_empty_list() -> None:
    outputs: list[Any] = []

    def training_epoch_end(self: Any, seen: Any) -> None:
        raise AssertionError("no step returned anything")

    module = recording(
        validation_epoch_end=lambda self, seen: outputs.append(seen), training_epoch_end=training_epoch_end
    )
    collected = EpochOutputs(module)
    collected.begin("validation_epoch_end", 1)
    collected.add("validation_epoch_end", None, 0)
    collected.end("validation_epoch_end")
    collected.begin("training_epoch_end", 1)
    collected.end("training_epoch_end")
    assert outputs == [[]]


def test_other_strategies_refuse_them_as_before_and_ours_leaves_no_trace() -> None:
    module = recording()
    trainer_of().fit(module, loader(8), loader(8))
    assert [hook for hook, _ in module.seen] == ["validation", "hook of validation", "training"]
    with pytest.raises(NotImplementedError, match="Support for `training_epoch_end` has been removed"):
        trainer_of(strategy="auto").fit(module, loader(8), loader(8))


def test_a_run_that_fails_leaves_the_modules_own_hooks() -> None:
    module = recording()
    module.validation_epoch_end = hook = lambda outputs: None
    with pytest.raises(TypeError):
        trainer_of().fit(module, 5)
    assert module.validation_epoch_end is hook and callable(module.training_epoch_end)
