"""On which host each process of an elastic job is."""

from __future__ import annotations

import pytest

from spark_estimator.launch.hosts import Host
from spark_estimator.launch.seats import Seats


def test_slots_are_filled_in_order_given_back_and_lost_with_their_host() -> None:
    seats = Seats([Host("a", 2), Host("b", 1), Host("c", 1)])
    assert [seats.take(process) for process in range(3)] == ["a", "a", "b"]
    seats.leave(0)
    assert (seats.take(3), seats.take(4), seats.room) == ("a", "c", 4)
    with pytest.raises(LookupError, match="all 4 slots are taken"):
        seats.take(5)
    assert seats.lose("a") and not seats.lose("a")
    seats.leave(1)
    seats.leave(2)
    assert (seats.room, seats.take(6)) == (2, "b")
