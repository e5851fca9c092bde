"""Times an epoch of `TorchEstimator`'s loop, with all options of steps off, beside that of another commit.

``python -m benchmarks.step_options BEFORE [--batches 2000] [--rounds 9]`` prints the microseconds of a batch of each,
the median over interleaved rounds. BEFORE is a commit of this repository. Each is one process of one rank and one
thread; the model is small (two layers, 16 rows), so that what the loop itself does is most of a batch. Both must end
with the same weights, bit for bit, before anything is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.interleaved import BenchmarkError

_ROOT = Path(__file__).resolve().parents[1]
# A rank: it makes an epoch for each line that it reads, and writes its seconds, and at the end a digest of the weights.
_RANK = """
import hashlib, json, sys, time
import numpy, torch
import spark_estimator.torch as hvd
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.trainer import Trainer
from spark_estimator.estimators.train_spec import TrainSpec
torch.set_num_threads(1)
torch.manual_seed(0)
hvd.init()
batches, size = int(sys.argv[1]), 16
x, y = Field(("x",), ("c0",), (8,), "float32", (8,)), Field(("y",), ("c1",), (1,), "float32", ())
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
framework = TorchParts(net, torch.optim.SGD(net.parameters(), 0.01), [torch.nn.MSELoss()], [1.0], [[torch.nn.L1Loss()]])
absent = ("weight", "train_steps", "validation_steps", "patience", "store", "checkpoint_steps", "source", "held_source")
spec = TrainSpec(
    inputs=(x,), labels=(y,), held_share=0.0, seed=5, batch_size=size, val_batch_size=size, epochs=100, shuffle=True,
    verbose=0, backward_passes_per_step=1, use_gpu=False, restore_best=False, run_id="run", large=1 << 40,
    framework=framework, **dict.fromkeys(absent),
)
features = numpy.random.default_rng(0).normal(size=(batches * size, 8)).astype(numpy.float32)
rows = RankRows(([features], [features.sum(axis=1, keepdims=True)]), numpy.arange(len(features)), (len(features),))
trainer = Trainer(spec)
for epoch, _ in enumerate(sys.stdin):
    start = time.perf_counter()
    trainer.train(rows, epoch, 0, lambda *_: None)
    seconds = time.perf_counter() - start
    numbers = b"".join(value.detach().numpy().tobytes() for value in net.parameters())
    print(json.dumps([seconds, hashlib.sha256(numbers).hexdigest()]), flush=True)
"""


class _Rank:
    """A process with the package of a folder."""

    def __init__(self, folder: Path, batches: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RANK, str(batches)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run_epoch(self) -> tuple[float, str]:
        """Returns the seconds of an epoch, and a digest of the weights after it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"a process ended with status {self._process.wait()}")
        result: Any = json.loads(line)
        return result[0], result[1]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def extract(commit: str, folder: Path) -> None:
    """Puts a commit's package into a folder, with the engine's library of this checkout."""
    archive = subprocess.run(
        ["git", "archive", commit, "spark_estimator"], cwd=_ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    for library in (_ROOT / "spark_estimator").glob("*.so"):
        shutil.copy(library, folder / "spark_estimator")


def measure(before: Path, batches: int, rounds: int) -> tuple[float, float]:
    """Returns the microseconds of a batch, before and now.

    Raises:
        BenchmarkError: the weights differ, or a process has ended.
    """
    ranks = [_Rank(before, batches), _Rank(_ROOT, batches)]
    try:
        times: list[list[float]] = [[], []]
        for number in range(rounds + 1):  # the first one is not timed
            order = [0, 1] if number % 2 else [1, 0]
            results = {which: ranks[which].run_epoch() for which in order}
            if results[0][1] != results[1][1]:
                raise BenchmarkError(f"the weights differ after epoch {number + 1}")
            for which in order if number else ():
                times[which].append(results[which][0] / batches * 1e6)
    finally:
        for rank in ranks:
            rank.close()
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_options", description=__doc__)
    parser.add_argument("before", help="a commit of this repository")
    parser.add_argument("--batches", type=int, default=2000, help="of an epoch (default 2000)")
    parser.add_argument("--rounds", type=int, default=9, help="epochs that are timed (default 9)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extract(arguments.before, Path(folder))
        before, now = measure(Path(folder), arguments.batches, arguments.rounds)
    print(f"before {before:.1f} us a batch, now {now:.1f} us: {now / before:.3f}; the same weights")


if __name__ == "__main__":
    main()
