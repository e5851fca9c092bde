"""A DDP model that is dropped after its process group, while gloo's threads still release tensors: no hang."""

from __future__ import annotations

import weakref

import torch.distributed as dist

from tests.torch.rank_pool import RankPool


def test_a_model_dropped_after_its_group_ends_while_gloo_releases_tensors(two_ranks: RankPool) -> None:
    def check(_rank: int) -> None:
        import torch

        # Imported after init_process_group, its default arguments would keep the group.
        import torch.distributed.nn

        import spark_estimator.torch.process_group  # noqa: F401

        def train() -> None:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            seen.append(weakref.ref(dist.group.WORLD))
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
            seen.append(weakref.ref(model.reducer))
            tensors = [torch.ones(1) for _ in range(1000)]
            # gloo's threads need Python's lock to release each of these.
            for tensor in tensors:
                dist.all_reduce(tensor, async_op=True)
            dist.destroy_process_group()

        seen: list[weakref.ref[object]] = []
        train()
        assert [reference() for reference in seen] == [None, None]

    two_ranks.run(check, timeout=20)
