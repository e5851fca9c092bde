"""Counts how often slow ranks are named and even ones are, and times the division of a step.

``python -m benchmarks.stragglers [--runs 50] [--cause even input computing neighbour link] [--share 0.5]`` runs a job
of two ranks for each cause. Its periods alternate: rank 1 is as fast as rank 0, and slow. In a slow period it must be
named, with the right cause; after it, its recovery; no other line may come. In the job ``even`` no period is slow,
and no rank may be named. *input*: its loader sleeps. *computing*: its forward pass sleeps. *neighbour*: other programs
compute on its core. *link*: its host sends at ``--rate`` bits per second (needs root and iproute2).

``--overhead`` compares the time of a step with the clocks and reports against that without, in interleaved blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.namespaces import Network, remote_shell
from spark_estimator.runner import run

CAUSES = {
    "even": "",
    "input": "its input",
    "computing": "its processor",
    "neighbour": "its processor",
    "link": "its link",
}
_BUSY = "while True: pass"


def train_in_periods(kind: str, periods: int, seconds: float, share: float, width: int, neighbours: int) -> list[float]:
    """The function of a rank: trains for some periods, of which each second one is slow. Returns their ends."""
    import torch

    import spark_estimator.torch as hvd
    from spark_estimator.data.batch_loader import BaseDataLoader

    hvd.init()
    torch.set_num_threads(1)
    rank = hvd.rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    step_seconds = [0.0]
    began = time.monotonic()

    def is_slow(what: str) -> bool:
        return rank == 1 and kind == what and int((time.monotonic() - began) / seconds) % 2 == 1

    class Loader(BaseDataLoader):
        def _iterate(self) -> Iterator[Any]:
            batch = torch.randn(128, width)
            while True:
                if is_slow("input"):
                    time.sleep(share * step_seconds[0])
                yield batch

    busy: list[subprocess.Popen[bytes]] = []
    try:
        for number, batch in enumerate(Loader()):
            if number % 10 == 0:
                over = time.monotonic() - began > periods * seconds
                if hvd.allreduce(torch.tensor(float(over)), op=hvd.Sum, name="over"):
                    break
            if is_slow("neighbour") != bool(busy):
                for program in busy:
                    program.kill()
                    program.wait()
                busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(neighbours if not busy else 0)]
            start = time.monotonic()
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            extra = share * step_seconds[0] if is_slow("computing") else 0.0
            time.sleep(extra)
            loss.backward()
            optimizer.step()
            taken = time.monotonic() - start - extra
            # Of even periods, on average: what a slow one adds is a share of it.
            if int((start - began) / seconds) % 2 == 0:
                step_seconds[0] = 0.9 * step_seconds[0] + 0.1 * taken if step_seconds[0] else taken
    finally:
        for program in busy:
            program.kill()
    return [step_seconds[0]]


class Lines(io.StringIO):
    """Keeps what a launcher prints about ranks, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        if " is slow because of " in text or " keeps up with " in text:
            self.named.append((time.monotonic(), text))
        elif "Traceback" in text or "Error" in text:
            print(text, end="", file=sys.__stdout__)
        return len(text)


def judge(kind: str, lines: Sequence[str], runs: int) -> tuple[int, int]:
    """Return in how many slow periods rank 1 was named with the right cause, and how many other lines there were."""
    right = [line for line in lines if re.search(rf"rank 1 .* is slow because of {CAUSES[kind] or 'nothing'},", line)]
    recovered = [line for line in lines if "rank 1 " in line and " keeps up with " in line]
    return min(len(right), runs), len(lines) - len(right) - min(len(recovered), len(right))


def run_trial(kind: str, options: argparse.Namespace) -> tuple[int, int]:
    """Run the job of one cause. Return what `judge` does."""
    periods = options.runs if kind == "even" else 2 * options.runs
    arguments = (kind, periods, options.seconds, options.share, options.width, options.neighbours)
    lines = Lines()
    with contextlib.ExitStack() as stack:
        where: dict[str, Any] = {}
        if kind == "link":
            network = stack.enter_context(Network.open(hosts=2))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(
                patch.dict(os.environ, {"SPARK_ESTIMATOR_SSH_COMMAND": remote_shell(folder, network.hosts)})
            )
            where = {"hosts": "host0:1,host1:1", "network_interfaces": "eth0"}
            stop, slow = threading.Event(), network.hosts[1]

            def change_link() -> None:
                rates = itertools.cycle([options.rate, 0])
                while not stop.wait(options.seconds):
                    slow.limit_sending(next(rates))

            thread = threading.Thread(target=change_link, daemon=True)
            thread.start()
            stack.callback(stop.set)
        with contextlib.redirect_stderr(lines):
            [*_] = run(train_in_periods, args=arguments, num_proc=2, **where)
    if options.verbose:
        print(*(line.strip() for _, line in lines.named if line.strip()), sep="\n")
    return judge(kind, [line for _, line in lines.named], options.runs)


def measure_overhead(blocks: int) -> list[tuple[float, float]]:
    """The function of a rank: median seconds of a step (with clocks, without) of each block."""
    import torch

    import spark_estimator.torch as hvd
    from spark_estimator.observe import progress, step_times

    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    batches = [torch.randn(128, 256)] * 200
    counted = progress.count_step

    def run_block(*, clocks: bool) -> float:
        progress.count_step = counted if clocks else lambda: None
        times = []
        for batch in step_times.time_input(batches) if clocks else batches:
            start = time.perf_counter()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    run_block(clocks=True)
    return [(run_block(clocks=True), run_block(clocks=False)) for _ in range(blocks)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Return 1 if a slow rank was not named, or another one was."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stragglers", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="periods that are slow (50)")
    parser.add_argument("--cause", nargs="*", choices=[*CAUSES], default=[*CAUSES], help="which jobs (all)")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a period (12)")
    parser.add_argument("--share", type=float, default=0.5, help="of a step that is slept (0.5)")
    parser.add_argument("--width", type=int, default=256, help="of the model's layers (256)")
    parser.add_argument("--neighbours", type=int, default=1, help="programs on the core of the slow rank (1)")
    parser.add_argument("--rate", type=int, default=200_000_000, help="of the slow link (200000000)")
    parser.add_argument("--overhead", type=int, metavar="BLOCKS", help="measure the costs in so many blocks instead")
    parser.add_argument("--verbose", action="store_true", help="print the launcher's lines on ranks")
    options = parser.parse_args(arguments)
    if options.overhead:
        pairs = run(measure_overhead, args=(options.overhead,), num_proc=2)[0]
        with_clocks, without = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
        ratio = statistics.median(timed / plain for timed, plain in pairs) - 1
        print(f"with {with_clocks:.1f} us a step, without {without:.1f} us, {ratio:+.2%} (median of blocks)")
        return 0
    failed = False
    for kind in options.cause:
        right, others = run_trial(kind, options)
        expected = 0 if kind == "even" else options.runs
        failed |= right != expected or others > 0
        print(f"{kind}: named in {right} of {options.runs} periods; {others} other lines", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
