"""Judges the tasks' reports: which differences between executors matter, and how to repair them. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_estimator.doctor.findings import Finding, Severity
from spark_estimator.errors import EncryptionUnavailableError

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
    """The driver's facts, with which the executors' are compared.

    Attributes:
        python, package: versions, of Python and of spark_estimator.
        packages: name -> version; '' for packages that are not installed.
        barrier: whether the tasks ran together, and could connect.
        gpus_per_task: as Spark is configured; 0 for none.
        is_local: driver and executor are one process.
    """

    python: str
    package: str
    packages: dict[str, str]
    barrier: bool = True
    gpus_per_task: float = 0.0
    is_local: bool = False


def judge_reports(here: DriverSide, reports: Sequence[Report]) -> list[Finding]:
    """Return a finding for each executor and check; `reports`: of all tasks; see ``doctor.probe``."""
    executors: dict[str, list[Report]] = {}
    for report in reports:
        executors.setdefault(report["executor"], []).append(report)
    verdicts: dict[str, Callable[[list[Report]], Finding]] = {
        "wheel": lambda executor_reports: _judge_wheel(here, executor_reports[0]),
        "python": lambda executor_reports: _judge_python(here, executor_reports[0]),
        "packages": lambda executor_reports: _judge_packages(here, executor_reports[0]),
        "engine": lambda executor_reports: _judge_engine(executor_reports[0]),
        "driver": lambda executor_reports: _judge_driver(executor_reports),
        "peers": lambda executor_reports: _judge_peers(here, executor_reports, len(executors)),
        "sharing": lambda executor_reports: _judge_sharing(here, executor_reports, reports),
        "disk": lambda executor_reports: _judge_disk(executor_reports[0]),
        "memory": lambda executor_reports: _judge_memory(executor_reports[0]),
        "gpus": lambda executor_reports: _judge_gpus(here, executor_reports),
        "clock": lambda executor_reports: _judge_clock(executor_reports),
        "cores": lambda executor_reports: _judge_cores(executor_reports, reports),
    }
    findings = []
    for executor, executor_reports in executors.items():
        for name in CHECKS:
            verdict = verdicts[name](executor_reports)
            findings.append(Finding(name, verdict.state, verdict.text, verdict.fix, executor))
    return findings


def _make_ok(text: str) -> Finding:
    return Finding("", Severity.OK, text)


def _make_note(text: str, fix: str = "") -> Finding:
    return Finding("", Severity.NOTE, text, fix)


def _make_problem(text: str, fix: str) -> Finding:
    return Finding("", Severity.MISSING, text, fix)


def _judge_wheel(here: DriverSide, report: Report) -> Finding:
    package = report["package"]
    install = f"install spark_estimator {here.package} in {report['python'].get('executable', 'its Python')}"
    if "error" in package:
        return _make_problem(f"spark_estimator cannot be imported: {package['error']}", install)
    if package["version"] != here.package:
        return _make_problem(
            f"spark_estimator {package['version']} in {package['path']}, and {here.package} here", install
        )
    return _make_ok(f"{package['version']} in {package['path']}")


def _judge_python(here: DriverSide, report: Report) -> Finding:
    theirs = report["python"]["version"]
    text = f"{theirs} ({report['python']['executable']})"
    if theirs.split(".")[:2] != here.python.split(".")[:2]:
        fix = "set PYSPARK_PYTHON, before the session is created, to a Python of the driver's version"
        return _make_problem(f"{text}, and {here.python} here: functions can't be pickled between the two", fix)
    if theirs != here.python:
        return _make_note(f"{text}, and {here.python} here")
    return _make_ok(text)


def _judge_packages(here: DriverSide, report: Report) -> Finding:
    versions = report["packages"]
    if "error" in versions:
        return _make_problem(f"their versions are unknown: {versions['error']}", "see its log")
    missing = [name for name in versions if not versions[name] and (name in _NEEDED or here.packages.get(name))]
    if missing:
        needed = [f"{name}=={here.packages[name]}" if here.packages.get(name) else name for name in missing]
        return _make_problem(f"{', '.join(missing)} missing", f"pip install {' '.join(needed)}")
    differing = [
        f"{name} {versions[name]} ({here.packages[name]} here)"
        for name in versions
        if versions[name] and here.packages.get(name) and versions[name] != here.packages[name]
    ]
    if differing:
        return _make_note(f"different from the driver: {', '.join(differing)}", "install the same versions on both")
    return _make_ok(", ".join(f"{name} {version}" for name, version in versions.items() if version))


def _judge_engine(report: Report) -> Finding:
    engine = report["engine"]
    if EncryptionUnavailableError.__name__ in str(engine.get("error")):
        fix = "install OpenSSL's library on its host, or turn encryption off (docs/how-to/secure-clusters.md)"
        return _make_problem(str(engine["error"]), fix)
    if "error" in engine:
        return _make_problem(str(engine["error"]), "install the wheel for this platform, see the README")
    return _make_ok(engine["build"])


def _judge_driver(reports: Sequence[Report]) -> Finding:
    failed = [report["driver"]["error"] for report in reports if "error" in report["driver"]]
    if failed:
        fix = (
            "without it jobs start a second later and their lines stay in the executors' logs; set spark.driver.host "
            "to an address that executors can reach, and allow connections to all of its ports"
        )
        return _make_note(f"its server can't be reached: {failed[0]}", fix)
    return _make_ok(f"reached at {reports[0]['driver']['address']}")


def _judge_peers(here: DriverSide, own_reports: Sequence[Report], executors: int) -> Finding:
    if not here.barrier:
        return _make_note("not tried, because Spark can't start tasks together here")
    met = [report["meeting"] for report in own_reports]
    if all("error" in meeting for meeting in met):
        fix = (
            "fix the other missing items first; otherwise set SPARK_LOCAL_IP on its host to an address that others "
            "reach"
        )
        return _make_problem(f"the check failed: {met[0]['error']}", fix)
    unreached = {other: reason for meeting in met for other, reason in meeting.get("unreached", {}).items()}
    if unreached:
        text = "; ".join(f"cannot connect to {other} ({reason})" for other, reason in sorted(unreached.items()))
        return _make_problem(text, "allow connections between the executors' hosts at all ports above 1023")
    reached = sum(len(meeting.get("reached", ())) for meeting in met)
    if reached < executors - 1:
        return _make_note(f"{reached} of {executors - 1} other executors could be checked; the rest did not listen")
    if executors == 1:
        return _make_ok("no other executor")
    return _make_ok("the other one was reached" if reached == 1 else f"all {reached} others were reached")


def _judge_sharing(here: DriverSide, own_reports: Sequence[Report], reports: Sequence[Report]) -> Finding:
    if not here.barrier:
        return _make_note("not tried, because Spark can't start tasks together here")
    hosts = {report["host"] for report in own_reports}
    tried = [
        report["meeting"] for report in reports
        if report["host"] in hosts and report["meeting"].get("shared") is not None
    ]  # fmt: skip
    failed = [meeting["sharing_trouble"] for meeting in tried if not meeting["shared"]]
    if failed:
        fix = "without it jobs use TCP, which is slower; containers of one host need a common network namespace"
        return _make_note(f"two tasks of this host can't share memory: {failed[0]}", fix)
    return _make_ok("two tasks of this host share memory" if tried else "there is one task on this host")


def _judge_disk(report: Report) -> Finding:
    disk = report["disk"]
    fix = "free some, or set TMPDIR (spark.executorEnv.TMPDIR) to a folder with more"
    if "error" in disk:
        return _make_problem(f"temporary files can't be written: {disk['error']}", fix)
    text = f"{_format_size(disk['free'])} free in {disk['folder']}"
    if disk["free"] < LEAST_DISK:
        return _make_problem(text, fix)
    return _make_note(text, fix) if disk["free"] < LITTLE_DISK else _make_ok(text)


def _judge_memory(report: Report) -> Finding:
    memory = report["memory"]
    if "error" in memory:
        return _make_note(f"not known: {memory['error']}")
    text = f"{_format_size(memory['free'])} free"
    fix = "ranks live beside the executor's Java: raise spark.executor.memoryOverhead, or use fewer ranks a host"
    return _make_note(text, fix) if memory["free"] < LITTLE_MEMORY else _make_ok(text)


def _judge_gpus(here: DriverSide, own_reports: Sequence[Report]) -> Finding:
    gpus = own_reports[0]["gpus"]
    if "error" in gpus:
        return _make_note(f"not known: {gpus['error']}")
    addresses = [address for report in own_reports for address in report["gpus"].get("given", ())]
    installed = "; ".join(f"{index} {name} ({uuid})" for index, uuid, name in gpus["there"])
    if "trouble" in gpus:
        return _make_note(f"nvidia-smi fails: {gpus['trouble']}", "fix the NVIDIA driver there")
    if addresses:
        text = f"Spark gives {', '.join(addresses)}, one per task"
        if gpus["visible"] is not None:
            text += f", of CUDA_VISIBLE_DEVICES={gpus['visible']}"
        if not installed:
            return _make_note(f"{text}; their type is unknown without nvidia-smi")
        return _make_ok(f"{text}; there: {installed}")
    if installed and not here.is_local and not here.gpus_per_task:
        fix = "start the session with spark.executor.resource.gpu.amount and spark.task.resource.gpu.amount"
        return _make_note(f"{installed}, but Spark gives none to tasks", fix)
    return _make_ok(installed or "none")


def _judge_clock(reports: Sequence[Report]) -> Finding:
    measured = [report["driver"] for report in reports if "clock" in report["driver"]]
    if not measured:
        return _make_note("not compared, because the driver was not reached")
    best = min(measured, key=lambda report: float(report["clock_within"]))
    offset, within = float(best["clock"]), float(best["clock_within"])
    text = f"{abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} the driver's, give or take {within:.3f}"
    if abs(offset) - within > CLOCK_SECONDS:
        return _make_note(
            text, "run a time service (chrony, ntpd) on all hosts: the first failure is identified by its time"
        )
    return _make_ok(text)


def _judge_cores(own_reports: Sequence[Report], reports: Sequence[Report]) -> Finding:
    cores = own_reports[0]["cores"]
    if "error" in cores:
        return _make_note(f"not known: {cores['error']}")
    cpus = int(own_reports[0]["task_cpus"])
    same_host = [report for report in reports if report["host"] == own_reports[0]["host"]]
    text = f"{cores['usable']} usable, {len(same_host)} slots on this host x {cpus} (spark.task.cpus)"
    if len(same_host) * cpus > cores["usable"]:
        fix = (
            "ranks on all of them share cores: give the executor fewer (spark.executor.cores), or raise spark.task.cpus"
        )
        return _make_note(text, fix)
    return _make_ok(text)


def _format_size(count: int) -> str:
    return f"{count / MIB / 1024:.1f} GiB" if count >= 1024 * MIB else f"{count / MIB:.0f} MiB"
