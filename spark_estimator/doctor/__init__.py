"""``python -m spark_estimator doctor``: checks what a job will need here, and how to repair what is missing.

All that can be tried is tried: the engine is loaded, a shared segment made and mapped, sockets are connected, two ranks
connect and reduce a tensor. A Spark session costs ten seconds, so it is started only on request (``--spark``). With
``--cluster`` the same is tried on every executor of a session, and between them; ``--speed`` measures a job there, too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from spark_estimator._native import library_path
from spark_estimator.doctor import machine
from spark_estimator.doctor.findings import Finding, Severity, attempt
from spark_estimator.errors import SparkEstimatorError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_estimator.doctor.measurement import Speed

__all__ = ["Finding", "Severity", "attempt", "cluster", "examine", "main", "speed"]

ALL_BUT_SPARK = (
    "Everything that a job needs is present, as far as can be checked without starting Spark; `doctor --spark` runs a "
    "rank in it."
)
# How long all slots of a session may be waited for; jobs that hold them may take any time.
CLUSTER_SECONDS = 180.0
# Of the model whose gradients are exchanged.
PARAMETERS = 100_000_000
# For a session that the command line has made to end.
_STOPPING = timedelta(seconds=10)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line of ``doctor``."""
    command_line = argparse.ArgumentParser(
        prog="python -m spark_estimator doctor", description="Check everything that a job needs."
    )
    command_line.add_argument("--json", action="store_true", help="print the report as one JSON object")
    spark = command_line.add_mutually_exclusive_group()
    spark.add_argument("--spark", action="store_true", help="also start (or find) a Spark session and run a rank in it")
    spark.add_argument("--without-spark", action="store_true", help="Spark and Java are not needed here (horovodrun)")
    spark.add_argument("--cluster", action="store_true", help="check every executor of a Spark session instead")
    where = command_line.add_argument_group("with --cluster")
    address = where.add_mutually_exclusive_group()
    address.add_argument(
        "--master", help="start a session there: spark://host:7077, yarn, local-cluster[2,1,1024], ..."
    )
    address.add_argument("--remote", help="use this Spark Connect server: sc://host:15002")
    where.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of that session")
    where.add_argument(
        "--timeout",
        type=_parse_seconds,
        default=CLUSTER_SECONDS,
        metavar="SECONDS",
        help="for the session to start, and then for all slots to be free at once (default: %(default)g)",
    )
    where.add_argument("--speed", action="store_true", help="also run a job that measures the network, and give advice")
    where.add_argument(
        "--parameters",
        type=_parse_count,
        metavar="NUMBER",
        help=f"of the model whose gradients --speed exchanges: 25600000, 350M, 7B (default: {PARAMETERS // 10**6}M)",
    )
    return command_line


def _parse_count(text: str) -> int:
    """Parse a number such as 25600000, 350M or 1.5B, for argparse."""
    factor = {"K": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:].upper())
    try:
        number = int(text) if factor is None else round(float(text[:-1]) * factor)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters, such as 25600000, 350M or 7B")
    return number


def _parse_seconds(text: str) -> float:
    """Parse a time-out in seconds, for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Print the report; return 0 when a job could run here and 1 when something that it needs is missing."""
    command_line = make_parser()
    arguments = command_line.parse_args(argv)
    if (arguments.master or arguments.remote or arguments.conf) and not arguments.cluster:
        command_line.error("--master, --remote and --conf are for --cluster")
    if arguments.speed and not arguments.cluster:
        command_line.error("--speed is for --cluster")
    if arguments.parameters and not arguments.speed:
        command_line.error("--parameters is for --speed")
    if arguments.cluster:
        return _run_cluster(arguments)
    shown = []
    for finding in examine(with_spark=not arguments.without_spark, start_spark=arguments.spark):
        shown.append(finding)
        if not arguments.json:
            print(finding, flush=True)
    missing = [finding.name for finding in shown if finding.state is Severity.MISSING]
    if arguments.json:
        _print_json(shown)
    elif missing:
        print(f"\nMissing: {', '.join(missing)}.")
    else:
        print(
            "\nEverything that a job needs is present." if arguments.spark or arguments.without_spark else ALL_BUT_SPARK
        )
    return int(bool(missing))


def cluster(spark: SparkSession | None = None, *, timeout: float = CLUSTER_SECONDS) -> list[Finding]:
    """Check every executor of a session, and every pair of them, for what a job needs.

    Args:
        spark: classic or Connect; None: the existing session, else a new one on this machine.
        timeout: seconds in which all slots of the session have to be free at the same time.

    Returns:
        What holds for the session (`executor` is ''), then a finding for each executor and check.

    Raises:
        PreflightError: there is no session, and none can be made.
    """
    from spark_estimator.doctor.survey import examine_cluster

    if spark is None:
        from spark_estimator.launch.spark.session import find_or_make_session

        spark = find_or_make_session(0)
    return list(examine_cluster(spark, timedelta(seconds=timeout)))


def speed(
    spark: SparkSession | None = None, *, parameters: int = PARAMETERS, timeout: float = CLUSTER_SECONDS
) -> Speed:
    """Measure a job on all slots of a session: the links between its hosts, allreduce, and a model's gradients.

    Args:
        spark: classic or Connect; None: the existing session, else a new one on this machine.
        parameters: of the model whose gradients are exchanged.
        timeout: seconds in which the job's ranks have to start.

    Raises:
        PreflightError: there is no session, none can be made, or the job cannot run in it.
        JobFailedError: a rank failed.
    """
    from spark_estimator.doctor.survey import measure_speed

    if type(parameters) is not int or parameters < 1:
        raise ValueError(f"parameters must be an int, 1 or more; got {parameters!r}.")
    if spark is None:
        from spark_estimator.launch.spark.session import find_or_make_session

        spark = find_or_make_session(0)
    return measure_speed(spark, parameters, timedelta(seconds=timeout))


def _run_cluster(arguments: argparse.Namespace) -> int:
    from spark_estimator.doctor.table import format_table

    findings: list[Finding] = []
    measured: Speed | None = None
    with _open_session(arguments) as session:
        for finding in [session] if isinstance(session, Finding) else _examine(session, arguments):
            findings.append(finding)
            if not (arguments.json or finding.executor):
                print(finding, flush=True)
        if not arguments.json:
            print(format_table(findings), flush=True)
        if arguments.speed and not isinstance(session, Finding):
            if not arguments.json:
                print("\nMeasuring the speed of a job in all slots ...", flush=True)
            measured, report = _measure(session, arguments, findings)
            findings += report
            if not arguments.json:
                print("", *report, sep="\n")
    if arguments.json:
        _print_json(findings, {} if measured is None else {"speed": dataclasses.asdict(measured)})
    status = int(any(finding.state is Severity.MISSING for finding in findings))
    if any(thread.is_alive() for thread in _given_up):
        _leave(status)
    return status


def _examine(session: SparkSession, arguments: argparse.Namespace) -> Iterator[Finding]:
    from spark_estimator.doctor.survey import examine_cluster

    return examine_cluster(session, timedelta(seconds=arguments.timeout))


def _measure(
    session: SparkSession, arguments: argparse.Namespace, findings: Sequence[Finding]
) -> tuple[Speed | None, list[Finding]]:
    """Measure the speed of a job in the session. Return it, and findings on it; without those, what is missing."""
    from spark_estimator.doctor.expectation import describe_speed

    if any(finding.state is Severity.MISSING for finding in findings):
        return None, [Finding("speed", Severity.NOTE, "not measured: something that a job needs is missing, see above")]
    try:
        measured = speed(session, parameters=arguments.parameters or PARAMETERS, timeout=arguments.timeout)
    except SparkEstimatorError as error:
        return None, [Finding("speed", Severity.MISSING, f"the job that measures it failed: {error}")]
    return measured, describe_speed(measured)


# Threads that wait for a Spark that does not answer.
_given_up: list[threading.Thread] = []


def _run_within(time: timedelta, function: Callable[[], object], name: str) -> bool:
    """Call `function` in a separate thread. Return whether it ended in time; if not, the thread is abandoned."""
    thread = threading.Thread(target=function, name=f"spark_estimator {name}", daemon=True)
    thread.start()
    thread.join(time.total_seconds())
    if thread.is_alive():
        _given_up.append(thread)
    return not thread.is_alive()


def _leave(status: int) -> NoReturn:
    """End the program at once: what PySpark does at its end asks the server again, which would never end."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)


@contextlib.contextmanager
def _open_session(arguments: argparse.Namespace) -> Iterator[SparkSession | Finding]:
    """Yield the session that the command line asks for, or the problem that prevents it."""
    from spark_estimator.launch.spark.session import find_or_make_session

    if not (arguments.master or arguments.remote or arguments.conf):
        yield find_or_make_session(0)
        return
    session = _start_session(arguments.master, arguments.remote, arguments.conf, timedelta(seconds=arguments.timeout))
    try:
        yield session
    finally:
        if not isinstance(session, Finding):
            _run_within(_STOPPING, session.stop, "session's end")


def _start_session(
    master: str | None, remote: str | None, settings: Sequence[str], timeout: timedelta
) -> SparkSession | Finding:
    """Start the requested session, in a thread abandoned after `timeout`. Return it, or what prevents it."""
    from spark_estimator.doctor.address import explain_silence
    from spark_estimator.launch.spark.errors import find_telling_line

    target = f"at {master or remote}" if master or remote else "with these settings"
    if problem := explain_silence(master or remote or ""):
        return Finding("session", Severity.MISSING, problem, "start it there, or correct the address")
    made: list[SparkSession | Exception] = []

    def make() -> None:
        try:
            made.append(_make_session(master, remote, settings))
        except Exception as error:
            made.append(error)

    if not _run_within(timeout, make, "session"):
        text = f"none {target} within {timeout.total_seconds():g} seconds (--timeout)"
        return Finding("session", Severity.MISSING, text, "see Spark's output above, and the log of that server")
    if isinstance(made[0], Exception):
        fix = "check the address and the settings; see Spark's output above"
        return Finding("session", Severity.MISSING, f"none {target}: {find_telling_line(made[0])}", fix)
    return made[0]


def _make_session(master: str | None, remote: str | None, settings: Sequence[str]) -> SparkSession:
    from pyspark.sql import SparkSession

    from spark_estimator.launch.spark.java_environment import choose_java_environment

    builder = SparkSession.builder.appName("spark_estimator doctor")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    if remote:
        return builder.remote(remote).getOrCreate()
    os.environ.update(choose_java_environment())
    return (builder.master(master) if master else builder).getOrCreate()


def _print_json(findings: Sequence[Finding], more: Mapping[str, object] | None = None) -> None:
    rows = [{**dataclasses.asdict(finding), "state": finding.state.name.lower()} for finding in findings]
    ok = not any(finding.state is Severity.MISSING for finding in findings)
    print(json.dumps({"ok": ok, "findings": rows, **(more or {})}, indent=2))


def examine(*, with_spark: bool = True, start_spark: bool = False) -> Iterator[Finding]:
    """Yield the findings as they are made, with Spark and its needs if wanted, also of a rank in a session."""
    needed = Severity.MISSING if with_spark else Severity.NOTE
    yield machine.check_python()
    yield machine.check_package()
    yield machine.check_distribution("numpy")
    yield machine.check_distribution("cloudpickle")
    yield machine.check_distribution("torch", needed_for="spark_estimator.torch")
    yield machine.check_distribution("pyspark", state=needed, needed_for="HorovodRunner")
    yield machine.check_distribution("pyarrow", state=needed, needed_for="HorovodRunner")
    yield machine.check_distribution("pandas", state=needed, needed_for="HorovodRunner", requirement="pandas")
    if with_spark and importlib.util.find_spec("pyspark"):
        yield attempt("spark with arrow", machine.check_spark_with_arrow, fix="pip install --upgrade pyarrow pandas")
        yield machine.check_workers_python()
    yield machine.check_distribution("lightning", state=Severity.NOTE)
    yield machine.check_tensorflow()
    library = library_path()
    # The wheel for every system, rather than a checkout that is to be built.
    is_client = not library.exists() and not (library.parents[1] / "native").exists()
    state = Severity.NOTE if is_client else Severity.MISSING
    yield attempt("engine", machine.check_engine, state=state, fix="make build, or install the wheel of this platform")
    if not is_client:
        yield attempt(
            "shared memory", machine.check_shared_memory, state=Severity.NOTE,
            fix="without it jobs use TCP, which is slower; give the container more memory (tmpfs counts as memory)",
        )  # fmt: skip
        yield attempt("sockets", machine.check_sockets, fix="bring the loopback interface up: ip link set lo up")
        yield attempt(
            "two local ranks",
            machine.check_two_local_ranks,
            fix="fix the missing items above; otherwise report this with the text",
        )
        yield machine.check_gpu_collectives()
    yield attempt("java", machine.check_java, state=Severity.NOTE if is_client else needed)
    if start_spark:
        yield attempt("slots", machine.check_spark_session, fix="see Spark's output above")
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        yield Finding(
            "slots", Severity.NOTE, f"{cores} cores here; `doctor --spark` starts a session and counts its slots"
        )
    yield machine.check_gpus()
    yield machine.check_old_names()
