"""``horovodrun``: Horovod's flags, output and exit status, with real commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator.launch.cli import main as cli
from tests.launch import clusters


def horovodrun(*arguments: str, folder: Path | None = None, **env: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_estimator.launch.cli.main", *arguments],
        env=clusters.environment(**env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk of our own without the right to mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_every_rank_s_lines_are_shown_with_the_rank_in_front() -> None:
    code = "import os, sys; print('I am', os.environ['HOROVOD_RANK']); print('oops', file=sys.stderr)"
    code += "; print('no end', end='')"
    done = horovodrun("-np", "3", *python(code))
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"[{rank}]<stdout>:I am {rank}\n" in done.stdout
        assert f"[{rank}]<stdout>:no end\n" in done.stdout
        assert f"[{rank}]<stderr>:oops\n" in done.stderr


def test_a_script_for_horovod_computes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nimport horovod.torch as hvd\nhvd.init()\n"
        "print(sys.argv[1:], hvd.rank(), hvd.local_rank(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item())\n"
    )
    done = horovodrun("-np", "2", "-H", "localhost:2", "python", "train.py", "-np", "7", "--lr=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:['-np', '7', '--lr=1'] {rank} {rank} 2.0\n" in done.stdout


def test_the_first_rank_that_fails_ends_the_others_and_gives_the_status() -> None:
    code = "import os, time\nif os.environ['HOROVOD_RANK'] == '1': os._exit(7)\ntime.sleep(1000)"
    done = horovodrun("-np", "3", *python(code))
    assert done.returncode == 7
    assert "rank 1 (host " in done.stderr and "ended with exit status 7" in done.stderr
    assert "rank 0 (host " in done.stderr and "was stopped after that" in done.stderr


@pytest.mark.slow
def test_who_lost_a_peer_is_not_blamed() -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, spark_estimator.torch as hvd\nhvd.init()\n"
        "for step in range(10**9):\n"
        "    if hvd.rank() == 1 and step == 100: raise ValueError('mine')\n"
        "    hvd.allreduce(torch.ones(10), name='x')\n"
    )
    done = horovodrun("-np", "2", *python(code))
    assert done.returncode == 1
    assert "horovodrun: rank 1 (host " in done.stderr, done.stderr


def test_a_rank_that_ends_early_without_an_error_is_named_by_one_that_waited_for_it() -> None:
    code = (
        "import numpy\nfrom spark_estimator.collectives import arrays, context\ncontext.init()\n"
        "for step in range(10**9):\n"
        "    if context.rank() == 1 and step == 3: raise SystemExit(0)\n"
        "    arrays.allreduce(numpy.ones(10), name='x')\n"
    )
    done = horovodrun("-np", "2", *python(code))
    assert done.returncode == 1
    message = done.stderr[done.stderr.index("horovodrun: rank 0 (host ") :]
    assert "ended with exit status 1: spark_estimator.errors.ShutDownError: " in message, done.stderr
    assert re.search(r"rank 1 on .* has left the job", message), done.stderr


def test_a_signal_is_named() -> None:
    done = horovodrun("-np", "2", "bash", "-c", "kill -11 $$")
    assert done.returncode == 128 + 11
    assert "was killed by signal 11 (SIGSEGV)" in done.stderr


FULL_DISK = "can't be written: No space left on device. Lines are lost from now on; the job continues."
TALKS = (
    "import os; [print('x' * 1000, flush=True) for _ in range(100)]; open('ended' + os.environ['HOROVOD_RANK'], 'w')"
)


@pytest.mark.parametrize("flags", [[], ["--prefix-output-with-timestamp"], ["--min-np", "2", "--max-np", "2"]])
def test_a_full_disk_under_stdout_ends_no_job(tmp_path: Path, flags: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", *flags, *python(TALKS)],
            env=clusters.environment(),
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    losses = [line for line in done.stderr.splitlines() if FULL_DISK in line]
    assert len(losses) == 1 and "stdout" in losses[0], done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended0", "ended1"]


def test_a_full_disk_under_the_output_files_ends_no_job(tmp_path: Path, small_disk: Path) -> None:
    done = horovodrun("-np", "2", "--output-filename", str(small_disk / "logs"), *python(TALKS), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (loss,) = [line for line in done.stderr.splitlines() if FULL_DISK in line]
    assert loss.startswith(f"spark_estimator: the ranks' output in {small_disk}/logs ")
    assert done.stdout.count("]<stdout>:x") == 200, "lines are shown all the same"
    assert (tmp_path / "ended0").exists() and (tmp_path / "ended1").exists()


def test_a_command_that_does_not_exist() -> None:
    done = horovodrun("-np", "2", "/no/such/program")
    assert done.returncode == 127
    assert "could not start the command '/no/such/program': No such file or directory" in done.stderr


def test_stdin_is_empty_and_nothing_is_inherited_that_should_not_be() -> None:
    code = "import os, sys; print(repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd'), key=int))"
    done = horovodrun("-np", "1", *python(code))
    assert "[0]<stdout>:'' ['0', '1', '2', " in done.stdout, done.stderr
    # The rendezvous, two listening sockets, the pipe for progress, and the descriptor that lists the folder.
    assert len(done.stdout.split("[", 2)[2].split(",")) == 8, done.stdout


def test_output_files(tmp_path: Path) -> None:
    code = "import os, sys; print('out', os.environ['HOROVOD_RANK']); print('err', file=sys.stderr)"
    done = horovodrun("-np", "11", "--output-filename", str(tmp_path / "logs"), *python(code))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs/rank.03/stdout").read_text() == "out 3\n"
    assert (tmp_path / "logs/rank.10/stderr").read_text() == "err\n"


def test_ctrl_c_in_a_terminal_ends_everything_with_130(tmp_path: Path) -> None:
    """SIGINT to the whole process group; a second one while a rank takes its time to end."""
    marker = uuid.uuid4().hex
    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('begun', flush=True)"
    endless = python(code + "\nwhile True: time.sleep(1)")
    for flags in ([], ["--min-np", "1"]):
        launcher = subprocess.Popen(
            [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", *flags, *endless],
            env=clusters.environment(**{clusters.MARKER: marker}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert launcher.stdout is not None
        for _ in range(2):
            assert "begun" in launcher.stdout.readline()
        os.killpg(launcher.pid, signal.SIGINT)
        time.sleep(0.3)
        os.killpg(launcher.pid, signal.SIGINT)
        _, stderr = launcher.communicate(timeout=60)
        assert launcher.returncode == 130, stderr
        assert "horovodrun: interrupted; all ranks were stopped." in stderr and "Traceback" not in stderr
        clusters.wait_until_gone(marker, 10)


def test_lines_carry_the_time_where_that_is_wanted(tmp_path: Path) -> None:
    done = horovodrun("-np", "1", "--prefix-output-with-timestamp", "--output-filename", str(tmp_path), "echo", "hi")
    assert re.fullmatch(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hi\n", done.stdout), done.stderr
    assert (tmp_path / "rank.0/stdout").read_text() == "hi\n"


def test_settings_reach_the_command() -> None:
    code = "import os; print(os.environ['HOROVOD_FUSION_THRESHOLD'], os.environ['HOROVOD_LOG_LEVEL'])"
    assert (
        "[0]<stdout>:0 ERROR"
        in horovodrun("-np", "1", "--fusion-threshold-mb", "0", "--log-level", "ERROR", *python(code)).stdout
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["python", "x.py"], "-np is required"),
        (["-np", "2"], "a command is required"),
        (["-np", "0", "true"], "at least one rank"),
        (["-np", "-3", "true"], "at least one rank"),
        (["-np", "two", "true"], "invalid int value"),
        (["-np", "2", "--hosts=-oProxyCommand=evil:1", "true"], "must have the form host:slots"),
        (["-np", "2", "-H", "localhost:2", "--hostfile", "x", "true"], "only one of them can be used"),
        (["-np", "2", "--hostfile", "/no/such/file", "true"], "/no/such/file can't be read: No such file"),
        (["-np", "4", "-H", "localhost:2", "true"], "localhost:2 offers 2 slots, but 4 ranks were requested"),
        (["-np", "2", "-H", "localhost:x", "true"], "must have the form host:slots"),
        (["-np", "2", "--min-np", "3", "true"], "--min-np 3 must be from 1 to 2"),
        (["-np", "2", "--max-np", "1", "true"], "--max-np 1 is less than the 2 ranks of -np"),
        (["-np", "2", "--reset-limit", "1", "true"], "--reset-limit needs an elastic job: set --min-np"),
        (["-np", "2", "--elastic-timeout", "0", "true"], "must be at least 1"),
        (["-np", "2", "--host-discovery-script", "x", "-H", "a", "true"], "script x: only one of them can be used"),
        (["-np", "2", "--slots-per-host", "2", "true"], "needs a host discovery script"),
        (["-np", "2", "--blacklist-cooldown-range", "1", "2", "true"], "range needs an elastic job: set --min-np"),
        (["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "3", "2", "true"], "cool-down of 3 to 2 seconds"),
        (["-np", "2", "--fusion-threshold-mb", "-1", "true"], "is negative"),
        (["-np", "2", "--fusion-threshold-mb", "much", "true"], "expected a whole number, not 'much'"),
        (["-np", "2", "--no-such-flag", "true"], "--no-such-flag"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_an_output_folder_that_cannot_be_made_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["-np", "2", "--output-filename", "/proc/nope", "true"])
    assert ended.value.code == 1
    assert "/proc/nope, can't be written: No such file or directory. Name one" in capsys.readouterr().err


def test_what_only_mpi_needed_is_explained_and_goes_on() -> None:
    flags = ["--mpi", "--mpi-args=--oversubscribe", "--gloo", "--num-nccl-streams", "2", "--no-torus-allreduce"]
    done = horovodrun(*flags, "-np", "1", "echo", "fine")
    assert done.returncode == 0 and "[0]<stdout>:fine" in done.stdout
    assert "--mpi has no effect: there is no MPI" in done.stderr and "--gloo" not in done.stderr
    assert "--num-nccl-streams has no effect: the engine uses one separate stream" in done.stderr
    assert "torus" not in done.stderr


def test_version_and_build(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, says in ((["-v"], spark_estimator.__version__), (["--check-build"], "[X] Gloo"), (["-cb"], "[ ] MPI")):
        with pytest.raises(SystemExit) as ended:
            cli.main(flags)
        assert ended.value.code == 0
        assert says in capsys.readouterr().out


def test_python_is_the_one_beside_horovodrun_also_when_its_environment_is_not_activated() -> None:
    system = shutil.which("env")
    assert system is not None
    done = horovodrun("-np", "1", "python", "-c", "import sys; print(sys.prefix)", PATH=str(Path(system).parent))
    assert f"[0]<stdout>:{sys.prefix}" in done.stdout, done.stderr
