"""Which rows of an epoch have been read, as other ranks compute it."""

from __future__ import annotations

import random

import numpy
import pytest

from spark_estimator.data.rank import shares
from spark_estimator.data.rank.position import HeldShare, Leg, compute_numbers, find_remaining, find_seen
from spark_estimator.data.rank.prefetch import shuffle_numbers


def read_by(total: int, ranks: int) -> tuple[int, ...]:
    return tuple(shares.compute_share(total, ranks, rank) for rank in range(ranks))


@pytest.mark.parametrize("read", [(5,), (3, 3), (9, 0, 0), (0, 7, 1, 4), (1, 1, 12, 0, 3)])
def test_every_row_is_with_one_rank(read: tuple[int, ...]) -> None:
    held = compute_numbers(read)
    assert sorted(numpy.concatenate(held).tolist()) == list(range(sum(read)))
    sizes = [len(numbers) for numbers in held]
    assert max(sizes) - min(sizes) <= 1


def test_a_share_is_held_to_the_row() -> None:
    held = HeldShare(0.25, 7, (3, 9, 0)).make_mask()
    assert len(held) == 12 and held.sum() == 3
    assert HeldShare(0.9, 7, (1, 1)).make_mask().sum() == 1, "something is left to train on"


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("order", [None, (3, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_legs_of_any_ranks_read_each_row_once(order: tuple[int, int] | None, seed: int, share: float) -> None:
    chance = random.Random(seed)
    total, legs, counts = 211, [], numpy.zeros(211, int)
    mask = HeldShare(share, seed, (100, 90, 21)).make_mask() if share else None
    counts += 0 if mask is None else mask
    while True:
        ranks, size = chance.randrange(1, 6), chance.randrange(3, 12)
        # A rank drops the rows with nulls that it reads, so that ranks have different numbers of rows.
        cuts = sorted(chance.randrange(total + 1) for _ in range(ranks - 1))
        read = tuple(stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True))
        was_seen = find_seen(legs, order, mask) if legs or mask is not None else numpy.zeros(total, bool)
        assert numpy.array_equal(was_seen, counts == 1)
        steps = chance.randrange(1, 9)
        for rank in range(ranks):  # as RankRows has it
            leave, left = find_remaining(read, rank, was_seen, mask)
            held = compute_numbers(read)[rank]
            held = held if mask is None else held[~mask[held]]
            places = leave(numpy.arange(len(held)))
            assert len(places) == left[rank]
            if order is not None:
                places = shuffle_numbers(places, (order[0], rank, order[1]))
            plan = shares.Batches(left, size)
            counts[held[places[: plan.get_bounds(rank, min(steps, plan.steps))[0]]]] += 1
        legs.append(Leg(read, size, steps))
        assert counts.max() == 1
        if plan.steps <= steps:
            break
    assert counts.min() == 1


@pytest.mark.parametrize("order", [None, (3, 1)])
def test_a_restart_after_the_last_row_leaves_nothing(order: tuple[int, int] | None) -> None:
    whole, none = Leg((3, 2), 2, 2), Leg((1, 4), 2, 0)
    assert find_seen([whole, none, none], order).all()
    assert find_remaining((1, 4), 1, find_seen([whole, none], order))[1] == (0, 0)


def test_a_leg_travels_as_plain_values() -> None:
    leg = Leg((3, 4), 8, 2)
    assert Leg.from_dict(leg.to_dict()) == leg
    assert leg.to_dict() == {"read": [3, 4], "batch_size": 8, "steps": 2}
