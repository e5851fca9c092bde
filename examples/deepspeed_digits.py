"""Trains a network on handwritten digits with DeepSpeed's ZeRO, whose ranks share the optimizer's state out.

``horovodrun -np 2 python -m examples.deepspeed_digits --stage 2``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import deepspeed  # type: ignore[import-not-found, unused-ignore]
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

BATCH = 64  # rows of all ranks together


def main(argv: Sequence[str] | None = None) -> float:
    """Trains on every rank; rank 0 prints. Returns the last loss, over all ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--stage", type=int, default=1, choices=(0, 1, 2))
    options = parser.parse_args(argv)
    deepspeed.init_distributed()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same on all ranks: all begin with equal weights and orders
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    config = {
        "train_micro_batch_size_per_gpu": BATCH // size,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": options.stage},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    loaded = load_digits()
    images, digits = torch.tensor(loaded.data, dtype=torch.float32) / 16, torch.tensor(loaded.target)
    mean = torch.zeros(())
    for epoch in range(options.epochs):
        order = torch.randperm(len(images))
        for first in range(0, len(images) - BATCH + 1, BATCH):
            mine = order[first : first + BATCH][rank::size]
            loss = nn.functional.cross_entropy(engine(images[mine].to(engine.device)), digits[mine].to(engine.device))
            engine.backward(loss)
            engine.step()
            mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {float(mean) / size:.6f}", flush=True)
    dist.destroy_process_group()
    return float(mean) / size


if __name__ == "__main__":
    main()
