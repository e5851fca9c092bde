"""Times how fast rows come as shuffled batches, side by side with petastorm, with a gather in memory, and with Spark.

``python -m spark_estimator.benchmarks.reader [--rows 2000000] [--rounds 5] [--petastorm PYTHON]`` prints a line for
each way: rows in a second, the median of rounds in which all ways take turns, how many times the peer's ours is, and
the spread; then the goals.

- *epochs*: the second and later epochs of batches of 1,024, rows of 20 columns of float32 and, a tenth of as many, of
  an array of 784. Ours: `make_torch_dataloader`, and the same by petastorm's names, which gives a tensor for each
  column. The bound: `torch.index_select` of the same batches from a matrix in memory. Petastorm as Horovod uses it
  (rows shuffled within row groups), and its `BatchedDataLoader` with a queue of 16 batches.
- *first epochs*: from a DataFrame to the end of the first epoch's batches, in two Spark tasks: just files, and any
  other plan; beside writing Parquet and reading that.
- *vectors*: a column of Spark ML's vectors into matrices, beside `rdd.map` row by row.

What is known of the bound: rows of 20 numbers are read in an order of all rows, so that each costs the latency of the
memory; petastorm mixes within a row group, which the cache holds. On two cores ours reaches 1.25 times the gather of
one call after the other, as two threads take turns, and 1.8 to 2.4 times petastorm's in-memory batches: three times
would be twice that gather. To gather sixteen batches at a time was slower (they leave the cache before they are used),
and to prefetch rows in C no faster than numpy's ``take``.

Before anything is timed, each way to read epochs has to give every row once, to the bit. Petastorm works in one
combination of versions only: ``make test-petastorm`` makes it in ``build/petastorm``; give ``--petastorm
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

import numpy
import pyarrow
import pyarrow.parquet
import torch

from spark_estimator.benchmarks import petastorm_reader, programs, reader_spark, tables
from spark_estimator.benchmarks.backends import Way, in_turns
from spark_estimator.benchmarks.command_line import ended_by_signals, positive
from spark_estimator.benchmarks.interleaved import BenchmarkError
from spark_estimator.benchmarks.launch import session
from spark_estimator.console import ends_with_its_reader
from spark_estimator.data import make_torch_dataloader
from spark_estimator.data.petastorm import DataLoader, make_reader

_MODULE = "spark_estimator.benchmarks.reader"
_BATCH = 1024
_WIDTHS = (20, 784)
_PARTS = ("epochs", "first epochs", "vectors")
_FILES = 4
_GROUP_BYTES = 32 << 20
_ANSWER = timedelta(minutes=5)


class Petastorm:
    """A process of the environment in which petastorm works. A context manager.

    Args:
        python: of that environment.
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
        """Sends one command, and gives what it answers.

        Raises:
            BenchmarkError: it failed, ended, or did not answer in five minutes.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        what = f"petastorm ({command['way']}, {Path(command['folder']).name})"
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise BenchmarkError(f"{what} has ended: is it the environment of `make test-petastorm`?") from error
        if not select.select([process.stdout], [], [], _ANSWER.total_seconds())[0]:
            raise BenchmarkError(f"{what} did not answer within {_ANSWER}")
        line = process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line else {"error": f"it ended with {process.wait(10)}"}
        if "error" in told:
            raise BenchmarkError(f"{what}: {told['error']}")
        return told

    def __enter__(self) -> Petastorm:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Data:
    """The rows of one width, in files and in memory.

    Attributes:
        folder: of the files.
        columns: 20 of one number each, or one of arrays.
        matrix: [rows, width].
    """

    folder: Path
    columns: tuple[str, ...]
    matrix: numpy.ndarray[Any, numpy.dtype[numpy.float32]]

    @classmethod
    def made(cls, folder: Path, rows: int, width: int) -> Data:
        """Writes random rows into four files."""
        matrix = numpy.random.default_rng(width).random((rows, width), numpy.float32)
        columns = tuple(f"x{number}" for number in range(width)) if width == _WIDTHS[0] else ("x",)
        folder.mkdir()
        bounds = numpy.linspace(0, rows, _FILES + 1).astype(int)
        for number in range(_FILES):
            part = matrix[bounds[number] : bounds[number + 1]]
            arrays = (
                [pyarrow.array(part[:, place]) for place in range(width)]
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
        """Numbers a row."""
        return int(self.matrix.shape[1])

    def by_column(self, rows: Any) -> dict[str, Any]:
        """A matrix of rows as petastorm gives them."""
        if len(self.columns) == 1:
            return {self.columns[0]: rows}
        return {one: rows[:, place : place + 1] for place, one in enumerate(self.columns)}

    def check(self, name: str, told: Mapping[str, int]) -> None:
        """Raises BenchmarkError unless a way has given every row once."""
        wanted = petastorm_reader.seen(iter([self.by_column(self.matrix)]), list(self.columns))
        if told != wanted:
            raise BenchmarkError(f"{name}, rows of {self.width}: an epoch gave {told}, and the files hold {wanted}")


def of_epochs(data: Data, petastorm: Petastorm | None) -> list[Way]:
    """Ours, by both names, the bound, and petastorm's two ways where it is there. All of them are checked.

    Raises:
        BenchmarkError: a way does not give every row once.
    """
    rows, columns = len(data.matrix), list(data.columns)
    loader = make_torch_dataloader(str(data.folder), _BATCH, feature_cols=columns, seed=1)
    by_name = DataLoader(make_reader(str(data.folder), num_epochs=1, seed=1), _BATCH)
    memory = torch.from_numpy(data.matrix)
    chance = numpy.random.default_rng(1)

    def epoch(batches: Callable[[], Iterator[torch.Tensor]]) -> Callable[[], float]:
        return lambda: sum(float(batch.reshape(len(batch), -1)[:, 0].sum()) for batch in batches()) / rows

    def gathered() -> Iterator[torch.Tensor]:
        order = torch.from_numpy(chance.permutation(rows))
        return (memory.index_select(0, order[place : place + _BATCH]) for place in range(0, rows, _BATCH))

    def features() -> Iterator[torch.Tensor]:
        for batch in loader:
            assert isinstance(batch, tuple)
            yield batch[0]

    data.check("ours", petastorm_reader.seen(map(data.by_column, features()), columns))
    data.check("ours by petastorm's names", petastorm_reader.seen(iter(by_name), columns))
    ways = [
        Way(f"epochs of {data.width}, ours", rows, epoch(features)),
        Way(f"epochs of {data.width}, by column", rows, epoch(lambda: (batch[columns[0]] for batch in by_name))),
        Way(f"epochs of {data.width}, bound", rows, epoch(gathered)),
    ]
    if petastorm is None:
        return ways
    mean = float(data.matrix[:, 0].sum(dtype=numpy.float64)) / rows
    for word, title in (("horovod", "as Horovod"), ("queue", "Batched")):
        command = {"way": word, "folder": str(data.folder), "columns": columns, "batch": _BATCH, "rows": rows}
        data.check(f"petastorm, {title}", petastorm.ask(check=True, **command))
        ways.append(Way(f"epochs of {data.width}, petastorm {title}", rows, _of_petastorm(petastorm, command, mean)))
    return ways


def _of_petastorm(petastorm: Petastorm, command: Mapping[str, Any], mean: float) -> Callable[[], float]:
    def run() -> float:
        # Batches run over the epochs' ends, so that these are not quite the rows of one; each was checked before.
        petastorm.ask(check=False, **command)
        return mean

    return run


@dataclass(frozen=True)
class Goal:
    """What one way is to reach beside another.

    Attributes:
        what: for the table.
        way, peer: their names.
        least: times the peer's rows a second.
    """

    what: str
    way: str
    peer: str
    least: float


def goals() -> list[Goal]:
    """What is wanted of the reader, whatever was measured."""
    found = []
    for width, horovods in zip(_WIDTHS, (3, 8), strict=True):
        way = f"epochs of {width}, ours"
        found += [
            Goal(f"{width}: petastorm as Horovod uses it", way, f"epochs of {width}, petastorm as Horovod", horovods),
            Goal(f"{width}: petastorm's BatchedDataLoader", way, f"epochs of {width}, petastorm Batched", 10),
            Goal(f"{width}: the gather bound", way, f"epochs of {width}, bound", 0.6),
            Goal(f"{width}: bare files", f"files of {width}, ours", f"files of {width}, written first", 4),
            Goal(f"{width}: another plan", f"plan of {width}, ours", f"plan of {width}, written first", 1),
        ]
    return [*found, Goal("vectors", "vectors, ours", "vectors, row by row", 15)]


@ends_with_its_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs all ways, prints the tables."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=positive, default=500_000, help="of 20 numbers (default 500000)")
    parser.add_argument("--rounds", type=positive, default=5, help="that count (default 5)")
    parser.add_argument("--part", choices=_PARTS, action="append", help="measure this part only; may be said twice")
    parser.add_argument("--petastorm", metavar="PYTHON", help="of an environment in which petastorm works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    torch.set_num_threads(1)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); rows a second", file=screen)
    print(f"{'way':36}{'rows/s':>14}{'ours is':>12}", file=screen)
    found: list[Way] = []
    with ended_by_signals(), ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="reader"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        data = [
            Data.made(folder / str(width), max(_FILES, rows), width)
            for width, rows in zip(_WIDTHS, (options.rows, options.rows // 10), strict=True)
        ]
        parts = options.part or _PARTS
        if "epochs" in parts:
            with ExitStack() as peers:
                petastorm = peers.enter_context(Petastorm(options.petastorm)) if options.petastorm else None
                for one in data:
                    found += _measured(of_epochs(one, petastorm), options.rounds, screen)
        if set(parts) - {"epochs"}:
            spark = stack.enter_context(session("local[2]"))
        if "first epochs" in parts:
            for one in data:
                for ways in reader_spark.of_first_epochs(spark, one.folder, one.columns, one.width, _BATCH).values():
                    found += _measured(ways, options.rounds, screen)
        if "vectors" in parts:
            found += _measured(reader_spark.of_vectors(spark, data[0].folder, data[0].columns), options.rounds, screen)
    rates = {way.name: way.rate for way in found}
    reached = [
        (goal, rates[goal.way] / rates[goal.peer]) for goal in goals() if goal.way in rates and goal.peer in rates
    ]
    print(f"\n{'beside':36}{'times':>14}{'goal':>12}", file=screen)
    for goal, ratio in reached:
        print(f"{goal.what:36}{ratio:14.2f}{goal.least:12g}{'' if ratio >= goal.least else '  missed'}", file=screen)
    if options.json is not None:
        runs = [{"name": way.name, "rows": way.rows, "seconds": way.seconds} for way in found]
        reaches = [{"what": goal.what, "times": ratio, "goal": goal.least} for goal, ratio in reached]
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs, "goals": reaches})


def _measured(ways: list[Way], rounds: int, screen: Any) -> list[Way]:
    in_turns(ways, rounds)
    for way in ways:
        spread = f"{min(way.seconds):.3f}-{max(way.seconds):.3f} s, median {statistics.median(way.seconds):.3f}"
        print(f"{way.name:36}{way.rate:14,.0f}{ways[0].rate / way.rate:11.2f}x  {spread}", file=screen, flush=True)
    return ways


if __name__ == "__main__":
    main()
