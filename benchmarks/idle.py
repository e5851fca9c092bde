"""Measures what a rank costs that has nothing to do: its processor time in each state in which it waits.

``python -m benchmarks.idle [--seconds 6]`` runs jobs of three ranks on this machine. For each kind of connection and
each state it prints the processor time of a rank's process in percent of a core, without that of its supervisor. *At
rest*: no collective runs. *Waiting*: the rank waits in an allreduce for another one, which sleeps. *Left*: another rank
has returned, and no collective runs. *Left, waiting*: the same, and the rank waits in an allreduce of a process set
without that rank.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from unittest.mock import patch

from spark_estimator.runner import run

STATES = ("at rest", "waiting", "left", "left, waiting")
CONNECTIONS = {
    "shared memory": {},
    "TCP": {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"},
    "encrypted TCP": {"SPARK_ESTIMATOR_SHARED_MEMORY": "0", "SPARK_ESTIMATOR_ENCRYPTION": "require"},
}
_WAITING_RANK, _LATE_RANK, _LEAVING_RANK = range(3)


def percent_of_a_core(seconds: float) -> dict[str, float] | None:
    """The function of a rank: the states' costs, from the rank that waits.

    Args:
        seconds: measured in each state, from its first second on.
    """
    import threading
    import time

    import torch

    import spark_estimator.torch as hvd

    pair = hvd.ProcessSet([_WAITING_RANK, _LATE_RANK])
    hvd.init(process_sets=[pair])
    rank = hvd.rank()
    percents = {}

    def measure(state: str) -> None:
        time.sleep(1)  # until the state has been reached
        began, used = time.monotonic(), time.process_time()
        time.sleep(seconds)
        percents[state] = 100 * (time.process_time() - used) / (time.monotonic() - began)

    def spend(state: str, process_set: hvd.ProcessSet | None) -> None:
        measuring = threading.Thread(target=measure, args=(state,))
        measuring.start()
        if process_set is None or rank != _WAITING_RANK:
            time.sleep(seconds + 1.5)
        if process_set is not None:
            total = hvd.allreduce(torch.ones(8), op=hvd.Sum, process_set=process_set)
            assert total[0].item() == process_set.size()
        measuring.join()

    hvd.allreduce(torch.ones(8))
    spend("at rest", None)
    spend("waiting", hvd.global_process_set)
    if rank == _LEAVING_RANK:
        return None
    spend("left", None)
    spend("left, waiting", pair)
    return percents if rank == _WAITING_RANK else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints a line for each kind of connection."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.idle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="measured in each state (default 6)")
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error(f"--seconds {options.seconds:g}: expected a number above 0.")
    print(f"{'percent of a core':<17}", *(f"{state:>13}" for state in STATES))
    for name, variables in CONNECTIONS.items():
        with patch.dict(os.environ, variables):
            percents = run(percent_of_a_core, (options.seconds,), num_proc=3)[_WAITING_RANK]
        print(f"{name:<17}", *(f"{percents[state]:>13.2f}" for state in STATES))


if __name__ == "__main__":
    main()
