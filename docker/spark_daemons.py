"""Starts the daemons of a Spark standalone cluster, and a Spark Connect server, from PySpark's pip package.

The pip package has no ``start-master.sh``, but ``spark-class`` and ``spark-submit`` start the same Java classes. Both
are shell scripts that replace themselves by Java, so a daemon is one process, and the leader of its process group.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"


class DaemonError(RuntimeError):
    """A daemon ended, or did not become ready in time; the text contains the end of its log."""


@dataclass(frozen=True)
class Role:
    """A daemon that can be started.

    Attributes:
        name: also the name of its log file.
        command: the program and its arguments.
        ready: a regular expression of the log line that the daemon writes when others can use it.
    """

    name: str
    command: tuple[str, ...]
    ready: str


def master_role(port: int = 0, ui_port: int = 0, host: str = LOOPBACK) -> Role:
    """A standalone master; 0 lets the system choose a port. The first group of `ready` is the address, spark://..."""
    options = ("--host", host, "--port", str(port), "--webui-port", str(ui_port))
    command = (str(SPARK_HOME / "bin/spark-class"), "org.apache.spark.deploy.master.Master", *options)
    return Role("master", command, r"Starting Spark master at (spark://\S+)")


def worker_role(
    name: str, master: str, work: Path, more: Sequence[str] = (), cores: int = 2, host: str = LOOPBACK
) -> Role:
    """A standalone worker with 2 GiB of memory for executors, at ports that the system chooses.

    Args:
        name: the name of the role.
        master: the master's address, spark://...
        work: the folder for the files of its executors.
        more: further arguments of the worker.
        cores: the number of cores that it offers.
        host: the address of its host.
    """
    options = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", "2g"]
    options += ["--work-dir", str(work), *more, master]
    command = (str(SPARK_HOME / "bin/spark-class"), "org.apache.spark.deploy.worker.Worker", *options)
    return Role(name, command, "Successfully registered with master")


def connect_role(port: int, settings: Mapping[str, str], master: str | None = None) -> Role:
    """A Spark Connect server.

    Args:
        port: where it listens.
        settings: further Spark settings. They are visible in the list of processes: a secret belongs in a file.
        master: the master of its session; by default that of ``spark-defaults.conf``.
    """
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": LOOPBACK,
        **settings,
    }
    options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    options += ["--master", master] if master else []
    program = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *options, "spark-internal")
    return Role(
        "connect",
        (str(SPARK_HOME / "bin/spark-submit"), *program),
        r"Spark Connect server started|SparkConnectServer: .*started at",
    )


@dataclass
class Daemon:
    """A process that was started, and the file that it logs to."""

    process: subprocess.Popen[str]
    log: Path

    def wait_for(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """The first match of `pattern` in the log. Raises DaemonError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.process.poll()
            text = self.log.read_text(errors="replace")
            if match := re.search(pattern, text):
                return match
            if status is not None:
                raise DaemonError(f"{self.log.stem} ended with status {status}. The end of {self.log}:\n{text[-3000:]}")
            time.sleep(0.2)
        text = self.log.read_text(errors="replace")[-3000:]
        raise DaemonError(f"{self.log.stem} is not ready after {seconds:g} s. The end of {self.log}:\n{text}")


def start(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Daemon:
    """Starts a program as the leader of its own process group, in the folder of its log, with exactly `env`."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    return Daemon(process, log)
