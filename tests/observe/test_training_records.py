"""Records of steps, on a rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_estimator.observe import training_records
from spark_estimator.observe.training_meter import TrainingMeter
from spark_estimator.observe.training_records import StepRecorder


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    training_records.set_sink(records.append)
    yield records
    training_records.set_sink(None)


def test_the_loss_of_the_last_steps(sent: list[dict[str, Any]]) -> None:
    meter = TrainingMeter(2, StepRecorder(2, 3))
    meter.begin_epoch(0, 5)
    for loss in (4.0, 3.0, 2.0, 1.5, 1.0):  # means since the epoch began
        meter.end_step(10, loss)
    common = {"epoch": 0, "steps": 5, "ranks": 3}
    assert sent == [{**common, "step": 2, "rows": 20, "loss": 60.0}, {**common, "step": 4, "rows": 20, "loss": 0.0}]


def test_steps_are_counted_over_epochs(sent: list[dict[str, Any]]) -> None:
    meter = TrainingMeter(2, StepRecorder(3, 1))
    for epoch in range(2):
        meter.begin_epoch(epoch, 2)
        for loss in (4.0, 3.0):
            meter.end_step(10, loss)
    assert [(record["epoch"], record["step"], record["rows"], record["loss"]) for record in sent] == [(1, 1, 10, 40.0)]


def test_an_epoch_that_continues(sent: list[dict[str, Any]]) -> None:
    meter = TrainingMeter(2, StepRecorder(2, 1))
    meter.begin_epoch(1, 8, 3, 30)
    for loss in (2.0, 2.0, 3.0):
        meter.end_step(10, loss)
    assert [(record["step"], record["rows"], record["loss"]) for record in sent] == [(6, 20, 100.0)]
    meter.begin_validation(4)
    meter.end_step(10, 1.0)
    assert len(sent) == 1
