"""Where the ranks of the benchmark run, and what a kill ends there: a rank, an executor of Spark, or a host."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from benchmarks.namespaces import Network, remote_shell
from spark_estimator.elastic.decisions import Terms
from spark_estimator.env import Settings
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.elastic.placement import Cooldown
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.options import JobOptions

_ROOT = Path(__file__).resolve().parents[2]
_EXECUTOR = b"CoarseGrainedExecutorBackend"
# Hosts and executors beside those of the ranks and of the processes on standby: there a killed one is replaced at once.
_SPARE = 1


class Place(Protocol):
    """Runs jobs, and kills what a rank needs."""

    def run(self, function: Callable[..., Any], terms: Terms, options: JobOptions) -> list[Any]:
        """The values of the ranks of an elastic job, in rank order."""

    def kill(self, rank: int) -> None:
        """Kills the process `rank`, and what dies with it here.

        Raises:
            ProcessLookupError: it has ended.
        """


@contextmanager
def place_of(name: str, processes: int, folder: str) -> Iterator[Place]:
    """`local`, `spark` or `hosts`.

    Args:
        processes: that a job has at a time.
        folder: for files.

    Raises:
        UnavailableError: network namespaces are not permitted, which `hosts` needs.
    """
    if name == "local":
        yield _Local()
    elif name == "hosts":
        with Network.open(processes + _SPARE) as network:
            yield _Hosts(network, folder)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Executors do not start in this folder.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(f"local-cluster[{processes + _SPARE},1,1024]").appName("recovery")
        for setting, value in (("spark.ui.enabled", "false"), ("spark.driver.host", "127.0.0.1")):
            builder = builder.config(setting, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield _Spark(spark)
        finally:
            spark.stop()


class _Local:
    """Processes of this machine. A kill ends a rank."""

    def run(self, function: Callable[..., Any], terms: Terms, options: JobOptions) -> list[Any]:
        return run_elastic_local(function, terms, options)

    def kill(self, rank: int) -> None:
        os.kill(rank, signal.SIGKILL)


class _Spark:
    """Executors of one core each. A kill ends an executor."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def run(self, function: Callable[..., Any], terms: Terms, options: JobOptions) -> list[Any]:
        from spark_estimator.launch.spark.elastic.job import run_elastic_on_spark

        return run_elastic_on_spark(self._spark, function, terms, options)

    def kill(self, rank: int) -> None:
        process = rank
        try:
            while _EXECUTOR not in Path(f"/proc/{process}/cmdline").read_bytes():
                process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            raise ProcessLookupError(f"rank with pid {rank} has no executor any more") from None
        os.kill(process, signal.SIGKILL)


class _Hosts:
    """Network namespaces with a slot each, reached as by ssh. A kill ends all processes of a host."""

    def __init__(self, network: Network, folder: str) -> None:
        self._network = network
        self._shell = remote_shell(Path(folder), network.hosts)

    def run(self, function: Callable[..., Any], terms: Terms, options: JobOptions) -> list[Any]:
        from spark_estimator.launch.ssh.command import SshOptions
        from spark_estimator.launch.ssh.job import run_function_on_hosts

        return run_function_on_hosts(
            function,
            terms.size,
            [Host(host.name, 1) for host in self._network.hosts],
            SshOptions(interfaces=("eth0",), ssh=(self._shell,), settings=Settings.read()),
            options,
            terms=terms,
            cooldown=Cooldown(timedelta(seconds=1), timedelta(seconds=1)),
        )

    def kill(self, rank: int) -> None:
        try:
            host = os.readlink(f"/proc/{rank}/ns/net")
        except FileNotFoundError:
            raise ProcessLookupError(f"pid {rank} has ended") from None
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{process}/ns/net") == host:
                    os.kill(int(process), signal.SIGKILL)
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue  # it has ended in the meantime, or is not of this benchmark
