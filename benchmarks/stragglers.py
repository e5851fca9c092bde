"""Counts how often slow ranks are named and even ones are, and times the division of a step.

``python -m benchmarks.stragglers [--runs 50] [--cause even input computing neighbour link] [--share 0.2]`` runs a job
of two ranks for each cause. In its first period both are equally fast; then one is slow in each, by turns. That one
must be named, with the right cause, and no other (lines of recovery are not judged). In the job ``even`` no rank is
slow, and none may be named. *input*: its loader sleeps. *computing*: its forward pass sleeps. *neighbour*: other
programs compute on its core. *link*: its host sends at ``--rate`` bits per second (needs root and iproute2). It
prints after how many steps a rank was named, and how much longer steps with a slow rank are.

In ``neighbour`` the ranks compute. In the others a step waits for ``--device`` seconds, as one does that computes on
a GPU: two processors of a virtual machine may differ by more than 20 % for seconds, and then one rank is slow indeed
(``--cause even --device 0`` shows it). Other work on the machine spoils the result.

``--overhead`` compares the time of a step with the clocks and reports against that without, in interleaved blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Step:
    """A step of rank 0.

    Attributes:
        at: its end, on the monotonic clock, which processes of a machine share.
        seconds: it took.
        period: it was in; from 1 on, rank 1 is slow in odd ones, rank 0 in even ones.
    """

    at: float
    seconds: float
    period: int


def train_in_periods(
    kind: str,
    periods: int,
    seconds: float,
    share: float,
    width: int,
    rows: int,
    device: float,
    neighbours: int,
    mark: str,
) -> list[Step]:
    """The function of a rank: trains in the first period, and some in each of which one is slow. Returns its steps.

    Rank 0 writes the number of the period that begins into the file `mark`.
    """
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
    steps: list[Step] = []
    began = time.monotonic()

    def is_slow(what: str) -> bool:
        period = int((time.monotonic() - began) / seconds)
        return kind == what and period > 0 and period % 2 == rank

    class Loader(BaseDataLoader):
        def _iterate(self) -> Iterator[Any]:
            batch = torch.randn(rows, width)
            while True:
                if is_slow("input"):
                    time.sleep(share * step_seconds[0])
                yield batch

    busy: list[subprocess.Popen[bytes]] = []
    try:
        for number, batch in enumerate(Loader()):
            if number % 5 == 0:
                over = time.monotonic() - began > (periods + 1) * seconds
                if hvd.allreduce(torch.tensor(float(over)), op=hvd.Sum, name="over"):
                    break
            period = int((time.monotonic() - began) / seconds)
            if rank == 0 and (not steps or steps[-1].period != period):
                Path(mark).write_text(str(period))
            if is_slow("neighbour") != bool(busy):
                for program in busy:
                    program.kill()
                    program.wait()
                busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(neighbours if not busy else 0)]
            start = time.monotonic()
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            extra = share * step_seconds[0] if is_slow("computing") else 0.0
            time.sleep(device + extra)
            loss.backward()
            optimizer.step()
            taken = time.monotonic() - start - extra
            if period == 0:
                step_seconds[0] = 0.9 * step_seconds[0] + 0.1 * taken if step_seconds[0] else taken
            now = time.monotonic()
            steps.append(Step(now, now - (steps[-1].at if steps else start), period))
    finally:
        for program in busy:
            program.kill()
    return steps


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


@dataclass(frozen=True)
class Verdict:
    """What the lines of a job were worth.

    Attributes:
        needed: how many slow steps it took until the rank was named with the right cause, of each period that it was.
        false: lines that should not be.
        step: seconds of one in the first period, the median.
        slower: by which share steps of slow periods took longer.
    """

    needed: list[int]
    false: list[str]
    step: float
    slower: float


def judge(kind: str, lines: Sequence[tuple[float, str]], steps: Sequence[Step]) -> Verdict:
    """Compare the lines, with their times, with the steps of rank 0."""
    needed, false, named = [], [], set()
    for at, line in lines:
        period = max((step.period for step in steps if step.at <= at), default=0)
        line_match = re.search(rf"rank (\d) .* is slow because of {CAUSES[kind] or 'nothing'},", line)
        if line_match and int(line_match[1]) == period % 2 and period > 0 and period not in named:
            named.add(period)
            needed.append(sum(step.period == period and step.at <= at for step in steps))
        elif line_match or " keeps up with " not in line:
            false.append(f"{line.strip()} (period {period})")
    seconds = [statistics.median(step.seconds for step in steps if (step.period > 0) == slow) for slow in (False, True)]
    return Verdict(needed, false, seconds[0], seconds[1] / seconds[0] - 1)


def run_trial(kind: str, options: argparse.Namespace) -> Verdict:
    """Run the job of one cause. Return what its lines were worth."""
    lines = Lines()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where: dict[str, Any] = {}
        if kind == "link":
            network = stack.enter_context(Network.open(hosts=2))
            stack.enter_context(
                patch.dict(os.environ, {"SPARK_ESTIMATOR_SSH_COMMAND": remote_shell(folder, network.hosts)})
            )
            where = {"hosts": "host0:1,host1:1", "network_interfaces": "eth0"}
            stop = threading.Event()

            def change_link() -> None:
                limited: list[int] = []
                while not stop.wait(0.02):
                    text = (folder / "period").read_text() if (folder / "period").exists() else ""
                    if text in ("", "0") or [int(text) % 2] == limited:
                        continue
                    for host in limited:
                        network.hosts[host].limit_sending(0)
                    limited = [int(text) % 2]
                    network.hosts[limited[0]].limit_sending(options.rate)

            thread = threading.Thread(target=change_link, daemon=True)
            thread.start()
            stack.callback(stop.set)
        device = 0.0 if kind == "neighbour" else options.device
        rows = 32 if device else options.rows
        sizes = (options.runs, options.seconds, options.share, options.width, rows, device, options.neighbours)
        with contextlib.redirect_stderr(lines):
            steps, _ = run(train_in_periods, args=(kind, *sizes, str(folder / "period")), num_proc=2, **where)
    if options.verbose:
        print(*(line.strip() for _, line in lines.named if line.strip()), sep="\n")
    return judge(kind, [(at, line) for at, line in lines.named if line.strip()], steps)


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
    parser.add_argument("--runs", type=int, default=50, help="periods with a slow rank (50)")
    parser.add_argument("--cause", nargs="*", choices=[*CAUSES], default=[*CAUSES], help="which jobs (all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a period (10)")
    parser.add_argument("--share", type=float, default=0.2, help="of a step that is slept (0.2)")
    parser.add_argument("--width", type=int, default=512, help="of the model's layers (512)")
    parser.add_argument("--rows", type=int, default=1536, help="of a batch (1536)")
    parser.add_argument("--device", type=float, default=0.17, help="seconds that a step waits for one (0.17)")
    parser.add_argument("--neighbours", type=int, default=1, help="programs on the core of the slow rank (1)")
    parser.add_argument("--rate", type=int, default=600_000_000, help="of the slow link (600000000)")
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
        verdict = run_trial(kind, options)
        expected = 0 if kind == "even" else options.runs
        failed |= len(verdict.needed) != expected or bool(verdict.false)
        print(f"{kind}: named in {len(verdict.needed)} of {expected} periods; {len(verdict.false)} false lines", end="")
        print(f"; steps of {verdict.step * 1000:.0f} ms become {verdict.slower:.0%} longer", end="")
        if verdict.needed:
            print(f"; named after {statistics.median(verdict.needed):g} steps, {max(verdict.needed)} at most", end="")
        print("", *verdict.false, sep="\n  ", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
