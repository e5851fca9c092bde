"""Environment variables show which launcher started a process, and what a job of it has in common."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.collectives.other_launchers.launchers import ForeignJob, find_foreign_job

# By its documentation, in each process of `@distributed` of databricks.air, before that of serverless_gpu; and once for
# each node of its command line, `air run`.
DATABRICKS = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
    "LOCAL_WORLD_SIZE": "8",
    "NODE_RANK": "0",
    "MASTER_ADDR": "10.1.2.3",
    "MASTER_PORT": "29500",
}
DATABRICKS_NODE = {name: value for name, value in DATABRICKS.items() if name not in ("RANK", "LOCAL_RANK")}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, ("Open MPI's mpirun", 4, 1)),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, ("mpiexec (MPICH, Intel MPI or another PMI launcher)", 3, 0)),
        ({"PMIX_SIZE": "3", "PMIX_RANK": "2"}, ("a PMIx launcher (prterun, mpirun or srun)", 3, 2)),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, ("Slurm's srun", 2, 1)),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "PMI_SIZE": "2"}, ("Slurm's srun", 2, 1)),
        ({"SLURM_STEP_NUM_TASKS": "2", "RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}, ("torchrun", 8, 5)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("a launcher that sets RANK and WORLD_SIZE", 2, 1)),
        ({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}, ("SageMaker", 2, 1)),
        (DATABRICKS, ("a launcher that sets RANK and WORLD_SIZE", 8, 3)),
        ({**DATABRICKS, "TORCHELASTIC_RUN_ID": "x"}, ("torchrun", 8, 3)),
    ],
)
def test_each_launcher_is_recognised(environ: dict[str, str], expected: tuple[str, int, int]) -> None:
    job = find_foreign_job(environ)
    assert job is not None and (job.launcher, job.size, job.rank) == expected
    assert job.joins


@pytest.mark.parametrize("more", [{}, {"TORCHELASTIC_RUN_ID": "x"}])
def test_databricks_starts_a_job_on_one_host(more: dict[str, str]) -> None:
    job = find_foreign_job(DATABRICKS | more)
    assert job is not None and job.one_host and not job.contradiction


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({"HOROVOD_SIZE": "2"}, "Horovod's launcher or by a rank of a spark_estimator job"),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "MVAPICH2's mpirun"),
        ({"JSM_NAMESPACE_SIZE": "2"}, "IBM's jsrun"),
        # A process that a rank of this package starts, which has torch's variables as well.
        (
            {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
            "Horovod's launcher or by a rank of a spark_estimator job",
        ),
    ],
)
def test_some_launchers_are_known_as_those_whose_jobs_cannot_be_joined(environ: dict[str, str], launcher: str) -> None:
    job = find_foreign_job(environ)
    assert job is not None and job.launcher == launcher and not job.joins


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "1"},
        {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0"},  # an sbatch script
        {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},  # an interactive step
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4"},
        {"WORLD_SIZE": "4", "RANK": ""},
        {"HOROVOD_SIZE": "1"},
        {"PMI_SIZE": "many"},
        {"PMI_SIZE": "-2"},
        {**DATABRICKS_NODE, "NUM_NODES": "1"},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        {"SM_HOSTS": "algo-1,algo-2", "SM_CURRENT_HOST": "algo-1"},
    ],
)
def test_a_single_process_is_no_job_of_another_launcher(environ: dict[str, str]) -> None:
    assert find_foreign_job(environ) is None


def test_a_process_is_described_by_number_size_and_variable() -> None:
    job = ForeignJob("Slurm's srun", "SLURM_STEP_NUM_TASKS", 2, 1)
    assert job.process == "number 1 of 2 processes started by Slurm's srun (SLURM_STEP_NUM_TASKS=2)"
    assert ForeignJob("a", "B", 3, None).process == "one of 3 processes started by a (B=3)"


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
TORCHRUN |= {"MASTER_ADDR": "host1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "one_host"),
    [
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, True),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, False),
        (TORCHRUN, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, False),
        ({"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, True),
        ({"PMI_SIZE": "2"}, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, True),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}, False),
    ],
)
def test_one_host_is_known_by_the_launchers_own_count(environ: dict[str, str], one_host: bool) -> None:
    job = find_foreign_job(environ)
    assert job is not None and job.one_host == one_host


def test_ranks_of_a_job_have_one_identity_and_a_restart_has_another() -> None:
    first, second = find_foreign_job(TORCHRUN), find_foreign_job(TORCHRUN | {"RANK": "3", "LOCAL_RANK": "1"})
    restarted = find_foreign_job(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert first is not None and second is not None and restarted is not None
    assert first.identity and first.identity == second.identity != restarted.identity
    assert first.master == "host1"
    assert len({first.mark, second.mark, restarted.mark}) == 3


def test_on_one_host_the_process_that_started_the_ranks_identifies_their_job() -> None:
    here = find_foreign_job({"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "2"})
    several = find_foreign_job({"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "1"})
    assert here is not None and f" {os.getppid()}@" in here.identity
    assert several is not None and several.identity == ""


def test_the_port_of_mpiexec_identifies_a_job_of_several_hosts(tmp_path: Path) -> None:
    """A process with the name and the options of mpiexec's own on a host, and a shell around the rank."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.symlink_to(shutil.which("bash") or "")
    show = (
        "from spark_estimator.collectives.other_launchers.launchers import find_foreign_job\n"
        "print(find_foreign_job({'PMI_SIZE': '2', 'PMI_RANK': '0', 'MPI_LOCALNRANKS': '1'}).identity)"
    )
    rank = f"sh -c '{sys.executable} -c \"$SHOW\"; true'; true"
    command = [proxy, "-c", rank, "x", "--control-port", "node1:4711", "--proxy-id", "1"]
    shown = subprocess.run(command, env=os.environ | {"SHOW": show}, stdout=subprocess.PIPE, text=True, check=True)
    assert shown.stdout == "mpiexec (MPICH, Intel MPI or another PMI launcher) node1:4711\n"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}, ""),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}, ""),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "1"}, "3 processes on this host, and 4 on all hosts"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, "its variables count 5 processes on this host, and 4 on all hosts"),
        (TORCHRUN | {"RANK": "4"}, "its rank (4) is not one of 0 to 3"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "its rank (1) is not one of 0 to 0"),
        ({"PMI_SIZE": "2"}, "its rank (none) is not one of 0 to 1"),
        (
            {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
            | {"SLURM_STEP_TASKS_PER_NODE": "2"},
            "2 processes on this host, and 3 on all hosts",
        ),
    ],
)
def test_variables_that_contradict_each_other_are_named(environ: dict[str, str], problem: str) -> None:
    job = find_foreign_job(environ)
    assert job is not None and problem in job.contradiction and bool(problem) == bool(job.contradiction)


@pytest.mark.parametrize(("node", "size"), [("0", 2), ("1", 2), ("2", 1), ("3", None)])
def test_slurms_list_of_tasks_gives_those_of_this_node(node: str, size: int | None) -> None:
    step = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": node}
    job = find_foreign_job(step | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1"})
    assert job is not None and job.local_size == size and not job.one_host
