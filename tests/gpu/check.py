"""Tries everything that only a GPU can show, and measures it: ``python tests/gpu/check.py``, within eight minutes.

One GPU is enough: two ranks share it, and one has it alone. Where there are more, two ranks have one each as well. The
report goes to stdout; the exit code is 0 when all is right, 1 when something is not, and 3 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.ranks import RanksFailedError, run_ranks  # noqa: E402  found where the line above says

NO_GPU = 3
#: Seconds that all checks of one way may take; one that hangs is told with its stacks.
CHECK_SECONDS = 150
FIGURE_SECONDS = 120


class Way(NamedTuple):
    """How ranks come to their GPUs, and how tensors travel then.

    Attributes:
        name: for the report.
        size: number of ranks.
        environ: of the ranks.
        own_gpus: each rank has its own.
        described: what the engine must say of it.
    """

    name: str
    size: int
    environ: Mapping[str, str]
    own_gpus: bool
    described: str


def ways(gpus: int) -> list[Way]:
    """All that can be tried with so many GPUs."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    one = {"CUDA_VISIBLE_DEVICES": first}
    found = [
        Way("one rank", 1, one, False, "the only rank"),
        Way("two ranks on one GPU", 2, one, False, "the GPU that all ranks share"),
        Way("two ranks, staged", 2, {**one, "HOROVOD_GPU_OPERATIONS": "staged"}, False, "as was asked for"),
        Way("two ranks, PyTorch's copies", 2, {**one, "HOROVOD_GPU_OPERATIONS": "copy"}, False, ""),
    ]
    if gpus > 1:
        found.append(Way("two ranks, a GPU each", 2, {}, True, "NCCL"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Try and measure collectives on this machine's GPUs.")
    parser.add_argument("--only", default="", help="run the checks and figures whose names contain this")
    parser.add_argument("--no-figures", action="store_true", help="check, and measure nothing")
    parser.add_argument("--trace", type=Path, help="folder for the profiler's traces")
    options = parser.parse_args(arguments)
    gpus = count_gpus()
    if not gpus:
        print("no GPU here: PyTorch with CUDA and a GPU that it sees are needed")
        return NO_GPU
    print(f"{gpus} GPU{'s' * (gpus > 1)}; {describe_machine()}", flush=True)
    began = time.monotonic()
    failed = 0
    for way in ways(gpus):
        failed += run_checks(way, options.only)
    if not options.no_figures:
        failed += run_figures(ways(gpus), options.only, options.trace)
    print(f"\n{'FAILED: ' + str(failed) if failed else 'all is right'}, in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def count_gpus() -> int:
    """How many GPUs PyTorch sees; 0 without PyTorch, or with one for CPUs."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0


def describe_machine() -> str:
    """What the figures are of."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory / 2**30
    return f"{properties.name}, {memory:.0f} GiB; PyTorch {torch.__version__}, CUDA {torch.version.cuda}"


def run_checks(way: Way, only: str) -> int:
    """Runs the checks of a way, each in a job of its own; gives how many failed."""
    from tests.gpu import checks, trainings  # with PyTorch, which need not be here

    print(f"\n== {way.name}", flush=True)
    names = [name for name in [*checks.CHECKS, *trainings.TRAININGS] if only in name]
    outcomes = _in_ranks(way, checks.run_all, (names, way.own_gpus, way.described), CHECK_SECONDS)
    if isinstance(outcomes, str):
        print(f"  FAILED  a rank hung or died in one of: {', '.join(names)}\n{outcomes}", flush=True)
        return 1
    failed = 0
    for name in names:
        errors = [f"rank {rank}: {told[name]}" for rank, told in enumerate(outcomes) if told[name]]
        failed += bool(errors)
        print("\n".join([f"  {'FAILED' if errors else 'ok':<7} {name}", *errors]), flush=True)
    told = outcomes[0]["told"]
    if not told and way.described and not only:
        failed += 1
        print("  FAILED  nothing has gone from a GPU", flush=True)
    print(f"  told    {told or '(nothing goes from a GPU)'}", flush=True)
    return failed


def run_figures(all_ways: Sequence[Way], only: str, trace: Path | None) -> int:
    """Measures; gives how many could not be."""
    from tests.gpu import figures

    print("\n== figures", flush=True)
    failed = 0
    for name, (wanted, _) in figures.FIGURES.items():
        if only not in name:
            continue
        for way in all_ways:
            if way.name not in wanted:
                continue
            folder = "" if trace is None else str(trace.resolve())
            outcomes = _in_ranks(way, figures.measured, (name, way.own_gpus, folder), FIGURE_SECONDS)
            if isinstance(outcomes, str):
                failed += 1
                print(f"  FAILED  {name}, {way.name}\n{outcomes}", flush=True)
                continue
            for line in outcomes[0]:
                print(f"  {name}, {way.name}: {line}", flush=True)
    return failed


def _in_ranks(way: Way, function: Callable[..., Any], args: Sequence[Any], seconds: float) -> list[Any] | str:
    """What the ranks returned, or what became of them."""
    try:
        return run_ranks(way.size, function, seconds, args=args, environ=way.environ)
    except RanksFailedError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
