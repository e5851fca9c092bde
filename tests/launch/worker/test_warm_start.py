"""Workers that a server forks: each as a new process would be, and nothing stays of one, or of the server."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_estimator import HorovodRunner
from spark_estimator.env import JOB_VARIABLE, MASTER_VARIABLE, PROCESS_VARIABLE, PROGRESS_FD_VARIABLE
from spark_estimator.launch.worker import child_process, fork_server, warm_start
from spark_estimator.launch.worker.fork_server import ForkRequest
from spark_estimator.launch.worker.warm_start import ForkServer, Preparation

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="servers fork on Linux only"),
    pytest.mark.usefixtures("no_server"),
    pytest.mark.timeout(180),
]
OF_EACH_JOB = (JOB_VARIABLE, PROCESS_VARIABLE, PROGRESS_FD_VARIABLE, "MASTER_PORT", MASTER_VARIABLE)


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end without a server, and with one that would stay for a minute."""
    monkeypatch.setenv("SPARK_ESTIMATOR_WARM", "60")
    monkeypatch.setattr(warm_start, "_server", None)
    monkeypatch.setattr(warm_start, "_refused", set())
    yield
    if warm_start._server is not None:
        warm_start._server.end()


def run(function: Callable[..., Any], *args: Any) -> Any:
    return HorovodRunner(np=-1).run(lambda: function(*args))


def current_server() -> ForkServer:
    assert warm_start._server is not None
    return warm_start._server


def find_servers() -> list[int]:
    """The servers that are this process's children."""
    pids = []
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        pids += [int(pid) for pid in path.read_text().split()]
    return [pid for pid in pids if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def describe_process() -> dict[str, Any]:
    """What a rank can see of its process."""
    import torch

    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "modules": sorted(sys.modules),
        "variables": {name: text for name, text in os.environ.items() if name not in OF_EACH_JOB},
        "folder": os.getcwd(),
        "path": list(sys.path),
        "arguments": list(sys.argv),
        "handlers": {number: repr(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()},
        "masks": {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt", "Umask")},
        "parent": os.getppid(),
        "own session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "threads": threading.active_count(),
        "name": multiprocessing.current_process().name,
        "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()),
        "decimal": str(sys.modules["decimal"].getcontext()) if "decimal" in sys.modules else "",  # type: ignore[attr-defined]
        "recursion": sys.getrecursionlimit(),
    }


def leave_traces(folder: str) -> None:
    """Change all that a job can change in its process."""
    import torch

    sys.modules["a_trace"] = sys  # type: ignore[assignment]
    os.environ.update(A_TRACE="1", HOME="/a/trace", MASTER_ADDR="trace")
    os.chdir(folder)
    os.umask(0o777)
    sys.path.insert(0, "/a/trace")
    sys.argv.append("trace")
    signal.signal(signal.SIGUSR2, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
    sys.setrecursionlimit(77_777)
    os.dup(0)
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def test_a_job_sees_nothing_of_the_job_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(describe_process)
    server = current_server()
    run(leave_traces, str(tmp_path))
    assert run(describe_process) == first
    assert current_server() is server and len(find_servers()) == 1, "all three were forked by it"
    monkeypatch.setenv("SPARK_ESTIMATOR_WARM", "0")
    new_process = run(describe_process)
    del new_process["variables"]["SPARK_ESTIMATOR_WARM"], first["variables"]["SPARK_ESTIMATOR_WARM"]
    for name in ("modules", "limits"):  # the server has imported what PyTorch needs later; the same limits, see above
        del new_process[name], first[name]
    assert new_process == first


def test_random_states_are_drawn_anew() -> None:
    import tensorflow
    import torch  # so that the server imports both

    assert tensorflow and torch

    def draw() -> list[object]:
        import tensorflow as tf
        import torch

        folder = tempfile.mkdtemp()
        os.rmdir(folder)
        authkey = bytes(multiprocessing.current_process().authkey)
        weights = tf.keras.initializers.GlorotUniform()((1, 1))
        tensors = [torch.rand(1).item(), float(tf.random.uniform([])), float(weights[0, 0])]
        return [np.random.random(), random.random(), os.urandom(8), authkey, folder, *tensors]

    draws = [run(draw) for _ in range(3)]
    assert len({repr(value) for values in draws for value in values}) == 3 * len(draws[0])
    assert len(find_servers()) == 1


def test_the_mark_and_the_job_are_shown_as_of_a_new_process() -> None:
    def read_block() -> tuple[bytes, str, str]:
        block = Path("/proc/self/environ").read_bytes()
        return block, os.environ[JOB_VARIABLE], os.environ[PROCESS_VARIABLE]

    seen = [run(read_block) for _ in range(2)]
    for block, job, mark in seen:
        variables = dict(item.split(b"=", 1) for item in block.split(b"\0") if item)
        assert variables[JOB_VARIABLE.encode()] == job.encode()
        assert variables[PROCESS_VARIABLE.encode()] == mark.encode()
    assert seen[0][1:] != seen[1][1:]


def test_processes_that_a_worker_leaves_behind_are_ended() -> None:
    """Also copies of the worker in another session: they have its mark."""

    def leave() -> int:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(1000)
        return pid

    for _ in range(2):
        left = run(leave)
        wait_until(lambda left=left: not Path(f"/proc/{left}").exists(), "it was not ended")


@pytest.mark.parametrize("changed", ["environment", "folder", "umask"])
def test_another_server_takes_over_where_a_new_process_would_be_another(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(os.getpid)
    server = current_server()
    with contextlib.ExitStack() as stack:
        if changed == "environment":
            monkeypatch.setenv("A_VARIABLE", "1")
        elif changed == "folder":
            monkeypatch.chdir(tmp_path)
        else:
            stack.callback(os.umask, os.umask(0o027))
        seen = run(lambda: (os.environ.get("A_VARIABLE"), os.getcwd(), os.umask(0)))
        assert seen == (os.environ.get("A_VARIABLE"), os.getcwd(), 0o027 if changed == "umask" else seen[2])
        assert current_server() is not server
        wait_until(lambda: len(find_servers()) == 1, "the other one was not ended")


def test_a_folder_that_was_made_again_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stays in the one that was removed, where a worker could make no file."""
    folder = tmp_path / "results"
    for number in range(2):
        folder.mkdir()
        monkeypatch.chdir(folder)
        run(lambda: Path("made").touch())
        assert (folder / "made").exists(), number
        monkeypatch.chdir(tmp_path)
        (folder / "made").unlink()
        folder.rmdir()


def test_a_server_that_was_killed_is_replaced() -> None:
    run(os.getpid)
    (pid,) = find_servers()
    os.kill(pid, signal.SIGKILL)
    ranks = [run(os.getpid) for _ in range(2)]
    assert len(set(ranks)) == 2
    assert len(find_servers()) == 1 and find_servers() != [pid], "the first is a new process, the second a fork"


def test_a_server_leaves_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_WARM", "0.2")
    run(os.getpid)  # what is opened once
    wait_until(lambda: not find_servers(), "it stays")
    before = os.listdir("/proc/self/fd"), threading.active_count()
    for _ in range(3):
        run(os.getpid)
        wait_until(lambda: not find_servers(), "it stays")
        wait_until(lambda: threading.active_count() <= before[1], "its thread stays")
    assert len(os.listdir("/proc/self/fd")) == len(before[0])


def test_a_server_leaves_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    run(os.getpid)
    assert find_servers()
    monkeypatch.setattr(child_process, "is_memory_short", lambda: True)
    wait_until(lambda: not find_servers(), "it stays")


def test_without_time_to_stay_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_WARM", "0")
    run(os.getpid)
    assert warm_start._server is None


def test_modules_that_start_threads_or_hold_descriptors_make_new_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True, name='its').start()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    environment |= {JOB_VARIABLE: "0" * 16, PROCESS_VARIABLE: "/" + "0" * 16}
    server = ForkServer(Preparation.take(environment, ["starts_a_thread"]))
    assert server.reserve()
    variables = {JOB_VARIABLE: "1" * 16, PROCESS_VARIABLE: "/" + "1" * 16}
    with pytest.raises(fork_server.ForkRefusedError, match="has started threads: its"):
        server.fork(ForkRequest(os.getpid(), 9, (0, 1, 2), variables), [0, 1, 2])
    with pytest.raises(fork_server.ForkRefusedError, match="2 of 3 descriptors arrived"):
        server.fork(ForkRequest(os.getpid(), 9, (0, 1, 2), variables), [0, 1])
    server.end()
    assert not server.reserve()


def test_a_server_ends_with_its_program() -> None:
    program = (
        "import os\nfrom spark_estimator import HorovodRunner\nHorovodRunner(np=-1).run(os.getpid)\n"
        "print(*(open(f'/proc/self/task/{t}/children').read() for t in os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    (server,) = map(int, done.stdout.split())
    assert not Path(f"/proc/{server}").exists()


def test_a_copy_of_the_driver_does_not_use_its_server() -> None:
    run(os.getpid)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if warm_start._server is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_archive_that_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "modules.zip"

    def write(value: int) -> None:
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("from_the_archive.py", f"VALUE = {value}\n" + "#" * value)

    def read() -> int:
        import from_the_archive  # type: ignore[import-not-found]

        return int(from_the_archive.VALUE)

    monkeypatch.setattr(sys, "path", [str(archive), *sys.path])
    write(1)
    assert run(read) == 1
    server = current_server()
    write(22)
    assert run(read) == 22 and current_server() is server


class Closing:
    """Writes to a file when it is destroyed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __del__(self, write: Callable[..., int] = os.write, opened: Callable[..., int] = os.open) -> None:
        write(opened(self.path, os.O_WRONLY | os.O_CREAT), b"closed")


@pytest.mark.parametrize("seconds", ["60", "0"])
def test_what_a_rank_has_buffered_is_written_at_its_end(
    seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """C++'s static objects are not destroyed, but Python ends as always, and C's streams are flushed."""
    monkeypatch.setenv("SPARK_ESTIMATOR_WARM", seconds)

    def work(folder: Path) -> None:
        import atexit

        atexit.register(lambda: Path(folder, "atexit").write_text("called"))
        sys.modules["left_open"] = open(Path(folder, "open"), "w")  # type: ignore[assignment]  # noqa: SIM115
        sys.modules["left_open"].write("buffered")  # type: ignore[attr-defined]
        sys.modules["closing"] = Closing(folder / "destroyed")  # type: ignore[assignment]
        ctypes.CDLL(None).printf(b"from C\n")

    run(work, tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {"atexit": "called", "open": "buffered", "destroyed": "closed"}
    assert "from C" in capfd.readouterr().out


def test_the_exit_status_is_that_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys\nfrom spark_estimator.launch.worker.worker import leave_static_objects\n"
        "leave_static_objects(int(sys.argv[1]))\nsys.exit(int(sys.argv[1]))"
    )
    for variables, status in (({}, 0), ({}, 7), ({"CUDA_INJECTION64_PATH": "/no/such"}, 7)):
        done = subprocess.run([sys.executable, "-c", program, str(status)], env={**os.environ, **variables})
        assert done.returncode == status


def test_orphans_are_adopted_for_a_moment_only() -> None:
    def is_adopting() -> int:
        value = ctypes.c_int()
        assert ctypes.CDLL(None).prctl(37, ctypes.byref(value)) == 0
        return value.value

    assert not is_adopting()
    with child_process.adopt_orphans():
        assert is_adopting()
        with child_process.adopt_orphans():
            pass
        assert is_adopting()
    assert not is_adopting()


def test_memory_is_short_when_a_tenth_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not child_process.is_memory_short(), "this machine has some"
    monkeypatch.setattr(child_process, "_find_memory_counters", lambda: [str(tmp_path / "memory.events")])
    for limit, current, inactive, short in (("max", 99, 0, False), ("100", 95, 0, True), ("100", 95, 20, False)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{current}\n")
        (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\n")
        assert child_process.is_memory_short() is short, (limit, current, inactive)


def test_many_jobs_leave_nothing() -> None:
    """Processes, descriptors, threads, memory of the server."""
    for _ in range(3):
        run(os.getpid)
    (server,) = find_servers()
    before = os.listdir(f"/proc/{server}/fd"), os.listdir("/proc/self/fd"), threading.active_count()
    for _ in range(20):
        run(os.getpid)
    wait_until(lambda: threading.active_count() <= before[2], "threads stay")
    assert find_servers() == [server]
    assert len(os.listdir(f"/proc/{server}/fd")) == len(before[0])
    assert len(os.listdir("/proc/self/fd")) == len(before[1])
