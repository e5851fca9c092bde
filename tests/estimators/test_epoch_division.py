"""The division of an epoch's rows among ranks whose number changes."""

from __future__ import annotations

import copy
from typing import Any

from spark_estimator.data.rank.epoch_rows import EpochRows
from spark_estimator.estimators.epoch_division import Division, find_rest


def leg(*read: int) -> dict[str, Any]:
    return {"read": list(read), "batch_size": 4, "steps": 0}


def test_parts_follow_each_other() -> None:
    first = Division((), leg(5, 5, 5))
    assert first.divide_again(0, leg(5, 5, 5)) == first
    assert first.divide_again(2, leg(5, 5, 5)) == first, "the same ranks continue their part"
    assert first.divide_again(0, leg(8, 7)) == Division((), leg(8, 7)), "no rank had begun"
    second = first.divide_again(2, leg(8, 7))
    assert second == Division(({**leg(5, 5, 5), "steps": 2},), leg(8, 7))
    third = second.divide_again(1, leg(5, 5, 5))
    assert third == Division((*second.earlier, {**leg(8, 7), "steps": 1}), leg(5, 5, 5))
    assert copy.deepcopy({"division": third})["division"] is third


class Rows(EpochRows):
    """Returns what is asked of it."""

    def read_batches(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def find_remaining(self, legs: Any, order: Any) -> Any:
        return legs, order


def test_the_rest_has_the_steps_that_are_left() -> None:
    rows = Rows()
    assert find_rest(rows, (), (1, 2), 9) == (rows, 9)
    legs = ({**leg(5, 5), "steps": 2}, {**leg(10), "steps": 3})
    assert find_rest(rows, legs, (1, 2), None) == ((legs, (1, 2)), None)
    assert find_rest(rows, legs, None, 9) == ((legs, None), 4)
    assert find_rest(rows, legs, None, 4) == ((legs, None), 0)
