"""From what tasks report to what is said of each executor: which differences matter, and what mends them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_estimator.doctor.findings import Finding, Severity

MIB = 1 << 20
# Files that hold a rank's rows, and what Spark and Python write beside them.
LEAST_DISK, LITTLE_DISK = 64 * MIB, 1024 * MIB
# A worker that has imported PyTorch has some hundred MiB.
LITTLE_MEMORY = 512 * MIB
# Failures are put in order by the hosts' clocks.
CLOCK_SECONDS = 1.0
_NEEDED = ("numpy", "cloudpickle", "pyarrow", "pandas")

#: The columns of the matrix, in order.
CHECKS = (
    "wheel", "python", "packages", "engine", "driver", "peers", "sharing", "disk", "memory", "gpus", "clock", "cores",
)  # fmt: skip

Report = dict[str, Any]


@dataclass(frozen=True)
class DriverSide:
    """What the executors are compared with.

    Attributes:
        python, package: versions, of Python and of spark_estimator.
        packages: name -> version; '' for what is not installed.
        barrier: whether the tasks ran together, and could meet.
        gpus_per_task: as Spark is configured; 0 for none.
        is_local: driver and executor are one process.
    """

    python: str
    package: str
    packages: dict[str, str]
    barrier: bool = True
    gpus_per_task: float = 0.0
    is_local: bool = False


def findings_of(here: DriverSide, reports: Sequence[Report]) -> list[Finding]:
    """A finding for each executor and check.

    Args:
        reports: of all tasks; see ``doctor.probe``.
    """
    executors: dict[str, list[Report]] = {}
    for report in reports:
        executors.setdefault(report["executor"], []).append(report)
    verdicts: dict[str, Callable[[list[Report]], Finding]] = {
        "wheel": lambda own: _wheel(here, own[0]),
        "python": lambda own: _python(here, own[0]),
        "packages": lambda own: _packages(here, own[0]),
        "engine": lambda own: _engine(own[0]),
        "driver": lambda own: _driver(own),
        "peers": lambda own: _peers(here, own, len(executors)),
        "sharing": lambda own: _sharing(here, own, reports),
        "disk": lambda own: _disk(own[0]),
        "memory": lambda own: _memory(own[0]),
        "gpus": lambda own: _gpus(here, own),
        "clock": lambda own: _clock(own),
        "cores": lambda own: _cores(own, reports),
    }
    found = []
    for executor, own in executors.items():
        for name in CHECKS:
            verdict = verdicts[name](own)
            found.append(Finding(name, verdict.state, verdict.text, verdict.fix, executor))
    return found


def _ok(text: str) -> Finding:
    return Finding("", Severity.OK, text)


def _note(text: str, fix: str = "") -> Finding:
    return Finding("", Severity.NOTE, text, fix)


def _bad(text: str, fix: str) -> Finding:
    return Finding("", Severity.MISSING, text, fix)


def _wheel(here: DriverSide, report: Report) -> Finding:
    found = report["package"]
    install = f"install spark_estimator {here.package} in {report['python'].get('executable', 'its Python')}"
    if "error" in found:
        return _bad(f"spark_estimator cannot be imported: {found['error']}", install)
    if found["version"] != here.package:
        return _bad(f"spark_estimator {found['version']} in {found['path']}, and {here.package} here", install)
    return _ok(f"{found['version']} in {found['path']}")


def _python(here: DriverSide, report: Report) -> Finding:
    theirs = report["python"]["version"]
    text = f"{theirs} ({report['python']['executable']})"
    if theirs.split(".")[:2] != here.python.split(".")[:2]:
        fix = "set PYSPARK_PYTHON, before the session is created, to a Python of the driver's version"
        return _bad(f"{text}, and {here.python} here: functions cannot travel between the two", fix)
    if theirs != here.python:
        return _note(f"{text}, and {here.python} here")
    return _ok(text)


def _packages(here: DriverSide, report: Report) -> Finding:
    found = report["packages"]
    if "error" in found:
        return _bad(f"they could not be looked up: {found['error']}", "see its log")
    wanted = [name for name in found if not found[name] and (name in _NEEDED or here.packages.get(name))]
    if wanted:
        needed = [f"{name}=={here.packages[name]}" if here.packages.get(name) else name for name in wanted]
        return _bad(f"{', '.join(wanted)} missing", f"pip install {' '.join(needed)}")
    differing = [
        f"{name} {found[name]} ({here.packages[name]} here)"
        for name in found
        if found[name] and here.packages.get(name) and found[name] != here.packages[name]
    ]
    if differing:
        return _note(f"not as on the driver: {', '.join(differing)}", "install the same versions on both")
    return _ok(", ".join(f"{name} {version}" for name, version in found.items() if version))


def _engine(report: Report) -> Finding:
    found = report["engine"]
    if "error" in found:
        return _bad(str(found["error"]), "install the wheel of this platform; its page tells which")
    return _ok(found["build"])


def _driver(own: Sequence[Report]) -> Finding:
    failed = [report["driver"]["error"] for report in own if "error" in report["driver"]]
    if failed:
        fix = (
            "jobs run without it, start a second later, and their lines stay in the executors' logs; set "
            "spark.driver.host to an address that executors reach, and let them connect to any port of it"
        )
        return _note(f"its server cannot be reached: {failed[0]}", fix)
    return _ok(f"reached at {own[0]['driver']['address']}")


def _peers(here: DriverSide, own: Sequence[Report], executors: int) -> Finding:
    if not here.barrier:
        return _note("not tried, since tasks cannot be started together here")
    met = [report["meeting"] for report in own]
    if all("error" in found for found in met):
        fix = "mend what is missing beside this; else give its host an address of its own: set SPARK_LOCAL_IP there"
        return _bad(f"it could not try: {met[0]['error']}", fix)
    unreached = {other: why for found in met for other, why in found.get("unreached", {}).items()}
    if unreached:
        text = "; ".join(f"cannot connect to {other} ({why})" for other, why in sorted(unreached.items()))
        return _bad(text, "allow connections between the executors' hosts at all ports above 1023")
    reached = sum(len(found.get("reached", ())) for found in met)
    if reached < executors - 1:
        return _note(f"{reached} of {executors - 1} other executors could be tried; the others did not listen")
    return _ok("there is no other executor" if executors == 1 else f"all {reached} others were reached")


def _sharing(here: DriverSide, own: Sequence[Report], reports: Sequence[Report]) -> Finding:
    if not here.barrier:
        return _note("not tried, since tasks cannot be started together here")
    hosts = {report["host"] for report in own}
    tried = [
        report["meeting"] for report in reports
        if report["host"] in hosts and report["meeting"].get("shared") is not None
    ]  # fmt: skip
    failed = [found["sharing_trouble"] for found in tried if not found["shared"]]
    if failed:
        fix = "jobs run without it, over TCP, and slower; containers of one host need a common network namespace"
        return _note(f"two tasks of this host share no memory: {failed[0]}", fix)
    return _ok("two tasks of this host share memory" if tried else "there is one task on this host")


def _disk(report: Report) -> Finding:
    found = report["disk"]
    fix = "free some, or set TMPDIR (spark.executorEnv.TMPDIR) to a folder with more"
    if "error" in found:
        return _bad(f"temporary files cannot be written: {found['error']}", fix)
    text = f"{_size(found['free'])} free in {found['folder']}"
    if found["free"] < LEAST_DISK:
        return _bad(text, fix)
    return _note(text, fix) if found["free"] < LITTLE_DISK else _ok(text)


def _memory(report: Report) -> Finding:
    found = report["memory"]
    if "error" in found:
        return _note(f"not known: {found['error']}")
    text = f"{_size(found['free'])} free"
    fix = "ranks live beside the executor's Java: raise spark.executor.memoryOverhead, or use fewer ranks a host"
    return _note(text, fix) if found["free"] < LITTLE_MEMORY else _ok(text)


def _gpus(here: DriverSide, own: Sequence[Report]) -> Finding:
    found = own[0]["gpus"]
    if "error" in found:
        return _note(f"not known: {found['error']}")
    given = [address for report in own for address in report["gpus"].get("given", ())]
    there = "; ".join(f"{index} {name} ({uuid})" for index, uuid, name in found["there"])
    if "trouble" in found:
        return _note(f"nvidia-smi fails: {found['trouble']}", "mend the NVIDIA driver there")
    if given:
        text = f"Spark gives {', '.join(given)}, one task after the other"
        if found["visible"] is not None:
            text += f", of CUDA_VISIBLE_DEVICES={found['visible']}"
        if not there:
            return _note(f"{text}; there is no nvidia-smi to ask what they are")
        return _ok(f"{text}; there: {there}")
    if there and not here.is_local and not here.gpus_per_task:
        fix = "start the session with spark.executor.resource.gpu.amount and spark.task.resource.gpu.amount"
        return _note(f"{there}, of which Spark gives tasks none", fix)
    return _ok(there or "none")


def _clock(own: Sequence[Report]) -> Finding:
    measured = [report["driver"] for report in own if "clock" in report["driver"]]
    if not measured:
        return _note("not compared, since the driver was not reached")
    best = min(measured, key=lambda found: float(found["clock_within"]))
    offset, within = float(best["clock"]), float(best["clock_within"])
    text = f"{abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} the driver's, give or take {within:.3f}"
    if abs(offset) - within > CLOCK_SECONDS:
        return _note(text, "run a time service (chrony, ntpd) on all hosts: the first failure is found by the clock")
    return _ok(text)


def _cores(own: Sequence[Report], reports: Sequence[Report]) -> Finding:
    found = own[0]["cores"]
    if "error" in found:
        return _note(f"not known: {found['error']}")
    cpus = int(own[0]["task_cpus"])
    here = [report for report in reports if report["host"] == own[0]["host"]]
    text = f"{found['usable']} usable, {len(here)} slots on this host x {cpus} (spark.task.cpus)"
    if len(here) * cpus > found["usable"]:
        fix = (
            "ranks on all of them share cores: give the executor fewer (spark.executor.cores), or raise spark.task.cpus"
        )
        return _note(text, fix)
    return _ok(text)


def _size(count: int) -> str:
    return f"{count / MIB / 1024:.1f} GiB" if count >= 1024 * MIB else f"{count / MIB:.0f} MiB"
