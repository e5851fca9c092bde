"""The launchers that start processes: each gives the commands for some ranks, on one host or on two."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.launchers.slurm import Slurm
from benchmarks.namespaces import Host, Network, UnavailableError, remote_shell
from spark_estimator.collectives.other_launchers.launchers import list_launcher_variables

ROOT = Path(__file__).parents[2]
#: Ranks on one host; on two, as many on each.
ONE_HOST, EACH_HOST = 3, 2
_PREFIXES = ("OMPI_", "PMI", "SLURM_", "MPI_LOCAL", "TORCHELASTIC_", "SPARK_ESTIMATOR_", "HOROVOD_", "MASTER_")
_ports = itertools.count(1)

#: Called with the program's words: returns commands with their variables, which are all started at once.
Commands = Callable[[Sequence[str]], list[tuple[list[str], dict[str, str]]]]


@dataclass(frozen=True)
class Starter:
    """One way to start ranks.

    Attributes:
        name: for the table.
        hosts: on which they run; none: this one.
        commands: that start them.
        ours: whether it is this package's own launcher.
    """

    name: str
    hosts: tuple[Host, ...]
    commands: Commands
    ours: bool = False

    @property
    def size(self) -> int:
        """The number of ranks."""
        return EACH_HOST * len(self.hosts) if self.hosts else ONE_HOST

    def has(self, case: str) -> bool:
        """Whether the case means something: ranks of this package's own launcher do not believe in variables."""
        return not (self.ours and case == "wrong world")

    def start(self, words: Sequence[str], **variables: str) -> list[subprocess.Popen[str]]:
        """Starts all ranks of a job; each process is a launcher, or a rank that has none."""
        environ = clean_environment() | variables
        processes = []
        for number, (command, more) in enumerate(self.commands(words)):
            # Ranks without a launcher are divided among the hosts, in order.
            host = self.hosts[number // EACH_HOST] if self.hosts else None
            with nullcontext() if host is None else host.entered():
                pipe = subprocess.PIPE
                command = command if host is None else [*host.named, *command]
                processes.append(
                    subprocess.Popen(command, env=environ | more, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
                )
        return processes


def clean_environment() -> dict[str, str]:
    """This process's, without what launchers around it may have set."""
    names = list_launcher_variables()
    kept = {name: value for name, value in os.environ.items() if name not in names and not name.startswith(_PREFIXES)}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def starters(folder: Path, closing: ExitStack) -> tuple[list[Starter], list[str]]:
    """Those that this machine has, and what is missing for others.

    Args:
        folder: for their files.
        closing: ends what they need.
    """
    missing: list[str] = []
    two: tuple[Host, ...] = ()
    try:
        two = closing.enter_context(Network.open(2)).hosts
    except UnavailableError as error:
        missing.append(f"two hosts: {error}")
    offered = [
        Starter("horovodrun", (), _horovodrun, ours=True),
        Starter("variables", (), _variables("127.0.0.1", ONE_HOST)),
        Starter("torchrun", (), _torchrun),
    ]
    if two:
        offered.append(Starter("variables, 2 hosts", two, _variables(two[0].address, EACH_HOST * 2)))
    for name in ("mpirun.openmpi", "mpirun.mpich"):
        if shutil.which(name) is None:
            missing.append(f"{name} is not installed")
            continue
        offered.append(Starter(name, (), _mpirun(name)))
        if two:
            offered.append(Starter(f"{name}, 2 hosts", two, _mpirun(name, two, remote_shell(folder, two))))
    for hosts in ((), two) if two else ((),):
        place = folder / f"slurm-{len(hosts)}"
        place.mkdir()
        try:
            slurm = closing.enter_context(Slurm.open(place, hosts))
        except UnavailableError as error:
            missing.append(f"srun: {error}")
            break
        offered.append(Starter("srun, 2 hosts" if hosts else "srun", hosts, _srun(slurm, len(hosts))))
    return offered, missing


def _horovodrun(words: Sequence[str]) -> list[tuple[list[str], dict[str, str]]]:
    return [([sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", str(ONE_HOST), *words], {})]


def _torchrun(words: Sequence[str]) -> list[tuple[list[str], dict[str, str]]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ONE_HOST)]
    return [([*command, *words[1:]], {})]  # it starts this Python on its own


def _variables(master: str, size: int) -> Commands:
    def commands(words: Sequence[str]) -> list[tuple[list[str], dict[str, str]]]:
        common = {"MASTER_ADDR": master, "MASTER_PORT": f"{os.getpid()}{next(_ports)}", "WORLD_SIZE": str(size)}
        return [(list(words), common | {"RANK": str(rank)}) for rank in range(size)]

    return commands


def _mpirun(name: str, hosts: Sequence[Host] = (), shell: str = "") -> Commands:
    listed = ",".join(f"{host.name}:{EACH_HOST}" for host in hosts)
    if name.endswith("openmpi"):
        options = ["--allow-run-as-root", "--oversubscribe"]
        options += ["--mca", "plm_rsh_agent", shell, "-H", listed] if hosts else []
        options += ["-x", "PYTHONPATH", "-x", "HOROVOD_START_TIMEOUT"] if hosts else []
    else:
        options = ["-launcher", "ssh", "-launcher-exec", shell, "-hosts", listed, "-iface", "eth0"] if hosts else []
    size = EACH_HOST * len(hosts) if hosts else ONE_HOST
    return lambda words: [([name, *options, "-np", str(size), *words], {})]


def _srun(slurm: Slurm, hosts: int) -> Commands:
    options = ["-N", str(hosts), f"--ntasks-per-node={EACH_HOST}"] if hosts else ["-n", str(ONE_HOST)]
    return lambda words: [(["srun", "--kill-on-bad-exit=0", *options, *words], slurm.environment)]
