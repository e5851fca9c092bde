"""Memory that ranks share: a rank that gets none, and ranks that are killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from tests.ranks import start_ranks


@pytest.mark.parametrize("without", [(0, 1), (1,)], ids=["both", "one"])
def test_ranks_without_memory_to_share_warn_once_and_use_sockets(without: tuple[int, ...]) -> None:
    def reduce(rank: int) -> str:
        import resource
        from pathlib import Path

        import numpy

        from spark_estimator.collectives import arrays, context

        if rank in without:  # the limit counts for memory without a name, too
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        context.init()
        for number in range(5):
            total = arrays.allreduce(numpy.full(200_000, rank + number), arrays.ReduceOp.SUM, f"n{number}")
            assert (total == 1 + 2 * number).all()
        mapped = Path("/proc/self/maps").read_text()
        context.shutdown()
        return mapped

    with start_ranks(2, reduce) as ranks:
        outcomes = ranks.wait()
    for outcome in outcomes:
        assert outcome.returned, outcome
        warnings = outcome.output.count("has no shared memory and uses sockets only: cannot make a shared segment of")
        assert warnings == (outcome.rank in without), outcome
        assert "memfd:spark_estimator" not in outcome.value


def test_ranks_that_are_killed_leave_no_shared_memory() -> None:
    """It has no name that could be left, and no process holds it: not a program that a rank has started, either."""

    def hold(rank: int) -> None:
        import subprocess
        import time

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        assert (arrays.allreduce(numpy.ones(200_000), arrays.ReduceOp.SUM) == 2).all()
        child = subprocess.Popen(["sleep", "1000"], close_fds=False)
        print(f"started {child.pid}.", flush=True)
        time.sleep(1000)

    children: list[int] = []
    try:
        with start_ranks(2, hold) as ranks:
            for rank in range(2):
                ranks.await_output(rank, ".")
                children += map(int, re.findall(r"started (\d+)\.", ranks.output(rank)))
            held = {number for rank in range(2) for number in segments(ranks.pid(rank))}
            for rank in range(2):
                ranks.kill(rank, signal.SIGKILL)
            ranks.wait()
        assert len(held) == 2, "each rank has made one"
        holders = {int(path.name): segments(int(path.name)) & held for path in Path("/proc").glob("[0-9]*")}
        assert not {pid: left for pid, left in holders.items() if left}
        for child in children:
            os.kill(child, 0)  # it does live on
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def segments(pid: int) -> set[int]:
    """The inodes of the memory that a process shares, mapped or open; it has no path in any file system."""
    inodes = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            _, permissions, _, _, inode, *path = line.split(maxsplit=5)
            if permissions.endswith("s") and path == ["/memfd:spark_estimator (deleted)"]:
                inodes.add(int(inode))
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "memfd:spark_estimator" in os.readlink(descriptor):
                    inodes.add(descriptor.stat().st_ino)
    return inodes
