"""Tries everything that only a GPU can show, and measures it: ``python tests/gpu/check.py``, within eight minutes.

One GPU is enough: one rank has it alone, two ranks share it, and two ranks on it are shown to NCCL as two machines.
Where there are more GPUs, two ranks have one each. The engine is built first if it is missing. The report is written to
stdout; the exit code is 0 when all is right, 1 when something is not, and 3 where there is no GPU. Figures that miss
their goals are counted, and do not change it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import building  # noqa: E402  found by the line above
from tests.gpu.ways import MACHINES, Way, refused_way, ways  # noqa: E402

NO_GPU = 3
#: For a process that asks CUDA or doctor; PyTorch's first import from a slow disk takes most of it.
ASK_SECONDS = 100
KILLED_SECONDS = 60
# In a separate process, so that this one has no context on the measured GPU.
_LOOK = """
import json
try:
    import torch
except ImportError:
    count, text = 0, ""
else:
    count = torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0
    text = ""
    if count:
        gpu = torch.cuda.get_device_properties(0)
        text = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
print(json.dumps([count, text]))
"""
_DOCTOR = (
    "from spark_estimator.doctor import machine; print(machine.check_gpus()); print(machine.check_gpu_collectives())"
)


class Report:
    """Prints the results, and counts them."""

    def __init__(self) -> None:
        self.failed = self.not_run = self.goals = self.missed = 0

    def result(self, result: Any, prefix: str = "") -> None:
        """Of one task (``jobs.Result``)."""
        state = result.state.value
        self.failed += state == "FAILED"
        self.not_run += state == "not run"
        text = f"\n{result.text}" if result.text else ""
        if text or not result.lines:
            print(f"  {state:<7} {prefix}{result.name}{text}", flush=True)
        for line in result.lines:
            self.goals += line.reached is not None
            self.missed += line.reached is False
            print(f"  {prefix}{result.name}: {line.text}", flush=True)

    def end(self, seconds: float) -> int:
        """Prints the last lines; gives the exit code."""
        print(f"\ngoals missed: {self.missed} of {self.goals}" if self.goals else "\nno goal was looked at")
        wrong = [f"FAILED: {self.failed}"] * bool(self.failed) + [f"not run: {self.not_run}"] * bool(self.not_run)
        print(f"{', '.join(wrong) or 'all is right'}, in {seconds:.0f} s", flush=True)
        return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Try and measure collectives on this machine's GPUs.")
    parser.add_argument("--only", default="", help="run the checks and figures whose names contain this")
    parser.add_argument("--way", default="", help="only in the ways whose names contain this")
    parser.add_argument("--no-figures", action="store_true", help="check, and measure nothing")
    parser.add_argument("--no-build", action="store_true", help="do not build the engine where it is missing")
    parser.add_argument("--limit", type=float, default=470, help="seconds that all of it may take (default: 470)")
    parser.add_argument("--seed", type=int, help="of the random sequences, as an earlier run printed it")
    parser.add_argument("--trace", type=Path, help="folder for the profiler's traces")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    gpus, described = look_at_gpus()
    if not gpus:
        print("no GPU here: PyTorch with CUDA and a GPU that it sees are needed")
        return NO_GPU
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"{gpus} GPU{'s' * (gpus > 1)}; {described}; --seed {seed}", flush=True)
    if trouble := building.make_ready(options.limit, may_build=not options.no_build):
        print(trouble)
        return 1
    from tests.gpu import jobs  # what needs the engine

    report = Report()
    budget = jobs.Budget(options.limit - (time.monotonic() - began))
    ask_doctor(report, budget.left())
    all_ways = [way for way in [*ways(gpus), refused_way()] if options.way in way.name]
    if any(way.machines for way in all_ways) and (trouble := building.build_two_machines()):
        report.result(jobs.Result(MACHINES, jobs.State.NOT_RUN, trouble))
        all_ways = [way for way in all_ways if not way.machines]
    run_checks(all_ways, options.only, seed, budget, report)
    if not options.no_figures:
        run_figures(all_ways, options.only, options.trace, budget, report)
    return report.end(time.monotonic() - began)


def look_at_gpus() -> tuple[int, str]:
    """How many GPUs PyTorch sees, and what the first is; 0 without PyTorch, or with one for CPUs."""
    done = _ask(_LOOK)
    if done.returncode:
        print(f"PyTorch could not be asked for GPUs:\n{done.stderr}")
        return 0, ""
    count, text = json.loads(done.stdout.splitlines()[-1])
    return count, text


def ask_doctor(report: Report, seconds: float) -> None:
    """Prints doctor's rows about GPUs."""
    from tests.gpu import jobs

    done = _ask(_DOCTOR, seconds)
    print(done.stdout.rstrip(), flush=True)
    if done.returncode:
        report.result(jobs.Result("doctor", jobs.State.FAILED, done.stderr.rstrip()))


def _ask(code: str, seconds: float = ASK_SECONDS) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", code]
    try:
        return subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=min(seconds, ASK_SECONDS), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {min(seconds, ASK_SECONDS):.0f} s")


def run_checks(all_ways: Sequence[Way], only: str, seed: int, budget: Any, report: Report) -> None:
    """Runs the checks of all backends, all of one backend in one job, then the losses of peers."""
    # With PyTorch, which need not be here.
    from tests.gpu import checks, endings, in_rank, jobs, predictions, random_ops, trainings

    tasks: dict[str, in_rank.Task] = {
        **checks.CHECKS,
        "two hundred ops on two streams": functools.partial(random_ops.two_hundred_ops_on_two_streams, seed),
        **endings.ENDINGS,
        **trainings.TRAININGS,
        **predictions.PREDICTIONS,
    }
    if not predictions.PREDICTIONS:
        print("predictions are left out: pyspark is not installed", flush=True)
    tasks = {name: task for name, task in tasks.items() if only in name}
    named = "NCCL is refused"
    refused: dict[str, in_rank.Task] = {named: endings.nccl_is_refused} if only in named else {}
    for way in all_ways:
        is_refused = way == refused_way()
        chosen = refused if is_refused else tasks
        kills = way.size > 1 and only in "killed rank" and not is_refused
        if not (chosen or kills):
            continue
        begin = functools.partial(in_rank.use_gpu, own_gpus=way.own_gpus, machines=way.machines)
        print(f"\n== {way.name}", flush=True)
        results, description = jobs.run_in_way(way, chosen, begin, budget)
        for result in results:
            report.result(result)
        # A check that has sent nothing from a GPU proves nothing; all of them should have.
        if way.described and not description and not only and any(result.state is jobs.State.OK for result in results):
            report.result(jobs.Result("the way", jobs.State.FAILED, "nothing has gone from a GPU"))
        if chosen:
            print(f"  told    {description or '(nothing goes from a GPU)'}", flush=True)
        if kills:
            report.result(lose_a_peer(way, begin, budget))


def lose_a_peer(way: Way, begin: Callable[[int], None], budget: Any) -> Any:
    """The ``jobs.Result`` of a job in which a rank kills itself."""
    from tests.gpu import endings, jobs
    from tests.ranks import RanksFailedError, start_ranks

    seconds = budget.for_job(KILLED_SECONDS)
    if not seconds:
        return jobs.Result("killed rank", jobs.State.NOT_RUN, "no time was left for it")
    try:
        with start_ranks(way.size, endings.lose_a_peer, args=(begin,), environ=way.environ) as ranks:
            trouble = endings.trouble_of_losing(ranks.wait(seconds))
    except RanksFailedError as error:
        trouble = f"hung: {error}"
    return jobs.Result("killed rank", jobs.State.FAILED if trouble else jobs.State.OK, trouble)


def run_figures(all_ways: Sequence[Way], only: str, trace: Path | None, budget: Any, report: Report) -> None:
    """Measures, all figures of one way in one job."""
    from tests.gpu import figures, in_rank, jobs

    print("\n== figures", flush=True)
    folder = "" if trace is None else str(trace.resolve())
    for way in all_ways:
        tasks: Mapping[str, Any] = figures.figures(way.name, folder) if way.is_measured else {}
        tasks = {name: task for name, task in tasks.items() if only in name}
        begin = functools.partial(in_rank.use_gpu, own_gpus=way.own_gpus, machines=way.machines)
        for result in jobs.run_in_way(way, tasks, begin, budget)[0]:
            report.result(result, f"{way.name}, ")


if __name__ == "__main__":
    sys.exit(main())
