"""Measures training on rows that exceed a disk budget, beside the same training without a limit.

A model of two layers trains on Parquet files, one process, batches of 256 rows: once with all rows on the disk, once
with `cache_bytes` that hold a tenth of them, so that nine tenths are decoded in each epoch, and once with
`cache_bytes=0`. Epochs are interleaved, so
that the ratio is one of the same minutes. Before anything is timed, each loader's epoch is checked: every row is read
once. The disk of the limited loader is measured every ten batches of its first epoch.

The goal: at least 0.9 of the rate without a limit; the disk's peak within 5 % of its budget.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import numpy
import pyarrow
import pyarrow.parquet
import torch

from benchmarks import programs, tables
from benchmarks.backends import Backend, time_interleaved
from benchmarks.command_line import ended_by_signals, positive
from benchmarks.interleaved import BenchmarkError
from spark_estimator.console import end_with_reader
from spark_estimator.data import make_torch_dataloader
from spark_estimator.data.torch_loader import TorchLoader

_MODULE = "benchmarks.data.streaming"
_BATCH = 256
_FILES = 4
_GOAL = 0.9
_SHARE = 10
_SPOOL = "SPARK_ESTIMATOR_SPOOL_FOLDER"


def write_rows(folder: Path, rows: int, width: int) -> None:
    """Parquet files, with row groups of a hundredth of the rows: `label` counts them, and the others are random."""
    draw = numpy.random.default_rng(width)
    for number in range(_FILES):
        first, last = rows * number // _FILES, rows * (number + 1) // _FILES
        values = draw.standard_normal((last - first, width), numpy.float32)
        columns: dict[str, pyarrow.Array] = {"label": pyarrow.array(numpy.arange(first, last))}
        if width <= 100:
            columns |= {f"x{column}": pyarrow.array(values[:, column]) for column in range(width)}
        else:
            offsets = pyarrow.array(numpy.arange(last - first + 1, dtype=numpy.int32) * width)
            columns["x"] = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values.reshape(-1)))
        table = pyarrow.table(columns)
        pyarrow.parquet.write_table(
            table, folder / f"{number}.parquet", row_group_size=max(1, rows // 100), use_dictionary=False
        )


def trainer(loader: TorchLoader, width: int) -> Callable[[], float]:
    """A function that trains for an epoch, and returns the mean of the rows' labels."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def epoch() -> float:
        total = 0
        for features, label in loader:
            assert isinstance(features, torch.Tensor) and isinstance(label, torch.Tensor)
            loss = torch.nn.functional.cross_entropy(model(features.reshape(len(features), -1)), label % 10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += int(label.sum())
        return total / loader.total_rows

    return epoch


def spooled_bytes(folder: Path) -> int:
    """Bytes on the disk of the nameless files of a folder that this process holds."""
    sizes: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(folder)):
                stat = os.stat(f"/proc/self/fd/{name}")
                sizes[stat.st_ino] = stat.st_blocks * 512
        except FileNotFoundError:
            continue
    return sum(sizes.values())


def check(loader: TorchLoader, spool: Path) -> int:
    """Reads an epoch, and returns the disk's peak.

    Raises:
        BenchmarkError: a row is lost, or read twice.
    """
    seen = numpy.zeros(loader.total_rows, numpy.int64)
    peak = 0
    for number, (_, label) in enumerate(loader):
        assert isinstance(label, torch.Tensor)
        seen[label.numpy()] += 1
        if number % 10 == 0:
            peak = max(peak, spooled_bytes(spool))
    if not (seen == 1).all():
        raise BenchmarkError(f"{(seen == 0).sum()} rows were lost, {(seen > 1).sum()} came twice")
    return max(peak, spooled_bytes(spool))


def measure(width: int, rows: int, rounds: int, buffer_bytes: int | None, screen: TextIO) -> list[dict[str, object]]:
    """One table."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        write_rows(data, rows, width)
        stored = rows * (width * 4 + 8)
        names = [f"x{column}" for column in range(width)] if width <= 100 else ["x"]
        results: list[dict[str, object]] = []
        backends = []
        budgets = {"no limit": None, "a tenth of it on disk": stored // _SHARE, "nothing on disk": 0}
        for title, budget in budgets.items():
            spool = Path(folder, title.replace(" ", "_"))
            spool.mkdir()
            os.environ[_SPOOL] = str(spool)
            loader = make_torch_dataloader(
                str(data),
                _BATCH,
                feature_cols=names,
                label_cols=["label"],
                cache_bytes=budget,
                buffer_bytes=None if budget is None else buffer_bytes,
            )
            results.append({"name": title, "width": width, "budget": budget, "peak": check(loader, spool)})
            backends.append(Backend(title, rows, trainer(loader, width)))
        time_interleaved(backends, rounds)
        for result, backend in zip(results, backends, strict=True):
            ratio = backend.rate / backends[0].rate
            result.update(rows=rows, rate=backend.rate, ratio=ratio, seconds=backend.seconds)
            disk = f"{result['peak']:,}" + (f" of {result['budget']:,}" if result["budget"] else "")
            short = "" if ratio >= _GOAL else f" (short of {_GOAL})"
            line = f"{width:5} {backend.name:24}{backend.rate:12,.0f}{ratio:8.2f}{short}  {disk} bytes"
            print(line, file=screen, flush=True)
        return results


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs all loaders, and prints the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=positive, default=1_000_000, help="rows of 20 numbers; a tenth of 784 (1000000)")
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default 5)")
    parser.add_argument("--buffer-bytes", type=positive, help="memory budget of the limited loaders (default 256 MiB)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    torch.set_num_threads(1)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); rows per second, ratio, disk", file=screen)
    results = []
    with ended_by_signals():
        for width, rows in ((20, options.rows), (784, max(1, options.rows // 10))):
            results += measure(width, rows, options.rounds, options.buffer_bytes, screen)
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": results})


if __name__ == "__main__":
    main()
