"""What process groups do with PyTorch 2.6 to 2.12; the last test has the present one behave like these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from spark_estimator.extensions.process_group import creation, older_torch
from spark_estimator.extensions.process_group.issuing import IssuingGroup
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_the_oldest_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"needs PyTorch 2.7 or later, and this is 2\.6\.0\+cu124"):
        older_torch.check_version("2.6.0+cu124")
    older_torch.check_version("2.7.1")
    older_torch.check_version()


def test_new_group_is_prepared_where_torch_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def torchs(ranks: Any = None, timeout: Any = None, backend: Any = None, *, device_id: Any = None) -> str:
        seen.append("made")
        return "group"

    @contextmanager
    def prepare(arguments: dict[str, Any]) -> Iterator[None]:
        seen.append(arguments)
        yield
        seen.append("after")

    monkeypatch.setattr(distributed_c10d, "_new_group_with_tag", torchs)
    older_torch.prepare_new_groups(prepare, "2.13.0")
    assert distributed_c10d._new_group_with_tag is torchs
    older_torch.prepare_new_groups(prepare, "2.12.1+cpu")
    older_torch.prepare_new_groups(prepare, "2.12.1+cpu")
    assert distributed_c10d._new_group_with_tag([0], backend="gloo") == "group"
    assert seen == [{"ranks": [0], "backend": "gloo"}, "made", "after"]


def test_groups_where_torch_asks_only_their_own_ranks(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        torchs, ours = distributed_c10d._new_group_with_tag, IssuingGroup.new_group
        del IssuingGroup.new_group
        older_torch.prepare_new_groups(creation._prepare_group, "2.7.1")
        try:
            pair, everyone = dist.new_group([2, 0]), dist.new_group()
            with pytest.raises(ValueError):
                dist.new_group([0, 5])
            with pytest.raises(ValueError, match="all ranks of the job must create a group together"):
                dist.new_group([0, 1], use_local_synchronization=True)
            with pytest.raises(ValueError, match="'gloo' is unavailable beside"):
                dist.new_group([0, 1], backend="gloo")
        finally:
            distributed_c10d._new_group_with_tag, IssuingGroup.new_group = torchs, ours
        total = torch.ones(1)
        dist.all_reduce(total, group=everyone)
        assert total.item() == 3
        if rank == 1:
            assert pair == dist.GroupMember.NON_GROUP_MEMBER
        else:
            dist.all_reduce(total, group=pair)
            assert total.item() == 6
            dist.destroy_process_group(pair)
        dist.all_reduce(total)  # the job's own group has not ended with them
        assert total.item() == 15

    three_ranks.run(check)
