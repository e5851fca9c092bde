"""Times how long a launcher takes to the user's function and back, side by side with PySpark's TorchDistributor.

``python -m spark_estimator.benchmarks.launch [--np 2] [--master 'local[2]' --master ...] [--rounds 7]`` prints a line
for each launcher: medians in seconds from the call of ``run`` until rank 0 is in the user's function, and until ``run``
has returned its value. All launchers take turns in one session of each master; their first turn counts as warm-up.
Every value that comes back is checked.

A job of Spark's own runs before each turn, so that all launchers find the Python workers of the session there and warm:
TorchDistributor's tasks leave their input unread, for which Spark ends the workers that they ran in, and whoever came
next would have to wait half a second for new ones.

Launchers: ours, `HorovodRunner` with addresses exchanged through the driver's server; ours, allGather, without a
connection to the driver, so through Spark; ours, np < 0, processes without Spark; TorchDistributor, in Spark's tasks
and in its local mode.

Then the ranks print: how long a line takes to the driver's screen, and whether --lines of them arrive, in order; and
what that costs a training: the same steps without a line and with --lines of them, in turns.
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

from spark_estimator.benchmarks import programs, tables
from spark_estimator.benchmarks.command_line import ended_by_signals, list_of, positive
from spark_estimator.benchmarks.interleaved import BenchmarkError
from spark_estimator.console import ends_with_its_reader
from spark_estimator.runner import HorovodRunner

_MODULE = "spark_estimator.benchmarks.launch"
_OURS = "ours"


def arrive(word: str) -> tuple[str, float]:
    """What the launched ranks do: they note when they got here."""
    return word, time.time()


def print_slowly(count: int) -> None:
    """Prints lines that say when they were printed, as far apart as those of a training."""
    for _ in range(count):
        print(f"at {time.time()}", flush=True)
        time.sleep(0.05)


def print_fast(count: int) -> float:
    """Prints numbered lines; returns how many seconds that took."""
    started = time.monotonic()
    for number in range(count):
        print(f"line {number}")
    sys.stdout.flush()
    return time.monotonic() - started


def train(steps: int, lines: int) -> float:
    """Reduces a gradient in every step, and prints `lines` spread over them; returns how many seconds that took."""
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
    """One way to start ranks.

    Attributes:
        name: for the table.
        run: calls a function of one argument on every rank and returns rank 0's value.
        to_function, to_return: seconds, one for each turn.
    """

    name: str
    run: Callable[[Callable[[str], Any], str], Any]
    to_function: list[float] = field(default_factory=list)
    to_return: list[float] = field(default_factory=list)

    def turn(self, word: str, *, counts: bool) -> None:
        """Runs once. Raises BenchmarkError when something else than rank 0's value comes back."""
        started = time.time()
        value = self.run(arrive, word)
        ended = time.time()
        if not isinstance(value, tuple) or value[0] != word or not started <= value[1] <= ended:
            raise BenchmarkError(f"{self.name} returned {value!r} to a function that returns {word!r} and the time")
        if counts:
            self.to_function.append(value[1] - started)
            self.to_return.append(ended - started)


#: Modes of TorchDistributor, as they are called on the command line.
_PEERS = {"distributed": "TorchDistributor", "local": "TorchDistributor, local mode"}


def launchers(size: int, peers: Sequence[str]) -> list[Launcher]:
    """Ours and the peers', each of which can start `size` ranks in the present Spark session."""

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
    """What the peer and its processes print is not shown."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def warm_workers(spark: Any, size: int) -> None:
    """Has `size` Python workers of the session pass rows on, all at once."""
    rows = spark.range(0, size, 1, size)
    # Collected, not counted: Spark waits for executors that are on their way before a stage that gives results, but
    # gives up at once where the barrier stage is another one.
    if len(rows.mapInArrow(_passed_on, rows.schema, barrier=True).collect()) != size:
        raise BenchmarkError(f"a job of Spark's own lost some of {size} rows")


def _passed_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


@contextlib.contextmanager
def session(master: str) -> Iterator[Any]:
    """A Spark session of that master, warm: its Python workers have run."""
    from pyspark.sql import SparkSession

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
    """Standard output that notes when each line came."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self._begun = ""

    def write(self, text: str) -> int:
        now = time.time()
        *whole, self._begun = (self._begun + text).split("\n")
        self.lines += [(now, line) for line in whole]
        return len(text)


def line_delays(size: int, count: int) -> list[float]:
    """Seconds that each of `count` lines of every rank took from ``print`` to the driver's standard output."""
    screen = _Screen()
    with contextlib.redirect_stdout(screen):
        HorovodRunner(np=size, driver_log_verbosity="all").run(print_slowly, count=count)
    delays = [came - float(line.rpartition("at ")[2]) for came, line in screen.lines if "at " in line]
    if len(delays) != size * count:
        raise BenchmarkError(f"{len(delays)} of {size * count} lines came")
    return delays


def many_lines(size: int, total: int) -> tuple[int, float]:
    """Has the ranks print `total` lines as fast as they can; returns how many came, and the seconds that took.

    Raises:
        BenchmarkError: a rank's lines came out of order, or twice.
    """
    screen = _Screen()
    started = time.monotonic()
    with contextlib.redirect_stdout(screen):
        HorovodRunner(np=-size).run(print_fast, count=total // size)
    return _in_order(line for _, line in screen.lines), time.monotonic() - started


def training_ratios(size: int, total: int, steps: int, rounds: int) -> tuple[list[float], float]:
    """What `total` lines, printed by the ranks of a training, cost it.

    The ranks wait for one another, so that their time varies by more than the lines cost where they are more than the
    cores; what the driver computes meanwhile does not.

    Returns:
        How many times as long the training takes, in each of `rounds` turns; and the median of the seconds of a core
        that the driver takes more.

    Raises:
        BenchmarkError: lines were lost, or came out of order.
    """
    ratios: list[float] = []
    taken: list[float] = []
    for _ in range(rounds):
        seconds: list[float] = []
        for lines in (0, total // size):
            screen = io.StringIO()
            before = time.process_time()
            with contextlib.redirect_stdout(screen):
                seconds.append(HorovodRunner(np=-size).run(train, steps=steps, lines=lines))
            taken.append(time.process_time() - before)
            came = _in_order(screen.getvalue().splitlines())
            if came != lines * size:
                raise BenchmarkError(f"{came} of {lines * size} lines of a training came")
        ratios.append(seconds[1] / seconds[0])
    return ratios, statistics.median(much - little for little, much in zip(taken[::2], taken[1::2], strict=True))


def _in_order(lines: Iterable[str]) -> int:
    """How many numbered lines came. Raises BenchmarkError when a rank's came out of order, or twice."""
    of_rank: dict[str, list[int]] = {}
    for line in lines:
        head, _, number = line.rpartition("line ")
        if number.isdecimal():
            of_rank.setdefault(head, []).append(int(number))
    for head, numbers in of_rank.items():
        if numbers != sorted(set(numbers)):
            raise BenchmarkError(f"lines of {head} came out of order")
    return sum(map(len, of_rank.values()))


@ends_with_its_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, starts the sessions, prints the tables."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=positive, default=2, help="ranks (default 2)")
    parser.add_argument("--master", action="append", help="of the Spark session; may be given several times")
    parser.add_argument("--rounds", type=positive, default=7, help="turns of each launcher that count (default 7)")
    parser.add_argument("--lines", type=int, default=100_000, help="that 4 ranks print together (default 100000)")
    parser.add_argument("--steps", type=positive, default=1000, help="of the training that prints (default 1000)")
    parser.add_argument("--peers", type=list_of(list(_PEERS)), default=tuple(_PEERS), help=", ".join(_PEERS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there; - for standard output")
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
                        row.turn(f"word {number}", counts=number > 0)
                print(_table(rows), file=screen, flush=True)
                delays = sorted(line_delays(options.np, 40))
            middle, late = (1000 * delays[int(len(delays) * part)] for part in (0.5, 0.95))
            print(f"a line to the driver: median {middle:.0f} ms, 95 of 100 within {late:.0f} ms\n", file=screen)
            runs.append({"master": master, "launchers": [_plain(row) for row in rows], "line_seconds": delays})
        if options.lines:
            came, seconds = many_lines(4, options.lines)
            print(f"4 ranks printed {options.lines} lines: {came} came, in order, in {seconds:.1f} s", file=screen)
            ratios, taken = training_ratios(4, options.lines, options.steps, options.rounds)
            print(
                f"a training whose 4 ranks print as many takes {statistics.median(ratios):.3f} times as long as "
                f"without ({min(ratios):.3f} to {max(ratios):.3f}), and {taken:.2f} s more of a core in the driver",
                file=screen,
            )
            runs.append(
                {
                    "lines": options.lines,
                    "came": came,
                    "seconds": seconds,
                    "training_ratios": ratios,
                    "driver_seconds": taken,
                }
            )
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs})


def _table(rows: Sequence[Launcher]) -> str:
    ours = {row.name: row for row in rows}[_OURS]
    lines = [f"{'launcher':30}{'to the function':>16}{'and back':>10}{'times ours':>12}"]
    for row in rows:
        there, back = statistics.median(row.to_function), statistics.median(row.to_return)
        lines.append(f"{row.name:30}{there:16.2f}{back:10.2f}{there / statistics.median(ours.to_function):12.1f}")
    return "\n".join(lines)


def _plain(row: Launcher) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "run"}


if __name__ == "__main__":
    main()
