"""A sparse gradient: the rows of all ranks are added up."""

from __future__ import annotations

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator._native import ReduceOp
from spark_estimator.torch.compression import Compression
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.slot import Slot
from spark_estimator.torch.optimizer.sparse_bucket import SparseBucket
from tests.torch.rank_pool import RankPool


def test_rows_of_all_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for op, factor in ((ReduceOp.SUM, 1.0), (ReduceOp.AVERAGE, 0.5)):
            for compression in (Compression.none, Compression.fp16):
                param = nn.Parameter(torch.zeros(4, 2))
                bucket = SparseBucket(
                    f"{op} {compression}", Slot(param, "embedding"), Options(compression, op, 1.0, None, False), 1
                )
                # Row 1 twice on rank 0, rows 1 and 3 on rank 1; then a dense gradient on rank 0; then none anywhere.
                rows = [[1, 1], [1, 3]][rank]
                param.grad = torch.sparse_coo_tensor([rows], torch.ones(2, 2), (4, 2))
                bucket.submit()
                bucket.finish()
                assert param.grad.layout is torch.sparse_coo and param.grad.is_coalesced()
                assert (param.grad.to_dense()[:, 0] / factor).tolist() == [0.0, 3.0, 0.0, 1.0]
                bucket.forget()
                param.grad = torch.ones(4, 2) if rank == 0 else None
                bucket.submit()
                bucket.finish()
                assert param.grad is not None and (param.grad.to_dense() / factor).eq(1).all()
                bucket.forget()
                param.grad = None
                bucket.submit()
                bucket.finish()
                assert param.grad is None
                hvd.barrier()

    two_ranks.run(check)
