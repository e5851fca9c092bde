"""What the estimator counts of a training by Lightning: losses of batches, logged values."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")


import spark_estimator.torch as hvd
from spark_estimator import DataError
from spark_estimator.estimators.lightning.callbacks import EpochSums, average_logged
from spark_estimator.estimators.torch.checkpoint import pack
from tests.estimators.lightning.no_hooks import NoHooks


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def sums_of(metrics: int = 0, **changed: Any) -> EpochSums:
    return EpochSums(None, None, metrics, NoHooks(), **changed)


def test_losses_are_means_over_rows() -> None:
    sums = sums_of()
    for rows, loss in ((3, 1.0), (1, 5.0)):
        sums.begin_batch("train", {"x": torch.zeros(rows, 2)}, 0)
        sums.end_step("train", {"loss": torch.tensor(loss)})
    assert sums.compute_averages("train") == [2.0] and sums.compute_averages("validation") == []
    assert sums.seen == {"train"}


def test_the_counts_continue_from_a_checkpoint() -> None:
    first, second = sums_of(), sums_of()
    for part, rows, loss in (("train", 3, 1.0), ("validation", 2, 7.0)):
        first.begin_batch(part, torch.zeros(rows), 0)
        first.end_step(part, torch.tensor(loss))
    state = torch.load(io.BytesIO(pack(first.get_state())), weights_only=True)
    second.resume(SimpleNamespace(current_epoch=0, max_epochs=1, num_training_batches=2), state, 1)
    second.begin_batch("train", torch.zeros(1), 1)
    second.end_step("train", torch.tensor(5.0))
    assert second.compute_averages("train") == [2.0] and second.compute_averages("validation") == [7.0]
    assert second.seen == {"train", "validation"} and first.compute_averages("train") == [1.0]


def test_metrics_follow_the_loss() -> None:
    sums = sums_of(metrics=2)
    sums.begin_batch("train", torch.zeros(4), 0)
    sums.end_step("train", {"loss": torch.tensor(1.0), "all_metrics": [[2.0], [3.0]]})
    assert sums.compute_averages("train") == [1.0, 2.0, 3.0]


def test_steps_without_a_loss_do_not_count() -> None:
    sums = sums_of(multiplied=3)
    sums.begin_batch("train", ["no tensor"], 0)
    assert (sums.counted, sums.factor) == (1, 3.0)
    for output in (None, {"other": 1}, torch.zeros(2)):
        sums.end_step("train", output)
    assert sums.compute_averages("train") == []


def test_a_loss_that_is_lost_ends_the_training_if_that_is_wanted() -> None:
    for stop in (False, True):
        sums = sums_of(stop_on_nan=stop)
        sums.begin_batch("train", torch.zeros(1), 0)
        if stop:
            with pytest.raises(DataError, match=r"the loss of a batch on rank 0 was nan \(terminate_on_nan=True\)"):
                sums.end_step("train", torch.tensor(float("nan")))
        else:
            sums.end_step("train", torch.tensor(float("nan")))


def test_values_of_single_steps_are_not_logged() -> None:
    assert average_logged({"loss": torch.tensor(2.0), "loss_step": torch.tensor(3.0)}) == {"loss": 2.0}
