"""Two ranks whose processors round differently end up with the same compressed gradients, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from tests.ranks import run_ranks

# PyTorch is imported in the ranks only: what it may use of a processor is settled then.


def exchanged(rank: int) -> dict[str, Any]:
    """Digests of gradients as each compression gives them, and of the basis that PyTorch would have found."""
    import hashlib
    import os

    if rank == 1:
        os.environ |= {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    import torch
    from torch import nn

    import spark_estimator.torch as hvd

    def digest(tensor: torch.Tensor) -> str:
        return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()

    def whole_numbers(*shape: int) -> torch.Tensor:  # others result from different rounding
        return torch.randint(-1000, 1000, shape, generator=generator).float() / 1000

    hvd.init()
    generator = torch.Generator().manual_seed(1)
    results: dict[str, Any] = {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "library": digest(torch.linalg.qr(whole_numbers(300, 3))[0]),
    }
    for name, compression in (
        ("powersgd", hvd.Compression.powersgd(3, dense_steps=0)),
        ("topk", hvd.Compression.topk(0.05, dense_steps=0)),
    ):
        model = nn.Linear(200, 300)
        nn.init.ones_(model.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), compression=compression)
        results[name] = []
        for _ in range(4):
            optimizer.zero_grad()
            inputs, targets = whole_numbers(2, 8, 200), whole_numbers(2, 8, 300)
            (model(inputs[rank]) * targets[rank]).sum().backward()
            assert model.weight.grad is not None
            results[name].append(digest(model.weight.grad))
            optimizer.step()
    hvd.shutdown()
    return results


@pytest.mark.slow
def test_gradients_are_the_same_to_the_last_bit() -> None:
    first, second = run_ranks(2, exchanged)
    if first["processor"] == second["processor"] or first["library"] == second["library"]:
        pytest.skip(f"the ranks cannot be made to round differently here: {first['processor']}, {second['processor']}")
    assert len(set(first["powersgd"])) == len(set(first["topk"])) == 4
    assert first["powersgd"] == second["powersgd"]
    assert first["topk"] == second["topk"]
