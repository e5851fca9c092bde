"""Which validation of a training was the best one, and when it ends."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spark_estimator.errors import DataError
from spark_estimator.estimators.training_progress import TrainingProgress, find_number


def entry(epoch: int, loss: float, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "train": {"loss": loss, "all_metrics": []}, **more}


def test_the_best_epoch_is_kept_and_patience_ends_a_training() -> None:
    progress = TrainingProgress(patience=2, restore_best=True)
    assert not progress.is_over
    for epoch, loss in enumerate((3.0, 1.0, math.nan)):
        progress.add(entry(epoch, loss), lambda epoch=epoch: epoch)  # type: ignore[misc]
        assert not progress.is_over
    progress.add(entry(3, 1.0), lambda: 3)
    assert progress.is_over and progress.best == 1, "an equal loss is no better one"


def test_the_loss_of_validation_is_watched_if_there_is_one() -> None:
    assert find_number(entry(0, 1.0), None) == 1.0
    assert find_number(entry(0, 1.0, validation={"loss": 2.0}), None) == 2.0


def test_any_number_is_watched_and_validations_within_an_epoch_count() -> None:
    progress = TrainingProgress(2, True, "validation.auc", "max")
    progress.add(entry(0, 3.0, validation={"loss": 1.0, "metrics": {"auc": 0.5}}), lambda: "0")
    for step, auc in ((10, 0.7), (20, math.nan), (30, 0.8), (40, 0.1)):
        assert not progress.is_patience_over
        progress.add_within(step, {"loss": 1.0, "metrics": {"auc": auc}}, lambda step=step: step)  # type: ignore[misc]
    assert progress.best == 30
    progress.add_within(50, {"loss": 0.0, "metrics": {"auc": 0.8}}, lambda: 50)
    assert progress.is_patience_over and not progress.is_over, "the epoch ends first"
    progress.add(entry(1, 1.0, validation=progress.within.pop()), lambda: "1")
    assert progress.is_over and progress.best == 30
    assert [point["step"] for point in progress.history[1]["validations"]] == [10, 20, 30, 40]
    with pytest.raises(ValueError, match=r"monitor='validation.f1' is no number .* has train.loss, validation.step, "):
        find_number(progress.history[1], "validation.f1")


def test_numbers_of_all_frameworks_have_names() -> None:
    assert find_number({"train": {"loss": 1.0, "auc": 0.5}}, "train.auc") == 0.5
    assert find_number({"train": {"loss": 1.0}, "logged": {"val_f1": 0.25}}, "val_f1") == 0.25


def test_no_model_is_the_best_of_validations_that_are_nan() -> None:
    progress = TrainingProgress(patience=None, restore_best=True, monitor="validation.auc", mode="max")
    broken = {"loss": 1.0, "metrics": {"auc": math.nan}}
    with pytest.raises(DataError, match=r"validation\.auc is nan in each of the 1 validations so far"):
        progress.add(entry(0, 1.0, validation=broken), lambda: 0)
    progress = TrainingProgress(patience=None, restore_best=True)
    for epoch, loss in enumerate((math.inf, math.nan, 2.0)):
        progress.add(entry(epoch, 1.0, validation={"loss": loss}), lambda epoch=epoch: epoch)  # type: ignore[misc]
    assert progress.best == 2, "one that is infinite, or was nan, is worse than any other"
