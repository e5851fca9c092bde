"""Times how `fit` and `transform` grow with labels, columns, outputs, ranks, partitions, files and categories.

``python -m benchmarks.growth [--what labels,files] [--sizes 1,10,100] [--rounds 3]`` prints a line for each size: the
median seconds of `fit` with a TorchEstimator (two ranks, one epoch) and of `transform` with a mean over its column. A
case grows linearly if ten times the size takes at most ten times the seconds. The mean is checked in each round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks import programs
from benchmarks.command_line import ended_by_signals, list_of, positive
from benchmarks.interleaved import BenchmarkError
from benchmarks.launch import session
from spark_estimator import TorchEstimator
from spark_estimator.console import end_with_reader

_MODULE = "benchmarks.growth"
_ROWS = 1000
_TOLERANCE = 1e-3


@dataclass
class Trained:
    """What `fit` is given: rows, and the parameters that differ between cases.

    Attributes:
        mean: of the first label's predictions.
    """

    frame: Any
    model: nn.Module
    mean: float
    params: dict[str, Any]


class Repeats(nn.Module):
    """Returns the mean of its inputs as each of `count` outputs."""

    def __init__(self, inputs: int, count: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((inputs, 1), 1 / inputs))
        self.count = count

    def forward(self, x: torch.Tensor) -> Any:
        number = x @ self.weights
        return number if self.count == 1 else (number,) * self.count


class Wide(nn.Module):
    """Returns `count` values for a row, in one output."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(1, count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights


class Table(nn.Module):
    """Returns a number for each category: its id, divided by their number."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count + 1, 1)
        self.table.weight.data = torch.arange(count + 1.0).reshape(-1, 1) / count

    def forward(self, x: torch.Tensor) -> Any:
        return self.table(x.reshape(-1))


def rows_of(spark: Any, rows: int, partitions: int = 2) -> Any:
    """`x` and `y` in [0, 1)."""
    return spark.range(0, rows, 1, partitions).selectExpr("id", f"cast(id / {rows} as float) x", "cast(0 as float) y")


def make_labels(spark: Any, size: int, folder: str) -> Trained:
    """`size` labels, each with its loss, and as many columns of predictions."""
    names = [f"y{number}" for number in range(size)]
    frame = rows_of(spark, _ROWS).selectExpr("x", *(f"y as {name}" for name in names))
    params = {"label_cols": names, "loss": [nn.MSELoss()] * size}
    return Trained(frame, Repeats(1, size), (_ROWS - 1) / 2 / _ROWS, params)


def make_columns(spark: Any, size: int, folder: str) -> Trained:
    """`size` columns of features."""
    names = [f"x{number}" for number in range(size)]
    frame = rows_of(spark, _ROWS).selectExpr("y", *(f"x as {name}" for name in names))
    return Trained(frame, Repeats(size, 1), (_ROWS - 1) / 2 / _ROWS, {"feature_cols": names})


def make_outputs(spark: Any, size: int, folder: str) -> Trained:
    """One label that is an array of `size` numbers, and as many predictions in one column."""
    frame = rows_of(spark, _ROWS).selectExpr("x", f"array_repeat(y, {size}) as y")
    return Trained(frame, Wide(size), (_ROWS - 1) / 2 / _ROWS, {"output_type": "array"})


def make_ranks(spark: Any, size: int, folder: str) -> Trained:
    """`size` ranks."""
    return Trained(rows_of(spark, _ROWS), Repeats(1, 1), (_ROWS - 1) / 2 / _ROWS, {"num_proc": size})


def make_partitions(spark: Any, size: int, folder: str) -> Trained:
    """Rows in `size` partitions, which come through Spark."""
    return Trained(rows_of(spark, _ROWS, size), Repeats(1, 1), (_ROWS - 1) / 2 / _ROWS, {})


def make_files(spark: Any, size: int, folder: str) -> Trained:
    """Rows in `size` Parquet files, which the ranks read."""
    rows_of(spark, _ROWS, size).write.parquet(folder)
    return Trained(spark.read.parquet(folder), Repeats(1, 1), (_ROWS - 1) / 2 / _ROWS, {})


def make_categories(spark: Any, size: int, folder: str) -> Trained:
    """A column of 100,000 texts, of which `size` differ."""
    frame = rows_of(spark, 100_000).selectExpr(f"concat('word ', id % {size}) as x", "y")
    return Trained(frame, Table(size), (size + 1) / 2 / size, {"categories": {"x": size + 1}})


CASES: dict[str, tuple[Callable[[Any, int, str], Trained], tuple[int, ...]]] = {
    "labels": (make_labels, (1, 10, 100)),
    "columns": (make_columns, (10, 100, 1000)),
    "outputs": (make_outputs, (10, 100, 1000)),
    "ranks": (make_ranks, (2, 4, 8)),
    "partitions": (make_partitions, (2, 20, 200)),
    "files": (make_files, (2, 50, 1000)),
    "categories": (make_categories, (10, 1000, 50_000)),
}


def measure(spark: Any, name: str, size: int) -> tuple[float, float]:
    """The seconds of one `fit` and of one `transform`.

    Raises:
        BenchmarkError: the predictions are wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        case = CASES[name][0](spark, size, f"{folder}/rows")
        params = {"feature_cols": ["x"], "label_cols": ["y"], "loss": nn.MSELoss(), "num_proc": 2, **case.params}
        optimizer = torch.optim.SGD(case.model.parameters(), lr=0.0)
        estimator = TorchEstimator(
            model=case.model, optimizer=optimizer, batch_size=256, epochs=1, verbose=0, random_seed=1, **params
        )
        started = time.perf_counter()
        model = estimator.fit(case.frame)
        fitted = time.perf_counter()
        frame = model.transform(case.frame)
        column = f"{params['label_cols'][0]}__output"
        value = f"avg({column}[0])" if name == "outputs" else f"avg({column})"
        others = [f"avg({label}__output)" for label in params["label_cols"][1:]]
        mean = float(frame.selectExpr(value, *others).collect()[0][0])
        ended = time.perf_counter()
    if abs(mean - case.mean) > _TOLERANCE:
        raise BenchmarkError(f"{name}, {size}: the mean of the predictions is {mean}, and not {case.mean}")
    return fitted - started, ended - fitted


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs all cases, and prints the table."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", type=list_of(tuple(CASES)), default=tuple(CASES), help=", ".join(CASES))
    parser.add_argument("--sizes", type=list_of(sizes=True), help="in place of each case's own")
    parser.add_argument("--rounds", type=positive, default=3, help="timed rounds (default 3)")
    options = parser.parse_args(argv)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); seconds")
    print(f"{'what':12}{'size':>8}{'fit':>8}{'transform':>11}")
    for name in options.what:
        sizes = options.sizes or CASES[name][1]
        # Not more tasks at once than needed: each first has to start Python and import PyTorch.
        with ended_by_signals(), session(f"local[{max(sizes) if name == 'ranks' else 2}]") as spark:
            measure(spark, name, sizes[0])
            for size in sizes:
                pairs = [measure(spark, name, size) for _ in range(options.rounds)]
                fit, transform = (statistics.median(column) for column in zip(*pairs, strict=True))
                print(f"{name:12}{size:8}{fit:8.1f}{transform:11.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
