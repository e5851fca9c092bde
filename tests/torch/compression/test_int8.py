"""Gradients that are sent as int8 between hosts: results, residues, and tensors that are sent unchanged."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.torch.compression.int8 import Int8
from tests.support.by_sockets import by_sockets
from tests.torch.compression.compressed_net import Net, from_all_ranks, loss_of, owed_by, own_gradients
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_same_on_all_ranks


def wrapped(*params: nn.Parameter, **options: Any) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0), compression=hvd.Compression.int8, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_nothing_is_lost(pools: Callable[[int], RankPool], dtype: torch.dtype, factor: float) -> None:
    """Over some steps, what all ranks have received and what they owe is what they have sent."""

    def check(rank: int) -> None:
        with by_sockets():
            param = nn.Parameter(torch.zeros(200, 100, dtype=dtype))
            optimizer = wrapped(param, gradient_predivide_factor=factor)
            received = sent = torch.zeros(200, 100, dtype=torch.float64)
            for step in range(4):
                optimizer.zero_grad()
                gradient = torch.randn(200, 100, generator=torch.Generator().manual_seed(10 * step + rank)).to(dtype)
                (param * gradient).sum().backward()
                assert param.grad is not None
                received = received + param.grad
                sent = sent + gradient
            owed = owed_by(optimizer, param) * factor
            assert 0 < owed.abs().max() < 0.1
            balance = sum(from_all_ranks(sent - owed)) / hvd.size()
            # The result is rounded to the parameter's own type.
            torch.testing.assert_close(received, balance, rtol=0, atol=0.05 if dtype is torch.bfloat16 else 1e-5)
            assert len({tensor.numpy().tobytes() for tensor in from_all_ranks(received)}) == 1

    pools(3).run(check)


def test_a_model_with_parameters_of_all_kinds(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[str]:
        with by_sockets():
            model = Net()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), compression=hvd.Compression.int8
            )
            for step in range(4):
                optimizer.zero_grad()
                alone = own_gradients(model, step, sometimes=rank == 1 and step > 1)
                loss_of(model, step, rank, sometimes=rank == 1 and step > 1).backward()
                averages = hvd.allgather_object(alone)
                for name, param in model.named_parameters():
                    gradients = [of_rank[name] for of_rank in averages]
                    if all(gradient is None for gradient in gradients):
                        assert param.grad is None, name
                        continue
                    assert param.grad is not None
                    expected = sum(torch.zeros_like(param) if g is None else g for g in gradients) / 2
                    if param.numel() < 1024:  # exact
                        torch.testing.assert_close(param.grad, expected, rtol=1e-6, atol=1e-7)
                    else:
                        assert (param.grad - expected).abs().max() < 0.03 * expected.abs().max() + 1e-6, name
                optimizer.step()
            assert_same_on_all_ranks(model)
            elements = sum(param.numel() for param in model.parameters())
            assert optimizer.bytes_given < elements * 4 / 2.5  # type: ignore[attr-defined]
            return [param.detach().numpy().tobytes().hex() for param in model.parameters()]

    assert two_ranks.run(check) == two_ranks.run(check)  # the same bits in every run


def test_ranks_of_one_host_lose_nothing(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        param = nn.Parameter(torch.zeros(5000))
        optimizer = wrapped(param)
        gradient = torch.randn(5000, generator=torch.Generator().manual_seed(rank))
        (param * gradient).sum().backward()
        assert param.grad is not None
        torch.testing.assert_close(param.grad, sum(from_all_ranks(gradient)) / 2)
        assert not owed_by(optimizer, param).any()

    two_ranks.run(check)


def test_what_is_not_finite_reaches_all_and_spoils_nothing(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with by_sockets():
            param = nn.Parameter(torch.zeros(10000))
            optimizer = wrapped(param)
            gradient = torch.full((10000,), 0.3)
            if rank == 1:
                gradient[7000] = torch.inf
            for weights in (gradient, torch.full((10000,), 0.7)):
                optimizer.zero_grad()
                (param * weights).sum().backward()
                assert param.grad is not None
                assert torch.isfinite(param.grad).all() == (weights is not gradient)
            torch.testing.assert_close(param.grad, torch.full((10000,), 0.7), rtol=0, atol=0.01)
            assert torch.isfinite(owed_by(optimizer, param)).all()

    two_ranks.run(check)


def test_errors_follow_a_parameter_through_other_plans(two_ranks: RankPool) -> None:
    """Parameters are added and frozen, and another job begins without errors."""

    def check(rank: int) -> None:
        with by_sockets():
            first, second = (nn.Parameter(torch.zeros(20_000)) for _ in range(2))
            optimizer = wrapped(first)

            def pass_back(*params: nn.Parameter) -> None:
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(rank)
                sum((param * torch.randn(20_000, generator=generator)).sum() for param in params).backward()  # type: ignore[union-attr]
                optimizer.step()
                for param in params:
                    assert len({grad.numpy().tobytes() for grad in from_all_ranks(param.grad)}) == 1  # type: ignore[arg-type]

            pass_back(first)
            errors = owed_by(optimizer, first).clone()
            assert errors.any()
            optimizer.add_param_group({"params": [second]})
            first.requires_grad_(False)
            pass_back(second)
            torch.testing.assert_close(owed_by(optimizer, first), errors, rtol=0, atol=0)
            first.requires_grad_(True)
            pass_back(first, second)
            assert not torch.equal(owed_by(optimizer, first), errors)
            # Rank 0 has the errors of the job before, rank 1 is new in this one: both begin with none.
            with by_sockets():
                if rank == 1:
                    optimizer._distributed.exchange.close()  # type: ignore[attr-defined]
                    optimizer = wrapped(first)
                    optimizer.add_param_group({"params": [second]})
                else:
                    optimizer._distributed.exchange.begin_step()  # type: ignore[attr-defined]
                pass_back(first, second)

    two_ranks.run(check)


def test_optimizers_owe_by_themselves() -> None:
    first, second = (hvd.Compression.int8.for_one_optimizer() for _ in range(2))
    assert isinstance(first, Int8) and isinstance(second, Int8)
    assert first == second and first.memory is not second.memory
    assert repr(pickle.loads(pickle.dumps(hvd.Compression.int8))) == "Compression.int8"
    assert copy.deepcopy(first) == first


def test_only_sums_of_gradients(job_of_one: None) -> None:
    with pytest.raises(ValueError, match=r"compression=Compression\.int8 keeps an error residual"):
        hvd.allreduce(torch.ones(3), compression=hvd.Compression.int8)
    param = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"not supported with op=hvd\.Adasum"):
        wrapped(param, op=hvd.Adasum)
