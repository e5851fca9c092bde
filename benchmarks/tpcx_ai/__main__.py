"""Runs programs in the shape of TPCx-AI's use cases 2, 5 and 9, and prints times and the quality of predictions.

``python -m benchmarks.tpcx_ai [--case 2,5,9] [--np 1,2] [--rows N] [--epochs N] [--json FILE]`` generates data, runs
each use case with each number of ranks in a new process and a new Spark session, and prints a line for each: the
seconds of the phases, and the quality of the predictions for rows that the training has not seen. A quality below its
level is an error. These are not TPC results: code, data and sizes are this project's own.

Phases, each from files to files:

- *load*: reading and joining the tables;
- *preprocessing* in Spark: coefficients of sounds, numbers of words, aligned faces;
- *training*: `KerasEstimator.fit` and what follows it, with one core for each rank;
- *serving*: loading, preprocessing and predicting a quarter as many rows, with a saved model.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import programs, tables
from benchmarks.command_line import ended_by_signals, list_of, positive
from benchmarks.interleaved import BenchmarkError
from benchmarks.launch import session
from benchmarks.tpcx_ai.faces import Faces
from benchmarks.tpcx_ai.prices import Prices
from benchmarks.tpcx_ai.speech import Speech
from benchmarks.tpcx_ai.use_case import PHASES, Result, UseCase
from spark_estimator import compat
from spark_estimator.console import end_with_reader

_MODULE = "benchmarks.tpcx_ai"
CASES: dict[int, Callable[[int | None], UseCase]] = {2: Speech, 5: Prices, 9: Faces}
_SERVED = 4  # times fewer rows than the training's


def run(number: int, ranks: int, rows: int | None = None, epochs: int | None = None) -> Result:
    """Runs a use case in this process.

    Args:
        number: of the use case.
        ranks: processes of the training.
        rows, epochs: of the training; None: those of the use case.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    compat.install()  # programs import horovod.spark.keras
    case = CASES[number](epochs)
    count = rows or case.rows
    with tempfile.TemporaryDirectory(prefix="tpcx_ai") as folder:
        source, work = Path(folder, "source"), Path(folder, "work")
        work.mkdir()
        for seed, (name, share) in enumerate({"training": 1, "serving": _SERVED}.items()):
            (source / name).mkdir(parents=True)
            case.generate(source / name, max(1, count // share), seed)
        with session(f"local[{max(2, ranks)}]") as spark:
            return case.run(spark, source, work, ranks)


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Runs all cases, and prints the table.

    Raises:
        BenchmarkError: a program failed, or the quality of its predictions is below its level.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = tuple(map(str, CASES))
    parser.add_argument("--case", type=list_of(numbers), default=numbers, help="2, 5, 9")
    parser.add_argument("--np", type=list_of(sizes=True), default=(1, 2), help="numbers of ranks (default 1,2)")
    parser.add_argument("--rows", type=positive, help="of a training; levels are for the default")
    parser.add_argument("--epochs", type=positive, help="of a training; levels are for the default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); seconds", file=screen)
    print(f"{'case':>4}{'np':>4}{'rows':>8}" + "".join(f"{name:>15}" for name in PHASES) + "  quality", file=screen)
    results = []
    with ended_by_signals():
        for number in map(int, options.case):
            for ranks in options.np:
                result = _in_process(number, ranks, options.rows, options.epochs)
                results.append(result)
                times = "".join(f"{result.seconds[name]:15.1f}" for name in PHASES)
                quality = f"{result.measure} {result.quality:.3f}"
                print(f"{number:>4}{ranks:>4}{result.rows:>8}{times}  {quality}", file=screen, flush=True)
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        runs = [asdict(result) for result in results]
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs})
    if options.rows is None and options.epochs is None:
        for result in results:
            if not CASES[result.case](None).reaches(result.quality):
                raise BenchmarkError(
                    f"use case {result.case} with {result.ranks} ranks has the {result.measure} {result.quality:.3f}, "
                    f"and {result.level} is the level"
                )


def _in_process(*arguments: Any) -> Result:
    """`run` in a new process, with a new session and a new Keras.

    Raises:
        BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="tpcx_ai") as folder:
        path = Path(folder, "result.json")
        code = (
            "import dataclasses, json, pathlib, sys; from benchmarks.tpcx_ai.__main__ import run; "
            "result = run(*json.loads(sys.argv[1])); "
            "pathlib.Path(sys.argv[2]).write_text(json.dumps(dataclasses.asdict(result)))"
        )
        command = [sys.executable, "-c", code, json.dumps(arguments), str(path)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            raise BenchmarkError(f"use case {arguments[0]} with {arguments[1]} ranks failed:\n{ended.stdout}")
        return Result(**json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
