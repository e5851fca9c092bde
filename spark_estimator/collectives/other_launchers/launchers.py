"""Detects which other launcher started this process as one of several: mpirun, srun, torchrun, and others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spark_estimator.log import get_logger

_log = get_logger(__name__)

_LOOPBACK = ("localhost", "127.", "::1", "ip6-localhost")
# mpiexec's process on each host, under which its ranks run, perhaps with a shell in between.
_HYDRA = ("hydra_pmi_proxy", "pmi_proxy", "hydra_bstrap_pr")
# An option of it, the same on all hosts of a job: where mpiexec listens. Another mpiexec can't listen there.
_CONTROL_PORT = "--control-port"


class _Launcher(NamedTuple):
    """The environment variables that a launcher sets in each process.

    Attributes:
        name: of the launcher, for messages.
        size: variable that holds the number of processes.
        rank: variable that holds this process's rank, from 0.
        required: variable that must also be set; '' for none.
        local_size: variable that holds the number of processes on this host; '' for none.
        hosts: variable that holds the number of hosts; '' for none.
        job: variables that together are equal in all processes of a job, and in no other job that runs at that time.
        joins: whether ``init()`` can join its jobs.
        sends_environment: whether it sends the processes' environment to other hosts, and does not encrypt it.
    """

    name: str
    size: str
    rank: str
    required: str = ""
    local_size: str = ""
    job: tuple[str, ...] = ()
    hosts: str = ""
    joins: bool = True
    sends_environment: bool = False


_MASTER = ("MASTER_ADDR", "MASTER_PORT")
# The innermost launcher comes first, because its processes also inherit the variables of the outer ones: torchrun may
# run under srun, and Slurm's PMI plugins set PMI_SIZE in addition to Slurm's variables.
# SLURM_NTASKS and SLURM_NPROCS are not used: in an sbatch script they are set for a single process, too.
_LAUNCHERS = (
    _Launcher(
        "torchrun", "WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE",
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", *_MASTER), "GROUP_WORLD_SIZE",
    ),
    _Launcher(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "", "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",), "OMPI_MCA_orte_num_nodes", sends_environment=True,
    ),
    _Launcher("MVAPICH2's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", joins=False),
    _Launcher("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", joins=False),
    _Launcher(
        "Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        hosts="SLURM_STEP_NUM_NODES", sends_environment=True,
    ),
    _Launcher(
        "mpiexec (MPICH, Intel MPI or another PMI launcher)", "PMI_SIZE", "PMI_RANK", local_size="MPI_LOCALNRANKS",
        sends_environment=True,
    ),
    _Launcher(
        "a PMIx launcher (prterun, mpirun or srun)", "PMIX_SIZE", "PMIX_RANK", job=("PMIX_NAMESPACE",),
        sends_environment=True,
    ),
    # This package's launchers set it too, together with a rendezvous. A process that a rank starts inherits only the
    # variable. It comes before the next, because those ranks have RANK and WORLD_SIZE as well.
    _Launcher("Horovod's launcher or by a rank of a spark_estimator job", "HOROVOD_SIZE", "HOROVOD_RANK", joins=False),
    _Launcher("a launcher that sets RANK and WORLD_SIZE", "WORLD_SIZE", "RANK", "RANK", "LOCAL_WORLD_SIZE", _MASTER),
)  # fmt: skip


@dataclass(frozen=True)
class ForeignJob:
    """A job of several processes that another launcher started this process in.

    Attributes:
        launcher: its name, for messages.
        variable: the environment variable that holds the number of processes.
        size: the number of processes, at least 2; 1 only where the rank shows that there must be more.
        rank: this process's rank, from 0; None if it is unknown.
        joins: whether ``init()`` can join it.
        one_host: whether all of its processes are known to be on this host.
        identity: text that is equal in all of its processes, and in no other job at that time; '' if there is none.
        master: the host of rank 0, '' if it is unknown.
        sends_environment: whether the launcher sends the environment to other hosts without encryption.
        rank_variable: the environment variable that holds this process's rank.
        local_size: the number of its processes on this host; None if it is unknown.
        hosts: the number of its hosts; None if it is unknown.
        has_parent: whether all of its processes on a host are children of one process of the launcher.
    """

    launcher: str
    variable: str
    size: int
    rank: int | None
    joins: bool = False
    one_host: bool = False
    identity: str = ""
    master: str = ""
    sends_environment: bool = False
    rank_variable: str = ""
    local_size: int | None = None
    hosts: int | None = None
    has_parent: bool = False

    @property
    def contradiction(self) -> str:
        """Return the contradiction between the launcher's variables, as the end of a sentence; '' if there is none."""
        if self.rank is None or not 0 <= self.rank < self.size:
            return f"its rank ({'none' if self.rank is None else self.rank}) is not one of 0 to {self.size - 1}"
        if self.local_size is not None and (
            self.local_size > self.size or (self.hosts == 1 and self.local_size != self.size)
        ):
            return f"its variables count {self.local_size} processes on this host, and {self.size} on all hosts"
        return ""

    @property
    def process(self) -> str:
        """Return a description of this process, for messages."""
        number = "one" if self.rank is None else f"number {self.rank}"
        return f"{number} of {self.size} processes started by {self.launcher} ({self.variable}={self.size})"

    @property
    def mark(self) -> str:
        """Return the value of ``env.JOINED_VARIABLE`` in this process once it has joined."""
        return f"{self.rank}/{self.size} {self.identity}"


def find_foreign_job(environ: Mapping[str, str] | None = None, *, one_host: bool | None = None) -> ForeignJob | None:
    """Return the job of several processes that the environment shows; None if it shows none.

    Args:
        environ: the process's environment; default: ``os.environ``. A value that isn't a whole number counts as unset.
        one_host: whether all of its processes are on this host; None: as the environment shows.
    """
    environ = os.environ if environ is None else environ
    for launcher in _LAUNCHERS:
        size, rank = _read_number(environ, launcher.size), _read_number(environ, launcher.rank)
        several = size is not None and (size > 1 or (size == 1 and rank is not None and rank > 0))
        if size is not None and several and (not launcher.required or environ.get(launcher.required, "").strip()):
            here = _is_on_one_host(launcher, environ, size) if one_host is None else one_host
            return ForeignJob(
                launcher.name, launcher.size, size, rank, launcher.joins, here,
                _find_identity(launcher, environ, here), environ.get("MASTER_ADDR", "").strip(),
                launcher.sends_environment, launcher.rank, _find_local_size(launcher, environ),
                _read_number(environ, launcher.hosts), launcher.required != launcher.rank,
            )  # fmt: skip
    return _find_sagemaker_job(environ)


def list_launcher_variables() -> set[str]:
    """Return the variables by which `find_foreign_job` decides."""
    return {name for launcher in _LAUNCHERS for name in (launcher.size, launcher.rank, launcher.local_size) if name}


def warn_about_all_rows(reader: str) -> None:
    """Warns if one process of a job of several reads all rows, because it hasn't called ``init()``."""
    job = find_foreign_job()
    if job is not None:
        _log.warning(
            "%s reads all rows, but this process is %s. To read an equal share of the rows in each process, call "
            "hvd.init() first.",
            reader,
            job.process,
        )


def _is_on_one_host(launcher: _Launcher, environ: Mapping[str, str], size: int) -> bool:
    if launcher.local_size and _read_number(environ, launcher.local_size) is not None:
        return _read_number(environ, launcher.local_size) == size
    if launcher.name.startswith("Slurm"):
        return _read_number(environ, launcher.hosts) == 1
    return launcher.job == _MASTER and environ.get("MASTER_ADDR", "").strip().startswith(_LOOPBACK)


def _find_local_size(launcher: _Launcher, environ: Mapping[str, str]) -> int | None:
    if not launcher.name.startswith("Slurm"):
        return _read_number(environ, launcher.local_size)
    node, counts = _read_number(environ, "SLURM_NODEID"), []
    for number, repeated in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(number)] * int(repeated or 1)
    return counts[node] if node is not None and 0 <= node < len(counts) else None


def _find_identity(launcher: _Launcher, environ: Mapping[str, str], one_host: bool) -> str:
    values = [environ.get(name, "").strip() for name in launcher.job]
    if values and all(values):
        return " ".join((launcher.name, *values))
    proxy = _find_hydra_proxy() if launcher.size == "PMI_SIZE" else None
    if one_host and launcher.joins:  # the process that started all of them
        return f"{launcher.name} {_identify_process(os.getppid() if proxy is None else proxy)}"
    port = "" if proxy is None else _read_option(proxy, _CONTROL_PORT)
    return f"{launcher.name} {port}" if port else ""


def _find_hydra_proxy() -> int | None:
    """Return the process of mpiexec on this host that this one runs under."""
    pid = os.getppid()
    with suppress(OSError, ValueError):
        while pid > 1:
            name, fields = _read_status(pid)
            if name in (word[:15] for word in _HYDRA):
                return pid
            pid = int(fields[1])
    return None


def _identify_process(pid: int) -> str:
    """Return a process's number with its time of start, because the system may reuse the number."""
    with suppress(OSError):
        return f"{pid}@{_read_status(pid)[1][19]}"
    return str(pid)


def _read_status(pid: int) -> tuple[str, list[str]]:
    """Return a process's name, and the fields of its status behind that."""
    name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name, fields.split()


def _read_option(pid: int, name: str) -> str:
    """Return the value of an option on a process's command line; '' if it has none."""
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return words[words.index(name) + 1]
    return ""


def _find_sagemaker_job(environ: Mapping[str, str]) -> ForeignJob | None:
    """Return SageMaker's job, which starts a script once on each host, unless mpirun or torchrun does."""
    try:
        hosts, own_host = json.loads(environ.get("SM_HOSTS", "")), environ.get("SM_CURRENT_HOST", "")
    except ValueError:
        return None
    if not isinstance(hosts, list) or len(hosts) < 2 or own_host not in hosts:
        return None
    identity = " ".join(("SageMaker", environ.get("TRAINING_JOB_NAME", ""), *map(str, hosts)))
    rank = hosts.index(own_host)
    return ForeignJob("SageMaker", "SM_HOSTS", len(hosts), rank, True, False, identity, str(hosts[0]))


def _read_number(environ: Mapping[str, str], variable: str) -> int | None:
    try:
        return int(environ.get(variable, ""))
    except ValueError:
        return None
