"""The key-value store of a job: torch's operations on it, and the wait for a key."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_the_store(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("early", "1")
        assert store.get("early") == b"1"
        assert store.add("count", 1) in (1, 2)
        waited = threading.Thread(target=store.wait, args=(["late"],))
        waited.start()
        dist.barrier()
        assert store.add("count", 0) == 2
        assert not store.check(["late"])
        dist.barrier()
        if rank == 1:
            store.set("late", b"\x00\xff")
        waited.join(10)
        assert not waited.is_alive()
        assert store.multi_get(["late", "early"]) == [b"\x00\xff", b"1"]
        assert store.compare_set(f"own{rank}", "", "new") == b"new"
        assert store.compare_set(f"own{rank}", "old", "newer") == b"new"
        assert store.compare_set(f"own{rank}", "new", "newer") == b"newer"
        store.append(f"own{rank}", "!")
        assert store.get(f"own{rank}") == b"newer!"
        assert store.delete_key(f"own{rank}")
        assert not store.delete_key(f"own{rank}")
        store.set_timeout(timedelta(seconds=0.1))
        with pytest.raises(
            dist.DistStoreError, match=r"keys \['.*never'\] were not all set when rank . had waited for 0.1"
        ):
            store.get("never")
        dist.barrier()

    two_ranks.run(check)
