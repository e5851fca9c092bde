"""Times the reader of shuffled batches, and compares it with petastorm, an in-memory gather and Spark.

``python -m benchmarks.data.reader [--rows 2000000] [--rounds 5] [--petastorm PYTHON]`` prints a line for
each backend: rows per second (the median of interleaved rounds), how many times faster than this backend ours is, and
the spread; then the goals.

- *epochs*: the second and later epochs in batches of 1,024 rows. Rows have 20 float32 columns; a second case has a
  tenth of the rows, with an array of 784 numbers each. Ours: `make_torch_dataloader`, and the petastorm-compatible
  reader, which returns a tensor per column. The bound: `torch.index_select` of the same batches from a matrix in
  memory. Petastorm: as Horovod uses it (rows shuffled within row groups), and its `BatchedDataLoader` with a queue of
  16 batches.
- *first epochs*: from a DataFrame to the end of the first epoch's batches, in two Spark tasks: a plan that only reads
  files, and another plan; each compared with writing Parquet and reading it.
- *deleted*: from a Delta table of which deletion vectors have removed a tenth of the rows to the end of the first
  epoch's batches; compared with the same rows in bare Parquet files. Both write the rows to the host's disk first.
- *vectors*: a column of Spark ML vectors into matrices, compared with `rdd.map` row by row.

Notes on the bound: rows of 20 numbers are read in a random order of all rows, so each costs a memory latency; petastorm
shuffles within a row group, which fits into the cache. On two cores, with two threads, ours reaches 1.25 times the rate
of a single-threaded gather, and 1.8 to 2.4 times that of petastorm's in-memory batches: three times would require twice
that gather. Gathering sixteen batches at once was slower (they leave the cache before they are used), and prefetching
rows in C was no faster than numpy's ``take``.

Before the timing, each epoch backend must return every row exactly once, bit for bit. Petastorm works with one
combination of versions only: ``make test-petastorm`` installs it in ``build/petastorm``; pass ``--petastorm
build/petastorm/bin/python``.
"""

from __future__ import annotations

import argparse
import json
import select
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import numpy
import pyarrow
import pyarrow.parquet
import torch

from benchmarks import programs, tables
from benchmarks.backends import Backend, time_interleaved
from benchmarks.command_line import ended_by_signals, positive
from benchmarks.data import petastorm_reader, reader_spark
from benchmarks.data.delta_tables import delete_rows, edit_columns, find_adds, make_protocol
from benchmarks.interleaved import BenchmarkError
from benchmarks.launch import session
from spark_estimator.console import end_with_reader
from spark_estimator.data import make_torch_dataloader
from spark_estimator.data.petastorm import DataLoader, make_reader

_MODULE = "benchmarks.data.reader"
_BATCH = 1024
_WIDTHS = (20, 784)
_PARTS = ("epochs", "first epochs", "deleted", "vectors")
_FILES = 4
_GROUP_BYTES = 32 << 20
_ANSWER_TIMEOUT = timedelta(minutes=5)


class Petastorm:
    """A process in an environment in which petastorm works. A context manager.

    Args:
        python: the Python interpreter of that environment.
    """

    def __init__(self, python: str) -> None:
        try:
            self._process = subprocess.Popen(
                [python, petastorm_reader.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise BenchmarkError(f"--petastorm {python}: {error}") from error

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends one command and returns its answer.

        Raises:
            BenchmarkError: the command failed, or the process ended or did not answer within five minutes.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        label = f"petastorm ({command['mode']}, {Path(command['folder']).name})"
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise BenchmarkError(f"{label} has ended: use the environment that `make test-petastorm` makes.") from error
        if not select.select([process.stdout], [], [], _ANSWER_TIMEOUT.total_seconds())[0]:
            raise BenchmarkError(f"{label} did not answer within {_ANSWER_TIMEOUT}")
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"it ended with status {process.wait(10)}"}
        if "error" in answer:
            raise BenchmarkError(f"{label}: {answer['error']}")
        return answer

    def __enter__(self) -> Petastorm:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Data:
    """The rows of one width, in files and in memory.

    Attributes:
        folder: the folder of the Parquet files.
        columns: 20 columns of numbers, or one column of arrays.
        matrix: [rows, width] the same rows in memory.
    """

    folder: Path
    columns: tuple[str, ...]
    matrix: numpy.ndarray[Any, numpy.dtype[numpy.float32]]

    @classmethod
    def create(cls, folder: Path, rows: int, width: int) -> Data:
        """Writes random rows to four files."""
        matrix = numpy.random.default_rng(width).random((rows, width), numpy.float32)
        columns = tuple(f"x{number}" for number in range(width)) if width == _WIDTHS[0] else ("x",)
        folder.mkdir()
        bounds = numpy.linspace(0, rows, _FILES + 1).astype(int)
        for number in range(_FILES):
            part = matrix[bounds[number] : bounds[number + 1]]
            arrays = (
                [pyarrow.array(part[:, column]) for column in range(width)]
                if len(columns) > 1
                else [pyarrow.ListArray.from_arrays(numpy.arange(len(part) + 1) * width, part.reshape(-1))]
            )
            table = pyarrow.table(arrays, names=list(columns))
            pyarrow.parquet.write_table(
                table, folder / f"part-{number}.parquet", row_group_size=max(1, _GROUP_BYTES // (4 * width))
            )
        return cls(folder, columns, matrix)

    @property
    def width(self) -> int:
        """Numbers per row."""
        return int(self.matrix.shape[1])

    def by_column(self, rows: Any) -> dict[str, Any]:
        """Splits a matrix of rows into columns, as petastorm returns them."""
        if len(self.columns) == 1:
            return {self.columns[0]: rows}
        return {name: rows[:, index : index + 1] for index, name in enumerate(self.columns)}

    def check(self, name: str, fingerprint: Mapping[str, int]) -> None:
        """Raises BenchmarkError unless `fingerprint` is that of every row exactly once."""
        expected = petastorm_reader.fingerprint(iter([self.by_column(self.matrix)]), list(self.columns))
        if fingerprint != expected:
            raise BenchmarkError(
                f"{name}, rows of {self.width}: an epoch has fingerprint {fingerprint}, but the files have {expected}"
            )


def epoch_backends(data: Data, petastorm: Petastorm | None) -> list[Backend]:
    """This package's two readers, the bound, and petastorm's two readers if it is available. All are checked.

    Raises:
        BenchmarkError: a backend does not return every row exactly once.
    """
    rows, columns = len(data.matrix), list(data.columns)
    loader = make_torch_dataloader(str(data.folder), _BATCH, feature_cols=columns, seed=1)
    by_name = DataLoader(make_reader(str(data.folder), num_epochs=1, seed=1), _BATCH)
    memory = torch.from_numpy(data.matrix)
    generator = numpy.random.default_rng(1)

    def epoch(batches: Callable[[], Iterator[torch.Tensor]]) -> Callable[[], float]:
        return lambda: sum(float(batch.reshape(len(batch), -1)[:, 0].sum()) for batch in batches()) / rows

    def gathered() -> Iterator[torch.Tensor]:
        order = torch.from_numpy(generator.permutation(rows))
        return (memory.index_select(0, order[start : start + _BATCH]) for start in range(0, rows, _BATCH))

    def features() -> Iterator[torch.Tensor]:
        for batch in loader:
            assert isinstance(batch, tuple)
            yield batch[0]

    data.check("ours", petastorm_reader.fingerprint(map(data.by_column, features()), columns))
    data.check("ours, petastorm-compatible", petastorm_reader.fingerprint(iter(by_name), columns))
    backends = [
        Backend(f"epochs of {data.width}, ours", rows, epoch(features)),
        Backend(f"epochs of {data.width}, by column", rows, epoch(lambda: (batch[columns[0]] for batch in by_name))),
        Backend(f"epochs of {data.width}, bound", rows, epoch(gathered)),
    ]
    if petastorm is None:
        return backends
    mean = float(data.matrix[:, 0].sum(dtype=numpy.float64)) / rows
    for mode, title in (("horovod", "as Horovod"), ("queue", "Batched")):
        command = {"mode": mode, "folder": str(data.folder), "columns": columns, "batch": _BATCH, "rows": rows}
        data.check(f"petastorm, {title}", petastorm.ask(check=True, **command))
        run = _petastorm_run(petastorm, command, mean)
        backends.append(Backend(f"epochs of {data.width}, petastorm {title}", rows, run))
    return backends


def deleted_backends(data: Data, folder: Path) -> list[Backend]:
    """A Delta table with a tenth of its rows deleted, and the rows that are left in bare files, below `folder`."""
    plain, table = folder / f"plain{data.width}", folder / f"table{data.width}"
    plain.mkdir()
    shutil.copytree(data.folder, table)
    deltalake.convert_to_deltalake(str(table))
    edit_columns(table, lambda column: None, **make_protocol(["deletionVectors"]))
    generator = numpy.random.default_rng(3)
    left = 0
    for add in find_adds(table):
        rows = pyarrow.parquet.read_table(table / add["path"])
        keeps = generator.random(rows.num_rows) >= 0.1
        delete_rows(table, add, numpy.flatnonzero(~keeps).tolist(), inline=False)
        group_rows = max(1, _GROUP_BYTES // (4 * data.width))
        pyarrow.parquet.write_table(rows.filter(pyarrow.array(keeps)), plain / add["path"], row_group_size=group_rows)
        left += int(keeps.sum())

    def epoch(path: Path) -> float:
        total = 0.0
        for batch in make_torch_dataloader(str(path), _BATCH, feature_cols=list(data.columns), seed=1):
            assert isinstance(batch, tuple)
            total += float(batch[0].reshape(len(batch[0]), -1)[:, 0].sum())
        return total / left

    return [
        Backend(f"deleted of {data.width}, ours", left, lambda: epoch(table)),
        Backend(f"deleted of {data.width}, bare files", left, lambda: epoch(plain)),
    ]


def _petastorm_run(petastorm: Petastorm, command: Mapping[str, Any], mean: float) -> Callable[[], float]:
    def run() -> float:
        # Batches cross the ends of epochs, so these are not exactly the rows of one epoch; they were checked before.
        petastorm.ask(check=False, **command)
        return mean

    return run


@dataclass(frozen=True)
class Goal:
    """A ratio that the rate of a backend must reach.

    Attributes:
        title: for the table.
        backend, peer: names of the backend and of the one that it is compared with.
        least: minimum ratio of their rows per second.
    """

    title: str
    backend: str
    peer: str
    least: float


def goals() -> list[Goal]:
    """All goals of the reader, including those of parts that were not measured."""
    result = []
    for width, least in zip(_WIDTHS, (3, 8), strict=True):
        ours = f"epochs of {width}, ours"
        result += [
            Goal(f"{width}: petastorm as Horovod uses it", ours, f"epochs of {width}, petastorm as Horovod", least),
            Goal(f"{width}: petastorm's BatchedDataLoader", ours, f"epochs of {width}, petastorm Batched", 10),
            Goal(f"{width}: the gather bound", ours, f"epochs of {width}, bound", 0.6),
            Goal(f"{width}: bare files", f"files of {width}, ours", f"files of {width}, written first", 4),
            Goal(
                f"{width}: bare files, deleted rows",
                f"deleted of {width}, ours",
                f"deleted of {width}, bare files",
                0.9,
            ),
            Goal(f"{width}: another plan", f"plan of {width}, ours", f"plan of {width}, written first", 1),
        ]
    return [*result, Goal("vectors", "vectors, ours", "vectors, row by row", 15)]


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs all backends, and prints the tables."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=positive, default=500_000, help="rows of 20 numbers (default 500000)")
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default 5)")
    parser.add_argument("--part", choices=_PARTS, action="append", help="measure this part only; repeatable")
    parser.add_argument("--petastorm", metavar="PYTHON", help="interpreter of an environment with petastorm")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    torch.set_num_threads(1)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); rows per second", file=screen)
    print(f"{'backend':36}{'rows/s':>14}{'ours is':>12}", file=screen)
    backends: list[Backend] = []
    with ended_by_signals(), ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="reader"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        data = [
            Data.create(folder / str(width), max(_FILES, rows), width)
            for width, rows in zip(_WIDTHS, (options.rows, options.rows // 10), strict=True)
        ]
        parts = options.part or _PARTS
        if "epochs" in parts:
            with ExitStack() as peers:
                petastorm = peers.enter_context(Petastorm(options.petastorm)) if options.petastorm else None
                for dataset in data:
                    backends += _measured(epoch_backends(dataset, petastorm), options.rounds, screen)
        if "deleted" in parts:
            for dataset in data:
                backends += _measured(deleted_backends(dataset, folder), options.rounds, screen)
        if set(parts) - {"epochs", "deleted"}:
            spark = stack.enter_context(session("local[2]"))
        if "first epochs" in parts:
            for dataset in data:
                groups = reader_spark.first_epoch_backends(
                    spark, dataset.folder, dataset.columns, dataset.width, _BATCH
                )
                for group in groups.values():
                    backends += _measured(group, options.rounds, screen)
        if "vectors" in parts:
            vectors = reader_spark.vector_backends(spark, data[0].folder, data[0].columns)
            backends += _measured(vectors, options.rounds, screen)
    rates = {backend.name: backend.rate for backend in backends}
    reached = [
        (goal, rates[goal.backend] / rates[goal.peer])
        for goal in goals()
        if goal.backend in rates and goal.peer in rates
    ]
    print(f"\n{'compared with':36}{'ratio':>14}{'goal':>12}", file=screen)
    for goal, ratio in reached:
        print(f"{goal.title:36}{ratio:14.2f}{goal.least:12g}{'' if ratio >= goal.least else '  missed'}", file=screen)
    if options.json is not None:
        runs = [{"name": backend.name, "rows": backend.rows, "seconds": backend.seconds} for backend in backends]
        ratios = [{"title": goal.title, "ratio": ratio, "goal": goal.least} for goal, ratio in reached]
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs, "goals": ratios})


def _measured(backends: list[Backend], rounds: int, screen: Any) -> list[Backend]:
    time_interleaved(backends, rounds)
    for backend in backends:
        seconds = backend.seconds
        spread = f"{min(seconds):.3f}-{max(seconds):.3f} s, median {statistics.median(seconds):.3f}"
        ratio = backends[0].rate / backend.rate
        print(f"{backend.name:36}{backend.rate:14,.0f}{ratio:11.2f}x  {spread}", file=screen, flush=True)
    return backends


if __name__ == "__main__":
    main()
