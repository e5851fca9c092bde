"""Runs random jobs with random faults for some time: ``python -m chaos --seconds 120 --seed 7``.

The seed determines all random choices. Each violation is printed with the one command that repeats its run.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from chaos import jobs, program, recovery
from chaos.faults import UNMISSED
from chaos.left_behind import Before, left_behind
from chaos.oracle import Ending, Struck, violations
from chaos.plan import Launcher, Run, plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEXT_OPERATIONS = (("allreduce", "allgather"), ("allreduce",))


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 when no run was in violation of anything."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120, help="no run starts later (default 120)")
    parser.add_argument("--seed", default="", help="any word; by default a fresh one, which is printed")
    parser.add_argument("--run", type=int, help="only the run with this number")
    parser.add_argument("--count", type=int, help="at most so many runs")
    words = [launcher.value for launcher in Launcher]
    parser.add_argument("--launchers", default=",".join(words), help=f"of {', '.join(words)}")
    parser.add_argument("--plan", action="store_true", help="only print what would be run")
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error(f"--seconds {options.seconds:g}: expected a number above 0.")
    seed = options.seed or secrets.token_hex(4)
    launchers = [Launcher(word) for word in options.launchers.split(",")]
    print(f"chaos: SEED={seed}", flush=True)
    numbers: Iterator[int] = iter([options.run]) if options.run is not None else count()
    until = time.monotonic() + options.seconds
    tally: Counter[str] = Counter()
    with jobs.sessions() as session:
        for number in numbers:
            late = time.monotonic() > until and options.run is None
            if late or (options.count is not None and number >= options.count):
                break
            run = plan(seed, number)
            if run.launcher not in launchers and options.run is None:
                continue
            if options.plan:
                print(f"{number}: {run}")
                continue
            _judge(run, session, tally)
    faults = ", ".join(f"{kind} {number}" for kind, number in sorted(tally.items()) if kind.startswith("'"))
    print(f"chaos: {tally['runs']} runs, {tally['violations']} in violation (SEED={seed}); faults: {faults or 'none'}")
    return 1 if tally["violations"] else 0


def _judge(run: Run, session: Callable[[], SparkSession], tally: Counter[str]) -> None:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    ending = _ended(run, folder, session)
    wrong = violations(run, _expected(run), ending)
    tally["runs"] += 1
    for struck in ending.struck:
        tally[repr(struck.fault.kind.value)] += 1
    how = "error" if ending.error else "done"
    print(f"{run.number}: {run}: {how} in {time.monotonic() - began:.1f} s", flush=True)
    if not wrong:
        shutil.rmtree(folder)
        return
    tally["violations"] += 1
    for line in wrong:
        print(f"VIOLATION {line}")
    print(f"  repeat it with: {run.command}\n  its output: {folder}", flush=True)
    if ending.seconds is None:  # its threads and processes would be attributed to the next runs
        os._exit(1)


def _ended(run: Run, folder: Path, session: Callable[[], SparkSession]) -> Ending:
    mark = f"chaos-{os.getpid()}-{run.number}-{secrets.token_hex(4)}"
    on_spark = run.launcher is Launcher.SPARK
    if on_spark:
        session()
    before = Before.take()
    began = time.monotonic()
    shown = _within_time(lambda: jobs.start(run, mark, folder, session))
    ended = time.monotonic()
    struck, last = _struck(run, folder)
    if shown is None:
        faulthandler.dump_traceback(2, all_threads=True)  # the job still collects what goes to sys.stderr
        return Ending(None, "", None, struck)
    unmissed = folder / UNMISSED
    return Ending(
        shown.value,
        shown.error,
        ended - max(began, last),
        struck,
        tuple(left_behind(before, mark, folder, count_descriptors=not on_spark)),  # first: until then writers may work
        _problem_of_checkpoints(run, folder, succeeded=not shown.error),
        _next_job(run, session) if shown.error else "",
        int(unmissed.read_text()) if unmissed.exists() else None,
        shown.reported,
    )


def _problem_of_checkpoints(run: Run, folder: Path, *, succeeded: bool) -> str:
    if run.launcher is Launcher.RECOVERY:
        try:
            return recovery.problem_of_checkpoints(run, folder, succeeded=succeeded)
        except Exception as error:
            return f"one cannot be read: {error!r}"
    checkpoint = folder / program.CHECKPOINT
    is_whole = not checkpoint.exists() or program.checkpoint_is_whole(checkpoint.read_bytes())
    return "" if is_whole else "the checkpoint is torn"


def _expected(run: Run) -> int:
    return recovery.expected(run) if run.launcher is Launcher.RECOVERY else program.expected(run)


def _within_time(job: Callable[[], jobs.Shown]) -> jobs.Shown | None:
    """What the job shows; None when it hangs."""
    results: list[jobs.Shown] = []

    def work() -> None:
        try:
            results.append(job())
        except Exception as error:
            results.append(jobs.Shown(None, f"no error of this package: {error!r}"))

    thread = threading.Thread(target=work, name="chaos job", daemon=True)
    thread.start()
    thread.join(jobs.HANG_SECONDS)
    return results[0] if results else None


def _struck(run: Run, folder: Path) -> tuple[tuple[Struck, ...], float]:
    """The faults that have happened, and when the last one did."""
    struck, last = [], 0.0
    for number, fault in enumerate(run.faults):
        note = folder / f"fired.{number}"
        if note.exists() and (words := note.read_text().split()):
            struck.append(Struck(fault, int(words[0]), int(words[1])))
            last = max(last, float(words[2]))
    return tuple(struck), last


def _next_job(run: Run, session: Callable[[], SparkSession]) -> str:
    """What is wrong with a job without faults, by the same launcher, after this one."""
    healthy = replace(
        run, size=min(2, run.size), shared_memory=True, operations=_NEXT_OPERATIONS, width=17, pace=0, faults=()
    )
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:
        shown = _within_time(lambda: jobs.start(healthy, "chaos-next", Path(folder), session))
    if shown is None:
        return "did not end"
    right = _expected(healthy)
    return "" if shown.value == right else f"{shown.error or shown.value} instead of {right}"


if __name__ == "__main__":
    sys.exit(main())
