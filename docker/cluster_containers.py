"""The cluster in containers: chooses an engine that answers, and gives it the compose file."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import cluster_state
from cluster_processes import ClusterError, write_secrets
from cluster_state import State

HERE = Path(__file__).resolve().parent
# The second is a user's own, as Docker Compose reads it: mounts, GPUs, other limits.
COMPOSE_FILES = (HERE / "compose.yaml", HERE / "compose.override.yaml")
ENGINES = ("docker", "podman")
SERVICES = ("master", "worker-1", "worker-2", "connect", "jupyter")


def find_engine() -> tuple[str | None, list[str]]:
    """The first engine that can start a compose file, and for each one before it why it cannot."""
    reasons = []
    for engine in ENGINES:
        if shutil.which(engine) is None:
            reasons.append(f"{engine} is not installed")
            continue
        for question, failure in ((["info"], "does not answer"), (["compose", "version"], "has no compose command")):
            try:
                answer = subprocess.run(
                    [engine, *question],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=30,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                reasons.append(f"{engine} {failure}: {error}")
                break
            if answer.returncode:
                lines = answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"]
                reasons.append(f"{engine} {failure}: {lines[-1]}")
                break
        else:
            return engine, reasons
    return None, reasons


def up(folder: Path, engine: str, ports: Mapping[str, int]) -> State:
    """Builds the images and starts the containers. Raises ClusterError."""
    write_secrets(folder / "secrets")
    state = State("containers", engine)
    state.addresses = {
        "master's page": f"http://127.0.0.1:{ports['master-ui']}",
        "connect": f"sc://localhost:{ports['connect']}",
        "jupyter": f"http://127.0.0.1:{ports['jupyter']}/lab",
    }
    state.write(folder / "state.json")
    if _compose(folder, state, "up", "--detach", "--build", "--wait", ports=ports):
        raise ClusterError(
            f"{engine} compose could not start the cluster; its messages are above. Those of the containers: "
            f"{show_logs(folder, state)}. `make cluster-down` removes them."
        )
    return state


def show_logs(folder: Path, state: State, *services: str) -> str:
    """The command that prints what containers have logged; without services, all of them."""
    return shlex.join(["env", f"CLUSTER_SECRETS={folder / 'secrets'}", *_command(folder, state), "logs", *services])


def find_dead(folder: Path, state: State) -> list[str]:
    """The services of which no container is running. Raises ClusterError when the engine does not answer."""
    dead = []
    for service in SERVICES:
        labels = {"project": _project(folder), "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        answer = subprocess.run([state.engine, "ps", "--quiet", *filters], capture_output=True, text=True, check=False)
        if answer.returncode:
            raise ClusterError(f"{state.engine} ps failed: {answer.stderr.strip() or answer.returncode}")
        if not answer.stdout.strip():
            dead.append(service)
    return dead


def demo(folder: Path, state: State) -> int:
    """Runs the demo in the container of Jupyter. Returns the exit status."""
    for part in ("function", "estimator"):
        program = ("/opt/entrypoint.sh", "python", "/opt/spark-estimator/demo.py", part)
        if status := _compose(folder, state, "exec", "-T", "jupyter", *program):
            return status
    return 0


def stop(folder: Path, state: State) -> None:
    """Removes the containers and their networks. Raises ClusterError."""
    if _compose(folder, state, "down", "--volumes"):
        raise ClusterError(f"{state.engine} compose could not remove the containers; its messages are above.")
    (folder / "state.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "secrets", ignore_errors=True)


def _project(folder: Path) -> str:
    """The name of the containers' project: one for each checkout."""
    return f"spark-estimator-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _command(folder: Path, state: State) -> list[str]:
    files = [f"--file={path}" for path in COMPOSE_FILES if path.exists()]
    return [state.engine, "compose", "--project-name", _project(folder), *files]


def _environment(folder: Path, ports: Mapping[str, int] | None = None) -> dict[str, str]:
    """The variables that the compose file reads."""
    numbers = {f"{name.upper().replace('-', '_')}_PORT": str(port) for name, port in (ports or {}).items()}
    return {**os.environ, **numbers, "CLUSTER_SECRETS": str(folder / "secrets"), cluster_state.MARK: str(folder)}


def _compose(folder: Path, state: State, *arguments: str, ports: Mapping[str, int] | None = None) -> int:
    return subprocess.run(
        [*_command(folder, state), *arguments], env=_environment(folder, ports), check=False
    ).returncode
