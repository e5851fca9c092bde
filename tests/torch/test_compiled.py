"""Programs that torch.compile has compiled around this package train as they do without it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

import spark_estimator.torch as hvd
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool

BACKEND = "aot_eager"  # all of the compiler but for the code that it makes at last

# The compiler traces much of PyTorch itself, in each rank.
pytestmark = pytest.mark.timeout(200)


def batches(rank: int, steps: int = 4) -> list[torch.Tensor]:
    return [torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + rank)) for step in range(steps)]


def test_ddp(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        def trained(wrap: Callable[[nn.Module], nn.Module]) -> list[torch.Tensor]:
            torch.manual_seed(rank)
            net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))  # with buffers
            model = wrap(net)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for inputs in batches(rank):  # DDP finds its buckets in the second
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
            gradients = [each.grad for each in net.parameters() if each.grad is not None]
            return [*(each.detach() for each in net.state_dict().values()), *gradients]

        plain = trained(nn.parallel.DistributedDataParallel)
        outside = trained(lambda net: torch.compile(nn.parallel.DistributedDataParallel(net), backend=BACKEND))
        inside = trained(lambda net: nn.parallel.DistributedDataParallel(torch.compile(net, backend=BACKEND)))
        torch.testing.assert_close(outside, plain)
        torch.testing.assert_close(inside, plain)

    two_ranks.run(check, timeout=150)


def test_collectives_of_torch_distributed(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        @torch.compile(backend=BACKEND)
        def compiled(tensor: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(tensor)
            work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True)
            assert work is not None
            work.wait()
            dist.broadcast(tensor, src=1)
            return tensor * 2

        for _ in range(2):
            assert compiled(torch.tensor([1.0 + rank])).tolist() == [6.0]

    two_ranks.run(check, timeout=150)


def test_sync_batch_norm(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        torch.manual_seed(1)
        plain = nn.Sequential(nn.Linear(6, 8), hvd.SyncBatchNorm(8), nn.ReLU(), nn.Linear(8, 1))
        model = copy.deepcopy(plain)
        compiled = torch.compile(model, backend=BACKEND)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Dynamo does not know how to trace")
            for inputs in batches(rank, steps=2):
                expected, output = plain(inputs), compiled(inputs)
                torch.testing.assert_close(output, expected)
                for each in (expected, output):
                    each.square().mean().backward()
            gradients = ([each.grad for each in net.parameters()] for net in (model, plain))
            torch.testing.assert_close(*gradients)
            torch.testing.assert_close(model.state_dict(), plain.state_dict())
            for net in (model, plain):
                net.eval()
            full = torch.compile(model, backend=BACKEND, fullgraph=True)  # no collective in eval mode
            torch.testing.assert_close(full(inputs), plain(inputs))

    two_ranks.run(check, timeout=150)


@pytest.mark.slow
def test_a_whole_training_step(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        def trained(wrap: Callable[[Callable[[torch.Tensor], None]], Callable[[torch.Tensor], None]]) -> nn.Module:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(6, 8), hvd.SyncBatchNorm(8), nn.ReLU(), nn.Linear(8, 1))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
            )

            def step(inputs: torch.Tensor) -> None:
                optimizer.zero_grad()
                loss = model(inputs).square().mean()
                hvd.allreduce(loss.detach(), name="loss")
                loss.backward()
                optimizer.step()

            run = wrap(step)
            for inputs in batches(rank):
                run(inputs)
            return model

        compiled = trained(lambda step: torch.compile(step, backend=BACKEND))
        torch.testing.assert_close(compiled.state_dict(), trained(lambda step: step).state_dict())

    two_ranks.run(check, timeout=150)
