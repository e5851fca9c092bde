"""After which steps a checkpoint is due."""

from __future__ import annotations

from datetime import timedelta

from spark_estimator.checkpoint.schedule import Schedule


class Clock:
    def __init__(self, seconds_a_step: float) -> None:
        self.now = 100.0
        self.asked = 0
        self.seconds_a_step = seconds_a_step

    def __call__(self) -> float:
        self.asked += 1
        return self.now


def due_after(schedule: Schedule, clock: Clock, steps: int) -> list[int]:
    result = []
    for step in range(1, steps + 1):
        clock.now += clock.seconds_a_step
        if schedule.is_due():
            result.append(step)
            schedule.restart()
    return result


def test_by_number_no_clock_is_asked() -> None:
    clock = Clock(1)
    assert due_after(Schedule(3, None, clock), clock, 10) == [3, 6, 9]
    assert not clock.asked


def test_by_time_the_clock_is_asked_rarely() -> None:
    clock = Clock(0.1)
    steps = due_after(Schedule(None, timedelta(seconds=100), clock), clock, 5000)
    gaps = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    assert len(steps) == 4
    assert all(1000 <= gap <= 1101 for gap in gaps), gaps
    assert clock.asked < 80


def test_whichever_comes_first() -> None:
    clock = Clock(1)
    assert due_after(Schedule(4, timedelta(seconds=100), clock), clock, 9) == [4, 8]
    clock = Clock(60)
    assert due_after(Schedule(4, timedelta(seconds=100), clock), clock, 6)[0] <= 3


def test_slow_steps() -> None:
    clock = Clock(1000)
    assert due_after(Schedule(None, timedelta(seconds=10), clock), clock, 4) == [2, 3, 4]


def test_it_counts_on_from_an_earlier_checkpoint() -> None:
    clock = Clock(1)
    by_number = Schedule(10, None, clock)
    by_number.resume(7, 70)
    assert due_after(by_number, clock, 20) == [3, 13]
    by_time = Schedule(None, timedelta(seconds=100), clock)
    by_time.resume(7, 95)
    assert due_after(by_time, clock, 20)[0] in range(5, 15)


def test_one_more_at_a_warning_which_is_asked_for_where_none_is_due() -> None:
    clock, asked = Clock(1), 0

    def is_warned() -> bool:
        nonlocal asked
        asked += 1
        return asked == 4

    assert due_after(Schedule(3, None, clock, is_warned), clock, 9) == [3, 5, 8]
    assert asked == 7
