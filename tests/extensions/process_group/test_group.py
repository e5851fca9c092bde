"""The torch.distributed backend: how it begins and ends, and groups of some ranks."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import spark_estimator.torch as hvd
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_it_knows_who_is_who(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        assert (dist.get_rank(), dist.get_world_size()) == (rank, 3)
        assert dist.get_backend() == "spark_estimator"
        assert dist.is_backend_available("spark_estimator")
        assert "MASTER_ADDR" not in os.environ

    three_ranks.run(check)


def test_it_begins_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        def summed() -> float:
            tensor = torch.full((3,), rank + 1.0)
            dist.all_reduce(tensor)
            return tensor[0].item()

        for _ in range(3):
            assert in_group(lambda _: summed())(rank) == 3
        hvd.shutdown()
        assert in_group(lambda _: summed())(rank) == 3, "it joins the job by itself"

    two_ranks.run(check)


def test_groups_of_some_ranks(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        pair, all_, again, alone = (dist.new_group(ranks) for ranks in ([0, 2], None, [0, 2], [1]))
        if rank == 1:
            assert pair == dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(alone) == 0
            tensor = torch.full((3,), 5.0)
            dist.all_reduce(tensor, group=alone)
            assert tensor.tolist() == [5] * 3
        else:
            assert dist.get_rank(pair) == rank // 2
            assert dist.get_process_group_ranks(pair) == [0, 2]
            # Groups of the same ranks do not wait for each other's calls.
            tensors = [torch.full((3,), float(rank)), torch.full((5,), float(rank))]
            works = [
                dist.all_reduce(tensor, group=group, async_op=True)
                for tensor, group in list(zip(tensors, (pair, again), strict=True))[:: 1 if rank else -1]
            ]
            for work in works:
                work.wait()
            assert [each[0].item() for each in tensors] == [2, 2]
            tensor = torch.full((3,), float(rank))
            dist.broadcast(tensor, src=2, group=pair)
            assert tensor.tolist() == [2] * 3
            objects = [None, None]
            dist.all_gather_object(objects, rank, group=pair)
            assert objects == [0, 2]
            dist.destroy_process_group(pair)
            with pytest.raises(hvd.HorovodInternalError, match="this group was destroyed"):
                pair.allreduce([tensor])
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=all_)
        assert tensor.tolist() == [3] * 3
        with pytest.raises(ValueError, match="use_local_synchronization=True"):
            dist.new_group([rank], use_local_synchronization=True)
        with pytest.raises(ValueError, match="ascending order"):
            dist.distributed_c10d._new_group_with_tag([2, 0], sort_ranks=False)
        with pytest.raises(ValueError, match="new_group on every rank: backend='gloo' is unavailable beside"):
            dist.new_group([0, 1], backend="gloo")
        assert dist.new_subgroups_by_enumeration([[0, 1], [2]])[0].size() == (1 if rank == 2 else 2)

    three_ranks.run(check)


def test_a_destroyed_group_leaves_nothing(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        import threading

        dist.barrier()
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for _ in range(3):
            group = dist.new_group([0, 2])
            if rank != 1:
                tensor = torch.full((3,), rank + 1.0)
                dist.broadcast(tensor, 0, group=group)  # who is done first leaves first
                dist.destroy_process_group(group)
                assert tensor.tolist() == [1] * 3
            del group
            dist.barrier()
        assert len(os.listdir("/proc/self/fd")) <= files
        assert threading.active_count() <= threads

    three_ranks.run(check)


def test_ranks_that_make_different_groups_all_hear_of_it(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        dist.new_group([0, 1])
        for environment in ([0, 1], [0, 2], [0, 1]), (None, [0, 1], None):
            with pytest.raises(
                hvd.HorovodInternalError, match=r"rank 1 called torch.distributed.new_group\(\[0, .\]\)"
            ):
                dist.new_group(environment[rank])
        dist.barrier()

    three_ranks.run(check)


def test_a_rank_that_the_group_does_not_have(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        tensor = torch.ones(1)
        for call in (dist.send, dist.recv, dist.isend, dist.broadcast, dist.reduce):
            for number in (99, -1):
                with pytest.raises(ValueError, match=rf"is rank {number}, and the group has the ranks 0 to 1"):
                    call(tensor, number)
        for call in (dist.gather, dist.scatter):
            with pytest.raises(ValueError, match="the root is rank 99"):
                call(tensor, None, 99)

    two_ranks.run(check)


def test_calls_of_horovods_api_go_beside_it(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        first, second = torch.full((3,), float(rank)), torch.full((3,), rank + 1.0)
        if rank:
            handle = hvd.allreduce_async_(first, op=hvd.Sum)
            dist.all_reduce(second)
        else:
            work = dist.all_reduce(second, async_op=True)
            handle = hvd.allreduce_async_(first, op=hvd.Sum)
            work.wait()
        hvd.synchronize(handle)
        assert (first.tolist(), second.tolist()) == ([1] * 3, [3] * 3)

    two_ranks.run(check)


def test_a_job_of_one() -> None:
    from tests.ranks import run_ranks

    @in_group
    def check(rank: int) -> None:
        tensor = torch.full((3,), 2.0)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert tensor.tolist() == [2] * 3
        output = torch.empty(1, 3)
        dist.all_gather_into_tensor(output, tensor)
        dist.all_gather([output[0]], tensor)
        dist.all_to_all([output[0]], [tensor])
        dist.reduce_scatter_tensor(output[0], tensor)
        dist.barrier()
        work = dist.isend(torch.full((3,), 7.0), 0)
        dist.irecv(tensor, 0).wait()
        work.wait(timedelta(seconds=5))
        assert tensor.tolist() == [7] * 3

    run_ranks(1, check)
