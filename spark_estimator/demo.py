"""``python -m spark_estimator demo``: trains on handwritten digits, with two ranks in a local Spark session."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spark_estimator.errors import PreflightError

if TYPE_CHECKING:
    import torch

RANKS = 2
EPOCHS = 15
EXPECTED_ACCURACY = 0.97
# Required modules, and the requirement that installs each.
REQUIRED = {"torch": "torch", "sklearn": "scikit-learn", "pyspark": "pyspark", "pyarrow": "pyarrow", "pandas": "pandas"}
NEXT_STEPS = """
Next steps:{activate}
  read the source of this demo         {path}
  run a function on Spark              from spark_estimator import HorovodRunner; HorovodRunner(np=2).run(train)
  run a Horovod script without Spark   horovodrun -np 2 python train.py
  check this machine                   python -m spark_estimator doctor"""


def train(epochs: int = EPOCHS, batch_size: int = 32, learning_rate: float = 2e-3, seed: int = 1) -> float:
    """Train a small convolutional network on scikit-learn's digits. Every rank calls it.

    Args:
        epochs: passes over the training images.
        batch_size: images per rank and step.
        learning_rate: the maximum for one rank; multiplied by the number of ranks, as the total batch size is.
        seed: must be the same on all ranks, so that they split the data in the same way.

    Returns:
        The accuracy on held-out images, in 0 ... 1; the same on all ranks.
    """
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    import spark_estimator.torch as hvd

    hvd.init()
    torch.manual_seed(seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
        device = torch.device("cuda")

    digits = load_digits()
    # images: [1797, 1, 8, 8], brightness 0 ... 16 scaled to 0 ... 1; targets: [1797], 0 ... 9
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    targets = torch.tensor(digits.target)
    indices = train_test_split(range(len(targets)), test_size=0.2, random_state=seed, stratify=digits.target)
    training, held_out = (TensorDataset(images[index], targets[index]) for index in indices)

    # Each rank trains on its own share of the images; the shares change in each epoch.
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        training, num_replicas=hvd.size(), rank=hvd.rank(), seed=seed
    )
    loader = DataLoader(training, batch_size=batch_size, sampler=sampler)

    model = make_network().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    # A learning rate scaled by the number of ranks needs a warm-up; this schedule has one, and ends near zero.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate * hvd.size(), epochs=epochs, steps_per_epoch=len(loader)
    )
    # All ranks start with rank 0's parameters. They average their gradients, so the parameters stay equal.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for image, target in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(image.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(
            f"rank {hvd.rank()} of {hvd.size()}: epoch {epoch + 1}/{epochs}, "
            f"loss {total / len(loader):.3f} over {len(sampler)} images",
            flush=True,
        )

    # Each rank evaluates every size-th held-out image; the allreduce sums the counts.
    model.eval()
    image, target = (tensor[hvd.rank() :: hvd.size()].to(device) for tensor in held_out.tensors)
    with torch.no_grad():
        right = (model(image).argmax(dim=1) == target).sum()
    return float(hvd.allreduce(right, op=hvd.Sum, name="right") / len(held_out))


def make_network() -> torch.nn.Module:
    """Make a network that maps images ``[batch, 1, 8, 8]`` to scores ``[batch, 10]``."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line of ``demo``."""
    command_line = argparse.ArgumentParser(
        prog="python -m spark_estimator demo",
        description="Train on scikit-learn's handwritten digits with two ranks in a local Spark session.",
    )
    command_line.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the 1,437 training images")
    return command_line


def main(argv: list[str] | None = None) -> int:
    """Run `train` on two ranks in a local Spark session; return the exit status, 1 if the demo cannot run."""
    arguments = make_parser().parse_args(argv)
    missing = [package for module, package in REQUIRED.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(f"The demo needs packages that are not installed: pip install {' '.join(missing)}", file=sys.stderr)
        return 1
    try:
        accuracy = run(arguments.epochs)
    except PreflightError as error:
        print(f"The demo cannot run here: {error}", file=sys.stderr)
        return 1
    if arguments.epochs >= EPOCHS and accuracy < EXPECTED_ACCURACY:
        print(f"An accuracy below {EXPECTED_ACCURACY:.0%} is a defect: please report it.", file=sys.stderr)
        return 1
    return 0


def run(epochs: int) -> float:
    """Start Spark, run `train`, print the accuracy and times, and return the accuracy. Raises PreflightError."""
    from spark_estimator import HorovodRunner
    from spark_estimator.launch.spark.session import find_or_make_session

    print(f"Starting Spark on this machine with {RANKS} task slots ...", flush=True)
    begun = time.monotonic()
    spark = find_or_make_session(RANKS)
    ready = time.monotonic()
    print(f"Spark {spark.version} is up; HorovodRunner(np={RANKS}).run(train) ...", flush=True)
    accuracy: float = HorovodRunner(np=RANKS, driver_log_verbosity="all").run(train, epochs=epochs)
    done = time.monotonic()
    print(f"\nrank 0 returned the accuracy on 360 held-out images: {accuracy:.4f}")
    print(f"wall time: {done - ready:.1f} s for the job, after {ready - begun:.1f} s for the start of Spark")
    script = Path(sys.executable).with_name("activate")
    inactive = script.exists() and shutil.which("horovodrun") != str(script.with_name("horovodrun"))
    activate = f"\n  first, activate the environment      . {script}" if inactive else ""
    print(NEXT_STEPS.format(path=__file__, activate=activate), flush=True)
    return accuracy
