"""What executors' ranks have to live with: other programs that compute all the time, a JVM that collects garbage, and a
limit of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.interleaved import BenchmarkError

# Arithmetic on rows that fit into a core's cache, as a decoder or another training has it.
_COMPUTE = """
import os, sys
from spark_estimator.launch.worker.worker import bind_to_parent
bind_to_parent(int(sys.argv[1]))
import numpy
values = numpy.ones(1 << 12, numpy.float32)
while True:
    values = values * 0.999 + 0.1
"""
# Objects that die young, and a tenth that live for a while: minor and major collections by all of the JVM's threads.
_GARBAGE = """
public class Garbage {
    public static void main(String[] arguments) {
        byte[][] kept = new byte[1 << 12][];
        for (int count = 0; ; count++) {
            byte[] block = new byte[1 << 12];
            if (count % 10 == 0) kept[(count / 10) % kept.length] = block;
        }
    }
}
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--busy``, ``--jvm`` and ``--quota``."""
    parser.add_argument("--busy", type=int, default=0, help="this number of other processes computes all the time (0)")
    parser.add_argument("--jvm", action="store_true", help="a JVM collects garbage all the time")
    parser.add_argument(
        "--quota", type=float, metavar="CPUS", help="processor time that all ranks have together (cgroup; needs root)"
    )


@contextlib.contextmanager
def beside(options: argparse.Namespace) -> Iterator[None]:
    """The programs of `add_options` run inside of the block, outside of the quota; what the block starts is within it.

    Raises:
        BenchmarkError: there is no JDK, or the quota cannot be set.
    """
    with contextlib.ExitStack() as programs:
        for _ in range(options.busy):
            programs.enter_context(_running([sys.executable, "-c", _COMPUTE, str(os.getpid())]))
        if options.jvm:
            if shutil.which("javac") is None:
                raise BenchmarkError("--jvm needs a JDK: javac is not on PATH")
            folder = Path(programs.enter_context(tempfile.TemporaryDirectory(prefix="garbage")))
            (folder / "Garbage.java").write_text(_GARBAGE)
            subprocess.run(["javac", "Garbage.java"], cwd=folder, check=True)
            programs.enter_context(_running(["java", "-Xmx64m", "-cp", str(folder), "Garbage"]))
        if options.quota is not None:
            programs.enter_context(_within_quota(options.quota))
        yield


@contextlib.contextmanager
def _within_quota(cpus: float) -> Iterator[None]:
    """Moves this process, and so those that it starts, into a control group with a limit; in the end back.

    Raises:
        BenchmarkError: the limit is no positive time, or this machine or user cannot set one.
    """
    if cpus < 0.01:
        raise BenchmarkError(f"--quota {cpus:g}: the kernel takes 0.01 CPUs or more")
    root = Path("/sys/fs/cgroup")
    period = 100_000  # microseconds, the kernel's default
    quota = round(cpus * period)
    version_1 = (root / "cpu/cgroup.procs").exists()
    parent = root / "cpu" if version_1 else root
    before = parent / _own_group("cpu" if version_1 else "").lstrip("/")
    group = parent / f"spark_estimator_benchmark_{os.getpid()}"
    try:
        if version_1:
            group.mkdir()
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (root / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            (group / "cpu.max").write_text(f"{quota} {period}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise BenchmarkError(f"--quota {cpus} needs a control group for processor time: {error}") from error
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # a rank has not ended yet
            group.rmdir()


def _own_group(controller: str) -> str:
    """The path of this process' control group; "" is the one hierarchy of version 2."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield
            if process.poll() is not None:
                raise BenchmarkError(f"{command[0]} beside the ranks ended with {process.returncode}")
        finally:
            process.kill()


def title(options: argparse.Namespace) -> str:
    """For the heading of a table; empty without other programs and quota."""
    parts = [f"{options.busy} busy processes"] * bool(options.busy) + ["a JVM collecting garbage"] * options.jvm
    beside = f", beside {' and '.join(parts)}" if parts else ""
    return beside if options.quota is None else f"{beside}, within {options.quota:g} CPUs"
