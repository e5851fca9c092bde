"""Processes that mpirun, mpiexec, torchrun or plain variables number become the ranks of one job, or raise an error."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from spark_estimator.collectives.other_launchers.join import _make_board, make_rendezvous, to_ranks
from spark_estimator.collectives.other_launchers.launchers import find_foreign_job, list_launcher_variables
from spark_estimator.env import Settings
from spark_estimator.errors import ForeignLauncherError
from tests.other_user import as_another_user

ROOT = Path(__file__).parents[3]
_PREFIXES = ("OMPI_", "PMI", "SLURM_", "MPI_LOCAL", "TORCHELASTIC_", "SPARK_ESTIMATOR_", "HOROVOD_", "MASTER_", "SM_")
# Each process prints a line, in one write, so that lines of several don't mix.
SCRIPT = """
import json, os, sys
import numpy
from spark_estimator.collectives import arrays, context
comm = json.loads(sys.argv[1]) if len(sys.argv) > 1 else None
try:
    context.init(comm)
    total = arrays.allreduce(numpy.array([context.rank() + 1]), arrays.ReduceOp.SUM)
    place = [context.local_rank(), context.local_size(), context.cross_rank(), context.cross_size()]
    line = [context.rank(), context.size(), *place, int(total[0])]
    context.shutdown()
except Exception as error:
    line = [type(error).__name__, str(error)]
os.write(1, (json.dumps(line) + "\\n").encode())
sys.exit(isinstance(line[0], str))
"""
KEY = "0123456789abcdef" * 4


def environment(**variables: str) -> dict[str, str]:
    """Without the variables that launchers around the tests may have set."""
    names = list_launcher_variables()
    kept = {name: value for name, value in os.environ.items() if name not in names and not name.startswith(_PREFIXES)}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HOROVOD_START_TIMEOUT": "30",
        **variables,
    }


def started(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(**variables), stdout=pipe, stderr=pipe, text=True)


def lines(*processes: subprocess.Popen[str]) -> list[list[object]]:
    """What the ranks have printed, in order."""
    outputs = [process.communicate(timeout=90) for process in processes]
    printed = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("[")]
    assert printed, outputs
    return sorted(printed)


def expected(size: int) -> list[list[object]]:
    return [[rank, size, rank, size, 0, 1, size * (size + 1) // 2] for rank in range(size)]


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "train.py")]


def mpi(name: str, ranks: int) -> list[str]:
    """The command of one of Debian's MPI implementations."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here")
    root = ["--allow-run-as-root", "--oversubscribe"] if name.endswith("openmpi") else []
    return [path, *root, "-np", str(ranks)]


def torchrun(ranks: int, *options: str) -> list[str]:
    pytest.importorskip("torch")
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options]


_ports = itertools.count(1)


def bare(script: Sequence[str], size: int, ranks: Sequence[int], **variables: str) -> list[subprocess.Popen[str]]:
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{os.getpid()}{next(_ports)}"} | variables
    return [started(script, RANK=str(rank), WORLD_SIZE=str(size), **master) for rank in ranks]


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_makes_one_job(name: str, script: list[str]) -> None:
    assert lines(started([*mpi(name, 3), *script])) == expected(3)


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpirun.mpich"])
def test_a_shell_around_each_rank_changes_nothing(name: str, script: list[str]) -> None:
    assert lines(started([*mpi(name, 2), "sh", "-c", '"$@"; exit $?', "sh", *script])) == expected(2)


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_with_one_process_is_a_job_of_one(name: str, script: list[str]) -> None:
    assert lines(started([*mpi(name, 1), *script])) == expected(1)


def test_torchrun_makes_one_job(script: list[str]) -> None:
    program, *words = script[1:]
    assert lines(started([*torchrun(2), program, *words])) == expected(2)


def test_another_users_folder_stops_no_job(script: list[str], shared_folder: Path) -> None:
    taken = shared_folder / f"spark_estimator-{os.getuid()}"
    as_another_user(taken.mkdir)
    program, *words = script[1:]
    assert lines(started([*torchrun(2), program, *words], TMPDIR=str(shared_folder), XDG_RUNTIME_DIR="")) == expected(2)


@pytest.mark.slow
def test_torchs_own_process_group_works_beside_it(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, torch\n"
        "import spark_estimator.torch as hvd\n"
        "hvd.init()\n"
        "torch.distributed.init_process_group('gloo')\n"
        "both = hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.ones(1)\n"
        "torch.distributed.all_reduce(both[1])\n"
        "line = [hvd.rank(), hvd.size(), both[0].item(), both[1].item()]\n"
        "os.write(1, (str(line) + '\\n').encode())\n"
    )
    assert lines(started([*torchrun(2), str(program)])) == [[0, 2, 2.0, 2.0], [1, 2, 2.0, 2.0]]


@pytest.mark.slow
def test_a_restart_by_torchrun_makes_a_fresh_job(tmp_path: Path) -> None:
    # Without gloo: after a restart by torchrun its ranks often find addresses of processes that have ended.
    program = tmp_path / "train.py"
    program.write_text(
        "import os, torch\n"
        "import spark_estimator.torch as hvd\n"
        "hvd.init()\n"
        "total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os._exit(3)\n"
        "os.write(1, (str([hvd.rank(), hvd.size(), total]) + '\\n').encode())\n"
    )
    assert lines(started([*torchrun(2, "--max-restarts", "1"), str(program)])) == [[0, 2, 2.0], [1, 2, 2.0]]


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="bare"),
        pytest.param({"SPARK_ESTIMATOR_JOB_KEY": KEY, "SPARK_ESTIMATOR_ENCRYPTION": "require"}, id="key"),
    ],
)
def test_plain_variables_make_one_job(script: list[str], variables: dict[str, str]) -> None:
    assert lines(*bare(script, 2, [1, 0], **variables)) == expected(2)


def test_slurms_variables_make_one_job(script: list[str]) -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": f"t{os.getpid()}"}
    tasks = [started(script, **step, SLURM_STEP_ID="0", SLURM_PROCID=str(rank)) for rank in (0, 1)]
    assert lines(*tasks) == expected(2)


def test_two_jobs_at_once_stay_apart(script: list[str]) -> None:
    first, second = bare(script, 2, [0, 1]), bare(script, 2, [1, 0])
    assert lines(*first) == expected(2)
    assert lines(*second) == expected(2)


def own_address() -> str:
    from spark_estimator.collectives.other_launchers.addresses import find_own_addresses

    address = find_own_addresses()[0]
    if address == "127.0.0.1":
        pytest.skip("this host has no other address than loopback's")
    return address


def test_a_key_and_the_address_of_rank_0_make_a_job_of_several_hosts(script: list[str]) -> None:
    ranks = bare(script, 2, [1, 0], MASTER_ADDR=own_address(), SPARK_ESTIMATOR_JOB_KEY=KEY)
    assert lines(*ranks) == expected(2)


def test_a_shared_folder_makes_a_job_of_several_hosts(script: list[str], tmp_path: Path) -> None:
    ranks = bare(script, 3, [0, 1, 2], MASTER_ADDR="203.0.113.1", SPARK_ESTIMATOR_JOB_FOLDER=str(tmp_path))
    assert lines(*ranks) == expected(3)
    assert list((tmp_path / f"spark_estimator-{os.getuid()}").iterdir()) == []


def test_a_key_in_a_file_makes_a_job_of_several_hosts(script: list[str], tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(KEY)
    ranks = bare(script, 2, [0, 1], MASTER_ADDR=own_address(), SPARK_ESTIMATOR_JOB_KEY_FILE=str(path))
    assert lines(*ranks) == expected(2)


@pytest.mark.parametrize(
    ("variables", "warns"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_NAMESPACE": "1"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "1"}, False),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}, False),
    ],
)
def test_a_key_that_the_launcher_sends_in_clear_is_warned_of(
    variables: dict[str, str], warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = find_foreign_job(variables | {"MASTER_ADDR": "10.0.0.1"})
    assert job is not None
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    _make_board(job, Settings(job_key=KEY), (0, 1))
    assert ("sends variables to other hosts without encryption" in caplog.text) == warns


def test_a_list_of_ranks_makes_a_job_of_these_in_that_order(script: list[str]) -> None:
    port = f"{os.getpid()}{next(_ports)}"
    jobs = {0: [2, 0], 2: [2, 0], 1: [1], 3: [0, 2]}
    ranks = [bare([*script, json.dumps(comm)], 4, [rank], MASTER_PORT=port)[0] for rank, comm in jobs.items()]
    results = [lines(process)[0] for process in ranks]
    assert [result[:2] for result in results[:3]] == [[1, 2], [0, 2], [0, 1]]
    assert results[3][0] == "ValueError" and "init(comm=[0, 2]): this process is number 3 of 4" in str(results[3][1])


def test_a_rank_that_does_not_come_is_named(script: list[str]) -> None:
    results = lines(*bare(script, 3, [0, 2], HOROVOD_START_TIMEOUT="4"))
    assert [result[0] for result in results] == ["PeerLostError"] * 2
    assert all("rank 1 of number 0 of 3 processes started by a launcher that" in str(text) for _, text in results)


def test_rank_0_that_does_not_come_is_named(script: list[str]) -> None:
    ((kind, text),) = lines(*bare(script, 2, [1], HOROVOD_START_TIMEOUT="1"))
    assert kind == "PeerLostError" and "rank 0 left no notice within 1 s" in str(text)


@pytest.mark.parametrize(
    "ranks", [[0, 1, 1], pytest.param([0, 0, 1], marks=pytest.mark.slow), pytest.param([1, 1], marks=pytest.mark.slow)]
)
def test_two_processes_with_one_rank_are_an_error(script: list[str], ranks: list[int]) -> None:
    """In a job that is not complete, so that all of them wait."""
    results = lines(*bare(script, 3, ranks, HOROVOD_START_TIMEOUT="60"))
    assert [kind for kind, _ in results] == ["ForeignLauncherError"] * len(ranks)
    assert all("has the same number" in str(text) for _, text in results)


@pytest.mark.slow
def test_a_process_too_many_is_an_error(script: list[str], tmp_path: Path) -> None:
    """Another process has its rank, or the job is complete without it."""
    port, begun, end = f"{os.getpid()}{next(_ports)}", tmp_path / "begun", tmp_path / "end"
    wait = f"    import time; open({str(begun)!r}, 'w')\n    while not os.path.exists({str(end)!r}): time.sleep(0.05)\n"
    Path(script[1]).write_text(SCRIPT.replace("    context.shutdown()", f"{wait}    context.shutdown()"))
    complete = bare(script, 2, [0, 1], MASTER_PORT=port)
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for size, rank, text in ((2, 1, "has the same number"), (3, 2, "does not wait for it: its job is complete")):
        ((kind, message),) = lines(*bare(script, size, [rank], MASTER_PORT=port))
        assert kind == "ForeignLauncherError" and text in str(message)
        assert f"process {complete[0 if rank == 2 else 1].pid} on this host" in str(message)
    end.touch()
    assert [result[:2] for result in lines(*complete)] == [[0, 2], [1, 2]]


def test_different_numbers_of_ranks_are_an_error(script: list[str]) -> None:
    port = f"{os.getpid()}{next(_ports)}"
    ranks = [bare(script, size, [rank], MASTER_PORT=port)[0] for size, rank in ((2, 0), (3, 1))]
    results = lines(*ranks)
    assert [result[0] for result in results] == ["ForeignLauncherError"] * 2
    assert all("was started as one of 3" in str(text) for _, text in results)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in ("mpirun.openmpi", "torchrun")] + ["mpirun.mpich"]
)
def test_a_launchers_process_that_has_ended_is_not_waited_for(name: str, script: list[str]) -> None:
    rank = {"mpirun.openmpi": "OMPI_COMM_WORLD_RANK", "mpirun.mpich": "PMI_RANK", "torchrun": "RANK"}[name]
    ends = ["sh", "-c", f'test ${rank} = 1 || exec "$@"', "sh", *script]
    command = torchrun(3, "--no-python") if name == "torchrun" else mpi(name, 3)
    results = lines(started([*command, *ends], HOROVOD_START_TIMEOUT="60"))
    assert {result[0] for result in results} == {"PeerLostError"}
    assert any("runs only 2 of the 3 processes on host" in str(text) for _, text in results)


def test_ranks_that_count_hosts_differently_meet(script: list[str], tmp_path: Path) -> None:
    """One has a wrong number of ranks, so that it takes the job for one of several hosts."""
    command = ["sh", "-c", 'test $PMI_RANK = 0 || export PMI_SIZE=3; exec "$@"', "sh", *script]
    results = lines(started([*mpi("mpirun.mpich", 2), *command], HOME=str(tmp_path)))
    assert {result[0] for result in results} == {"ForeignLauncherError"}
    assert all("was started as one of 3" in str(text) for _, text in results)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_rank_is_named_by_its_peers(tmp_path: Path, sent: signal.Signals) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        SCRIPT.replace(
            "    total = ",
            f"    if context.rank() == 1: os.kill(os.getpid(), {int(sent)})\n    total = ",
        )
    )
    ((kind, text),) = lines(*bare([sys.executable, str(program)], 2, [0, 1]))
    assert kind == "PeerLostError" and "rank 1" in str(text)


def test_a_job_of_several_hosts_without_key_or_folder_says_what_to_set(script: list[str]) -> None:
    ((kind, text),) = lines(started(script, PMI_SIZE="4", PMI_RANK="1", MPI_LOCALNRANKS="2"))
    assert kind == "ForeignLauncherError"
    for words in ("number 1 of 4", "on several hosts", "SPARK_ESTIMATOR_JOB_FOLDER", "SPARK_ESTIMATOR_JOB_KEY"):
        assert words in str(text)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}, "Spark_estimator can't join such a job"),
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, "Spark_estimator can't join such a job"),
        ({"PMI_SIZE": "2"}, "Its rank (none) is not one of 0 to 1"),
        ({"PMI_SIZE": "2", "PMI_RANK": "2"}, "Its rank (2) is not one of 0 to 1"),
    ],
)
def test_a_job_that_cannot_be_joined_names_what_to_use(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ForeignLauncherError) as caught:
        make_rendezvous(Settings())
    assert words in str(caught.value) and "`horovodrun -np 2 python train.py`" in str(caught.value)


def test_a_variable_opts_out(script: list[str]) -> None:
    alone = started(script, PMI_SIZE="2", HOROVOD_SIZE="2", SPARK_ESTIMATOR_IGNORE_LAUNCHER="1")
    assert lines(alone) == expected(1)


def test_a_process_that_a_rank_starts_does_not_join(tmp_path: Path, script: list[str]) -> None:
    program = tmp_path / "outer.py"
    program.write_text(
        "import subprocess, sys\n"
        "from spark_estimator.collectives import context\n"
        "context.init()\n"
        "subprocess.run(sys.argv[1:])\n"
    )
    results = lines(*bare([sys.executable, str(program), *script], 2, [0, 1]))
    assert [result[0] for result in results] == ["ForeignLauncherError"] * 2
    assert all("was started by a rank, number" in str(text) for _, text in results)


def test_a_process_that_a_rank_of_our_own_launcher_starts_does_not_join(tmp_path: Path, script: list[str]) -> None:
    program = tmp_path / "outer.py"
    program.write_text("import subprocess, sys\nsubprocess.run(sys.argv[1:], close_fds=False)\n")
    horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", sys.executable]
    torchs = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    inner = ["env", "-u", "SPARK_ESTIMATOR_RENDEZVOUS_FD", *(f"{name}={value}" for name, value in torchs.items())]
    done = started([*horovodrun, str(program), *inner, *script])
    out, _ = done.communicate(timeout=90)
    assert out.count("ForeignLauncherError") == 2 and "or by a rank of a spark_estimator job (HOROVOD_SIZE=2)" in out


def test_our_launchers_work_inside_of_an_allocation(script: list[str]) -> None:
    horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2"]
    allocation = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "1"}
    out, err = started([*horovodrun, *script], **allocation).communicate(timeout=90)
    assert "[0]<stdout>:[0, 2, " in out, err
    assert "processes started by" not in err


@pytest.mark.slow
def test_a_launcher_that_is_itself_started_twice_warns(script: list[str]) -> None:
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", *script]
    twice = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    out, err = started(command, **twice).communicate(timeout=90)
    assert "[0]<stdout>:[0, 2, " in out, err
    assert err.count("This program is number 1 of 2 processes started by Slurm's srun") == 1
    out, err = started(command, **twice, SPARK_ESTIMATOR_IGNORE_LAUNCHER="1").communicate(timeout=90)
    assert "[0]<stdout>:[0, 2, " in out and "This program" not in err


@pytest.mark.slow
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
    command = [sys.executable, "-c", program, str(tmp_path / "rows.parquet")]
    _, err = started(command, PMI_SIZE="2", PMI_RANK="1").communicate(timeout=90)
    assert err.count("reads all rows, but this process is number 1 of 2") == 1
    assert "make_torch_dataloader() reads all rows" in err


def test_a_communicator_of_mpi4py_means_the_ranks_that_are_in_it(script: list[str], tmp_path: Path) -> None:
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed (CONTRIBUTING.md tells when to install it)")
    program = tmp_path / "mpi.py"
    program.write_text(
        "from mpi4py import MPI\n"
        + SCRIPT.replace(
            "context.init(comm)", "context.init(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2, -MPI.COMM_WORLD.rank))"
        )
    )
    command = [*mpi("mpirun.openmpi", 3), sys.executable, str(program)]
    results = lines(started(command, MPI4PY_MPIABI="openmpi"))  # a wheel of mpi4py otherwise looks for MPICH's library
    assert [result[:2] for result in results] == [[0, 1], [0, 2], [1, 2]]


def test_what_is_no_list_of_ranks_is_refused() -> None:
    assert to_ranks(None) is None and to_ranks([]) is None and to_ranks(range(2)) == (0, 1)
    for comm in (object(), "all", ["a"]):
        with pytest.raises(ValueError, match="pass a list of ranks, or a communicator of mpi4py"):
            to_ranks(comm)


def test_the_users_key_shows_nowhere() -> None:
    settings = Settings.read({"SPARK_ESTIMATOR_JOB_KEY": KEY})
    assert KEY not in repr(settings)
    assert KEY not in settings.describe(environ={"SPARK_ESTIMATOR_JOB_KEY": KEY})
