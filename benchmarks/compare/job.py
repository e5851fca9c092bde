"""The jobs that every system runs: the table, the model, and what a right result is. It needs PyTorch and PyArrow only.

The table has 20 float columns and a label: a fixed function of them. A model of 20, 64 and 1 units learns it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import torch

COLUMNS = [f"f{number}" for number in range(20)]
RANKS, BATCH, EPOCHS, RATE = 2, 512, 3, 3e-3
_FILES = 8
#: Of the trained model over the whole table; it is about 1 before the training.
MOST_LOSS = 0.05


def write_table(folder: Path, rows: int) -> None:
    """Write the table as Parquet files."""
    generator = numpy.random.default_rng(0)
    folder.mkdir()
    for number in range(_FILES):
        features = generator.standard_normal((rows // _FILES, len(COLUMNS)), numpy.float32)
        label = features[:, :10].mean(axis=1) * 2 + numpy.abs(features[:, 10]) / 2
        columns = {name: features[:, place] for place, name in enumerate(COLUMNS)} | {"label": label}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"part-{number}.parquet")


def read_table(folder: str, share: tuple[int, int] = (0, 1)) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features [rows, 20] and labels [rows, 1] of every n-th file.

    Args:
        share: (the first file, n).
    """
    files = sorted(Path(folder).glob("*.parquet"))[share[0] :: share[1]]
    table = pyarrow.concat_tables([pyarrow.parquet.read_table(file) for file in files])
    features = numpy.stack([table[name].to_numpy() for name in COLUMNS], axis=1)
    return torch.from_numpy(features), torch.from_numpy(table["label"].to_numpy().reshape(-1, 1).copy())


def make_model() -> torch.nn.Module:
    """Return the model before the training."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that all use."""
    return torch.optim.Adam(model.parameters(), lr=RATE)


def measure_loss(model: torch.nn.Module, folder: str) -> float:
    """Return the mean squared error over the whole table."""
    features, label = read_table(folder)
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(model(features), label))


def dump(model: torch.nn.Module) -> bytes:
    """Return a model's parameters."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


def load(content: bytes) -> torch.nn.Module:
    """Return the model with these parameters."""
    model = make_model()
    model.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
    return model


def train_by_ddp(folder: str, rank: int, size: int) -> bytes:
    """Train with PyTorch's DDP on a share of the files, in memory, as PyTorch's tutorials do. Return the parameters."""
    torch.set_num_threads(1)
    features, label = read_table(folder, (rank, size))
    data = torch.utils.data.TensorDataset(features, label)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), BATCH, drop_last=False)
    loader = torch.utils.data.DataLoader(data, sampler=order, batch_size=None)  # a batch by one index of a tensor
    model: Any = torch.nn.parallel.DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    for _ in range(EPOCHS):
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
    return dump(model.module)


def tell_time() -> float:
    """Return the time at which a rank enters the user's function."""
    import time

    return time.time()
