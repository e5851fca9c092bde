"""Trains a convolutional network on handwritten digits: the usual first program for Horovod.

``horovodrun -np 2 python -m examples.digits --epochs 10``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import spark_estimator.torch as hvd
from spark_estimator.demo import make_network

HELD_OUT = 5  # every fifth image is held out for the test


def load() -> tuple[Subset[tuple[torch.Tensor, ...]], Subset[tuple[torch.Tensor, ...]]]:
    """The training and the held-out images, each [1, 8, 8] in 0 ... 1, with their digits."""
    digits = load_digits()
    whole = TensorDataset(
        torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
    )
    held_out = range(0, len(whole), HELD_OUT)
    return Subset(whole, [i for i in range(len(whole)) if i % HELD_OUT]), Subset(whole, held_out)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[tuple[torch.Tensor, ...]]
) -> float:
    """One pass over this rank's share of the images. Returns the mean loss over all ranks."""
    model.train()
    total = torch.zeros(())
    for images, digits in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), digits)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(hvd.allreduce(total / len(loader), name="training loss"))


def accuracy(model: nn.Module, held_out: Subset[tuple[torch.Tensor, ...]]) -> float:
    """The accuracy on the held-out images; each rank evaluates a share of them."""
    model.eval()
    mine = Subset(held_out, range(hvd.rank(), len(held_out), hvd.size()))
    right = torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        for images, digits in DataLoader(mine, batch_size=256):
            right += (model(images).argmax(dim=1) == digits).sum()
    return int(hvd.allreduce(right, op=hvd.Sum, name="right")) / len(held_out)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains on every rank; rank 0 prints. Returns the accuracy on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--lr", type=float, default=0.025, help="learning rate for one rank; multiplied by their number"
    )
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    options = parser.parse_args(argv)

    hvd.init()
    torch.manual_seed(options.seed)
    training, held_out = load()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(training, hvd.size(), hvd.rank())
    loader = DataLoader(training, options.batch_size, sampler=sampler)

    model = make_network()
    # Adasum scales the step itself; an average over n ranks allows n times the learning rate.
    scale = 1 if options.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * scale, momentum=options.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if options.use_adasum else hvd.Average,
        gradient_predivide_factor=options.gradient_predivide_factor,
    )
    reached = 0.0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader)
        reached = accuracy(model, held_out)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy on held-out images {reached:.4f}", flush=True)
    return reached


if __name__ == "__main__":
    main()
