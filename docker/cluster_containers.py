"""The cluster in containers: chooses an engine that answers, and gives it the compose file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import cluster_state
from cluster_processes import ClusterError, write_secrets
from cluster_state import State

COMPOSE_FILE = Path(__file__).resolve().parent / "compose.yaml"
ENGINES = ("docker", "podman")


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
            f"{engine} compose could not start the cluster; its messages are above. `{engine} compose --file "
            f"{COMPOSE_FILE} logs` shows those of the containers, `make cluster-down` removes them."
        )
    return state


def runs(folder: Path, state: State) -> bool:
    """Whether containers of the cluster are running."""
    answer = subprocess.run(
        [*_command(state), "ps", "--quiet"], env=_environment(folder), capture_output=True, text=True, check=False
    )
    return answer.returncode == 0 and bool(answer.stdout.strip())


def demo(folder: Path, state: State) -> int:
    """Runs the demo in the container of Jupyter. Returns the exit status."""
    for part in ("function", "estimator"):
        program = ("/opt/entrypoint.sh", "python", "/opt/spark-estimator/demo.py", part)
        if status := _compose(folder, state, "exec", "--no-TTY", "jupyter", *program):
            return status
    return 0


def stop(folder: Path, state: State) -> None:
    """Removes the containers and their networks. Raises ClusterError."""
    if _compose(folder, state, "down", "--volumes"):
        raise ClusterError(f"{state.engine} compose could not remove the containers; its messages are above.")
    (folder / "state.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "secrets", ignore_errors=True)


def _command(state: State) -> list[str]:
    return [state.engine, "compose", "--file", str(COMPOSE_FILE)]


def _environment(folder: Path, ports: Mapping[str, int] | None = None) -> dict[str, str]:
    """The variables that the compose file reads."""
    numbers = {f"{name.upper().replace('-', '_')}_PORT": str(port) for name, port in (ports or {}).items()}
    return {**os.environ, **numbers, "CLUSTER_SECRETS": str(folder / "secrets"), cluster_state.MARK: str(folder)}


def _compose(folder: Path, state: State, *arguments: str, ports: Mapping[str, int] | None = None) -> int:
    return subprocess.run([*_command(state), *arguments], env=_environment(folder, ports), check=False).returncode
