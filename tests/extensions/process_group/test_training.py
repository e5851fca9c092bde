"""Training through the torch.distributed backend: DDP, FSDP, SyncBatchNorm, the sampler, torchmetrics, Lightning."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool

BATCH = 4


def model_of(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2 * BATCH, 6, generator=generator), torch.randn(2 * BATCH, 3, generator=generator)


def own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[dist.get_rank() * BATCH : (dist.get_rank() + 1) * BATCH]


def trained_alone(steps: int = 4) -> list[torch.Tensor]:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def trained(
    wrap: Callable[[nn.Module], nn.Module], steps: int = 4, pieces: int = 1, quiet: bool = False
) -> tuple[nn.Module, nn.Module]:
    """Trains a wrapped model on this rank's share of the batches, in `pieces` backward passes a step."""
    model = model_of(seed=7 + dist.get_rank())  # rank 0's start holds
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = (own(each).chunk(pieces) for each in batch(step))
        for piece, (some, expected) in enumerate(zip(inputs, targets, strict=True)):
            last = piece == pieces - 1
            with wrapped.no_sync() if quiet and not last else torch.enable_grad():  # type: ignore[operator]
                (nn.functional.mse_loss(wrapped(some), expected) / pieces).backward()
        optimizer.step()
    return model, wrapped


def assert_close(first: list[torch.Tensor], second: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    assert len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.0005},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_ddp_is_training_on_the_joint_batch(two_ranks: RankPool, options: dict[str, Any]) -> None:
    @in_group
    def check(rank: int, options: dict[str, Any]) -> None:
        model, _ = trained(lambda model: DistributedDataParallel(model, **options))
        assert_close([each.detach() for each in model.parameters()], trained_alone())

    two_ranks.run(check, options)


def test_ddp_accumulates_without_a_word(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        model, _ = trained(DistributedDataParallel, pieces=2, quiet=True)
        assert_close([each.detach() for each in model.parameters()], trained_alone())

    two_ranks.run(check)


def test_ddp_with_parameters_that_go_unused(two_ranks: RankPool) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sides = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))

        def forward(self, inputs: torch.Tensor, side: int) -> torch.Tensor:
            return self.sides[side](inputs)  # type: ignore[no-any-return]

    @in_group
    def check(rank: int) -> None:
        model = Branches()
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        wrapped(torch.ones(1, 2), rank).sum().backward()
        gradients = [side.weight.grad for side in model.sides]
        assert gradients[0].tolist() == gradients[1].tolist() == [[0.5, 0.5]]
        assert gradients[2] is None

    two_ranks.run(check)


def test_ddp_hooks(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        from torch.nn.parallel.distributed import DistributedDataParallel as Wrapped

        def hooked(state: object, hook: Any) -> Callable[[nn.Module], nn.Module]:
            def wrap(model: nn.Module) -> nn.Module:
                wrapped = Wrapped(model, bucket_cap_mb=0.0005)
                wrapped.register_comm_hook(state, hook)
                return wrapped

            return wrap

        for hook, tolerance in (
            (default_hooks.allreduce_hook, 1e-6),
            (default_hooks.fp16_compress_hook, 1e-2),
        ):
            model, _ = trained(hooked(None, hook))
            assert_close([each.detach() for each in model.parameters()], trained_alone(), tolerance)
        # Its callbacks call collectives. At full rank nothing is lost.
        power_sgd = powerSGD_hook.PowerSGDState(None, 8, start_powerSGD_iter=2, min_compression_rate=0)
        model, _ = trained(hooked(power_sgd, powerSGD_hook.powerSGD_hook))
        assert_close([each.detach() for each in model.parameters()], trained_alone(), 1e-4)
        assert power_sgd.total_numel_before_compression > 0
        with pytest.raises(TypeError, match="required CUDA"):  # torch's own condition
            trained(hooked(None, default_hooks.bf16_compress_hook))

    two_ranks.run(check)


def test_ddp_joins_ranks_with_fewer_batches(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        wrapped = DistributedDataParallel(nn.Linear(1, 1))
        with wrapped.join():
            for _ in range(3 + rank):
                wrapped.zero_grad()
                wrapped(torch.ones(1, 1)).sum().backward()
        assert wrapped.module.weight.grad.item() == (1 if rank == 0 else 0.5)

    two_ranks.run(check)


def test_ddp_broadcasts_buffers(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        model = nn.BatchNorm1d(3)
        model.running_mean.fill_(rank)
        wrapped = DistributedDataParallel(model)
        assert model.running_mean.tolist() == [0] * 3
        wrapped(torch.full((2, 3), float(rank)))
        wrapped(torch.ones(2, 3))
        assert model.num_batches_tracked.item() == 2

    two_ranks.run(check)


def test_a_model_that_differs_is_refused(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        # Torch compares each rank's model with rank 0's, so that rank 0 only sees the other leave.
        message = r"params\[0\] in this process with sizes \[3, 2\]" if rank else "rank 1 on .* has left the job"
        with pytest.raises(RuntimeError, match=message):
            DistributedDataParallel(nn.Linear(2, 2 + rank))

    two_ranks.run(check)


def test_zero_redundancy_optimizer(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = model_of()
        wrapped = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = map(own, batch(step))
            nn.functional.mse_loss(wrapped(inputs), targets).backward()
            optimizer.step()
        assert_close([each.detach() for each in model.parameters()], trained_alone())

    two_ranks.run(check)


def test_fully_shard(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        model = model_of()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = map(own, batch(step))
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        assert_close([each.full_tensor().detach() for each in model.parameters()], trained_alone())

    two_ranks.run(check)


def test_fully_sharded_data_parallel(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = map(own, batch(step))
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        with FullyShardedDataParallel.summon_full_params(model):
            assert_close([each.detach().clone() for each in model.parameters()], trained_alone())

    two_ranks.run(check)


def test_distributed_tensors(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        full = torch.arange(12.0).reshape(4, 3)
        first = distribute_tensor(full, mesh, [Shard(0)])
        assert first.to_local().tolist() == full[2 * rank : 2 * rank + 2].tolist()
        assert torch.equal((first.t() @ first).full_tensor(), full.t() @ full)
        assert torch.equal(first.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local(), full)

    two_ranks.run(check)


def test_the_sampler_shares_the_data(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        from torch.utils.data import DistributedSampler

        shares = [None] * 3
        dist.all_gather_object(shares, list(DistributedSampler(range(9), shuffle=True, seed=2)))
        assert sorted(itertools.chain(*shares)) == list(range(9))

    three_ranks.run(check)


def test_torch_itself_refuses_sync_batch_norm_on_the_cpu(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        layer = nn.SyncBatchNorm(3)
        with pytest.raises(ValueError, match=r"SyncBatchNorm expected input tensor to be on"):
            layer(torch.ones(2, 3))

    two_ranks.run(check)


def test_loader_workers_fork_beside_it(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2)
        for share in loader:
            dist.all_reduce(share)
        assert share.tolist() == [8, 10, 12, 14]

    two_ranks.run(check)
