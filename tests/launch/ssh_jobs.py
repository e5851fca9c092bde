"""Jobs on hosts that tests reach over ssh: the programs that their ranks run, and how they are started and watched."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.launch import clusters
from tests.launch.sshd import ROOT, SshHosts, environment

SCRIPT = """
import os, sys
import numpy
from spark_estimator.collectives import arrays, context
context.init()
total = arrays.allreduce(numpy.array([2.0 ** context.rank()]), arrays.ReduceOp.SUM, "total")
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
print(*(os.environ["HOROVOD_" + name] for name in names), total[0])
print(os.getcwd(), os.environ.get("MY_SETTING"), os.environ.get("TMPDIR"), sys.argv[1:], repr(sys.stdin.read()))
for number in range(3000):
    print("line", number, file=sys.stderr if number % 2 else sys.stdout)
print("\\x1b[31m", end="")
context.shutdown()
"""

ENDLESS = """
import os, subprocess, time
import numpy
from spark_estimator.collectives import arrays, context
context.init()
subprocess.Popen(["sleep", "1000"])
for step in range(100_000_000):
    arrays.allreduce(numpy.ones(1000), arrays.ReduceOp.SUM, "x")
    if step == 100:
        print("rank", context.rank(), "is pid", os.getpid(), flush=True)
"""


ELASTIC = """
import os, sys, time
import numpy
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.elastic import ObjectState, rejoin, run_fn

def loop(state):
    own = f"{os.environ['HOROVOD_HOSTNAME']} {context.local_rank()} of {context.local_size()}"
    found = allgather_object(own)
    print("rank", context.rank(), "is pid", os.getpid(), flush=True)
    if context.rank() == 0:
        print(f"{len(found)} ranks: {', '.join(found)}", flush=True)
    while True:
        arrays.allreduce(numpy.ones(10), arrays.ReduceOp.SUM, "x")
        state.commit()
        time.sleep(0.01)

context.init()
run_fn(loop, rejoin)(ObjectState(broadcast_object, context.rank))
"""


def horovodrun(
    hosts: SshHosts, *arguments: str, folder: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_estimator.launch.cli.main", *arguments],
        env=environment(hosts, **env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


@contextlib.contextmanager
def endless(
    hosts: SshHosts, where: str, size: int, folder: Path, marker: str, code: str = ENDLESS, *flags: str
) -> Iterator[clusters.Driver]:
    """A job that trains until something happens to it. All of its processes have the marker in their environment."""
    script, log = folder / "train.py", folder / "log"
    script.write_text(code)
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", str(size), "-H", where, *flags]
    command += ["python", str(script)]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            # The agents' own environment is that of a login, and the path to our modules.
            env=environment(hosts, PYTHONPATH=f"{ROOT}:/{marker}"),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        driver = clusters.Driver(process, log)
        for rank in range(size):
            driver.wait_for(f"[{rank}]<stdout>:rank {rank} is pid")
        yield driver
    finally:
        clusters.kill_group(process)


def pid_of(text: str, marker: str, word: str) -> int:
    """Of the job's processes the one whose command line contains a word, and another one."""
    pids = [pid for pid, command in clusters.processes_with(marker).items() if text in command and word in command]
    assert len(pids) == 1, clusters.processes_with(marker)
    return pids[0]
