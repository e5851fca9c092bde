"""Compares a DataFrame to a model, the start of a function, and predictions, with TorchDistributor and Ray.

``python -m benchmarks.compare [--rows 400000] [--rounds 5] [--ray PYTHON]`` prints a table: the median seconds of each
job, and how many times as long as this package the others take. All systems run in turns, each in a process that keeps
its session; the first round is not timed. Ray is measured where `--ray` names the Python of an environment that has
``ray[data,train]`` and PyTorch.

- *start*: from the call until rank 0 enters the user's function, two ranks.
- *train*: from the call to the trained model on the driver: 20 columns, three epochs of batches of 512, Adam. Ours:
  `TorchEstimator.fit` of a DataFrame that reads Parquet files. TorchDistributor: each rank reads its files into memory,
  DDP over gloo. Ray: `TorchTrainer` fed by Ray Data, with a local shuffle, DDP over gloo.
- *predict*: the mean prediction of all rows, from the same files: `transform`, `predict_batch_udf`, `map_batches`.

Before a time counts, the trained model's loss over the whole table must be below a bound, and the mean of predictions
that of the model on the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import programs, tables
from benchmarks.command_line import ended_by_signals, positive
from benchmarks.compare import job
from benchmarks.compare.serve import SYSTEMS
from benchmarks.interleaved import BenchmarkError

_JOBS = ("start", "train", "predict")
_OURS = "spark_estimator"
_LONGEST_JOB = timedelta(minutes=5)


class System:
    """A process that runs the jobs of one system.

    Args:
        name: a key of `SYSTEMS`.
        python: the interpreter of its environment.
        folder: of the table.
    """

    def __init__(self, name: str, python: str, folder: Path) -> None:
        self.name = name
        self.seconds: dict[str, list[float]] = {kind: [] for kind in _JOBS}
        read, write = os.pipe()
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": python}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.compare.serve", name, str(folder), str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[write],
            env=environment,
            text=True,
            start_new_session=True,
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self.versions: dict[str, str] = self._read()["versions"]

    def run(self, kind: str, *, timed: bool) -> None:
        """Run one job. Raise BenchmarkError if its result is wrong."""
        assert self._process.stdin is not None
        print(kind, file=self._process.stdin, flush=True)
        answer = self._read()
        if answer.get("loss", 0) > job.MOST_LOSS:
            raise BenchmarkError(f"the model of {self.name} has a loss of {answer['loss']:.3f} over all rows")
        if abs(answer.get("mean", 0) - answer.get("expected", 0)) > 1e-3:
            raise BenchmarkError(f"{self.name} predicts {answer['mean']} on average; the model, {answer['expected']}")
        if timed:
            self.seconds[kind].append(answer["seconds"])

    def _read(self) -> Any:
        ready, _, _ = select.select([self._answers], [], [], _LONGEST_JOB.total_seconds())
        line = self._answers.readline() if ready else ""
        if not line:
            what = "ended" if ready else f"has not answered within {_LONGEST_JOB}"
            raise BenchmarkError(f"the process of {self.name} {what}; its messages are above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


def compare(systems: Sequence[System], rounds: int) -> None:
    """Run all jobs of all systems, in turns."""
    for number in range(rounds + 1):
        for kind in _JOBS:
            for system in systems:
                system.run(kind, timed=number > 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rows", type=positive, default=400_000, help="of the table (default %(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default %(default)s)")
    parser.add_argument(
        "--ray", metavar="PYTHON", help="interpreter of an environment with ray[data,train] and PyTorch"
    )
    options = parser.parse_args(arguments)
    pythons = {_OURS: sys.executable, "TorchDistributor": sys.executable, "Ray Train": options.ray}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        table = Path(folder) / "table"
        job.write_table(table, options.rows)
        systems = []
        for name in SYSTEMS:
            if python := pythons[name]:
                systems.append(System(name, python, table))
                stack.callback(systems[-1].close)
        compare(systems, options.rounds)
    ours = {kind: statistics.median(systems[0].seconds[kind]) for kind in _JOBS}
    rows = []
    for system in systems:
        cells = [f"{' '.join(f'{name} {version}' for name, version in system.versions.items())}"]
        for kind in _JOBS:
            median = statistics.median(system.seconds[kind])
            spread = f"{min(system.seconds[kind]):.2f}-{max(system.seconds[kind]):.2f}"
            cells.append(f"{median:.2f} s ({median / ours[kind]:.2f}x; {spread})")
        rows.append([system.name, *cells])
    print(f"{options.rows} rows, {options.rounds} rounds; {programs.machine()}")
    print(tables.markdown([["system", "versions", *_JOBS], *rows]))


if __name__ == "__main__":
    with ended_by_signals():
        main()
