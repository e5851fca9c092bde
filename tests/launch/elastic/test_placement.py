"""On which host each process of an elastic job is, and which hosts are out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spark_estimator.launch.elastic.placement import FAILURES, Cooldown, Placement
from spark_estimator.launch.job.hosts import Host


def test_slots_are_filled_in_order_given_back_and_lost_with_their_host() -> None:
    seats = Placement([Host("a", 2), Host("b", 1), Host("c", 1)])
    assert [seats.take(process) for process in range(3)] == ["a", "a", "b"]
    seats.leave(0)
    assert (seats.take(3), seats.take(4), seats.room) == ("a", "c", 4)
    with pytest.raises(LookupError, match="all 4 slots are taken"):
        seats.take(5)
    assert seats.lose("a", 0.0) == "will not be used again" and not seats.lose("a", 0.0)
    assert seats.without_slot() == [1, 3]
    seats.leave(1)
    seats.leave(2)
    assert (seats.room, seats.take(6)) == (2, "b")


def test_hosts_come_and_go_and_those_that_came_last_leave_first() -> None:
    seats = Placement([Host("a", 3)])
    assert [seats.take(process) for process in range(3)] == ["a", "a", "a"]
    assert seats.offer([Host("b", 1), Host("a", 1)]) == ["b has 1 slot", "a has 1 slot, before 3"]
    assert (seats.room, seats.without_slot(), seats.take(3)) == (2, [1, 2], "b")
    assert seats.offer([Host("b", 1), Host("a", 3)]) == ["a has 3 slots, before 1"] and seats.without_slot() == []
    assert seats.offer([Host("b", 1)]) == ["a is gone"]
    assert (seats.room, seats.without_slot()) == (1, [0, 1, 2])
    assert seats.lose("a", 0.0) == "", "nobody counted on it any more"
    assert seats.offer([Host("b", 1), Host("a", 3)]) == ["a has 3 slots"] and seats.room == 4


def test_a_host_on_which_ranks_fail_again_and_again_is_out_unless_it_is_the_only_one() -> None:
    seats = Placement([Host("a", 1), Host("b", 2)])
    seats.take(0)
    assert [seats.failed("a", 0.0) for _ in range(FAILURES)] == ["", "", "will not be used again"]
    assert (seats.room, seats.without_slot(), seats.some_may_return) == (2, [0], False)
    assert [seats.failed("b", 0.0) for _ in range(9)] == [""] * 9
    assert seats.offer([Host("b", 1), Host("a", 4)]) and seats.room == 1, "that it is named again changes nothing"


def test_a_host_comes_back_after_a_cool_down_that_grows() -> None:
    seats = Placement([Host("a", 1), Host("b", 1)], Cooldown(timedelta(seconds=5), timedelta(seconds=15)))
    now = 0.0
    for seconds in (5, 10, 15, 15):
        assert seats.lose("b", now) == f"will not be used for {seconds} seconds"
        assert (seats.room, seats.some_may_return, seats.returned(now + seconds - 1)) == (1, True, [])
        now += seconds
        assert (seats.returned(now), seats.room, seats.some_may_return) == (["b"], 2, False)
    with pytest.raises(ValueError, match="a cool-down of 5 to 4 seconds"):
        Cooldown(timedelta(seconds=5), timedelta(seconds=4))
