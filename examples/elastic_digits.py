"""Trains on the digits in an elastic job, which continues if a rank is lost. Kill one of its processes to see it.

``horovodrun -np 3 --min-np 2 python -m examples.elastic_digits --epochs 20``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader

import spark_estimator.torch as hvd
from examples.digits import accuracy, load
from spark_estimator.demo import make_network


def main(argv: Sequence[str] | None = None) -> float:
    """Trains on every rank; rank 0 prints. Returns the accuracy on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument(
        "--batches-per-commit", type=int, default=5, help="the most batches that the loss of a rank can cost"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate for one rank; multiplied by their number")
    options = parser.parse_args(argv)

    hvd.init()
    torch.manual_seed(42)
    training, held_out = load()
    sampler = hvd.elastic.ElasticSampler(training, shuffle=True)
    loader = DataLoader(training, options.batch_size, sampler=sampler)
    model = make_network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9), model.named_parameters()
    )

    def rescale() -> None:
        """Scales the learning rate to the new number of ranks, as the total batch size has changed with it."""
        for group in optimizer.param_groups:
            group["lr"] = options.lr * hvd.size()

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> float:
        reached = 0.0
        while state.epoch < options.epochs:
            model.train()
            for number, (images, digits) in enumerate(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), digits).backward()
                optimizer.step()
                sampler.record_batch(number, len(images))
                if (number + 1) % options.batches_per_commit == 0:
                    state.commit()
            reached = accuracy(model, held_out)
            state.epoch += 1
            if hvd.rank() == 0:
                print(f"epoch {state.epoch} on {hvd.size()} ranks: accuracy {reached:.4f}", flush=True)
            sampler.set_epoch(state.epoch)
            state.commit()
        return reached

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    state.register_reset_callbacks([rescale])
    return train(state)


if __name__ == "__main__":
    main()
