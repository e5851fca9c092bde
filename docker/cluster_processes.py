"""The cluster as plain processes of this machine: a master, two workers, a Spark Connect server and Jupyter.

All of them listen at the loopback address. Other users of the machine can reach that address, too. Each daemon
therefore asks for a secret: Spark's own authentication between master, workers, drivers and executors, a token for
Connect and one for Jupyter. Each start makes new secrets, in files that only this user can read.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import cluster_state
from cluster_state import MARK, Process, State

if TYPE_CHECKING:
    import spark_daemons

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORKERS = 2
CORES_PER_WORKER = 3  # the Connect server, the demo and a notebook have a core each
SECRETS = ("spark", "connect", "jupyter")
# Variables that name another Spark than this one.
_OTHER_SPARK = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON")


class ClusterError(RuntimeError):
    """The cluster cannot be started or used; the text is for the user."""


def write_secrets(folder: Path) -> dict[str, str]:
    """Makes the secrets of a cluster, and writes each to a separate file. Returns them by name.

    The folder is closed to other users. The files in it are not: the user of a container, who is another one, reads
    them where they are mounted.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    values = {name: secrets.token_hex(32) for name in SECRETS}
    for name, value in values.items():
        path = folder / name
        path.write_text(value)
        path.chmod(0o444)
    return values


def up(folder: Path, ports: Mapping[str, int]) -> State:
    """Starts the cluster, and waits until all of it is ready.

    Args:
        folder: for its files; what an earlier cluster left in it is removed.
        ports: as `cluster_ports.choose` returns them.

    Raises:
        ClusterError: a daemon did not start; then none is left running.
    """
    try:
        import spark_daemons

        from spark_estimator.launch.spark.java_environment import choose_java_environment
    except ImportError as error:
        raise ClusterError(f"{error}: run `make cluster`, which installs it.") from error
    logs = folder / "logs"
    for path in (logs, folder / "work", folder / "scratch", folder / "conf"):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    keys = write_secrets(folder / "secrets")
    env = _environment(folder) | choose_java_environment()
    env |= {"SPARK_CONNECT_AUTHENTICATE_TOKEN": keys["connect"], "JUPYTER_TOKEN": keys["jupyter"]}
    state = State("processes")
    started: dict[str, spark_daemons.Daemon] = {}

    def start(role: spark_daemons.Role) -> None:
        daemon = spark_daemons.start(role.command, logs / f"{role.name}.log", env)
        started[role.name] = daemon
        ticks = cluster_state.start_time(daemon.process.pid) or 0
        state.processes.append(Process(role.name, daemon.process.pid, ticks, str(daemon.log)))
        state.write(folder / "state.json")

    try:
        _write_settings(folder, f"spark://{spark_daemons.LOOPBACK}:{ports['master']}", keys["spark"])
        role = spark_daemons.master_role(ports["master"], ports["master-ui"])
        start(role)
        master = started["master"].wait_for(role.ready)[1]
        _write_settings(folder, master, keys["spark"])
        roles = [
            spark_daemons.worker_role(
                f"worker-{n + 1}", master, folder / "work" / f"worker-{n + 1}", (), CORES_PER_WORKER
            )
            for n in range(WORKERS)
        ]
        roles.append(spark_daemons.connect_role(ports["connect"], {}))
        if importlib.util.find_spec("jupyterlab"):
            roles.append(_jupyter_role(ports["jupyter"]))
        for role in roles:
            start(role)
        for role in roles:
            started[role.name].wait_for(role.ready)
        ui = started["master"].wait_for(r"Bound MasterWebUI to \S+, and started at \S+:(\d+)")[1]
    except BaseException as error:
        stop(folder, state)
        if isinstance(error, (spark_daemons.DaemonError, OSError)):
            raise ClusterError(f"The cluster did not start, and nothing is left running. {error}") from error
        raise
    state.addresses = {
        "master": master,
        "master's page": f"http://{spark_daemons.LOOPBACK}:{ui}",
        # With a token but without TLS, PySpark's client connects to this very name only.
        "connect": f"sc://localhost:{ports['connect']}",
        **({"jupyter": f"http://{spark_daemons.LOOPBACK}:{ports['jupyter']}/lab"} if "jupyter" in started else {}),
    }
    state.write(folder / "state.json")
    return state


def demo(folder: Path, state: State) -> int:
    """Runs the demo on the cluster. Returns the exit status."""
    env = _environment(folder) | {
        "CLUSTER_MASTER": state.addresses["master"],
        "CLUSTER_CONNECT": state.addresses["connect"],
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": (folder / "secrets" / "connect").read_text(),
    }
    from spark_estimator.launch.spark.java_environment import choose_java_environment

    for part in ("function", "estimator"):
        began = time.monotonic()
        status = subprocess.run(
            [sys.executable, str(HERE / "demo.py"), part], env=env | choose_java_environment(), cwd=folder, check=False
        ).returncode
        print(f"-- {part}: {time.monotonic() - began:.1f} s, exit status {status}\n", flush=True)
        if status:
            print(f"The demo failed; the logs of the daemons are in {folder / 'logs'}", file=sys.stderr)
            return status
    return 0


def stop(folder: Path, state: State | None) -> None:
    """Ends all processes of the cluster, and removes its secrets and temporary files. The logs stay.

    Raises:
        ClusterError: a process cannot be ended.
    """
    # First the drivers, whose end gives the executors back; then the workers, which end their executors; then the rest.
    processes = list(state.processes) if state else []
    for names in (("connect", "jupyter"), ("worker-",), ("master",)):
        cluster_state.end(process for process in processes if process.name.startswith(names))
    if left := cluster_state.kill_marked(folder):
        raise ClusterError(f"These processes of the cluster cannot be ended: {' '.join(map(str, left))}")
    (folder / "state.json").unlink(missing_ok=True)
    for path in ("secrets", "conf", "scratch", "work"):
        shutil.rmtree(folder / path, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """The variables of the daemons and the demo, without secrets."""
    import spark_daemons

    return {name: value for name, value in os.environ.items() if name not in _OTHER_SPARK} | {
        MARK: str(folder),
        "SPARK_HOME": str(spark_daemons.SPARK_HOME),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": spark_daemons.LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
        "JUPYTER_RUNTIME_DIR": str(folder / "scratch" / "jupyter"),
    }


def _write_settings(folder: Path, master: str, secret: str) -> None:
    """Writes spark-defaults.conf, which the daemons, the demo and the notebooks read; only this user can read it."""
    settings = {
        "spark.master": master,
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.master.rest.enabled": "false",  # it knows no authentication
        "spark.ui.killEnabled": "false",  # Spark's pages do not authenticate users
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(WORKERS),
        "spark.executor.instances": str(WORKERS),  # so a job waits for an executor that is slow to start
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(WORKERS),
        # A job for which there are too few slots is refused after seconds, not after ten minutes.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    }
    path = folder / "conf" / "spark-defaults.conf"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))


def _jupyter_role(port: int) -> spark_daemons.Role:
    import spark_daemons

    options = ["--no-browser", f"--ServerApp.ip={spark_daemons.LOOPBACK}", f"--ServerApp.port={port}"]
    options += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={ROOT / 'notebooks'}"]
    options += ["--ServerApp.allow_root=True"] if os.geteuid() == 0 else []
    command = (sys.executable, "-m", "jupyterlab", *options)
    return spark_daemons.Role("jupyter", command, r"Jupyter Server \S+ is running at")
