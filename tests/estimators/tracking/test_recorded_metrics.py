"""From records to metrics."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.estimators.history import History
from spark_estimator.estimators.keras.history import KerasHistory, to_history
from spark_estimator.estimators.tracking.recorded_metrics import MetricQueue, MetricValue, RecordedMetrics


def metrics() -> RecordedMetrics:
    return RecordedMetrics(lambda entry: History([dict(entry)]).to_rows()[0], "train_loss")


def test_each_epoch_counts_once() -> None:
    made = metrics()
    entry = {"epoch": 3, "train": {"loss": 0.5, "metrics": {"right, all": 0.25}}, "validation": {"loss": 1.0}}
    assert made.convert_record(0, {"entry": entry}) == [
        MetricValue("train_loss", 0.5, 3),
        MetricValue("train_right_ all", 0.25, 3),
        MetricValue("validation_loss", 1.0, 3),
    ]
    assert made.convert_epochs([entry]) == []


def test_keras_words() -> None:
    made = RecordedMetrics(lambda entry: to_history("history", [entry]).to_rows()[0], KerasHistory.losses[0])
    entry = {"epoch": 1, "train": {"loss": 0.5, "accuracy": 1.0}, "validation": {"loss": 1.0}}
    assert {value.name: value.value for value in made.convert_record(0, {"entry": entry})} == {
        "loss": 0.5,
        "accuracy": 1.0,
        "val_loss": 1.0,
    }


def test_the_steps_of_all_ranks_are_one_value() -> None:
    made = metrics()
    step = {"epoch": 1, "step": 5, "steps": 10, "ranks": 2}
    assert made.convert_record(1, {**step, "rows": 1, "loss": 4.0}) == []
    assert made.convert_record(0, {**step, "rows": 3, "loss": 2.0}) == [MetricValue("train_loss_step", 1.5, 15)]


def test_samples_of_a_ranks_host_are_counted_by_rank() -> None:
    made = metrics()
    values = [made.convert_record(rank, {"system": {"cpu": 1, "disk": 2.5}}) for rank in (1, 0, 1)]
    assert values == [
        [MetricValue(f"system/rank_{rank}/cpu", 1.0, step), MetricValue(f"system/rank_{rank}/disk", 2.5, step)]
        for rank, step in ((1, 0), (0, 0), (1, 1))
    ]


@pytest.mark.parametrize("record", [{}, {"system": {"cpu": "x"}}, {"entry": {}}, {"epoch": 1, "step": "x", "steps": 1}])
def test_what_is_no_record(record: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        metrics().convert_record(0, record)


def test_one_caller_at_a_time_sees_to_the_values_that_wait() -> None:
    queue, values = MetricQueue(), [MetricValue("loss", float(step), step) for step in range(3)]
    assert not queue.add([]) and queue.add(values[:2]) and not queue.add(values[2:])
    assert [value for value, _ in queue.peek(2)] == values[:2] == [value for value, _ in queue.peek(2)]
    queue.remove(2)
    assert not queue.add([]) and [value for value, _ in queue.peek(2)] == values[2:]
    queue.remove(1)
    assert queue.peek(2) == [] and not queue.add([]) and queue.add(values[:1])
