"""The checks that a task of ``doctor --cluster`` runs on its executor.

This module is sent to the executors whole, since this package may be missing there, or be another version: it imports
the package only inside of a check, and reports the outcome.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from spark_estimator.peer_json import parse_json, parse_object

SCHEMA = "partition int, report string"
PACKAGES = ("torch", "numpy", "cloudpickle", "pyarrow", "pandas")
# Loading a library of some MB from a slow disk, in a fresh interpreter.
ENGINE_SECONDS = 60
NVIDIA_SMI_SECONDS = 20
# In a stage that is no barrier stage: every slot is taken once, and no task runs where another has been.
HOLD_SECONDS = 2.0
# A crash of a native library for another processor must end this process, not Spark's worker.
ENGINE = (
    "from spark_estimator import _native; library = _native.library(); "
    "print(library.se_abi_version(), library.se_build_info().decode(), sep='; ')"
)

# The beginning of the line that follows an error of this package.
MORE = "more: python -m spark_estimator "
ENCRYPTION = "; from spark_estimator.security.encryption import check_encryption; check_encryption()"


def make_task(order: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make the function that Spark runs in each task: it yields one row of `SCHEMA`, whose report is a JSON object.

    Args:
        order: barrier (whether it is a barrier stage), encrypted (whether ranks encrypt), channel (host, port,
            token in hex and job id of the driver's server; None: there is none), key (in hex, for connections
            between executors), seconds (for each of these).
    """

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            pass
        report = examine(order)
        columns = [pyarrow.array([report["partition"]], pyarrow.int32()), pyarrow.array([json.dumps(report)])]
        yield pyarrow.RecordBatch.from_arrays(columns, names=["partition", "report"])

    return task


def examine(order: dict[str, Any]) -> dict[str, Any]:
    """Run every check. One that raises leaves ``{"error": text}`` under its name."""
    from pyspark import BarrierTaskContext, TaskContext

    began = time.monotonic()
    context: Any = BarrierTaskContext.get() if order["barrier"] else TaskContext.get()
    partition = context.partitionId()
    report: dict[str, Any] = {"partition": partition, "host": socket.gethostname(), "pid": os.getpid()}
    address = context.getTaskInfos()[partition].address if order["barrier"] else ""
    # Spark forks its Python workers from a daemon, of which each executor has one.
    report["executor"] = address or f"{report['host']}/{os.getppid()}"
    report["task_cpus"] = context.cpus()
    checks: dict[str, Callable[[], Any]] = {
        "python": check_python,
        "package": check_package,
        "packages": check_packages,
        "engine": lambda: check_engine(order["encrypted"]),
        "driver": lambda: check_driver(order, partition),
        "disk": check_disk,
        "memory": check_memory,
        "cores": check_cores,
        "gpus": lambda: check_gpus(context),
    }
    if order["barrier"]:
        checks["meeting"] = lambda: check_meeting(context, order, address)
    for name, check in checks.items():
        try:
            report[name] = check()
        except Exception as error:
            report[name] = {"error": f"{type(error).__name__}: {error}"}
    if not order["barrier"]:
        time.sleep(max(0.0, HOLD_SECONDS - (time.monotonic() - began)))
    return report


def check_python() -> dict[str, str]:
    """Report the interpreter."""
    return {"version": platform.python_version(), "executable": sys.executable}


def check_package() -> dict[str, str]:
    """Report our package, by importing it."""
    import spark_estimator

    return {"version": spark_estimator.__version__, "path": os.path.dirname(spark_estimator.__file__)}


def check_packages() -> dict[str, str]:
    """Report the versions of the packages that a job uses; '' for packages that are not installed."""
    import pyspark

    versions = {"pyspark": pyspark.__version__}  # a part of Spark, not installed as a package on most clusters
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def check_engine(encrypted: bool = False) -> dict[str, str]:
    """Load the native library, in a separate process; if the ranks encrypt, also OpenSSL's."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    program = ENGINE + ENCRYPTION if encrypted else ENGINE
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=ENGINE_SECONDS, check=False,
    )  # fmt: skip
    if answer.returncode:
        lines = [line for line in answer.stderr.strip().splitlines() if not line.startswith(MORE)]
        last_line = (lines or ["it printed no error"])[-1]
        status = f"status {answer.returncode}" if answer.returncode > 0 else f"signal {-answer.returncode}"
        raise RuntimeError(f"loading it ended with {status}: {last_line}")
    return {"build": answer.stdout.strip()}


def check_driver(order: dict[str, Any], partition: int) -> dict[str, Any]:
    """Connect to the driver as a job would; report how far this host's clock is ahead of the driver's, in seconds."""
    channel_address = order["channel"]
    if channel_address is None:
        return {"error": "the driver has no address to listen at"}
    address = (channel_address["host"], channel_address["port"])
    try:
        from spark_estimator.observe import channel, frames
    except ImportError:
        socket.create_connection(address, timeout=order["seconds"]).close()
        return {"address": f"{address[0]}:{address[1]}", "unproved": True}
    connected = channel.SupervisorChannel.connect(
        address, bytes.fromhex(channel_address["token"]), channel_address["job_id"], partition, lambda reason: None
    )
    try:
        before = time.time()
        connected.send(frames.FACTS, facts="what time is it?")
        answer = connected.wait_for_answer()
        after = time.time()
    finally:
        connected.close()
    if answer is None:
        raise ConnectionError("the driver did not answer")
    theirs = float(parse_json(answer["facts"][0]))
    return {
        "address": f"{address[0]}:{address[1]}",
        "clock": (before + after) / 2 - theirs,
        "clock_within": (after - before) / 2,
    }


def check_disk() -> dict[str, Any]:
    """Report free space for temporary files, in bytes; a file is written to it."""
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0" * 4096)
        file.flush()
    return {"folder": folder, "free": shutil.disk_usage(folder).free}


def check_memory() -> dict[str, int]:
    """Report the bytes that programs here could still get, of the host's memory or the control group's limit."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:
            most = limit.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as current:
            used = int(current.read())
        if most != "max":
            free = min(free, int(most) - used)
    except OSError:
        pass  # no control group of version 2
    return {"free": free}


def check_cores() -> dict[str, int]:
    """Report the cores that this process may use."""
    try:
        from spark_estimator.collectives.cores import count_available_cores

        return {"usable": count_available_cores()}
    except ImportError:
        return {"usable": len(os.sched_getaffinity(0))}


def check_gpus(context: Any) -> dict[str, Any]:
    """Report the host's GPUs, those that Spark assigned to this task, and the value of CUDA_VISIBLE_DEVICES."""
    resource = context.resources().get("gpu")
    facts: dict[str, Any] = {
        "given": list(resource.addresses) if resource is not None else [],
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "there": [],
    }
    program = shutil.which("nvidia-smi")
    if program is None:
        return facts
    query = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    answer = subprocess.run(
        query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False
    )
    if answer.returncode:
        return {**facts, "trouble": " ".join((answer.stdout + answer.stderr).split())[:200]}
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in answer.stdout.splitlines()]
    return {**facts, "there": [row for row in rows if len(row) == 3]}


def check_meeting(context: Any, order: dict[str, Any], address: str) -> dict[str, Any]:
    """Connect to the other tasks of the stage, see ``doctor.meeting``, or only take part in the barriers."""
    try:
        from spark_estimator.doctor.meeting import Meeting

        meets: Any = Meeting(address, bytes.fromhex(order["key"]), order["seconds"])
        facts, trouble = meets.facts, ""
    except Exception as error:
        meets, facts, trouble = None, {"executor": address}, f"{type(error).__name__}: {error}"
    everyone = [parse_object(text) for text in context.allGather(json.dumps(facts))]
    report: dict[str, Any] = {"error": trouble}
    try:
        if meets is not None:
            report = meets.meet(everyone, context.partitionId())
    finally:
        context.barrier()  # no task stops listening before all have tried
        if meets is not None:
            meets.close()
    return report
