"""Messages of two ranks, and the store: in order, by tag, of any sender; what is waited for and what is counted."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_messages_arrive_as_they_were_sent(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        big = torch.arange(1_000_000, dtype=torch.float32)
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
            sent = torch.tensor([[1, 0], [3, 1]]).to(dtype)
            if rank == 0:
                dist.send(sent.t(), 1)
            else:
                tensor = torch.zeros(4, 4).to(dtype)
                assert dist.recv(tensor[::2, ::2], 0) == 0
                assert torch.equal(tensor[::2, ::2], sent.t())
        if rank == 0:
            works = [dist.isend(big * number, 1) for number in range(3)] + [dist.isend(torch.empty(0), 1)]
        else:
            targets = [torch.empty_like(big) for _ in range(3)] + [torch.empty(0)]
            works = [dist.irecv(target, 0) for target in targets]
        for work in works:
            work.wait()
        if rank:
            assert all(torch.equal(target, big * number) for number, target in enumerate(targets[:3]))

    two_ranks.run(check)


def test_tags_and_any_sender(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        if rank == 0:
            first, second, any_ = (torch.empty(1) for _ in range(3))
            works = [dist.irecv(second, 1, tag=2), dist.irecv(first, 1, tag=1)]
            for work in works:
                work.wait()
            assert (first.item(), second.item()) == (1, 2)
            senders = {dist.recv(any_, None, tag=3) for _ in range(2)}
            assert senders == {1, 2}
        else:
            if rank == 1:
                dist.send(torch.tensor([1.0]), 0, tag=1)
                dist.send(torch.tensor([2.0]), 0, tag=2)
            dist.send(torch.tensor([float(rank)]), 0, tag=3)
        dist.barrier()

    three_ranks.run(check)


def test_a_ring_in_one_batch_and_in_a_group(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        received = torch.empty(2)
        operations = [
            dist.P2POp(dist.irecv, received, (rank - 1) % 3),
            dist.P2POp(dist.isend, torch.full((2,), float(rank)), (rank + 1) % 3),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert received.tolist() == [(rank - 1) % 3] * 2
        pair = dist.new_group([1, 2])
        if rank == 1:
            dist.send(torch.ones(2), group=pair, group_dst=1)
        if rank == 2:
            assert dist.recv(received, group=pair) == 1
            assert received.tolist() == [1, 1]
        objects = [None, None]
        if rank == 0:
            dist.send_object_list([{"a": 1}, "b"], dst=2)
        if rank == 2:
            dist.recv_object_list(objects, src=0)
            assert objects == [{"a": 1}, "b"]
        dist.barrier()

    three_ranks.run(check)


def test_a_message_that_does_not_fit_or_does_not_come(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        if rank == 0:
            dist.send(torch.ones(2), 1)
            dist.send(torch.ones(3, dtype=torch.int32), 1)
            dist.send(torch.ones(2, 2), 1)
        else:
            message = r"rank 0 .*sent {} \(tag 0\), and the tensor that waits for it on rank 1 is {}: sender and rec"
            with pytest.raises(ValueError, match=message.format(r"float32 \[2\]", r"float32 \[3\]")):
                dist.recv(torch.empty(3), 0)
            with pytest.raises(ValueError, match=message.format(r"int32 \[3\]", r"float32 \[3\]")):
                dist.recv(torch.empty(3), 0)
            target = torch.empty(4)
            dist.recv(target, 0)
            assert target.tolist() == [1] * 4, "as many elements in another shape"
            work = dist.irecv(torch.empty(1), 0, tag=5)
            message = (
                r"torch\.distributed\.recv on rank 1: rank 1 has waited 0.2 seconds for a message of rank 0 .*\(tag 5, "
            )
            with pytest.raises(dist.DistBackendError, match=message):
                work.wait(timedelta(seconds=0.2))
        dist.barrier()

    two_ranks.run(check)
