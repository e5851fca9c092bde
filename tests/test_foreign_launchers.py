"""Processes that mpirun, srun, torchrun or Horovod's launcher started as one of several never train alone unnoticed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.errors import ForeignLauncherError
from spark_estimator.foreign_launchers import _LAUNCHERS, ForeignJob, check_not_foreign, foreign_job

ROOT = Path(__file__).parents[1]
# The checkpoint stands for what each process of a silent job of one would overwrite.
SCRIPT = """
import pathlib, sys
from spark_estimator.collectives import context
context.init()
pathlib.Path(sys.argv[1]).write_text(str(context.size()))
print("size", context.size())
"""
ADVICE = "Start the program with `horovodrun -np 2 python train.py`"


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a command without the variables that launchers around the tests may have set."""
    names = {name for launcher in _LAUNCHERS for name in (launcher.size, launcher.rank, launcher.required)}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def script(folder: Path) -> list[str]:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return [str(path), str(folder / "checkpoint")]


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
        ({"HOROVOD_SIZE": "2"}, ("Horovod's launcher or by a rank of a spark_estimator job", 2, None)),
        ({"MV2_COMM_WORLD_SIZE": "2"}, ("MVAPICH2's mpirun", 2, None)),
        ({"JSM_NAMESPACE_SIZE": "2"}, ("IBM's jsrun", 2, None)),
    ],
)
def test_each_launcher_is_recognised(environ: dict[str, str], expected: tuple[str, int, int | None]) -> None:
    job = foreign_job(environ)
    assert job is not None and (job.launcher, job.size, job.rank) == expected
    with pytest.raises(ForeignLauncherError, match=re.escape(f"{job.variable}={job.size}")):
        check_not_foreign(environ)


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
    ],
)
def test_a_single_process_is_no_job_of_another_launcher(environ: dict[str, str]) -> None:
    assert foreign_job(environ) is None
    check_not_foreign(environ)


def test_a_process_is_described_by_number_size_and_variable() -> None:
    job = ForeignJob("Slurm's srun", "SLURM_STEP_NUM_TASKS", 2, 1)
    assert job.process == "number 1 of 2 processes started by Slurm's srun (SLURM_STEP_NUM_TASKS=2)"
    assert ForeignJob("a", "B", 3, None).process == "one of 3 processes started by a (B=3)"


def mpi(name: str, ranks: int) -> list[str]:
    """The command of one of Debian's MPI implementations."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here")
    root = ["--allow-run-as-root", "--oversubscribe"] if name.endswith("openmpi") else []
    return [path, *root, "-np", str(ranks)]


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_with_two_processes_is_refused(name: str, tmp_path: Path) -> None:
    done = run([*mpi(name, 2), sys.executable, *script(tmp_path)])
    assert done.returncode != 0
    assert "of 2 processes started by" in done.stderr and ADVICE in done.stderr
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_with_one_process_is_a_job_of_one(name: str, tmp_path: Path) -> None:
    done = run([*mpi(name, 1), sys.executable, *script(tmp_path)])
    assert (done.returncode, done.stdout) == (0, "size 1\n"), done.stderr


def test_torchrun_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *script(tmp_path)])
    assert done.returncode != 0
    assert "of 2 processes started by torchrun (WORLD_SIZE=2)" in done.stderr and ADVICE in done.stderr
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"},
        {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"},
    ],
    ids=["srun", "bare", "horovod", "rank"],
)
def test_variables_of_a_launcher_are_refused(environ: dict[str, str], tmp_path: Path) -> None:
    done = run([sys.executable, *script(tmp_path)], **environ)
    assert done.returncode != 0
    assert "ForeignLauncherError: init(): this process is number 0 of 2" in done.stderr and ADVICE in done.stderr
    assert not (tmp_path / "checkpoint").exists()


def test_a_variable_opts_out(tmp_path: Path) -> None:
    done = run([sys.executable, *script(tmp_path)], PMI_SIZE="2", SPARK_ESTIMATOR_IGNORE_LAUNCHER="1", HOROVOD_SIZE="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "size 1\n", "")


@pytest.mark.parametrize("binding", ["torch", "tensorflow", "keras"])
def test_every_binding_refuses(binding: str) -> None:
    pytest.importorskip(binding)
    program = f"import spark_estimator.{binding} as hvd; hvd.init()"
    done = run([sys.executable, "-c", program], PMI_SIZE="2", PMI_RANK="1", KERAS_BACKEND="torch")
    assert "ForeignLauncherError: init(): this process is number 1 of 2" in done.stderr


def test_a_process_that_a_rank_starts_is_refused(tmp_path: Path) -> None:
    script(tmp_path)
    starts = (
        "import subprocess, sys\n"
        "from spark_estimator import HorovodRunner\n"
        "def train(command):\n"
        "    from spark_estimator.collectives import context\n"
        "    context.init()\n"
        "    done = subprocess.run(command, capture_output=True, text=True)\n"
        "    return done.returncode, done.stderr\n"
        f"print(HorovodRunner(np=-2).run(train, command=[sys.executable, *{script(tmp_path)!r}]))\n"
    )
    done = run([sys.executable, "-c", starts])
    assert "or by a rank of a spark_estimator job (HOROVOD_SIZE=2)" in done.stdout, done.stderr
    assert not (tmp_path / "checkpoint").exists()


def test_our_launchers_work_inside_of_an_allocation(tmp_path: Path) -> None:
    horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2"]
    allocation = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "1"}
    done = run([*horovodrun, sys.executable, *script(tmp_path)], **allocation)
    assert done.returncode == 0 and "[0]<stdout>:size 2" in done.stdout, done.stderr
    assert "processes started by" not in done.stderr


def test_a_launcher_that_is_itself_started_twice_warns(tmp_path: Path) -> None:
    horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2"]
    command = [*horovodrun, sys.executable, *script(tmp_path)]
    twice = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    done = run(command, **twice)
    assert done.returncode == 0 and "[0]<stdout>:size 2" in done.stdout, done.stderr
    assert done.stderr.count("This program is number 1 of 2 processes started by Slurm's srun") == 1
    done = run(command, **twice, SPARK_ESTIMATOR_IGNORE_LAUNCHER="1")
    assert done.returncode == 0 and "This program" not in done.stderr


def test_a_loader_without_init_warns_that_it_reads_all_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = (
        "import pyarrow, pyarrow.parquet, sys\n"
        "from spark_estimator.data import make_torch_dataloader\n"
        "from spark_estimator.data.petastorm import make_batch_reader\n"
        "pyarrow.parquet.write_table(pyarrow.table({'x': [1.0, 2.0]}), sys.argv[1])\n"
        "make_torch_dataloader(sys.argv[1], 2)\n"
        "make_batch_reader('file://' + sys.argv[1], cur_shard=0, shard_count=2)\n"
    )
    done = run([sys.executable, "-c", program, str(tmp_path / "rows.parquet")], PMI_SIZE="2", PMI_RANK="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("reads all rows, but this process is number 1 of 2") == 1
    assert "make_torch_dataloader() reads all rows" in done.stderr
