"""A real sshd of this test's own: its own keys, port and configuration in a temporary folder, for this user only."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The host of an alias is where its sshd listens.
ALIAS = """
Host {alias}
  HostName {address}
  Port {port}
"""
FOR_ALL = """
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  ControlPath none
"""
SERVER = """
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin yes
PermitUserRC no
PrintMotd no
MaxStartups 100
"""


@dataclass(frozen=True)
class SshHosts:
    """Hosts that ssh knows by aliases.

    Attributes:
        folder: of keys and configurations.
        ssh: the command for `SPARK_ESTIMATOR_SSH_COMMAND`.
        pids: of the daemons.
    """

    folder: Path
    ssh: str
    pids: tuple[int, ...]


@contextlib.contextmanager
def ssh_hosts(
    folder: Path, aliases: dict[str, str], within: Sequence[AbstractContextManager[None]] = ()
) -> Iterator[SshHosts]:
    """An sshd for each address, and a configuration of ssh that knows them; skips the test where there is no sshd.

    Args:
        aliases: name -> address at which its sshd listens.
        within: for each alias, where its sshd is to be started: a network namespace. Empty: here.
    """
    program = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if program is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("there is no sshd (Debian, Ubuntu: apt-get install openssh-server)")
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # without it, sshd of root does not start
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    config, known, daemons = "", "", []
    places = dict(zip(aliases, within or [nullcontext() for _ in aliases], strict=True))
    with contextlib.ExitStack() as closing:
        ports: dict[str, int] = {}
        for alias, address in aliases.items():
            if within or address not in ports:
                with places[alias]:
                    ports[address], daemon = _start(program, folder, alias, address)
                closing.callback(_end, daemon)
                daemons.append(daemon.pid)
            config += ALIAS.format(alias=alias, address=address, port=ports[address])
            known += f"[{address}]:{ports[address]} {key}\n"
        (folder / "known_hosts").write_text(known)
        (folder / "config").write_text(config + FOR_ALL.format(folder=folder))
        yield SshHosts(folder, f"ssh -F {folder / 'config'}", tuple(daemons))


def _start(program: str, folder: Path, alias: str, address: str) -> tuple[int, subprocess.Popen[bytes]]:
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]
    settings = folder / f"sshd_{alias}"
    settings.write_text(SERVER.format(address=address, port=port, folder=folder))
    log = folder / f"sshd_{alias}.log"
    with log.open("wb") as sink:
        daemon = subprocess.Popen(
            [program, "-D", "-e", "-f", settings], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    deadline = time.monotonic() + 20
    while "Server listening" not in log.read_text():
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            pytest.skip(f"an sshd of {getpass.getuser()} does not start here: {log.read_text()[-500:]}")
        time.sleep(0.02)
    return port, daemon


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    daemon.wait(20)


def environment(hosts: SshHosts, **more: str) -> dict[str, str]:
    """For a launcher that is to use them."""
    variables = {
        "SPARK_ESTIMATOR_SSH_COMMAND": hosts.ssh,
        "SPARK_ESTIMATOR_REMOTE_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    return {**os.environ, **variables, **more}
