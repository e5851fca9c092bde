"""Sends ``doctor.probe`` to every slot of a Spark session, and passes the results to ``doctor.verdicts``.

`measure_speed` runs ``doctor.measurement`` there.
"""

from __future__ import annotations

import contextlib
import json
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from spark_estimator import __version__
from spark_estimator.collectives.rendezvous import make_job_id
from spark_estimator.doctor import probe
from spark_estimator.doctor.findings import Finding, Severity, attempt
from spark_estimator.doctor.measurement import Speed, measure
from spark_estimator.doctor.verdicts import DriverSide, judge_reports
from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.dynamic_allocation import grows_on_demand, uses_barrier
from spark_estimator.launch.spark.encryption_policy import decide_encryption
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.rank_stage import make_rank_stage
from spark_estimator.launch.spark.session import make_session_thread
from spark_estimator.launch.spark.slots import check_session, choose_default_size, count_all_slots, count_slots
from spark_estimator.launch.spark.stage_job import run_on_spark
from spark_estimator.launch.spark.start import TaskReports
from spark_estimator.observe import frames
from spark_estimator.observe.driver_address import find_driver_address
from spark_estimator.observe.driver_server import DriverServer
from spark_estimator.peer_json import parse_object
from spark_estimator.security.authentication import KEY_BYTES

# For one connection, between executors or to the driver. A firewall that drops packets blocks it for this time.
_CONNECTION = timedelta(seconds=5)
_CANCELLED = timedelta(seconds=10)
# Tasks that are tried where executors start on demand.
_ON_DEMAND = 2


def examine_cluster(spark: SparkSession, timeout: timedelta) -> Iterator[Finding]:
    """Yield what ``doctor.cluster`` returns, as it is found; the slots have to be free within the timeout."""
    conf = Configuration(spark)
    yield attempt("session", lambda: f"Spark {spark.version} at {conf.master or 'a remote server'}")
    refused = attempt("barrier stages", lambda: _check_start(spark, conf))
    yield refused
    encryption = attempt("encryption", lambda: _describe_encryption(spark))
    yield encryption
    try:
        size, counted = _choose_size(spark, conf)
        yield Finding("slots", Severity.OK, counted)
    except PreflightError as error:
        size = _guess_size(spark)
        text = f"their number is unknown ({error}); trying {size} tasks"
        yield Finding("slots", Severity.NOTE if size else Severity.MISSING, text)
    if not size or (refused.state is Severity.MISSING and conf.is_local):
        return
    barrier = refused.state is Severity.OK and uses_barrier(conf)
    try:
        encrypted = encryption.state is Severity.OK and decide_encryption(spark)[0]
        reports = _Survey(spark, size, barrier=barrier, encrypted=encrypted).run(timeout)
    except Exception as error:
        explained = spark_errors.explain(str(error)) or error
        ours = isinstance(explained, PreflightError)
        text = str(explained) if ours else f"Spark could not run the checks: {spark_errors.find_telling_line(error)}"
        yield Finding("executors", Severity.MISSING, text, "" if ours else "see the executors' logs")
        return
    here = DriverSide(
        python=platform.python_version(),
        package=__version__,
        packages=probe.check_packages(),
        barrier=barrier,
        gpus_per_task=conf.get_number("spark.task.resource.gpu.amount") or 0.0,
        is_local=conf.is_local,
    )
    yield from judge_reports(here, reports)


def measure_speed(spark: SparkSession, parameters: int, timeout: timedelta) -> Speed:
    """Measure in a job on all slots, as ``doctor.speed``. Raises SparkEstimatorError: the job failed."""
    check_session(spark)
    options = JobOptions(args=(parameters,), verbose=0, start_timeout=timeout)
    result: Speed = run_on_spark(spark, measure, choose_default_size(spark), options)[0]
    return result


def _describe_encryption(spark: SparkSession) -> str:
    encrypted, reason = decide_encryption(spark)
    return f"ranks {'encrypt' if encrypted else 'do not encrypt'} what they send between hosts: {reason}"


def _check_start(spark: SparkSession, conf: Configuration) -> str:
    check_session(spark)
    if uses_barrier(conf):
        return "Spark can start ranks together"
    return "not used here: ranks start one by one and wait for the last; give their number (np, num_proc)"


def _choose_size(spark: SparkSession, conf: Configuration) -> tuple[int, str]:
    """Return how many tasks to try, and the reason for that number."""
    if grows_on_demand(conf):
        size = max(count_slots(spark).count or 0, _ON_DEMAND)
        return size, f"executors start on demand; trying {size} tasks"
    size = count_all_slots(spark)
    return size, f"{size}: {count_slots(spark).arithmetic}"


def _guess_size(spark: SparkSession) -> int:
    """Return how many tasks to try if Spark does not report its number of slots."""
    with contextlib.suppress(PreflightError):
        return choose_default_size(spark)
    return 0


class _Survey:
    """One stage of probes.

    Args:
        size: number of tasks.
        barrier: whether they start together; else they cannot connect to each other.
        encrypted: whether the ranks of a job would encrypt their connections.
    """

    def __init__(self, spark: SparkSession, size: int, *, barrier: bool, encrypted: bool) -> None:
        self._spark = spark
        self._size = size
        self._barrier = barrier
        self._encrypted = encrypted
        self._job_id = make_job_id()
        self._tag = JobTag(spark, f"spark_estimator-doctor-{self._job_id}")
        self._rows: list[Any] = []
        self._error: BaseException | None = None

    def run(self, timeout: timedelta) -> list[dict[str, Any]]:
        """Return the tasks' reports, by partition. Raises PreflightError: too late; else Spark's own error."""
        server = self._listen()
        order = {
            "barrier": self._barrier,
            "encrypted": self._encrypted,
            "channel": server
            and {"host": server.address, "port": server.port, "token": server.token.hex(), "job_id": self._job_id},
            "key": secrets.token_bytes(KEY_BYTES).hex(),
            "seconds": _CONNECTION.total_seconds(),
        }
        try:
            thread = make_session_thread(self._spark, lambda: self._collect(order))
            thread.start()
            thread.join(timeout.total_seconds())
            if thread.is_alive():
                holders = TaskReports(self._spark, self._tag.text).describe_holders()
                self._tag.cancel()
                thread.join(_CANCELLED.total_seconds())
                raise PreflightError(
                    f"the checks did not end within {timeout.total_seconds():g} seconds: they need all {self._size} "
                    f"slots at the same time; {holders}. Try again when they are free, or raise --timeout."
                )
        except KeyboardInterrupt:
            self._tag.cancel()
            raise
        finally:
            if server is not None:
                server.close()
        if self._error is not None:
            raise self._error
        return [parse_object(row.report) for row in sorted(self._rows, key=lambda row: int(row.partition))]

    def _listen(self) -> DriverServer | None:
        """Open the driver's server, as a job has it. It answers a task's facts with the time."""
        listening = threading.Event()

        def receive(partition: int, frame: dict[str, Any]) -> None:
            if frame["kind"] == frames.FACTS and listening.wait(_CONNECTION.total_seconds()):
                server.send(partition, frames.EVERYONE, {"facts": [json.dumps(time.time())]})

        try:
            address = find_driver_address(Configuration(self._spark).get("spark.driver.host") or "")
            server = DriverServer(address, self._job_id, self._size, receive)
        except OSError:
            return None
        listening.set()
        return server

    def _collect(self, order: dict[str, Any]) -> None:
        """Run the stage; in a separate thread, so that it can be abandoned."""
        try:
            self._tag.add(f"doctor's checks in {self._size} tasks")
            with _pickle_probe_by_value():
                numbers = self._spark.range(0, self._size, 1, self._size)
                frame = make_rank_stage(numbers, probe.make_task(order), probe.SCHEMA, barrier=self._barrier)
                self._rows = frame.collect()
        except BaseException as error:
            self._error = error


@contextlib.contextmanager
def _pickle_probe_by_value() -> Iterator[None]:
    """Pickle the probe by value: executors need not have it."""
    cloudpickle.register_pickle_by_value(probe)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(probe)
