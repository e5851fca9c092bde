"""When fragments are sent and taken, and what they are made of."""

from __future__ import annotations

import pytest

from spark_estimator.extensions.local_steps.schedule import ExchangeSchedule, divide_parameters


def test_one_fragment_is_sent_after_the_inner_steps() -> None:
    schedule = ExchangeSchedule(inner_steps=3)
    assert [step for step in range(1, 10) if schedule.find_sent(step) == [0]] == [3, 6, 9]


def test_fragments_take_turns_and_are_taken_later() -> None:
    schedule = ExchangeSchedule(inner_steps=8, fragments=4, delay=3)
    sent = {step: schedule.find_sent(step) for step in range(1, 17)}
    assert sent == {step: [(step // 2 - 1) % 4] if step % 2 == 0 else [] for step in range(1, 17)}
    for step, numbers in sent.items():
        assert schedule.find_taken(step + 3) == numbers


@pytest.mark.parametrize(("inner_steps", "fragments"), [(7, 3), (5, 5), (32, 6), (1, 1)])
def test_each_fragment_has_one_turn_in_the_inner_steps(inner_steps: int, fragments: int) -> None:
    schedule = ExchangeSchedule(inner_steps, fragments)
    for start in range(1, 2 * inner_steps):
        sent = [number for step in range(start, start + inner_steps) for number in schedule.find_sent(step)]
        assert sorted(sent) == list(range(fragments))


def test_fragments_are_nearly_equal_and_in_order() -> None:
    sizes = [100, 1, 1, 100, 50, 50, 3, 97]
    fragments = divide_parameters(sizes, 4)
    assert [position for fragment in fragments for position in fragment] == list(range(8))
    assert all(80 <= sum(sizes[position] for position in fragment) <= 120 for fragment in fragments)
    assert divide_parameters([5], 3) == [[0]]
    assert divide_parameters([], 3) == []
    assert divide_parameters([0, 0], 2) == [[0, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inner_steps": 0}, "inner_steps=0 must be a whole number, 1 or more"),
        ({"inner_steps": 2.0}, r"inner_steps=2\.0"),
        ({"inner_steps": 4, "fragments": 5}, "fragments=5 must be at most inner_steps=4"),
        ({"inner_steps": 4, "delay": 4}, "delay=4 must be less than inner_steps=4"),
    ],
)
def test_numbers_out_of_range(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExchangeSchedule(**arguments)
