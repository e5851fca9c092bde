"""DistributedOptimizer(op=Adasum): the adaptive sum of what each rank has changed in a step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool
from tests.torch.training import (
    BATCH,
    assert_same_on_all_ranks,
    batches,
    model_of,
    own_rows,
)


def adaptive_sum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    dot = (first * second).sum()
    return (1 - dot / (2 * first.square().sum())) * first + (1 - dot / (2 * second.square().sum())) * second


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_adasum_of_what_a_step_has_changed(two_ranks: RankPool, compression: str) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            model.named_parameters(),
            op=hvd.Adasum,
            compression=getattr(hvd.Compression, compression),
        )
        assert optimizer.op == hvd.Adasum  # type: ignore[attr-defined]
        references = [model_of(), model_of()]
        alone = [torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9) for reference in references]
        for inputs, targets in batches(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
            optimizer.step()
            start = [parameter.detach().clone() for parameter in references[0].parameters()]
            for number, reference in enumerate(references):
                rows = slice(number * BATCH, (number + 1) * BATCH)
                alone[number].zero_grad()
                nn.functional.mse_loss(reference(inputs[rows]), targets[rows]).backward()
                alone[number].step()
            with torch.no_grad():
                for before, first, second in zip(start, *(r.parameters() for r in references), strict=True):
                    moved = before + adaptive_sum(first - before, second - before)
                    first.copy_(moved)
                    second.copy_(moved)
        tolerance = 1e-5 if compression == "none" else 2e-2
        for ours, theirs in zip(model.parameters(), references[0].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
        assert_same_on_all_ranks(model)
        optimizer.synchronize()  # type: ignore[attr-defined]  # does nothing, as in Horovod
        with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():  # type: ignore[attr-defined]
            pass

    two_ranks.run(check)


def test_adasum_with_closures_accumulation_and_a_step_that_raised(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
        inputs, targets = batches(1)[0]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            for _ in range(1 + rank):  # as many backward passes as a rank likes
                loss = nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets))
                loss.backward()
            return loss

        def fails() -> torch.Tensor:
            raise OSError("no data")

        optimizer.step(closure)
        assert_same_on_all_ranks(model)
        with pytest.raises(OSError, match="no data"):
            optimizer.step(fails)
        optimizer.step(closure)
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


@pytest.mark.parametrize("unscale", [False, True])
def test_adasum_with_a_scaler(two_ranks: RankPool, unscale: bool) -> None:
    def check(rank: int) -> None:
        param = nn.Parameter(torch.zeros(3))
        sgd = torch.optim.SGD([param], lr=1.0)
        optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        expected = torch.zeros(3)
        for step in range(3):
            optimizer.zero_grad()
            factors = torch.tensor([1.0, 0.0, 0.0] if rank == 0 else [0.0, 2.0, 0.0])
            overflows = step == 1 and rank == 1
            scaler.scale((param * factors).sum() * (float("inf") if overflows else 1.0)).backward()
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_([param], 100.0)
            scaler.step(optimizer)
            scaler.update()
            expected -= torch.tensor([1.0, 0.0 if step == 1 else 2.0, 0.0])  # at right angles: summed
            assert param.grad is not None
            assert overflows or torch.equal(param.grad, factors)
            torch.testing.assert_close(param.data, expected)
            assert scaler.get_scale() == (8.0 if rank == 1 and step else 16.0)
        # Wrapped otherwise, or copied, it leaves all to the scaler again.
        for plain in (copy.deepcopy(optimizer), hvd.DistributedOptimizer(optimizer)):
            assert not hasattr(plain, "_step_supports_amp_scaling")

    two_ranks.run(check)


def test_adasum_needs_a_power_of_two_of_ranks(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        with pytest.raises(NotImplementedError, match=rf"on rank {rank}: .*power of two of ranks, but there are 3"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)

    three_ranks.run(check)
