"""Times the launch of a function and the return of its value, for this package and for PySpark's TorchDistributor.

``python -m benchmarks.launch [--np 2] [--master 'local[2]' --master ...] [--rounds 7]`` prints a line
for each launcher: the median seconds from the call of ``run`` until rank 0 enters the user's function, and until
``run`` returns. All launchers run interleaved in one session of each master, after one warm-up round. Every returned
value is checked.

A plain Spark job runs before each launch, so that all launchers find warm Python workers: TorchDistributor's tasks do
not read their input, so Spark ends their workers, and the next launcher would wait half a second for new ones.

Launchers: ours, `HorovodRunner` with addresses exchanged through the driver's server; ours, allGather, without a
connection to the driver, so through Spark; ours, np < 0, processes without Spark; TorchDistributor, in Spark's tasks
and in its local mode.

Then the ranks print lines. This measures the delay of a line to the driver's output, and whether --lines lines arrive
in order. Last, it measures the cost for training: the same steps with and without --lines lines, interleaved.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import programs, tables
from benchmarks.command_line import ended_by_signals, list_of, positive
from benchmarks.interleaved import BenchmarkError
from spark_estimator.console import end_with_reader
from spark_estimator.runner import HorovodRunner

_MODULE = "benchmarks.launch"
_OURS = "ours"


def arrive(word: str) -> tuple[str, float]:
    """The launched function: returns its argument, and the time at which it was entered."""
    return word, time.time()


def print_slowly(count: int) -> None:
    """Prints lines that contain the time at which they were printed, at the rate of a training's log."""
    for _ in range(count):
        print(f"at {time.time()}", flush=True)
        time.sleep(0.05)


def print_fast(count: int) -> float:
    """Prints numbered lines; returns the seconds that this took."""
    started = time.monotonic()
    for number in range(count):
        print(f"line {number}")
    sys.stdout.flush()
    return time.monotonic() - started


def train(steps: int, lines: int) -> float:
    """Allreduces a gradient in every step and prints `lines` lines in total; returns the seconds that this took."""
    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    gradient, weights = numpy.ones(100_000), numpy.ones((300, 300))
    arrays.allreduce(gradient, name="gradient")
    started = time.monotonic()
    for step in range(steps):
        for _ in range(10):
            weights = weights @ weights / 300
        arrays.allreduce(gradient, name="gradient")
        for number in range(lines * step // steps, lines * (step + 1) // steps):
            print(f"line {number}")
    return time.monotonic() - started


@dataclass
class Launcher:
    """A launcher of ranks.

    Attributes:
        name: for the table.
        run: calls a function of one argument on every rank and returns rank 0's value.
        to_function, to_return: seconds of each timed launch until the function is entered, and until ``run`` returns.
    """

    name: str
    run: Callable[[Callable[[str], Any], str], Any]
    to_function: list[float] = field(default_factory=list)
    to_return: list[float] = field(default_factory=list)

    def launch(self, word: str, *, timed: bool) -> None:
        """Launches once. Raises BenchmarkError if the returned value isn't rank 0's."""
        started = time.time()
        value = self.run(arrive, word)
        ended = time.time()
        if not isinstance(value, tuple) or value[0] != word or not started <= value[1] <= ended:
            raise BenchmarkError(f"{self.name} returned {value!r}; expected {word!r} and the time of the call")
        if timed:
            self.to_function.append(value[1] - started)
            self.to_return.append(ended - started)


#: Modes of TorchDistributor: name for ``--peers`` -> name in the table.
_PEERS = {"distributed": "TorchDistributor", "local": "TorchDistributor, local mode"}


def launchers(size: int, peers: Sequence[str]) -> list[Launcher]:
    """This package's launchers and the peers, each for `size` ranks in the active Spark session."""

    def ours(function: Callable[[str], Any], word: str) -> Any:
        return HorovodRunner(np=size).run(function, word=word)

    def without_channel(function: Callable[[str], Any], word: str) -> Any:
        os.environ["SPARK_ESTIMATOR_DRIVER_CHANNEL"] = "0"
        try:
            return ours(function, word)
        finally:
            del os.environ["SPARK_ESTIMATOR_DRIVER_CHANNEL"]

    def processes(function: Callable[[str], Any], word: str) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return HorovodRunner(np=-size).run(function, word=word)

    def distributor(*, local: bool) -> Callable[[Callable[[str], Any], str], Any]:
        from pyspark.ml.torch.distributor import TorchDistributor

        def run(function: Callable[[str], Any], word: str) -> Any:
            with _quiet():
                return TorchDistributor(num_processes=size, local_mode=local, use_gpu=False).run(function, word)

        return run

    return [
        Launcher(_OURS, ours),
        Launcher("ours, allGather", without_channel),
        Launcher("ours, np < 0", processes),
        *(Launcher(_PEERS[peer], distributor(local=peer == "local")) for peer in peers),
    ]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards the output of the peer and its processes."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def warm_workers(spark: Any, size: int) -> None:
    """Runs a job of `size` concurrent Python tasks in the session, so that their workers are started."""
    rows = spark.range(0, size, 1, size)
    # collect(), not count(): Spark waits for starting executors if the barrier stage is the result stage, but fails at
    # once if it is another stage.
    if len(rows.mapInArrow(_identity, rows.schema, barrier=True).collect()) != size:
        raise BenchmarkError(f"a plain Spark job lost some of {size} rows")


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


@contextlib.contextmanager
def session(master: str) -> Iterator[Any]:
    """A Spark session with the given master, stopped at the exit; or the one that is active, which stays."""
    from pyspark.sql import SparkSession

    if active := SparkSession.getActiveSession():
        yield active
        return
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


class _Screen(io.TextIOBase):
    """Standard output that records the time of each line."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self._incomplete = ""

    def write(self, text: str) -> int:
        now = time.time()
        *complete, self._incomplete = (self._incomplete + text).split("\n")
        self.lines += [(now, line) for line in complete]
        return len(text)


def line_delays(size: int, count: int) -> list[float]:
    """The delay, in seconds, of each of `count` lines per rank from ``print`` to the driver's standard output."""
    screen = _Screen()
    with contextlib.redirect_stdout(screen):
        HorovodRunner(np=size, driver_log_verbosity="all").run(print_slowly, count=count)
    delays = [arrived - float(line.rpartition("at ")[2]) for arrived, line in screen.lines if "at " in line]
    if len(delays) != size * count:
        raise BenchmarkError(f"{len(delays)} of {size * count} lines arrived")
    return delays


def many_lines(size: int, total: int) -> tuple[int, float]:
    """Has the ranks print `total` lines as fast as they can; returns the number that arrived, and the seconds.

    Raises:
        BenchmarkError: a rank's lines arrived out of order, or twice.
    """
    screen = _Screen()
    started = time.monotonic()
    with contextlib.redirect_stdout(screen):
        HorovodRunner(np=-size).run(print_fast, count=total // size)
    return _in_order(line for _, line in screen.lines), time.monotonic() - started


def training_ratios(size: int, total: int, steps: int, rounds: int) -> tuple[list[float], float]:
    """The cost of `total` lines that the ranks of a training print.

    The ranks wait for each other, so with more ranks than cores their time varies by more than the cost of the lines.
    The driver's CPU time does not.

    Returns:
        The ratio of the training times with and without lines, in each of `rounds` rounds; and the median of the
        additional CPU seconds of the driver.

    Raises:
        BenchmarkError: lines were lost, or arrived out of order.
    """
    ratios: list[float] = []
    cpu_seconds: list[float] = []
    for _ in range(rounds):
        seconds: list[float] = []
        for lines in (0, total // size):
            screen = io.StringIO()
            before = time.process_time()
            with contextlib.redirect_stdout(screen):
                seconds.append(HorovodRunner(np=-size).run(train, steps=steps, lines=lines))
            cpu_seconds.append(time.process_time() - before)
            arrived = _in_order(screen.getvalue().splitlines())
            if arrived != lines * size:
                raise BenchmarkError(f"{arrived} of {lines * size} lines of a training arrived")
        ratios.append(seconds[1] / seconds[0])
    differences = [loud - quiet for quiet, loud in zip(cpu_seconds[::2], cpu_seconds[1::2], strict=True)]
    return ratios, statistics.median(differences)


def _in_order(lines: Iterable[str]) -> int:
    """The number of numbered lines. Raises BenchmarkError if a rank's lines are out of order or duplicated."""
    of_rank: dict[str, list[int]] = {}
    for line in lines:
        head, _, number = line.rpartition("line ")
        if number.isdecimal():
            of_rank.setdefault(head, []).append(int(number))
    for head, numbers in of_rank.items():
        if numbers != sorted(set(numbers)):
            raise BenchmarkError(f"lines of {head} arrived out of order or twice")
    return sum(map(len, of_rank.values()))


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, starts the sessions, and prints the tables."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=positive, default=2, help="ranks (default 2)")
    parser.add_argument("--master", action="append", help="master of a Spark session; repeatable")
    parser.add_argument("--rounds", type=positive, default=7, help="timed rounds of each launcher (default 7)")
    parser.add_argument("--lines", type=int, default=100_000, help="lines that 4 ranks print in total (default 100000)")
    parser.add_argument("--steps", type=positive, default=1000, help="steps of the training that prints (default 1000)")
    parser.add_argument("--peers", type=list_of(list(_PEERS)), default=tuple(_PEERS), help=", ".join(_PEERS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    facts = programs.machine()
    runs: list[dict[str, Any]] = []
    with ended_by_signals():
        for master in options.master or [f"local[{options.np}]", f"local-cluster[{options.np},1,1024]"]:
            print(f"{options.np} ranks on {facts['cores']} cores ({facts['processor']}), {master}; s", file=screen)
            with session(master) as spark:
                rows = launchers(options.np, options.peers)
                for number in range(options.rounds + 1):
                    for row in rows:
                        warm_workers(spark, options.np)
                        row.launch(f"word {number}", timed=number > 0)
                print(_table(rows), file=screen, flush=True)
                delays = sorted(line_delays(options.np, 40))
            median, p95 = (1000 * delays[int(len(delays) * part)] for part in (0.5, 0.95))
            print(f"delay of a line to the driver: median {median:.0f} ms, p95 {p95:.0f} ms\n", file=screen)
            runs.append({"master": master, "launchers": [_plain(row) for row in rows], "line_seconds": delays})
        if options.lines:
            arrived, seconds = many_lines(4, options.lines)
            print(f"4 ranks printed {options.lines} lines: {arrived} arrived in order, in {seconds:.1f} s", file=screen)
            ratios, cpu_seconds = training_ratios(4, options.lines, options.steps, options.rounds)
            print(
                f"a training whose 4 ranks print as many lines takes {statistics.median(ratios):.3f} times as long as "
                f"without lines ({min(ratios):.3f} to {max(ratios):.3f}), and {cpu_seconds:.2f} s more CPU time in the "
                "driver",
                file=screen,
            )
            runs.append(
                {
                    "lines": options.lines,
                    "arrived": arrived,
                    "seconds": seconds,
                    "training_ratios": ratios,
                    "driver_seconds": cpu_seconds,
                }
            )
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs})


def _table(rows: Sequence[Launcher]) -> str:
    ours = {row.name: row for row in rows}[_OURS]
    lines = [f"{'launcher':30}{'to function':>16}{'return':>10}{'times ours':>12}"]
    for row in rows:
        called, returned = statistics.median(row.to_function), statistics.median(row.to_return)
        ratio = called / statistics.median(ours.to_function)
        lines.append(f"{row.name:30}{called:16.2f}{returned:10.2f}{ratio:12.1f}")
    return "\n".join(lines)


def _plain(row: Launcher) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "run"}


if __name__ == "__main__":
    main()
