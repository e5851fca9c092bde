"""Submitting operations of a process group: errors, and a group that has ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_advice_is_for_torchs_callers(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        for asynchronous in (False, True):
            with pytest.raises(MismatchError) as caught:
                work = dist.all_reduce(torch.ones(2 + rank), async_op=asynchronous)
                work.wait()
            assert "matched by their order on each rank" in str(caught.value)
            assert " name" not in str(caught.value).replace("noname", "")

    two_ranks.run(check)


def test_a_group_that_was_left(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import spark_estimator.torch.process_group  # noqa: F401

        dist.init_process_group("spark_estimator")
        hvd.shutdown()
        with pytest.raises(hvd.HorovodInternalError):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    two_ranks.run(check)


def test_a_group_reports_its_device(two_ranks: RankPool) -> None:
    """Distributed checkpoints read it before they choose a device for tensors."""

    @in_group
    def check(rank: int) -> None:
        for group in (dist.group.WORLD, dist.new_group()):
            assert group._device_types == [torch.device("cpu")]
            assert group._get_backend(torch.device("cpu")).name() == "spark_estimator"
            with pytest.raises(RuntimeError, match="takes tensors in host memory, not on cuda"):
                group._get_backend(torch.device("cuda"))

    two_ranks.run(check)


def test_a_new_group_gets_the_backend_that_torch_names(two_ranks: RankPool) -> None:
    """PyTorch 2.14 passes it as an argument; older versions have it in a variable of the calling function."""

    @in_group
    def check(rank: int) -> None:
        def new_group(backend: str, name: str, options: dict[str, Any]) -> dist.ProcessGroup | None:
            return dist.group.WORLD.new_group([0, 1], group_name=name, **options)

        for number, options in enumerate([{}, {"backend": "spark_estimator", "pg_options": None}]):
            assert new_group("spark_estimator", f"10{number}", options).size() == 2
        for options in [{}, {"backend": "gloo"}]:
            with pytest.raises(ValueError, match="gloo"):
                new_group("gloo", "200", options)

    two_ranks.run(check)
