"""Trains on a Parquet file with checkpoints that training does not wait for, and continues from the last one.

Kill it at any moment and start it again, also with another number of ranks: no row of the epoch is left out, and none
is read twice, relative to the checkpoint.

``horovodrun -np 2 python -m examples.checkpoints --folder /tmp/run``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import spark_estimator.torch as hvd
from spark_estimator.checkpoint import Checkpointer
from spark_estimator.data import make_torch_dataloader

ROWS = 20_000


def rows_in(folder: Path) -> Path:
    """A file of two numbers and their product."""
    path = folder / "rows.parquet"
    if not path.exists():
        first, second = numpy.random.default_rng(0).standard_normal((2, ROWS))
        folder.mkdir(parents=True, exist_ok=True)
        import pandas

        pandas.DataFrame({"a": first, "b": second, "product": first * second}).to_parquet(path)
    return path


def main(arguments: Sequence[str] | None = None) -> float:
    """Runs on every rank. Returns the last loss of this rank's rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the rows and checkpoints, for all ranks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every-seconds", type=float, default=10, help="time between two checkpoints")
    parser.add_argument("--most-steps", type=int, help="stops after so many steps, as if it was interrupted")
    options = parser.parse_args(arguments)

    hvd.init()
    torch.manual_seed(hvd.rank())
    if hvd.rank() == 0:
        rows_in(options.folder)
    hvd.barrier()
    loader: Any = make_torch_dataloader(
        str(rows_in(options.folder)), batch_size=128, feature_cols=["a", "b"], label_cols=["product"]
    )
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    loss = torch.tensor(float("nan"))
    with Checkpointer(
        f"{options.folder}/checkpoints",
        model=model,
        optimizer=optimizer,
        loader=loader,
        every_seconds=options.every_seconds,
        overlap=True,  # only the optimizer changes parameters
    ) as checkpointer:
        first = checkpointer.restore()
        if hvd.rank() == 0:
            print(f"begins after step {first}, in epoch {loader.epoch + 1}", flush=True)
        while loader.epoch < options.epochs and checkpointer.steps != options.most_steps:
            for features, label in loader:
                optimizer.zero_grad()
                loss = (model(features) - label[:, None]).square().mean()
                loss.backward()
                optimizer.step()
                checkpointer.step()
                if checkpointer.steps == options.most_steps:
                    break
        checkpointer.save()
        last = checkpointer.close()
    if hvd.rank() == 0:
        print(f"the last checkpoint is of step {last}; loss {loss.item():.4f}", flush=True)
    return loss.item()


if __name__ == "__main__":
    main()
