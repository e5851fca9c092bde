"""Start real HDFS and YARN daemons, each a process on this machine, from Hadoop's minicluster jar and PySpark's jars.

Order of events: `start_hadoop` formats and starts the NameNode and a DataNode, with ``yarn=True`` also a
ResourceManager and two NodeManagers, and waits until they answer. On leaving, all of them are killed. What fails: a
daemon that ends, or is not ready after three minutes, raises with the end of its log; without the jars, tests skip.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_JARS = Path(os.environ.get("SPARK_ESTIMATOR_TEST_JARS", Path(__file__).parents[2] / "shared" / "jars"))
_COORDINATES = {
    "hadoop-client-minicluster-3.5.0.jar": "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "bcprov-jdk18on-1.82.jar": "org.bouncycastle:bcprov-jdk18on:1.82",
    "bcpkix-jdk18on-1.82.jar": "org.bouncycastle:bcpkix-jdk18on:1.82",
    "bcutil-jdk18on-1.82.jar": "org.bouncycastle:bcutil-jdk18on:1.82",
}
_START_SECONDS = 400
_MAIN_CLASSES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
_LOGGING = """rootLogger.level=info
rootLogger.appenderRef.stdout.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def skip_without_jars() -> Path:
    """Return the folder of the jars; skip the test, naming their Maven coordinates, where it or Java is missing."""
    missing = [coordinates for name, coordinates in _COORDINATES.items() if not (_JARS / name).exists()]
    if missing:
        pytest.skip(f"{_JARS} has no jar of {', '.join(missing)} (Maven); SPARK_ESTIMATOR_TEST_JARS names the folder")
    if shutil.which("java") is None:
        pytest.skip("there is no java here")
    return _JARS


class Hadoop:
    """Running daemons.

    Attributes:
        conf: HADOOP_CONF_DIR, the folder of core-site.xml.
        uri: of HDFS, such as hdfs://127.0.0.1:12345; viewfs://view/data is its folder /viewed.
        views: settings of viewfs://view, and of viewfs://disk, whose /data is a folder of this machine.
        resource_manager: the address of its REST API, or "" without YARN.
    """

    #: Of all addresses.
    host = "127.0.0.1"
    java_options: Sequence[str] = ()

    def __init__(self, folder: Path, jars: Path) -> None:
        import pyspark

        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings: dict[str, Mapping[str, Any]] = {}
        # Below the range that outgoing connections take their ports from.
        self._ports = iter(random.SystemRandom().sample(range(12_000, 30_000), 400))
        self.conf = folder / "conf"
        spark_jars = Path(pyspark.__file__).parent / "jars"
        self._classpath = f"{self.conf}:{spark_jars}/*:{jars}/*"
        self.uri = ""
        self.views: dict[str, str] = {}
        self._name_node = ""
        self.resource_manager = ""

    def environ(self) -> dict[str, str]:
        """Return the variables by which a program's Spark has HDFS as its default file system, and finds YARN."""
        java_home = os.environ.get("JAVA_HOME") or str(Path(os.path.realpath(str(shutil.which("java")))).parents[1])
        return {"HADOOP_CONF_DIR": str(self.conf), "JAVA_HOME": java_home}

    def run_class(self, main_class: str, *arguments: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """Run a Java program of Hadoop's client, such as FsShell, as this HDFS user; the caller reads its exit code."""
        return subprocess.run(
            ["java", "-XX:TieredStopAtLevel=1", *self.java_options, "-cp", self._classpath, main_class, *arguments],
            env={**os.environ, **self.environ(), **({"HADOOP_USER_NAME": user} if user else {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def shell(self, *arguments: str, user: str = "") -> str:
        """Return what ``hdfs dfs`` prints for these arguments, such as ``-ls``; raise if it fails."""
        done = self.run_class("org.apache.hadoop.fs.FsShell", *arguments, user=user)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr[-3000:])
        return done.stdout

    def administrate(self, *arguments: str) -> None:
        """Run ``hdfs dfsadmin``, for example ``-setSpaceQuota 40m /folder``; raise if it fails."""
        done = self.run_class("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr[-3000:])

    def pids(self) -> Mapping[str, int]:
        """Return the daemons' process ids by name, such as namenode, datanode-0, resourcemanager and nodemanager-1."""
        return {name: process.pid for name, process in self._processes.items()}

    def kill(self, name: str) -> None:
        """Kill a daemon (SIGKILL); a NodeManager's containers live on, as on a host whose NodeManager dies."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def restart(self, name: str) -> None:
        """Start a killed daemon again, at its addresses; do not wait for it."""
        self._start(name, self._settings[name])

    def log(self, name: str) -> str:
        """Return what a daemon has logged."""
        return (self._folder / "logs" / f"{name}.log").read_text(errors="replace")

    def _start_hdfs(self) -> None:
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        self.conf.mkdir()
        (self.conf / "log4j2.properties").write_text(_LOGGING)
        self.uri = f"hdfs://{self.host}:{self._port()}"
        self._name_node = f"{self.host}:{self._port()}"
        (self._folder / "disk").mkdir()
        # Not linkMergeSlash: Spark's own writers fail there with FileNotFoundException.
        targets = {"view": f"{self.uri}/viewed", "disk": f"file://{self._folder}/disk"}
        self.views = {f"fs.viewfs.mounttable.{name}.link./data": target for name, target in targets.items()}
        user = {"hadoop.proxyuser.root.hosts": "*", "hadoop.proxyuser.root.groups": "*"}
        self._write(
            "core-site", {"fs.defaultFS": self.uri, "hadoop.tmp.dir": self._folder / "tmp", **self.views, **user}
        )
        self._write(
            "hdfs-site",
            {
                "dfs.replication": 1,
                "dfs.namenode.name.dir": self._folder / "name",
                "dfs.namenode.http-address": self._name_node,
                "dfs.heartbeat.interval": 1,
                "dfs.blocksize": 8 << 20,
                "dfs.namenode.fs-limits.min-block-size": 4096,
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            },
        )
        formatted = self.run_class(_MAIN_CLASSES["namenode"], "-format", "-nonInteractive")
        assert formatted.returncode == 0, formatted.stderr[-3000:]
        self._start("namenode")
        self._start(
            "datanode-0",
            {
                "dfs.datanode.data.dir": self._folder / "data",
                # As of a busy cluster: the name node hears late of new blocks.
                "dfs.blockreport.incremental.intervalMsec": 700,
            }
            | {
                f"dfs.datanode.{part}": f"127.0.0.1:{self._port()}"
                for part in ("address", "http.address", "ipc.address")
            },
        )

    def _start_yarn(self) -> None:
        parts = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        addresses = {f"yarn.resourcemanager.{part}": f"{self.host}:{self._port()}" for part in parts}
        self.resource_manager = f"http://{addresses['yarn.resourcemanager.webapp.address']}"
        self._write(
            "yarn-site",
            {
                "yarn.resourcemanager.hostname": self.host,
                **addresses,
                "yarn.nodemanager.resource.memory-mb": 6144,
                "yarn.nodemanager.resource.cpu-vcores": 4,
                "yarn.scheduler.minimum-allocation-mb": 128,
                "yarn.scheduler.maximum-allocation-mb": 6144,
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.container-monitor.interval-ms": 500,
                # The default leaves memory limits to cgroups, and the monitor does nothing.
                "yarn.nodemanager.resource.memory.enforced": "false",
                "yarn.log-aggregation-enable": "true",
                "yarn.nodemanager.remote-app-log-dir": "/logs",
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.5,
                "yarn.nm.liveness-monitor.expiry-interval-ms": 10_000,
                "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler."
                "capacity.CapacityScheduler",
            },
        )
        self._write(
            "capacity-scheduler",
            {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": 100,
                "yarn.scheduler.capacity.maximum-am-resource-percent": 0.5,
                "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource."
                "DominantResourceCalculator",
            },
        )
        self._start("resourcemanager")
        addresses_of_node = ("address", "localizer.address", "webapp.address", "collector-service.address")
        for index in range(2):
            folders = {f"yarn.nodemanager.{part}-dirs": self._folder / f"{part}{index}" for part in ("local", "log")}
            self._start(
                f"nodemanager-{index}",
                folders | {f"yarn.nodemanager.{part}": f"{self.host}:{self._port()}" for part in addresses_of_node},
            )

    def _start(self, name: str, settings: Mapping[str, Any] | None = None) -> None:
        self._settings[name] = settings or {}
        command = [
            # A run of tests that is killed leaves no daemon.
            *(("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()),
            "java",
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            *self.java_options,
            f"-Dlog4j2.configurationFile={self.conf}/log4j2.properties",
        ]
        command += ["--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", self._classpath]
        # Behind the class: Hadoop takes its settings from arguments, not from Java's properties.
        command += [_MAIN_CLASSES[name.split("-")[0]], *(f"-D{key}={value}" for key, value in (settings or {}).items())]
        with open(self._folder / "logs" / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._folder,
                env={**os.environ, **self.environ()},
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in ended or self._processes)
                raise RuntimeError(f"{ended or 'Hadoop'} did not start within {_START_SECONDS} s:\n{logs}")
            time.sleep(0.5)

    def _is_ready(self) -> bool:
        state = _answer(f"http://{self._name_node}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
        if not any(bean.get("NumLiveDataNodes") == 1 for bean in state.get("beans", ())):
            return False
        if not self.resource_manager:
            return True
        nodes = _answer(f"{self.resource_manager}/ws/v1/cluster/nodes?states=RUNNING").get("nodes") or {}
        return len(nodes.get("node", ())) == 2

    def _port(self) -> int:
        for number in self._ports:
            with socket.socket() as sock:
                with contextlib.suppress(OSError):
                    sock.bind(("127.0.0.1", number))
                    return number
        raise RuntimeError("no port is free")

    def _write(self, name: str, settings: Mapping[str, Any]) -> None:
        properties = "\n".join(
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()
        )
        (self.conf / f"{name}.xml").write_text(
            f'<?xml version="1.0"?>\n<configuration>\n{properties}\n</configuration>\n'
        )


def _answer(url: str) -> dict[str, Any]:
    """Return what a daemon's web server answers; nothing while it does not."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            content: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    return content


@contextlib.contextmanager
def start_hadoop(folder: Path, *, yarn: bool = False, kind: type[Hadoop] = Hadoop) -> Iterator[Hadoop]:
    """Start HDFS, and YARN if asked for, with all its files below this folder; kill the daemons at the end."""
    hadoop = kind(folder, skip_without_jars())
    try:
        hadoop._start_hdfs()
        if yarn:
            hadoop._start_yarn()
        hadoop._wait()
        yield hadoop
    finally:
        for name in list(hadoop.pids()):
            hadoop.kill(name)


if __name__ == "__main__":  # python -m tests.hadoop_daemons FOLDER [yarn]: until Ctrl-C
    with start_hadoop(Path(sys.argv[1]).resolve(), yarn="yarn" in sys.argv) as running:
        print(f"export HADOOP_CONF_DIR={running.conf}  # {running.uri} {running.resource_manager}", flush=True)
        signal.pause()
