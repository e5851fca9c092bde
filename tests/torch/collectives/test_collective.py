"""Collectives that are checked and sent once: rows, splits and groups of tensors."""

from __future__ import annotations

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator._native import ReduceOp
from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch.collectives import collective
from tests.torch.rank_pool import RankPool


def test_members_of_a_group() -> None:
    tensors = (torch.ones(1), torch.ones(2))
    assert collective.check_group(tensors, "grouped_allreduce") == list(tensors)
    with pytest.raises(ValueError, match=r"grouped_allreduce.*: a list of tensors is needed, not tensor"):
        collective.check_group(torch.ones(2, 2), "grouped_allreduce")
    with pytest.raises(ValueError, match="at least one tensor is needed, and the list is empty"):
        collective.check_group([], "grouped_allreduce")


def test_a_collective_is_run_or_submitted(job_of_one: None) -> None:
    tensor = torch.arange(3.0)
    arguments = ("allreduce", None, ReduceOp.SUM, 2.0, 1.0, None)
    [result] = collective.make_allreduce([tensor], *arguments).run()
    assert result.tolist() == [0.0, 2.0, 4.0] and tensor.tolist() == [0.0, 1.0, 2.0]
    handle = collective.make_allreduce([tensor], *arguments, in_place=True).submit(collective.only)
    assert hvd.synchronize(handle) is tensor
    assert tensor.tolist() == [0.0, 2.0, 4.0]


def test_tensors_that_share_memory_are_not_reduced_in_place_together(job_of_one: None) -> None:
    memory = torch.ones(6)
    parts = [memory[4:], memory[:3], memory[2:4]]
    with pytest.raises(ValueError, match="tensors 1 and 2 of the group share memory"):
        collective.make_allreduce(parts, "grouped_allreduce", None, ReduceOp.SUM, 1.0, 1.0, None, in_place=True)
    apart = [memory[4:], memory[:4]]
    collective.make_allreduce(apart, "grouped_allreduce", None, ReduceOp.SUM, 3.0, 1.0, None, in_place=True).run()
    assert memory.tolist() == [3.0] * 6


def test_tensors_without_rows(job_of_one: None) -> None:
    scalar = torch.tensor(1.0)
    with pytest.raises(IndexError, match="tensor 1 is a 0-dimensional tensor has no rows"):
        collective.make_allgather([torch.ones(1), scalar], "grouped_allgather", None, None)
    with pytest.raises(ValueError, match="split along dimension 0, and a 0-dimensional tensor has no rows"):
        collective.make_alltoall(scalar, None, "alltoall", None, None)


def test_what_a_reducescatter_refuses(job_of_one: None) -> None:
    with pytest.raises(HorovodInternalError, match=r"op=hvd\.Max is not supported\. Use hvd\.Average or hvd\.Sum"):
        collective.make_reducescatter([torch.ones(2)], "reducescatter", None, ReduceOp.MAX, 1.0, 1.0, None)


def test_splits_and_rows_of_two_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        rows = torch.arange(3.0) + 10 * rank
        for splits in ([1, 2], torch.tensor([1, 2]), (1, 2)):
            received, lengths = collective.make_alltoall(rows, splits, "alltoall", None, None).run()
            assert received.tolist() == ([0.0, 10.0] if rank == 0 else [1.0, 2.0, 11.0, 12.0])
            assert lengths.tolist() == [rank + 1] * 2 and lengths.dtype is torch.int32
        # Rows that no rank is to get stay here, and empty splits are none.
        received, lengths = collective.make_alltoall(rows, [1, 1], "alltoall", None, None).run()
        assert received.tolist() == [float(rank), 10.0 + rank] and lengths.tolist() == [1, 1]
        received, lengths = collective.make_alltoall(rows, torch.tensor([0, 0]), "alltoall", None, None).run()
        assert received.tolist() == [] and lengths.tolist() == [0, 0]
        received, lengths = collective.make_alltoall(rows[:2], torch.tensor([]), "alltoall", None, None).run()
        assert received.tolist() == [float(rank), 10.0 + rank] and lengths.tolist() == [1, 1]
        for wrong in ([3], [2, 2], [-1, 4], [1.5, 1.5], [1, 1, 1]):
            with pytest.raises(ValueError, match=r"must be 2 non-negative integers, one per rank, that add up to"):
                collective.make_alltoall(rows, wrong, "alltoall", None, None)
        with pytest.raises(ValueError, match="3 rows can't be divided equally among 2 ranks; pass splits"):
            collective.make_alltoall(rows, None, "alltoall", None, None)
        # The first rank gets the row that is left over.
        [shared] = collective.make_reducescatter([rows], "reducescatter", None, ReduceOp.SUM, 1.0, 1.0, None).run()
        assert shared.tolist() == ([10.0, 12.0] if rank == 0 else [14.0])
        [(joined, lengths_of)] = collective.make_allgather([rows[: rank + 1]], "allgather", None, None).run()
        assert joined.tolist() == [0.0, 10.0, 11.0] and lengths_of == (1, 2)

    two_ranks.run(check)
