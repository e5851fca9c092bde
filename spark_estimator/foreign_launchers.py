"""Recognises processes that another launcher started as one of several: mpirun, srun, torchrun, Horovod's own.

``init()`` can't join such a job yet. It refuses, because a process that trains alone without a word is worse: each of
them ends with status 0 and writes the same checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_estimator.env import IGNORE_LAUNCHER_VARIABLE
from spark_estimator.errors import ForeignLauncherError
from spark_estimator.log import logger

_log = logger(__name__)


class _Launcher(NamedTuple):
    """What a launcher sets in the environment of each process.

    Attributes:
        name: of the launcher, for people.
        size: variable with the number of processes.
        rank: variable with the number of this process, from 0.
        mark: variable that must be set as well; '' for none.
    """

    name: str
    size: str
    rank: str
    mark: str = ""


# The launcher closest to the process comes first, because its environment also has what the outer ones set: torchrun
# runs under srun, and Slurm's PMI plugins set PMI_SIZE beside Slurm's own variables.
# SLURM_NTASKS and SLURM_NPROCS are left out: an sbatch script has them around a single process.
_LAUNCHERS = (
    _Launcher("torchrun", "WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID"),
    _Launcher("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    _Launcher("MVAPICH2's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    _Launcher("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    _Launcher("Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    _Launcher("mpiexec (MPICH, Intel MPI or another PMI launcher)", "PMI_SIZE", "PMI_RANK"),
    _Launcher("a PMIx launcher (prterun, mpirun or srun)", "PMIX_SIZE", "PMIX_RANK"),
    _Launcher("a launcher that sets RANK and WORLD_SIZE", "WORLD_SIZE", "RANK", "RANK"),
    # Ours set it too, but give a rendezvous beside it. What a rank starts inherits the variable and no rendezvous.
    _Launcher("Horovod's launcher or by a rank of a spark_estimator job", "HOROVOD_SIZE", "HOROVOD_RANK"),
)


@dataclass(frozen=True)
class ForeignJob:
    """The job that another launcher made this process a part of.

    Attributes:
        launcher: its name, for people.
        variable: where the number of processes was read.
        size: the number of processes, at least 2.
        rank: this process's number; None when it isn't known.
    """

    launcher: str
    variable: str
    size: int
    rank: int | None

    @property
    def process(self) -> str:
        """This process, for people."""
        number = "one" if self.rank is None else f"number {self.rank}"
        return f"{number} of {self.size} processes started by {self.launcher} ({self.variable}={self.size})"


def foreign_job(environ: Mapping[str, str] | None = None) -> ForeignJob | None:
    """The job of several processes that `environ` says this process is part of; None when it says nothing like it.

    Args:
        environ: of this process; by default ``os.environ``. Values that aren't whole numbers count as not set.
    """
    environ = os.environ if environ is None else environ
    for launcher in _LAUNCHERS:
        size, rank = _number(environ, launcher.size), _number(environ, launcher.rank)
        if size is not None and size > 1 and (not launcher.mark or environ.get(launcher.mark, "").strip()):
            return ForeignJob(launcher.name, launcher.size, size, rank)
    return None


def check_not_foreign(environ: Mapping[str, str] | None = None) -> None:
    """Refuses to make a job of one out of a process that another launcher started as one of several.

    Args:
        environ: as in `foreign_job`; of a process that has no rendezvous of ours.

    Raises:
        ForeignLauncherError: the text names the launcher and what to use.
    """
    job = foreign_job(environ)
    if job is not None:
        raise ForeignLauncherError(
            f"init(): this process is {job.process}. spark_estimator can't join their job, and would train in each of "
            f"them alone. Start it with `horovodrun -np {job.size} python train.py` instead (on several hosts: "
            f"-H host1:2,host2:2), or on Spark with HorovodRunner(np={job.size}).run(train). If each process is to "
            f"train alone, set {IGNORE_LAUNCHER_VARIABLE}=1."
        )


def warn_of_all_rows(reader: str) -> None:
    """Warns where one of several processes is about to read all rows, because ``init()`` hasn't been called in it."""
    job = foreign_job()
    if job is not None:
        _log.warning(
            "%s reads all rows, but this process is %s. For an equal share of the rows, start the job with horovodrun "
            "or HorovodRunner and call hvd.init() before.",
            reader,
            job.process,
        )


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    try:
        return int(environ.get(variable, ""))
    except ValueError:
        return None
