"""``python -m spark_estimator ranks``: the processes of the ranks that run on this host, to attach a debugger to.

A launcher's variables are in a rank's environment, which ``/proc`` shows as it was at the start. A rank's number may be
decided later: the process shows it in its name, ``python rank3``, once it has joined the job.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spark_estimator.env import JOB_VARIABLE, PROCESS_VARIABLE, align_columns

_PROC = Path("/proc")
_ADVICE = """
Look into one of them, as its user or as root (pip install py-spy):
  py-spy dump --pid {pid}                       its Python stacks now; --native: also those in C++
  py-spy top --pid {pid}                        where it spends its time
  py-spy record --pid {pid} -o rank.svg         a flame graph of 30 s
nsys cannot attach to a process. Start a job under it, with spans of some steps as NVTX ranges:
  nsys profile --trace cuda,nvtx --capture-range cudaProfilerApi horovodrun --profile 0:10-13 -np 2 python train.py"""


@dataclass(frozen=True)
class RankProcess:
    """A process of a rank.

    Attributes:
        rank: its number; None while it has not joined its job.
        job: the job's id.
        mark: the same for all processes of one rank.
        seconds: since its start.
    """

    rank: int | None
    job: str
    mark: str
    pid: int
    parent: int
    seconds: float


def name_process(rank: int) -> None:
    """Have this process's name show the rank that its launcher has made it, where the kernel allows that."""
    if JOB_VARIABLE in os.environ:
        with suppress(OSError):
            (_PROC / "self" / "comm").write_text(f"python rank{rank}", encoding="ascii")  # 15 characters at most


def list_ranks() -> list[RankProcess]:
    """Return the process of each rank on this host whose environment this user may read, by job and rank."""
    of_mark = defaultdict(list)
    for process in _list_processes():
        of_mark[process.mark].append(process)
    ranks = [_choose(processes) for processes in of_mark.values()]
    return sorted(ranks, key=lambda process: (process.job, process.rank is None, process.rank or 0, process.pid))


def _choose(processes: list[RankProcess]) -> RankProcess:
    """Return the one that has joined the job, or the first; not its forks, which have its name."""
    candidates = [process for process in processes if process.rank is not None] or processes
    pids = {process.pid for process in candidates}
    return next(process for process in candidates if process.parent not in pids)


def _list_processes() -> Iterator[RankProcess]:
    with suppress(OSError):
        since_boot = float((_PROC / "uptime").read_text().split()[0])
        for folder in _PROC.glob("[0-9]*"):
            with suppress(OSError, ValueError, KeyError):
                texts = (folder / "environ").read_bytes().split(b"\0")
                variables = dict(text.decode(errors="replace").split("=", 1) for text in texts if b"=" in text)
                mark = variables[PROCESS_VARIABLE].rpartition("/")[2]
                if not mark.strip("0"):  # a process that ranks are forked from
                    continue
                named = re.fullmatch(r"python rank(\d+)", (folder / "comm").read_text().strip())
                # From the state, which follows the name in brackets, as in `launch.worker.orphans`.
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                age = since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK")
                rank = int(named[1]) if named else None
                yield RankProcess(rank, variables[JOB_VARIABLE], mark, int(folder.name), int(fields[1]), age)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line of ``ranks``."""
    return argparse.ArgumentParser(
        prog="python -m spark_estimator ranks",
        description="Print the ranks that run on this host: job, rank, process and time since its start; and commands "
        "to look into one. A rank without a number has not called init() yet. The driver prints the host and process "
        "of each rank with horovodrun --verbose and with spark_estimator.spark.run(verbose=2).",
    )


def main(argv: list[str] | None = None) -> int:
    """Run ``python -m spark_estimator ranks``: return 0, or 1 where no rank runs."""
    make_parser().parse_args(argv)
    ranks = list_ranks()
    if not ranks:
        print(f"No rank runs on {socket.gethostname()} whose environment this user may read.")
        return 1
    head = ("job", "rank", "pid", "host", "runs for")
    host = socket.gethostname()
    lines = [
        (each.job, "-" if each.rank is None else str(each.rank), str(each.pid), host, _format_time(each.seconds))
        for each in ranks
    ]
    print("\n".join(align_columns([head, *lines])))
    print(_ADVICE.format(pid=ranks[0].pid))
    return 0


def _format_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) if seconds < 86400 else f"{seconds / 86400:.1f} days"
