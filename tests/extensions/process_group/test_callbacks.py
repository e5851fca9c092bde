"""Callbacks of futures: each has the same point in the program on all ranks."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from spark_estimator.extensions.process_group import callbacks
from spark_estimator.extensions.process_group.callbacks import ProgramPoint
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


@pytest.mark.parametrize("late", [0, 1])
def test_collectives_in_callbacks_meet_whenever_they_are_called(three_ranks: RankPool, late: int) -> None:
    @in_group
    def check(rank: int, late: int) -> None:
        works = [dist.all_reduce(torch.tensor([float(number)]), async_op=True) for number in range(4)]
        if rank == late:
            for work in works:
                work.wait()  # so that callbacks are run at once, and elsewhere by another thread

        def doubled(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            time.sleep(0.02 * rank)
            return dist.all_reduce(future.value()[0] / 3 * 2, async_op=True).get_future().wait()[0] / 3

        def increased(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            return future.value() + tensor

        chains = [work.get_future().then(doubled).then(increased) for work in works]
        others = dist.all_reduce(torch.ones(1), async_op=True)
        assert [chain.wait().item() for chain in chains[:: 1 if rank else -1]][:: 1 if rank else -1] == [3, 5, 7, 9]
        others.wait()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3
        # A message has no place in the order of what all ranks do.
        works = [dist.isend(tensor, (rank + 1) % 3), dist.irecv(torch.empty(1), (rank - 1) % 3)]
        with pytest.raises(RuntimeError, match=r"all_reduce on rank . was called in a callback of the future of a mes"):
            works[1].get_future().then(lambda _: dist.all_reduce(torch.ones(1))).wait()
        works[0].wait()

    three_ranks.run(check, late)


def test_points_have_paths_by_their_order() -> None:
    point = ProgramPoint("all.3")
    first, second = point.make_callback_point(), point.make_callback_point()
    assert (first.path, second.path) == ("all.3/callback0", "all.3/callback1")
    assert second.make_callback_point().path == "all.3/callback1/callback0"
    assert [first.call(), first.call()] == ["all.3/callback0/call0", "all.3/callback0/call1"]
    assert ProgramPoint(None).make_callback_point().path is None, "a message has no path, and its callbacks have none"


def test_a_callback_runs_at_its_point() -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    callbacks.note(future, ProgramPoint("all.0"))
    paths: list[str | None] = []

    def noted(_: object) -> None:
        point = callbacks.get_current()
        paths.append(point and point.path)

    future.then(noted).then(noted)
    future.add_done_callback(noted)
    other: torch.futures.Future[int] = torch.futures.Future()
    other.add_done_callback(noted)
    future.set_result(1)
    other.set_result(1)
    assert sorted(map(str, paths)) == ["None", "all.0/callback0", "all.0/callback0/callback0", "all.0/callback1"]
    assert callbacks.get_current() is None
