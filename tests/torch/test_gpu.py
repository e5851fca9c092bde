"""CUDA tensors in the binding, without a GPU: CPU tensors count as tensors on fake ones.

`pretended_gpus` describes what of it is real. With the paths of the fakes in the environment (``tests.fake_gpus``) all
tests of this folder run so; ``tests/gpu/check.py`` is for a machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from tests.torch.rank_pool import RankPool

WAYS = {
    "nccl": {},
    "staged": {"HOROVOD_GPU_OPERATIONS": "staged"},
    "one GPU": {"FAKE_CUDA_DEVICES": "1"},
}


@pytest.fixture(scope="module")
def on_gpus(fakes: dict[str, str]) -> Iterator[Callable[[int, str], RankPool]]:
    pools: dict[tuple[int, str], RankPool] = {}

    def get(size: int, way: str) -> RankPool:
        key = size, way
        if key not in pools or not pools[key].usable:
            if key in pools:
                pools[key].close()
            pools[key] = RankPool(size, {**fakes, **WAYS[way]})
        return pools[key]

    yield get
    for pool in pools.values():
        pool.close()


both = pytest.mark.parametrize("way", WAYS)


def gpu_operations() -> int:
    """How many requests of this rank were sent from a GPU so far."""
    counters = context.engine().counters()
    return counters["gpu_operations"] + counters["staged_operations"]


@both
def test_every_form_of_every_op(on_gpus: Callable[[int, str], RankPool], way: str) -> None:
    def check(rank: int) -> None:
        def both_forms(submitted: int, ran: Any) -> None:
            results = hvd.synchronize(submitted)
            for first, second in zip(listed(results), listed(ran), strict=True):
                assert torch.equal(first, second)

        def listed(results: Any) -> list[torch.Tensor]:
            return list(results) if isinstance(results, (list, tuple)) else [results]

        before = gpu_operations()
        tensor = torch.arange(6.0).view(3, 2) * (rank + 1)
        mine = [tensor.clone(), torch.full((4,), rank, dtype=torch.int64)]
        assert torch.equal(hvd.allreduce(tensor), torch.arange(6.0).view(3, 2) * 1.5)
        both_forms(hvd.allreduce_async(tensor, op=hvd.Sum), torch.arange(6.0).view(3, 2) * 3)
        summed = hvd.grouped_allreduce(mine, op=hvd.Sum)
        both_forms(hvd.grouped_allreduce_async(mine, op=hvd.Sum), summed)
        assert summed[1].tolist() == [1] * 4
        in_place = tensor.t().clone().t()  # not contiguous: a copy is sent and copied back
        assert hvd.allreduce_(in_place, op=hvd.Max) is in_place
        assert torch.equal(in_place, torch.arange(6.0).view(3, 2) * 2)
        rows = torch.full((rank + 1, 2), float(rank))
        assert hvd.allgather(rows).tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        both_forms(hvd.allgather_async(rows), hvd.allgather(rows))
        both_forms(hvd.grouped_allgather_async([rows, tensor]), hvd.grouped_allgather([rows, tensor]))
        assert hvd.broadcast(rows[:1], root_rank=1).tolist() == [[1.0, 1.0]]
        received, splits = hvd.alltoall(tensor, splits=[2, 1])
        assert splits.tolist() == [2, 2] if rank == 0 else [1, 1]
        both_forms(hvd.alltoall_async(tensor, splits=[2, 1]), (received, splits))
        both_forms(hvd.reducescatter_async(tensor, op=hvd.Sum), hvd.reducescatter(tensor, op=hvd.Sum))
        sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,))
        total = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)()
        assert total.to_dense().tolist() == [1.0, 1.0, 4.0, 0.0]
        leaf = torch.ones(3, requires_grad=True)
        hvd.allreduce(leaf, op=hvd.Sum).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [2.0] * 3
        assert gpu_operations() - before == 18  # each of these

    on_gpus(2, way).run(check)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    embedding = nn.EmbeddingBag(9, 4, sparse=True)
    return nn.ModuleList([embedding, nn.Linear(4, 300), nn.Linear(300, 3), nn.Linear(2, 2)])


def loss_of(parts: Any, rank: int, step: int, *, unused: bool) -> torch.Tensor:
    torch.manual_seed(10 * step + rank)
    hidden = parts[0](torch.randint(9, (6, 3)))
    out = parts[2](torch.tanh(parts[1](hidden))).square().mean()
    loss: torch.Tensor = out + (0.0 if unused else parts[3](torch.randn(5, 2)).abs().mean())
    return loss


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"op": hvd.Sum},
    "small buckets": {"groups": 4},
    "half": {"compression": hvd.Compression.bf16},
    "predivide": {"gradient_predivide_factor": 2.0},
    "as dense": {"sparse_as_dense": True},
}


@both
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("unused", [False, True])
def test_gradients_are_those_of_both_ranks(
    on_gpus: Callable[[int, str], RankPool], way: str, options: str, unused: bool
) -> None:
    """Rank 1 may leave a layer out: zeros are sent for it, with a flag."""

    def check(rank: int) -> None:
        ours, reference = model(), model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.05), ours.named_parameters(), **OPTIONS[options]
        )
        plain = torch.optim.SGD(reference.parameters(), lr=0.05)
        factor = 1.0 if OPTIONS[options].get("op") is hvd.Sum else 0.5
        before = gpu_operations()
        for step in range(4):
            optimizer.zero_grad()
            loss_of(ours, rank, step, unused=unused and rank == 1).backward()
            optimizer.step()
            plain.zero_grad()
            losses = [loss_of(reference, other, step, unused=unused and other == 1) for other in range(2)]
            (sum(losses) * factor).backward()  # type: ignore[attr-defined]
            plain.step()
        tolerance = 2e-2 if options == "half" else 1e-5
        for mine, right in zip(ours.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, right, rtol=tolerance, atol=tolerance)
        assert gpu_operations() >= before + 4

    on_gpus(2, way).run(check)


@pytest.mark.parametrize(
    "options",
    [
        {"op": hvd.Adasum},
        {"backward_passes_per_step": 2},
    ],
    ids=["adasum", "passes"],
)
def test_ranks_stay_alike(on_gpus: Callable[[int, str], RankPool], options: dict[str, Any]) -> None:
    def check(rank: int) -> list[float]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(20, 80), nn.Tanh(), nn.Linear(80, 1))
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters(), **options)
        before = gpu_operations()
        for step in range(6):
            optimizer.zero_grad()
            for _ in range(options.get("backward_passes_per_step", 1)):
                torch.manual_seed(10 * step + rank)
                net(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
        assert gpu_operations() > before
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        flat = torch.cat([param.detach().view(-1) for param in net.parameters()])
        return [float(flat.sum()), float(flat.square().sum())]

    first, second = on_gpus(2, "nccl").run(check)
    assert first == second


def test_a_bucket_waits_for_all_streams_of_its_gradients(on_gpus: Callable[[int, str], RankPool]) -> None:
    """A layer whose forward ran on another stream has its gradient computed there, before the bucket is handed over."""

    def check(rank: int) -> None:
        from tests import fake_gpus
        from tests.torch import pretended_gpus

        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters())
        main, branch = pretended_gpus.current(), fake_gpus.new_stream()
        # As autograd does for the nodes of a branch.
        net[1].weight.register_hook(lambda _: pretended_gpus.make_current(branch))
        net[0].weight.register_hook(lambda _: pretended_gpus.make_current(main))
        for step in range(3):
            pretended_gpus.noted.clear()
            optimizer.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            pretended_gpus.make_current(0)
            optimizer.step()
            waits = [streams for what, streams in pretended_gpus.noted if what == "wait_for_streams"]
            assert step == 0 or waits == [{branch}], (step, waits)

    on_gpus(2, "nccl").run(check)


def test_what_is_awaited_on_another_stream_is_told_to_the_allocator(on_gpus: Callable[[int, str], RankPool]) -> None:
    def check(rank: int) -> None:
        from tests import fake_gpus
        from tests.torch import pretended_gpus

        other = fake_gpus.new_stream()
        for submit in (hvd.allreduce_async, hvd.allgather_async):
            for present in (False, True):
                pretended_gpus.noted.clear()
                handle = submit(torch.ones(5))
                assert not pretended_gpus.noted
                pretended_gpus.make_current(other if present else 0)
                assert hvd.synchronize(handle).sum() in (5, 10)
                pretended_gpus.make_current(0)
                assert pretended_gpus.noted == [("_note_use", present)]

    on_gpus(2, "nccl").run(check)


def test_batch_norm_and_states(on_gpus: Callable[[int, str], RankPool]) -> None:
    def check(rank: int) -> None:
        torch.manual_seed(0)
        batches = [torch.randn(6, 4), torch.randn(1, 4)]
        together = nn.BatchNorm1d(4)
        right = together(torch.cat(batches))
        ours = hvd.SyncBatchNorm(4)
        before = gpu_operations()
        got = ours(batches[rank].requires_grad_())
        torch.testing.assert_close(got, right.split([6, 1])[rank])
        got.square().sum().backward()
        assert gpu_operations() == before + 2
        torch.testing.assert_close(ours.running_var, together.running_var)
        with pytest.raises(ValueError, match="all ranks together gave 0 values"):
            ours(torch.empty(0, 4))

        # A learning rate and counters that are tensors, as of a capturable optimizer.
        param = nn.Parameter(torch.full((3,), float(rank)))
        optimizer = torch.optim.Adam([param], lr=torch.tensor(0.1 * (rank + 1)), capturable=False, foreach=False)
        if rank == 0:
            param.grad = torch.ones(3)
            optimizer.step()
        hvd.broadcast_parameters([param], root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
        assert optimizer.state[param]["exp_avg"].tolist() == pytest.approx([0.1] * 3)

    on_gpus(2, "nccl").run(check)


# --- where a tensor is processed: decided in this process, with fake tensors
# -------------------------------------------
