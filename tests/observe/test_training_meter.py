"""What a rank counts of a training, and how it is sent."""

from __future__ import annotations

import json
import math
import select
from dataclasses import replace
from typing import Any

import pytest

from spark_estimator.observe.progress import Progress
from spark_estimator.observe.step_times import Sample
from spark_estimator.observe.training_meter import MAX_POINTS, TRAIN, VALIDATION, TrainingMeter, TrainingReport

REPORT = TrainingReport(2, 3, VALIDATION, 4, 5, 600, 0.25, 60, {"loss": 0.5}, ((1, 0.5, None), (2, 0.25, 0.75)))


def test_a_report_survives_its_journey() -> None:
    progress = Progress(1.5, 3, 4, training=REPORT)
    assert Progress.from_dict(json.loads(json.dumps(progress.to_dict()))) == progress


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": -1},
        {"epoch": "1"},
        {"part": "test"},
        {"loss": "0"},
        {"averages": {1: 0.0}},
        {"averages": {"loss": "<b>"}},
        {"averages": {str(number): 0.0 for number in range(7)}},
        {"points": [[1, 0.5]]},
        {"points": [[1, 0.5, "x"]]},
        {"points": [[1, 0.5, None]] * (MAX_POINTS + 1)},
        {"more": 1},
    ],
)
def test_what_is_no_report_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="training report"):
        TrainingReport.from_dict(REPORT.to_dict() | changed)


def test_an_epoch_with_validation() -> None:
    meter = TrainingMeter(2)
    meter.end_step(10, 1.0)
    assert meter.report() is None, "no epoch has begun"
    meter.begin_epoch(0, 4, step=1)
    meter.end_step(10, 1.0)
    meter.end_step(0, 9.0)
    meter.end_step(5, 0.123456789)
    assert meter.report() == TrainingReport(1, 2, TRAIN, 4, 4, 15, 0.123457, 15)
    meter.begin_validation(1)
    meter.end_step(3, 2.0)
    assert meter.report() == TrainingReport(1, 2, VALIDATION, 1, 1, 18, 2.0, 3)
    meter.end_epoch({"loss": 0.5, "val_loss": 2.0, "confusion": [[1, 2]], "accuracy": 0.25})
    meter.begin_epoch(1, 4)
    averages = {"loss": 0.5, "val_loss": 2.0, "accuracy": 0.25}
    assert meter.report() == TrainingReport(2, 2, TRAIN, 0, 4, 18, None, 0, averages, ((1, 0.5, 2.0),))


def test_validation_within_an_epoch() -> None:
    meter = TrainingMeter(1)
    meter.begin_epoch(0, 4)
    meter.end_step(10, 1.0)
    meter.begin_validation(1)
    meter.end_step(3, 2.0)
    meter.end_validation()
    meter.end_validation()
    meter.end_step(10, 0.5)
    assert meter.report() == TrainingReport(1, 1, TRAIN, 2, 4, 23, 0.5, 20)


def test_losses_that_are_no_numbers_are_no_points() -> None:
    meter = TrainingMeter(2)
    for epoch, averages in enumerate([{"loss": math.nan}, {}, {"loss": 1.0, "val_loss": math.inf}]):
        meter.begin_epoch(epoch, 1)
        meter.end_epoch(averages)
    report = meter.report()
    assert report is not None and report.points == ((3, 1.0, None),)


def test_the_longest_report_goes_through_a_pipe_in_one_piece() -> None:
    meter = TrainingMeter(10**9)
    for epoch in range(1234):
        meter.begin_epoch(epoch, 10**9)
        meter.end_step(10**9, -1.23456e-100)
        numbers = {f"{place}{'ü' * 1000}": -1.23456e-100 for place in range(20)}
        meter.end_epoch({"loss": -1.23456e-100, "val_loss": -1.23456e-100, **numbers})
    report = meter.report()
    assert report is not None and len(report.points) <= MAX_POINTS
    assert report.points[-1][0] == 1234, "the last epoch is always there"
    longest = Progress(1e9 + 0.123456, 10**12, 10**12, 1e5 + 0.123456, "ü" * 100, replace(report))
    longest = replace(longest, sample=Sample(1e9 + 0.123456, 10**12, *[1e9 + 0.123456] * 5, "ü" * 64))
    assert len(json.dumps(longest.to_dict()).encode()) < select.PIPE_BUF
