"""Starts the kinds of Spark that the launcher must serve, from the pip package alone, and drivers that use them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `make cluster` starts its daemons with the same code.
sys.path.append(str(ROOT / "docker"))

import spark_daemons  # noqa: E402
from spark_daemons import SPARK_HOME, Daemon, Role  # noqa: E402

from benchmarks.namespaces import Host  # noqa: E402

DRIVERS = Path(__file__).parent / "drivers"
MARKER = "SPARK_ESTIMATOR_TEST_MARKER"
# Another test runs beside each: a driver may take twice as long, as tests/conftest.py allows the test itself.
SLOWDOWN = 2 if "PYTEST_XDIST_WORKER" in os.environ else 1


def environment(**more: str | None) -> dict[str, str]:
    """What drivers and daemons need in order to be found, to stay on this host and find our package; None removes."""
    from spark_estimator.launch.spark.java_environment import choose_java_environment

    variables = {
        **os.environ,
        **choose_java_environment(),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore::FutureWarning,ignore::UserWarning",
        **more,
    }
    return {name: value for name, value in variables.items() if value is not None}


def kill_group(process: subprocess.Popen[str]) -> None:
    """Ends a process that leads its group, and the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def spark_home(folder: Path) -> Path:
    """A Spark that is the installed one, but for what its workers write beside it, which stays in `folder`.

    ``local-cluster`` has no setting for another place; executors of two applications that begin in the same second
    would share theirs.
    """
    home = folder / "spark"
    home.mkdir(exist_ok=True)
    for path in SPARK_HOME.iterdir():
        link = home / path.name
        if path.name != "work" and not link.is_symlink():
            link.symlink_to(path)
    return home


def _start(command: Sequence[str], log: Path, host: Host | None = None, **env: str | None) -> Daemon:
    """Starts a program as the leader of its own process group, in the folder of its log; on `host`, if given."""
    variables = {"SPARK_HOME": str(spark_home(log.parent)), **env}
    if host is None:
        return spark_daemons.start(command, log, environment(**variables))
    with host.entered():
        variables["SPARK_LOCAL_IP"] = host.address
        return spark_daemons.start([*host.named, *command], log, environment(**variables))


@contextlib.contextmanager
def daemon(role: Role, folder: Path, host: Host | None = None, **env: str) -> Iterator[Daemon]:
    """Runs a Spark daemon in its own process group until the end of the block."""
    running = _start(role.command, folder / f"{role.name}.log", host, SPARK_DAEMON_MEMORY="600m", **env)
    try:
        yield running
    finally:
        running.process.terminate()  # a worker ends its executors, which are in separate groups
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(20)
        kill_group(running.process)


@contextlib.contextmanager
def standalone(
    folder: Path, addresses: Sequence[str] = ("127.0.0.1", "127.0.0.1"), settings: Sequence[str] = ()
) -> Iterator[str]:
    """A master and workers of two cores and two pretended GPUs each, at addresses of this host.

    Spark takes workers at different addresses for different hosts. Yields the master's address.
    """
    script = folder / "gpus.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0", "1"]}\'\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (folder / "worker.conf").write_text(
        "\n".join(
            [f"spark.worker.resource.gpu.amount 2\nspark.worker.resource.gpu.discoveryScript {script}", *settings]
        )
    )
    with contextlib.ExitStack() as stack:
        role = spark_daemons.master_role()
        address = stack.enter_context(daemon(role, folder)).wait_for(role.ready)[1]
        workers = []
        for number, own_address in enumerate(addresses):
            more = ("--properties-file", str(folder / "worker.conf"))
            work = folder / f"work{number}"
            role = spark_daemons.worker_role(f"worker{number}", address, work, more, host=own_address)
            workers.append(stack.enter_context(daemon(role, folder)))
        for worker in workers:
            worker.wait_for(role.ready)
        yield address


@contextlib.contextmanager
def standalone_on(hosts: Sequence[Host], folder: Path) -> Iterator[str]:
    """A master on the first host, and a worker of two cores on each. Yields the master's address."""
    with contextlib.ExitStack() as stack:
        role = spark_daemons.master_role(host=hosts[0].address)
        address = stack.enter_context(daemon(role, folder, hosts[0])).wait_for(role.ready)[1]
        workers = []
        for host in hosts:
            role = spark_daemons.worker_role(host.name, address, folder / f"work-{host.name}", host=host.address)
            workers.append(stack.enter_context(daemon(role, folder, host)))
        for worker in workers:
            worker.wait_for(role.ready)
        yield address


@contextlib.contextmanager
def connect_server(
    folder: Path,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A Spark Connect server, and more settings and variables for it. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    conf = {
        "spark.ui.enabled": "false",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        **(settings or {}),
    }
    role = spark_daemons.connect_role(port, conf, master)
    with daemon(role, folder, **(env or {})) as server:
        server.wait_for(role.ready)
        yield f"sc://127.0.0.1:{port}"


def web_address(log: Path) -> str:
    """The address of a session's pages, from its log."""
    match = re.search(r"Successfully started service 'SparkUI' on port (\d+)", log.read_text(errors="replace"))
    assert match, log.read_text(errors="replace")[-3000:]
    return f"http://127.0.0.1:{match[1]}"


@dataclass
class Driver:
    """A driver program in a separate process."""

    process: subprocess.Popen[str]
    log: Path

    def wait(self, seconds: float = 240) -> dict[str, object]:
        """Waits for the end. Returns the JSON object that it printed on its line ``RESULT {...}``."""
        seconds *= SLOWDOWN
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver still runs after {seconds} s:\n{self.output()[-6000:]}") from None
        output = self.output()
        match = re.search(r"^RESULT (\{.*\})$", output, re.MULTILINE)
        assert match, f"the driver ended with {self.process.returncode} and no result:\n{output[-6000:]}"
        result: dict[str, object] = json.loads(match[1])
        return result

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Waits until the driver has printed `text`."""
        seconds *= SLOWDOWN
        deadline = time.monotonic() + seconds
        while text not in self.output():
            assert self.process.poll() is None, f"the driver ended without {text!r}:\n{self.output()[-6000:]}"
            assert time.monotonic() < deadline, f"no {text!r} within {seconds} s:\n{self.output()[-6000:]}"
            time.sleep(0.05)

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def driver(
    program: Path | str,
    *arguments: str,
    folder: Path,
    env: Mapping[str, str | None] | None = None,
    python: str = sys.executable,
    host: Host | None = None,
) -> Iterator[Driver]:
    """Runs a driver program, on `host` if given, until the end of the block; remaining processes are then killed."""
    log = folder / f"{Path(program).stem}-{time.monotonic_ns()}.log"
    process = _start([python, "-u", str(DRIVERS / program), *arguments], log, host, **(env or {})).process
    try:
        yield Driver(process, log)
    finally:
        kill_group(process)


def processes_with(text: str) -> dict[int, str]:
    """pid -> command line of all processes whose environment contains `text`, without servers that wait for a job."""
    commands = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if text.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
                if not is_waiting_server(folder, command):
                    commands[int(folder.name)] = command
    return commands


def is_waiting_server(folder: Path, command: str) -> bool:
    """Whether it is a fork server; the workers that it has forked have its command line, and another mark."""
    return "worker.fork_server" in command and b"SPARK_ESTIMATOR_PROCESS=00" in (folder / "environ").read_bytes()


def _stat(pids: Iterable[int]) -> str:
    """State, parent, group and session of each, and its mark."""
    descriptions = []
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
            marks = re.findall(rb"SPARK_ESTIMATOR_PROCESS=([^\0]*)", Path(f"/proc/{pid}/environ").read_bytes())
            descriptions.append(f"{pid}: {text.split()[:4]} {marks}")
    return "; ".join(descriptions)


def wait_until_gone(text: str, seconds: float = 30) -> None:
    """Fails if, after `seconds`, there still is a process whose environment contains `text`."""
    deadline = time.monotonic() + seconds
    while left := processes_with(text):
        assert time.monotonic() < deadline, f"still alive after {seconds} s: {left}; {_stat(left)}"
        time.sleep(0.05)
