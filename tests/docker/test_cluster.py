"""`make cluster` chooses containers or processes; as processes it starts, runs its demo, and leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import cluster_ports
import cluster_state
import pytest

ROOT = Path(__file__).resolve().parents[2]
# A container engine that answers, and writes down what it is asked for.
ENGINE = """\
#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
echo "SECRETS $CLUSTER_SECRETS PORTS $MASTER_UI_PORT $CONNECT_PORT $JUPYTER_PORT" >> {calls}
case "$*" in *service={dead}) ;; ps*) echo 0123456789ab ;; esac
exit {status}
"""


def cluster(folder: Path, *arguments: str, seconds: float = 60, path: str | None = None, **env: str) -> tuple[int, str]:
    """Runs docker/cluster.py. Returns its exit status and its output."""
    answer = subprocess.run(
        [sys.executable, ROOT / "docker" / "cluster.py", *arguments, "--folder", folder],
        env={**os.environ, **({"PATH": path} if path else {}), "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    return answer.returncode, answer.stdout


def engine(folder: Path, name: str, status: int = 0, dead: str = "") -> Path:
    """Puts a program that imitates a container engine into a folder. Returns the file of its calls.

    Args:
        dead: the service whose container it does not list; "*": it lists none.
    """
    calls = folder / "calls"
    program = folder / name
    program.write_text(ENGINE.format(calls=calls, status=status, dead=dead or "-"))
    program.chmod(0o755)
    return calls


def test_an_engine_that_answers_gets_the_compose_file(tmp_path: Path) -> None:
    calls = engine(tmp_path, "docker")
    folder, path = tmp_path / "cluster", f"{tmp_path}:/usr/bin:/bin"
    assert cluster(folder, "variant", path=path) == (0, "containers\n")
    status, output = cluster(folder, "up", "--ports", "connect=25002", path=path)
    assert status == 0, output
    assert "Starting the cluster as containers (docker answers)" in output and "sc://localhost:25002" in output
    secrets = {name: (folder / "secrets" / name).read_text() for name in ("spark", "connect", "jupyter")}
    assert len(set(secrets.values())) == 3 and min(map(len, secrets.values())) == 64
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    assert "is running already" in cluster(folder, "up", path=path)[1]
    assert cluster(folder, "demo", path=path)[0] == 0
    assert cluster(folder, "down", path=path)[0] == 0
    assert cluster(folder, "status", path=path)[0] == 1
    text = calls.read_text()
    project = re.search(r"--project-name (spark-estimator-[0-9a-f]{8}) ", text)
    assert project and f"label=com.docker.compose.project={project[1]} " in text
    assert f"{project[1]} --file={ROOT}/docker/compose.yaml up --detach --build --wait" in text
    assert re.search(rf"SECRETS {folder}/secrets PORTS \d+ 25002 \d+", text)
    assert "exec -T jupyter /opt/entrypoint.sh python /opt/spark-estimator/demo.py estimator" in text
    assert "down --volumes" in text and not (folder / "secrets").exists()


def test_a_container_that_has_ended_is_named_with_the_command_for_its_log(tmp_path: Path) -> None:
    engine(tmp_path, "docker")
    folder, path = tmp_path / "cluster", f"{tmp_path}:/usr/bin:/bin"
    assert cluster(folder, "up", path=path)[0] == 0
    engine(tmp_path, "docker", dead="worker-2")
    status, output = cluster(folder, "status", path=path)
    assert status == 1 and "A part of the cluster has ended: worker-2 (env CLUSTER_SECRETS=" in output
    assert f"{ROOT}/docker/compose.yaml logs worker-2). Stop the rest first: make cluster-down" in output
    engine(tmp_path, "docker", dead="*")
    assert cluster(folder, "status", path=path) == (1, "No cluster is running.\n")
    assert cluster(folder, "down", path=path)[0] == 0


def test_two_checkouts_have_clusters_of_their_own(tmp_path: Path) -> None:
    calls = engine(tmp_path, "docker")
    for name in ("one", "two"):
        assert cluster(tmp_path / name, "up", path=f"{tmp_path}:/usr/bin:/bin")[0] == 0
    assert len(set(re.findall(r"--project-name (\S+)", calls.read_text()))) == 2


def test_without_an_engine_the_reasons_are_given(tmp_path: Path) -> None:
    engine(tmp_path, "docker", status=1)
    path = f"{tmp_path}:/usr/bin:/bin"
    assert cluster(tmp_path / "cluster", "variant", path=path) == (0, "processes\n")
    assert cluster(tmp_path / "cluster", "variant", "--variant", "processes", path=path) == (0, "processes\n")
    status, output = cluster(tmp_path / "cluster", "up", "--variant", "containers", path=path)
    assert status == 1
    assert "CLUSTER=containers needs a container engine with compose, but docker does not answer: " in output


def test_what_does_not_run_is_neither_tried_nor_stopped(tmp_path: Path) -> None:
    status, output = cluster(tmp_path, "demo")
    assert (status, output) == (1, "cluster: No cluster is running. Start it first: make cluster\n")
    assert cluster(tmp_path, "down") == (0, "No cluster is running.\n")
    assert cluster(tmp_path, "status") == (1, "No cluster is running.\n")


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, output = cluster(tmp_path, "up", "--variant", "processes", "--ports", f"master={port}")
    assert status == 1
    assert output.startswith(
        f"cluster: Port {port} (for master) is in use. {port} is used by pid {os.getpid()} of user "
    )
    assert cluster_state.marked(tmp_path) == []


def test_a_part_that_has_ended_is_named(tmp_path: Path) -> None:
    alive = cluster_state.Process("master", os.getpid(), cluster_state.start_time(os.getpid()) or 0, "m.log")
    ended = cluster_state.Process("worker-1", os.getpid(), 1, "w.log")
    cluster_state.State("processes", processes=[alive, ended]).write(tmp_path / "state.json")
    status, output = cluster(tmp_path, "up")
    assert status == 1
    assert "A part of the cluster has ended: worker-1 (log: w.log). Stop the rest first: make cluster-down" in output


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "cluster"
    yield path
    cluster(path, "down")
    assert cluster_state.marked(path) == []


def free_ports() -> str:
    """Ports of this test's own: another cluster may run on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1]
    names = list(cluster_ports.PREFERRED)
    free = [port for port in range(min(first, 60000), 65000) if cluster_ports.is_free(port)][: len(names)]
    return ",".join(f"{name}={port}" for name, port in zip(names, free, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_start_run_the_demo_and_end(folder: Path) -> None:
    for module in ("pyspark", "torch", "sklearn", "grpc"):
        pytest.importorskip(module)
    status, output = cluster(folder, "up", "--variant", "processes", "--ports", free_ports(), seconds=200)
    assert status == 0, output
    state = json.loads((folder / "state.json").read_text())
    names = {"master", "worker-1", "worker-2", "connect"}
    names |= {"jupyter"} if importlib.util.find_spec("jupyterlab") else set()
    assert {process["name"] for process in state["processes"]} == names
    secrets = {path.name: path.read_text() for path in (folder / "secrets").iterdir()}
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "conf" / "spark-defaults.conf").stat().st_mode) == 0o600

    # A second start changes nothing.
    status, output = cluster(folder, "up", "--variant", "processes")
    assert status == 0 and output.startswith("The cluster is running already.\n"), output
    assert json.loads((folder / "state.json").read_text()) == state

    pids = cluster_state.marked(folder)
    assert pids
    # Every port is one of the loopback address.
    for pid in pids:
        for address in listening_addresses(pid):
            assert address.startswith(("127.", "::ffff:127.")), (pid, address)
    # No secret is in a list of processes, or in a log.
    texts = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
    texts += [log.read_text(errors="replace") for log in (folder / "logs").iterdir()]
    for name, secret in secrets.items():
        assert not [text for text in texts if secret in text], name
    if "jupyter" in names:
        page = state["addresses"]["jupyter"].replace("/lab", "/api/contents")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(page, timeout=30)
        with urllib.request.urlopen(f"{page}?token={secrets['jupyter']}", timeout=30) as reply:
            assert "horovod_runner.ipynb" in reply.read().decode()

    status, output = cluster(folder, "demo", seconds=400)
    assert status == 0, output
    ran = re.findall(r"^rank (\d) ran in \S+/work/(worker-\d)/", output, re.MULTILINE)
    assert [rank for rank, _ in ran] == ["0", "1"] and {worker for _, worker in ran} == {"worker-1", "worker-2"}
    assert "of 4000 rows are classified correctly" in output

    # A daemon that has ended is named, and the rest can be stopped.
    worker = next(process for process in state["processes"] if process["name"] == "worker-1")
    os.kill(worker["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while cluster_state.start_time(worker["pid"]) == worker["started"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status, output = cluster(folder, "demo")
    assert status == 1 and "A part of the cluster has ended: worker-1 (log: " in output, output
    status, output = cluster(folder, "down")
    assert status == 0, output
    assert cluster_state.marked(folder) == []
    left = subprocess.run(["pgrep", "--full", "--list-full", str(folder)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    assert {path.name for path in folder.iterdir()} == {"lock", "logs"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_strangers_are_refused(folder: Path) -> None:
    """A driver without Spark's secret, and a Connect client without the token."""
    pytest.importorskip("grpc")
    status, output = cluster(folder, "up", "--variant", "processes", "--ports", free_ports(), seconds=200)
    assert status == 0, output
    addresses = json.loads((folder / "state.json").read_text())["addresses"]
    program = (
        "from pyspark.sql import SparkSession; print(SparkSession.builder.{}.getOrCreate().range(3).count(), 'rows')"
    )
    for how in (f"remote({addresses['connect']!r})", f"master({addresses['master']!r})"):
        answer = subprocess.run(
            [sys.executable, "-c", program.format(how)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert answer.returncode != 0 and "rows" not in answer.stdout, answer.stdout + answer.stderr
    token = (folder / "secrets" / "connect").read_text()
    answer = subprocess.run(
        [sys.executable, "-c", program.format(f"remote({addresses['connect']!r})")],
        env={**os.environ, "SPARK_CONNECT_AUTHENTICATE_TOKEN": token},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert answer.stdout == "3 rows\n", answer.stdout + answer.stderr


def listening_addresses(pid: int) -> list[str]:
    """The addresses at which a process listens, as text."""
    psutil = pytest.importorskip("psutil")
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
    return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]
