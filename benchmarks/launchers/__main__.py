"""What ``init()`` does in processes that other launchers start: all ranks right, or an error, and after how long.

``python -m benchmarks.launchers [--only mpirun] [--rounds 5] [--timeout 5] [--json FILE]`` prints a line for each
launcher and a column for each case of `benchmarks.launchers.rank`: the outcome, and the seconds until all processes had
ended. *right* means that every rank had its number, its place on its host, and the right sum. Where something is wrong,
every process that is left must raise an error, or its launcher ends it; a process that trains alone is counted as a
silent job of one, and the program fails. The program waits for a missing rank for --timeout seconds.

The last column is what ``init()`` costs over the launcher: the median of --rounds, of a job that joins and reduces one
array less a job that imports the same and does neither. The two run interleaved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import ended_by_signals, positive
from benchmarks.launchers.starters import EACH_HOST, Starter, starters

_PROGRAM = Path(__file__).with_name("rank.py")
_CASES = ("right", "wrong world", "missing peer", "killed rank")
_LONGEST_SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    """What became of one job.

    Attributes:
        verdict: ``right``, ``error`` (all that were left raised one), ``ended`` (by the launcher, with an error), or
            what was wrong.
        expected: whether it is what the case asks for.
        seconds: until all processes had ended.
        singles: processes that took themselves for a job of one.
        errors: what the ranks raised, each once.
    """

    verdict: str
    expected: bool
    seconds: float
    singles: int
    errors: tuple[str, ...]


def main() -> int:
    """Returns 1 if a case had another outcome than it should."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.launchers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="WORD", help="launchers whose name has this word")
    parser.add_argument("--rounds", type=positive, default=5, help="for the cost of init() (default 5)")
    parser.add_argument("--timeout", type=positive, default=5, help="HOROVOD_START_TIMEOUT, in seconds (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes to FILE")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with ended_by_signals(), ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="launchers-")))
        offered, missing = starters(folder, closing)
        print(f"| launcher | {' | '.join(_CASES)} | init() over the launcher |\n|{'---|' * (len(_CASES) + 2)}")
        for starter in offered:
            if options.only not in starter.name:
                continue
            outcomes = {case: job(starter, case, folder, options.timeout) for case in _CASES if starter.has(case)}
            cost = over_the_launcher(starter, folder, options.rounds)
            results[starter.name] = {"init_seconds": cost} | {case: asdict(each) for case, each in outcomes.items()}
            cells = [
                f"{outcomes[case].verdict}, {outcomes[case].seconds:.1f} s" if case in outcomes else "-"
                for case in _CASES
            ]
            print(f"| {starter.name} | {' | '.join(cells)} | {cost:.2f} s |", flush=True)
    for line in missing:
        print(f"not tried: {line}")
    cases = [result[case] for result in results.values() for case in _CASES if case in result]
    singles = sum(case["singles"] for case in cases)
    print(f"silent jobs of one: {singles}, of {len(cases)} jobs")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(singles > 0 or not all(case["expected"] for case in cases))


def job(starter: Starter, case: str, folder: Path, timeout: int) -> Outcome:
    """Runs one job, and judges what its ranks printed."""
    started = time.monotonic()
    printed, status = _run(starter, case, folder, timeout)
    seconds = time.monotonic() - started
    singles = sum(line.get("size") == 1 for line in printed)
    errors = tuple(dict.fromkeys(line["error"] for line in printed if "error" in line))
    if case == "right":
        right = sorted((line.get("rank", -1), line.get("places"), line.get("total")) for line in printed)
        verdict = "right" if right == _expected(starter) else f"{len(printed)} lines, not those of all ranks"
        return Outcome(verdict, verdict == "right", seconds, singles, errors)
    joined = [line for line in printed if "error" not in line]
    if joined or status == 0:
        verdict = f"{len(joined)} ranks trained" if joined else "no error"
    else:
        verdict = "error" if errors else "ended"
    return Outcome(verdict, verdict in ("error", "ended"), seconds, singles, errors)


def over_the_launcher(starter: Starter, folder: Path, rounds: int) -> float:
    """Median seconds by which a job that joins is longer than one that does not."""
    differences = []
    for _ in range(rounds):
        seconds = {}
        for case in ("plain", "right"):
            started = time.monotonic()
            _run(starter, case, folder, 30)
            seconds[case] = time.monotonic() - started
        differences.append(seconds["right"] - seconds["plain"])
    return statistics.median(differences)


def _run(starter: Starter, case: str, folder: Path, timeout: int) -> tuple[list[dict[str, Any]], int]:
    processes = starter.start(
        [sys.executable, str(_PROGRAM), case], HOME=str(folder), HOROVOD_START_TIMEOUT=str(timeout)
    )
    try:
        outputs = [process.communicate(timeout=_LONGEST_SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        return [], 0
    finally:
        for process in processes:
            process.kill()
    lines = [line[line.index("{") :] for out, _ in outputs for line in out.splitlines() if '{"' in line]
    return [json.loads(line) for line in lines], max(abs(process.returncode) for process in processes)


def _expected(starter: Starter) -> Sequence[tuple[int, list[int], int]]:
    each, hosts = (EACH_HOST, len(starter.hosts)) if starter.hosts else (starter.size, 1)
    total = starter.size * (starter.size + 1) // 2
    return [(rank, [rank % each, each, rank // each, hosts], total) for rank in range(starter.size)]


if __name__ == "__main__":
    sys.exit(main())
