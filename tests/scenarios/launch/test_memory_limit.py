"""A rank that outgrows the memory of its control group: the kernel kills it, and the error names that cause."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_MIB = 500

JOB = """
import sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text("0")  # 0: this process

import numpy
import spark_estimator
from spark_estimator.collectives import arrays, context


def work(mebibytes):
    context.init()
    blocks = []
    while len(blocks) < mebibytes // 10:
        arrays.allreduce(numpy.ones(4), arrays.ReduceOp.SUM, "sum")
        if context.rank() == 1:
            blocks.append(b"x" * (10 << 20))


spark_estimator.run(work, args=(2 * int(sys.argv[2]),), num_proc=2)
"""


@pytest.fixture
def small_group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A memory control group of `LIMIT_MIB`."""
    for root, limit, swap in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ):
        group = Path(root, f"spark_estimator_test_{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT_MIB << 20))
            if (group / swap).exists():
                (group / swap).write_text(str(LIMIT_MIB << 20) if "memsw" in swap else "0")
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("memory control groups can't be made here")


def test_the_rank_that_outgrew_its_control_group_is_named(small_group: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", JOB, str(small_group), str(LIMIT_MIB)], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 1, result.stderr
    last = result.stderr[result.stderr.rindex("WorkerFailedError") :]
    assert "rank 1 (host " in last and "was killed by signal 9 (SIGKILL)" in last, last
    assert "the kernel's out-of-memory killer was active: the job needs more memory, or must use less" in last
