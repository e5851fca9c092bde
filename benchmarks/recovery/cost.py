"""Times what recovery within a step costs a training that loses no rank.

``python -m benchmarks.recovery.cost [--np 2] [--steps 600] [--rounds 5]`` trains the small model of
`benchmarks.recovery` on this machine, whose steps wait for nothing, with and without `max_restarts`, in turns. Printed
for each: the time of a step, of rank 0 after the first ones, in milliseconds (median of the rounds, and the range), and
the difference, which is the same for a model whose steps are longer. Histories and parameters are compared first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from typing import Any

from benchmarks.command_line import ended_by_signals, positive
from benchmarks.recovery.training import ALL, BATCH, LAST, WARM, WARM_UP, counts, rank_main, write_rows
from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local

_WAYS = ("without", "with")


def trained(way: str, size: int, options: dict[str, Any], number: int) -> tuple[float, Any]:
    """One training. Returns a step's milliseconds, and the result."""
    name = f"{way}-{number}"
    os.makedirs(f"{options['folder']}/{name}")
    rows = counts(f"{options['folder']}/{name}", size)
    job = JobOptions(args=(options, name))
    if way == "with":
        results = run_elastic_local(rank_main, Terms(size, size, replace=True, reset_limit=0), job)
    else:
        results = run_local(rank_main, size, job)
    first = rows[0]
    return (first[LAST] - first[WARM]) / (first[ALL] - WARM_UP) / 1e6, results[0]


def main() -> int:
    """Returns 0 when all trainings have the same numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=positive, default=2, help="ranks (2)")
    parser.add_argument("--steps", type=positive, default=600, help="of an epoch; there are two (600)")
    parser.add_argument("--rounds", type=positive, default=5, help="trainings of each kind (5)")
    arguments = parser.parse_args()
    if 2 * arguments.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP // 2}")
    times: dict[str, list[float]] = {way: [] for way in _WAYS}
    results = []
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder, ended_by_signals():
        write_rows(folder, arguments.np * BATCH * arguments.steps)
        options = {"folder": folder, "framework": "torch", "epochs": 2, "step_ms": 0, "keep": None}
        for number in range(arguments.rounds):
            for way in _WAYS:
                milliseconds, result = trained(way, arguments.np, options, number)
                times[way].append(milliseconds)
                results.append(result)
    if any(result != results[0] for result in results):
        print("numbers DIFFER")
        return 1
    for way, values in times.items():
        median = statistics.median(values)
        print(f"{way:7} recovery: {median:6.2f} ms a step ({min(values):.2f} to {max(values):.2f})")
    medians = [statistics.median(times[way]) for way in _WAYS]
    print(f"difference: {medians[1] - medians[0]:.2f} ms; numbers the same")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
