"""The division of a rank's time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_estimator.data.batch_loader import AsyncDataLoaderMixin, BaseDataLoader
from spark_estimator.observe import step_times
from spark_estimator.observe.step_times import EngineTimes, Sample, StepParts, divide, take_sample, time_input

START = Sample(at=100.0, steps=7, input=1.0, blocked=2.0, waited=3.0, executed=4.0)


@pytest.mark.parametrize(
    ("seconds", "fed", "blocked", "waited", "executed", "expected"),
    [
        (10, 0, 0, 0, 0, StepParts(0, 10, 0, 0)),
        (10, 1, 4, 3, 1, StepParts(1, 5, 3, 1)),
        (10, 1, 4, 1, 1, StepParts(1, 5, 3, 1)),  # short waits, which the engine doesn't count
        (10, 1, 4, 6, 2, StepParts(1, 5, 3, 1)),  # half of the exchange ran beside computing
        (10, 0, 1, 0, 5, StepParts(0, 9, 0, 1)),
        (10, 8, 12, 12, 0, StepParts(0, 0, 10, 0)),  # threads that wait at the same time
        (0, 0, 0, 0, 0, None),
        (10, -1, 0, 0, 0, None),
        (10, 0, -1, 0, 0, None),
    ],
)
def test_the_time_between_two_samples_has_four_parts(
    seconds: float, fed: float, blocked: float, waited: float, executed: float, expected: StepParts | None
) -> None:
    after = Sample(100 + seconds, 8, 1.0 + fed, 2.0 + blocked, 3.0 + waited, 4.0 + executed)
    parts = divide(START, after)
    assert parts == (None if expected is None else pytest.approx(expected))
    assert parts is None or sum(parts) == pytest.approx(seconds)


def test_a_sample_survives_its_journey() -> None:
    sample = replace(START, sending=0.123456789, host="host-1")
    assert Sample.from_dict(json.loads(json.dumps(sample.to_dict()))) == replace(sample, sending=0.123457)
    assert len(Sample.from_dict({**sample.to_dict(), "host": "x" * 300}).host) == 64


@pytest.mark.parametrize("change", [{"at": "0"}, {"steps": 1.5}, {"host": 3}, {"more": 0}])
def test_what_is_no_sample_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sample"):
        Sample.from_dict({**START.to_dict(), **change})


def test_the_wait_for_batches_is_input_and_their_use_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(step_times, "time", SimpleNamespace(monotonic=lambda: now[0]))
    closed = []

    def read() -> Iterator[int]:
        try:
            for number in range(9):
                now[0] += 2.0
                yield number
        finally:
            closed.append(True)

    before = take_sample()
    for number in time_input(read()):
        now[0] += 10.0
        if number == 2:
            break
    after = take_sample()
    assert divide(before, after) == pytest.approx(StepParts(6, 30, 0, 0)) and closed


@pytest.mark.parametrize("ahead", [0, 2])
def test_loaders_count_their_waits(ahead: int) -> None:
    class Loader(BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            for number in range(3):
                time.sleep(0.02)
                yield number

        def __len__(self) -> int:
            return 3

    class Ahead(AsyncDataLoaderMixin, Loader):
        pass

    before = take_sample()
    assert list(Ahead(async_loader_queue_size=ahead)) == [0, 1, 2]
    assert take_sample().input - before.input >= 0.05


def test_memberships_that_have_ended_keep_their_share() -> None:
    start = take_sample()
    step_times.follow_engines(lambda: EngineTimes(1.0, 2.0, 3.0, 5.0), "host")
    first = take_sample()
    step_times.follow_engines(None)
    step_times.follow_engines(lambda: EngineTimes(1.0, 1.0, 1.0, 2.0))
    second = take_sample()
    step_times.follow_engines(None)
    assert first.blocked - start.blocked == pytest.approx(1.0)
    assert (first.sending - start.sending, first.host) == (pytest.approx(5.0), "host")
    assert second.blocked - start.blocked == pytest.approx(2.0)
    assert second.executed - start.executed == pytest.approx(4.0)
    assert second.sending - start.sending == pytest.approx(7.0)
