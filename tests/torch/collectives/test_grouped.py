"""Collectives on lists of tensors: one handle for all of a list, and results of every member."""

from __future__ import annotations

import torch

import spark_estimator.torch as hvd
from spark_estimator.torch.collectives import grouped
from tests.torch.rank_pool import RankPool


def test_lists_of_tensors_are_reduced_as_one(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        tensors = [torch.full((2,), float(rank)), torch.full((3, 1), rank + 1, dtype=torch.int32)]
        handle = grouped.grouped_allreduce_async(tensors, op=hvd.Sum)
        assert isinstance(handle, int)
        reduced = hvd.synchronize(handle)
        assert isinstance(reduced, tuple)  # as in Horovod, whose blocking allreduce and reducescatter return lists
        first, second = reduced
        assert first.tolist() == [1.0, 1.0] and second.tolist() == [[3]] * 3
        assert tensors[0].tolist() == [rank] * 2, "the arguments are as they were"
        results = grouped.grouped_allreduce_(tensors, op=hvd.Max)
        assert isinstance(results, tuple) and isinstance(hvd.grouped_allreduce(tensors), list)
        assert all(result is tensor for result, tensor in zip(results, tensors, strict=True))
        assert tensors[1].tolist() == [[2]] * 3
        results = hvd.synchronize(grouped.grouped_allreduce_async_(tensors, op=hvd.Sum, prescale_factor=0.5))
        assert isinstance(results, tuple) and results[0] is tensors[0] and tensors[0].tolist() == [1.0, 1.0]

    two_ranks.run(check)


def test_lists_of_tensors_are_joined_and_shared(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        rows = [torch.full((rank + 1, 2), float(rank)), torch.tensor([rank])]
        joined = hvd.synchronize(grouped.grouped_allgather_async(rows))
        assert isinstance(joined, tuple) and isinstance(hvd.grouped_allgather(rows), tuple)
        assert isinstance(hvd.grouped_allgather([rows[0].clone().requires_grad_()]), tuple)
        assert [tuple(tensor.shape) for tensor in joined] == [(3, 2), (2,)]
        assert joined[1].tolist() == [0, 1]
        shares = hvd.synchronize(
            grouped.grouped_reducescatter_async([torch.arange(4.0), torch.ones(3)], op=hvd.Sum, postscale_factor=10.0)
        )
        assert isinstance(shares, tuple) and isinstance(hvd.grouped_reducescatter([torch.ones(4)]), list)
        assert shares[0].tolist() == ([0.0, 20.0] if rank == 0 else [40.0, 60.0])
        assert len(shares[1]) == 2 - rank

    two_ranks.run(check)
