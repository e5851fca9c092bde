"""On which host each process of an elastic job is, and which hosts are out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spark_estimator.launch.elastic.placement import FAILURES, WARNED_FOR, Cooldown, Placement
from spark_estimator.launch.job.hosts import Host


def test_slots_are_filled_in_order_given_back_and_lost_with_their_host() -> None:
    placement = Placement([Host("a", 2), Host("b", 1), Host("c", 1)])
    assert [placement.take(process) for process in range(3)] == ["a", "a", "b"]
    placement.leave(0)
    assert (placement.take(3), placement.take(4), placement.room) == ("a", "c", 4)
    with pytest.raises(LookupError, match="all 4 slots are taken"):
        placement.take(5)
    assert placement.note_loss("a", 0.0) == "will not be used again" and not placement.note_loss("a", 0.0)
    assert placement.find_surplus() == [1, 3]
    placement.leave(1)
    placement.leave(2)
    assert (placement.room, placement.take(6)) == (2, "b")


def test_hosts_come_and_go_and_those_that_came_last_leave_first() -> None:
    placement = Placement([Host("a", 3)])
    assert [placement.take(process) for process in range(3)] == ["a", "a", "a"]
    assert placement.offer([Host("b", 1), Host("a", 1)]) == ["b has 1 slot", "a has 1 slot, before 3"]
    assert (placement.room, placement.find_surplus(), placement.take(3)) == (2, [1, 2], "b")
    assert (
        placement.offer([Host("b", 1), Host("a", 3)]) == ["a has 3 slots, before 1"] and placement.find_surplus() == []
    )
    assert placement.offer([Host("b", 1)]) == ["a is gone"]
    assert (placement.room, placement.find_surplus()) == (1, [0, 1, 2])
    assert placement.note_loss("a", 0.0) == "", "nobody counted on it any more"
    assert placement.offer([Host("b", 1), Host("a", 3)]) == ["a has 3 slots"] and placement.room == 4


def test_a_host_on_which_ranks_fail_again_and_again_is_out_unless_it_is_the_only_one() -> None:
    placement = Placement([Host("a", 1), Host("b", 2)])
    placement.take(0)
    assert [placement.note_failure("a", 0.0) for _ in range(FAILURES)] == ["", "", "will not be used again"]
    assert (placement.room, placement.find_surplus(), placement.some_may_return) == (2, [0], False)
    assert [placement.note_failure("b", 0.0) for _ in range(9)] == [""] * 9
    assert placement.offer([Host("b", 1), Host("a", 4)]) and placement.room == 1, (
        "that it is named again changes nothing"
    )


def test_a_host_comes_back_after_a_cool_down_that_grows() -> None:
    placement = Placement([Host("a", 1), Host("b", 1)], Cooldown(timedelta(seconds=5), timedelta(seconds=15)))
    now = 0.0
    for seconds in (5, 10, 15, 15):
        assert placement.note_loss("b", now) == f"will not be used for {seconds} seconds"
        assert (placement.room, placement.some_may_return, placement.readmit_hosts(now + seconds - 1)) == (1, True, [])
        now += seconds
        assert (placement.readmit_hosts(now), placement.room, placement.some_may_return) == (["b"], 2, False)
    with pytest.raises(ValueError, match="a cool-down of 5 to 4 seconds"):
        Cooldown(timedelta(seconds=5), timedelta(seconds=4))


def test_a_host_that_is_about_to_be_taken_back_is_left_while_there_is_another() -> None:
    placement = Placement([Host("a", 2), Host("b", 2)])
    assert [placement.take(process) for process in range(3)] == ["a", "a", "b"]
    assert placement.note_warning(0, 0.0) and placement.note_warning(1, 1.0)
    assert (placement.find_surplus(), placement.room, placement.take(3)) == ([0, 1], 2, "b")
    assert not placement.note_warning(2, 2.0), "there is no other"
    assert placement.room == 2
    assert placement.readmit_hosts(WARNED_FOR.total_seconds() - 1) == []
    assert placement.readmit_hosts(WARNED_FOR.total_seconds()) == ["a"], "the warning was wrong"
    assert placement.find_surplus() == []
    assert placement.note_warning(0, 1000.0) and placement.offer([Host("b", 2)]) == ["a is gone"]
    assert placement.readmit_hosts(2000.0) == [], "it is no host of the job any more"
