"""Detects processes that another launcher started in a job of several: mpirun, srun, torchrun, Horovod's launcher.

``init()`` can't join such a job yet. It raises an error, because otherwise each process would silently train alone,
exit with status 0 and write the same checkpoint.
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
    """The environment variables that a launcher sets in each process.

    Attributes:
        name: of the launcher, for messages.
        size: variable that holds the number of processes.
        rank: variable that holds this process's rank, from 0.
        required: variable that must also be set; '' for none.
    """

    name: str
    size: str
    rank: str
    required: str = ""


# The innermost launcher comes first, because its processes also inherit the variables of the outer ones: torchrun may
# run under srun, and Slurm's PMI plugins set PMI_SIZE in addition to Slurm's variables.
# SLURM_NTASKS and SLURM_NPROCS are not used: in an sbatch script they are set for a single process, too.
_LAUNCHERS = (
    _Launcher("torchrun", "WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID"),
    _Launcher("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    _Launcher("MVAPICH2's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    _Launcher("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    _Launcher("Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    _Launcher("mpiexec (MPICH, Intel MPI or another PMI launcher)", "PMI_SIZE", "PMI_RANK"),
    _Launcher("a PMIx launcher (prterun, mpirun or srun)", "PMIX_SIZE", "PMIX_RANK"),
    # This package's launchers set it too, together with a rendezvous. A process that a rank starts inherits only the
    # variables, RANK and WORLD_SIZE among them.
    _Launcher("Horovod's launcher or by a rank of a spark_estimator job", "HOROVOD_SIZE", "HOROVOD_RANK"),
    _Launcher("a launcher that sets RANK and WORLD_SIZE", "WORLD_SIZE", "RANK", "RANK"),
)


@dataclass(frozen=True)
class ForeignJob:
    """A job of several processes that another launcher started this process in.

    Attributes:
        launcher: its name, for messages.
        variable: the environment variable that holds the number of processes.
        size: the number of processes, at least 2.
        rank: this process's rank, from 0; None if it is unknown.
    """

    launcher: str
    variable: str
    size: int
    rank: int | None

    @property
    def process(self) -> str:
        """A description of this process, for messages."""
        number = "one" if self.rank is None else f"number {self.rank}"
        return f"{number} of {self.size} processes started by {self.launcher} ({self.variable}={self.size})"


def foreign_job(environ: Mapping[str, str] | None = None) -> ForeignJob | None:
    """The job of several processes that the environment shows; None if it shows none.

    Args:
        environ: the process's environment; default: ``os.environ``. A value that isn't a whole number counts as unset.
    """
    environ = os.environ if environ is None else environ
    for launcher in _LAUNCHERS:
        size, rank = _number(environ, launcher.size), _number(environ, launcher.rank)
        if size is not None and size > 1 and (not launcher.required or environ.get(launcher.required, "").strip()):
            return ForeignJob(launcher.name, launcher.size, size, rank)
    return None


def check_not_foreign(environ: Mapping[str, str] | None = None) -> None:
    """Raises an error if another launcher started this process in a job of several processes.

    Args:
        environ: as in `foreign_job`, of a process without a rendezvous of this package.

    Raises:
        ForeignLauncherError: the message names the launcher and the command to use instead.
    """
    job = foreign_job(environ)
    if job is not None:
        raise ForeignLauncherError(
            f"init(): this process is {job.process}. spark_estimator can't join such a job: each process would train "
            f"alone. Start the program with `horovodrun -np {job.size} python train.py` instead (on several hosts: "
            f"-H host1:2,host2:2), or on Spark with HorovodRunner(np={job.size}).run(train). If each process should "
            f"train alone, set {IGNORE_LAUNCHER_VARIABLE}=1."
        )


def warn_of_all_rows(reader: str) -> None:
    """Warns if one process of a job of several reads all rows, because it hasn't called ``init()``."""
    job = foreign_job()
    if job is not None:
        _log.warning(
            "%s reads all rows, but this process is %s. To read an equal share of the rows in each process, start the "
            "job with horovodrun or HorovodRunner, and call hvd.init() first.",
            reader,
            job.process,
        )


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    try:
        return int(environ.get(variable, ""))
    except ValueError:
        return None
