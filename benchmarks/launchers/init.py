"""Times ``hvd.init()``, which connects the ranks, beside gloo's full mesh.

``python -m benchmarks.launchers.init [--np 2,8,32] [--rounds 5] [--no-gloo]`` starts the ranks on this machine, and
prints for each number of them: seconds from the moment at which the last rank calls ``init()`` until the last one
returns (median of the rounds, and the range); the same of ``torch.distributed.init_process_group("gloo")`` and its
first barrier; the file descriptors of a rank of this package. Both take turns in the same processes. Without gloo ranks
do not import PyTorch, so that a small machine has memory for 128 of them.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.command_line import ended_by_signals, list_of, positive
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local


def rank_main(rounds: int, folder: str) -> dict[str, Any]:
    """On every rank: by library, the seconds of each round, and the descriptors.

    Args:
        folder: for gloo's rendezvous; "": without gloo.
    """
    from spark_estimator.collectives import context, objects

    def waited(leave: Callable[[], None], join: Callable[[], None]) -> float:
        objects.allgather_object(None, name="all are here")
        leave()
        began = time.time()
        join()
        times = objects.allgather_object((began, time.time()), name="begin and end")
        return float(max(end for _, end in times) - max(begin for begin, _ in times))

    if folder:
        import torch.distributed  # noqa: F401  not to be timed

    context.init()
    result: dict[str, Any] = {"init": [], "gloo": []}
    for number in range(rounds):
        result["init"].append(waited(context.shutdown, context.init))
        result["descriptors"] = len(os.listdir("/proc/self/fd"))
        if folder:
            join = functools.partial(_join_gloo, f"file://{folder}/{number}")
            result["gloo"].append(waited(lambda: None, join))
            _leave_gloo()
    return result


def _join_gloo(path: str) -> None:
    import torch.distributed as dist

    from spark_estimator.collectives import context

    dist.init_process_group("gloo", init_method=path, rank=context.rank(), world_size=context.size())
    dist.barrier()  # connections are made here


def _leave_gloo() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def main() -> None:
    """Prints a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=list_of(sizes=True), default=(2, 8, 32), help="numbers of ranks (2,8,32)")
    parser.add_argument("--rounds", type=positive, default=5, help="of each (5)")
    parser.add_argument("--no-gloo", action="store_true", help="ours alone")
    arguments = parser.parse_args()
    print(f"{'ranks':>5}  {'init()':<26}{'' if arguments.no_gloo else 'gloo':<26}  descriptors")
    for ranks in arguments.np:
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="init-") as folder:
            options = JobOptions(args=(arguments.rounds, "" if arguments.no_gloo else folder))
            result = run_local(rank_main, ranks, options)[0]
        columns = [_seconds(result[name]) for name in ("init", "gloo")]
        print(f"{ranks:5}  {columns[0]:<26}{columns[1]:<26}  {result['descriptors']:11}", flush=True)


def _seconds(values: list[float]) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):6.3f} s ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
