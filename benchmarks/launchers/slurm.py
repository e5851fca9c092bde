"""Starts a Slurm on this machine: munge, a controller, and a slurmd for each node.

The nodes are network namespaces, or one is this host. Requires root, and Debian's ``slurm-wlm`` and ``munge``, whose
slurmd can run several times on one host.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from benchmarks.namespaces import Host, UnavailableError

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_START_SECONDS = 60.0
_FIRST_PORT = 26817
_CPUS = 8


class Slurm:
    """A running Slurm. A context manager.

    Attributes:
        environment: the variables with which ``srun`` finds it; it must run on the first host.
    """

    def __init__(self, environment: dict[str, str], closing: ExitStack) -> None:
        self.environment = environment
        self._closing = closing

    @classmethod
    def open(cls, folder: Path, hosts: Sequence[Host] = ()) -> Slurm:
        """Starts it, with a node on each of the hosts; by default with one node on this host.

        Raises:
            UnavailableError: a program is missing, or Slurm did not start.
        """
        paths = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in _PROGRAMS}
        missing = [name for name, path in paths.items() if path is None]
        if missing or os.getuid() != 0:
            raise UnavailableError(f"{missing or 'root'} not found; apt-get install slurm-wlm munge, and run as root")
        configuration = folder / "slurm.conf"
        configuration.write_text(_configuration(folder, hosts))
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        munge = ["munged", "--force", "--foreground", "--key-file", str(key), "--socket", str(folder / "munge.sock")]
        munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        first = hosts[0].name if hosts else socket.gethostname()
        nodes = [host.name for host in hosts] or [first]
        programs = [(0, munge), (0, ["slurmctld", "-D"])]
        programs += [(number, ["slurmd", "-D", "-N", node]) for number, node in enumerate(nodes)]
        environment = {"SLURM_CONF": str(configuration)}
        with ExitStack() as closing:
            for number, command in programs:
                words = [str(paths[command[0]]), *command[1:]]
                if hosts:
                    words = [*hosts[number].named, *words]
                with hosts[number].entered() if hosts else nullcontext():
                    process = _started(words, environment, folder / "output.log")
                closing.callback(_stopped, process)
            slurm = cls(environment, closing)
            with hosts[0].entered() if hosts else nullcontext():
                slurm._wait_for(str(paths["sinfo"]), len(nodes), folder)
            slurm._closing = closing.pop_all()
            return slurm

    def _wait_for(self, sinfo: str, nodes: int, folder: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            command = [sinfo, "--noheader", "--format=%D", "--states=idle"]
            answer = subprocess.run(
                command, env=os.environ | self.environment, capture_output=True, text=True, check=False
            )
            if answer.stdout.strip() == str(nodes):
                return
            time.sleep(0.1)
        raise UnavailableError(f"Slurm did not start within {_START_SECONDS:g} s: {answer.stderr}; see {folder}")

    def close(self) -> None:
        """Ends all its processes. Idempotent."""
        self._closing.close()

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _started(words: Sequence[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            words, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def _stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _configuration(folder: Path, hosts: Sequence[Host]) -> str:
    own_name = socket.gethostname()
    controller = f"{hosts[0].name}({hosts[0].address})" if hosts else f"{own_name}(127.0.0.1)"
    nodes = [(host.name, host.name, host.address) for host in hosts] or [(own_name, own_name, "127.0.0.1")]
    lines = [
        "ClusterName=benchmarks",
        f"SlurmctldHost={controller}",
        f"SlurmctldPort={_FIRST_PORT}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={folder}/munge.sock",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SwitchType=switch/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SlurmdParameters=config_overrides",
        "MpiDefault=none",
        "ReturnToService=2",
        "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE",
    ]
    for number, (node, host, address) in enumerate(nodes, 1):
        port = _FIRST_PORT + number
        lines.append(f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs={_CPUS}")
    return "\n".join(lines) + "\n"
