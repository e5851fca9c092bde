"""A container engine for tests: Debian's docker.io, in a separate network namespace, with its data in one folder.

It needs root, `dockerd`, `docker`, `nsenter` and compose as a plug-in. The package `docker-compose` of Debian 13 has
the plug-in, in /usr/libexec/docker/cli-plugins; SPARK_ESTIMATOR_TEST_COMPOSE names the program elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_PLUGIN_FOLDERS = (
    "/usr/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/local/lib/docker/cli-plugins",
)


@dataclass(frozen=True)
class Engine:
    """A daemon that answers.

    Attributes:
        env: of programs that call `docker`.
    """

    env: dict[str, str]

    def docker(self, *arguments: str, seconds: float = 120) -> str:
        """Run a command of the engine, and return its output. Raises CalledProcessError, with the output."""
        answer = subprocess.run(
            ["docker", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert answer.returncode == 0, f"docker {' '.join(arguments)}: {answer.stdout}"
        return answer.stdout


def find_compose() -> Path | None:
    """Return the program of `docker compose`; None: there is none."""
    if named := os.environ.get("SPARK_ESTIMATOR_TEST_COMPOSE"):
        return Path(named)
    return next((path for folder in _PLUGIN_FOLDERS if (path := Path(folder) / "docker-compose").exists()), None)


@contextlib.contextmanager
def start_engine(folder: Path, *, builds: bool = False) -> Iterator[Engine]:
    """Start the daemon, and end it with all its containers; skip the test where none can be started.

    Args:
        folder: for its data, on a file system that overlays can use; a later daemon finds the images of an earlier.
        builds: it downloads by the machine's own network, of which it changes nothing, and can't connect containers.
    """
    compose = find_compose()
    missing = [name for name in ("dockerd", "docker", "nsenter", "ip") if shutil.which(name) is None]
    if missing or compose is None or os.geteuid():
        pytest.skip(
            f"no container engine can be started: missing {', '.join(missing) or 'nothing'}; compose: {compose}; user "
            f"{os.geteuid()}. Debian: docker.io, iproute2, and docker-compose of Debian 13"
        )
    name = f"engine-{os.getpid()}"
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (plugins / "docker-compose").symlink_to(compose)
    socket = folder / "socket"
    env = {**os.environ, "DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(folder / "config")}
    env.pop("COMPOSE_FILE", None)
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        # nsenter, since `ip netns exec` would hide the control groups.
        command = [] if builds else ["nsenter", f"--net=/run/netns/{name}"]
        command += ["dockerd", "--host", f"unix://{socket}"]
        command += ["--bridge=none", "--iptables=false", "--ip6tables=false"] if builds else []
        for option in ("data-root", "exec-root", "pidfile"):
            command += [f"--{option}", str(folder / option)]
        with (folder / "dockerd.log").open("w") as log:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for_answer(daemon, env, folder / "dockerd.log")
            engine = Engine(env)
            yield engine
            if containers := engine.docker("ps", "--all", "--quiet").split():
                engine.docker("rm", "--force", *containers)
        finally:
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def _wait_for_answer(daemon: subprocess.Popen[bytes], env: dict[str, str], log: Path) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run(["docker", "info"], env=env, capture_output=True, timeout=30, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text().strip().splitlines() or ["no message"]
            pytest.skip(f"dockerd does not start here: {lines[-1]}")
        time.sleep(0.5)
