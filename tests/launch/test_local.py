"""Local jobs, with real processes: values, output, every way to fail, and that nothing outlives a job."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.compat.importer import find_autoload_path
from spark_estimator.errors import JobFailedError, ResultError, WorkerFailedError, remove_links
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local
from spark_estimator.launch.worker import child_process, supervisor
from spark_estimator.observe.driver_log import log_to_driver
from tests.launch import clusters

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


@pytest.fixture
def marker() -> Iterator[str]:
    """A mark in the environment of everything that the test's jobs start; all of it has to have ended."""
    text = uuid.uuid4().hex
    yield text
    clusters.wait_until_gone(text, 10)


def test_rank_0_s_value_comes_back_and_all_output_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def speak(word: str, *, times: int) -> tuple[str, int, str]:
        print(word * times)
        print("complains", file=sys.stderr)
        os.write(1, b"from native code\n")
        log_to_driver(f"a message from {rank()}")
        return word, os.getpid(), os.getcwd()

    [(word, pid, folder)] = run_local(speak, 3, JobOptions(args=("ab",), kwargs={"times": 2}))
    assert word == "ab" and pid != os.getpid() and folder == os.getcwd()
    output, errors = capfd.readouterr()
    for number in range(3):
        assert f"[{number}]<stdout>:abab\n" in output
        assert f"[{number}]<stdout>:from native code\n" in output
        assert f"[{number}]<stderr>:complains\n" in errors
        assert f"[{number}] a message from {number}\n" in output


def test_outside_a_job_a_message_is_printed_here_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_driver("x" * 5000)
    log_to_driver("y" * 4000)
    cut = "x" * 4000 + " [cut: the first 4000 of 5000 characters]\n"
    assert capsys.readouterr().out == cut + "y" * 4000 + "\n"


def test_horovod_s_variables_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "17")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "12345")
    [variables] = run_local(lambda: dict(os.environ), 2)
    expected = {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    assert {name: variables[f"HOROVOD_{name}"] for name in expected} == expected
    assert variables["HOROVOD_CONTROLLER"] == "gloo"
    assert variables["HOROVOD_FUSION_THRESHOLD"] == "12345"


def test_search_path_and_pythonpath_are_those_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("ANSWER = 42")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", "/somewhere")

    def look() -> tuple[int, list[str], str | None]:
        import beside_the_script

        return beside_the_script.ANSWER, sys.path, os.environ.get("PYTHONPATH")

    path = [*sys.path, find_autoload_path()]
    assert run_local(look, 1) == [(42, path, f"{find_autoload_path()}:/somewhere")]
    monkeypatch.delenv("PYTHONPATH")
    assert run_local(look, 1) == [(42, path, find_autoload_path())]


def test_files_in_the_current_folder_shadow_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("selectors", "spec", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert run_local(lambda: 1, 1) == [1]


def test_secrets_show_neither_in_arguments_nor_in_the_environment() -> None:
    def look() -> tuple[str, bytes, bytes, bytes]:
        from spark_estimator.collectives.rendezvous import find_current

        rendezvous = find_current()
        assert rendezvous is not None
        environ, cmdline = (Path(f"/proc/self/{name}").read_bytes() for name in ("environ", "cmdline"))
        inherited = subprocess.check_output(["env"])  # by a program that the rank starts
        return rendezvous.key.hex(), environ, cmdline, inherited

    [(key, *shown)] = run_local(look, 2)
    assert len(key) == 64
    assert key.encode() not in b"".join(shown)


def test_each_attempt_has_a_key_of_its_own(tmp_path: Path) -> None:
    def work() -> None:
        from spark_estimator.collectives.rendezvous import find_current

        rendezvous = find_current()
        assert rendezvous is not None
        attempt = int(os.environ["SPARK_ESTIMATOR_ATTEMPT"])
        (tmp_path / f"attempt {attempt}, rank {rank()}").write_bytes(rendezvous.key)
        if attempt == 1:
            while len(os.listdir(tmp_path)) < 2:
                time.sleep(0.01)
            raise ValueError("again")

    run_local(work, 2, JobOptions(limits=Limits(max_restarts=1)))
    first, second = ({path.read_bytes() for path in tmp_path.glob(f"attempt {number},*")} for number in (1, 2))
    assert [len(key) for key in (*first, *second)] == [32, 32], "all ranks of an attempt have one"
    assert first != second


def test_stdin_is_empty() -> None:
    assert run_local(lambda: sys.stdin.read(), 1) == [""]


def test_a_class_of_the_caller_is_the_same_class_when_it_comes_back() -> None:
    class Point:
        pass

    assert type(run_local(lambda: Point(), 1)[0]) is Point


@contextlib.contextmanager
def fails(rank: int, *texts: str) -> Iterator[list[WorkerFailedError]]:
    """Expects that the block raises, for that rank, an error whose first line has all texts."""
    caught: list[WorkerFailedError] = []
    with pytest.raises(WorkerFailedError) as raised:
        yield caught
    caught.append(raised.value)
    assert raised.value.rank == rank, raised.value
    first = str(raised.value).splitlines()[0]
    assert first.startswith(f"rank {rank} (host ")
    for text in texts:
        assert text in first


def run_and_fail_on_rank_1(how: Any, marker: str) -> None:
    """Rank 1 does `how()`; the others wait for ever, with a child process each."""

    def work() -> None:
        subprocess.Popen(["sleep", "1000"])
        if rank() == 1:
            how()
        while True:
            time.sleep(1)

    run_local(work, 3, JobOptions(environment={clusters.MARKER: marker}))


def test_an_exception_comes_with_its_traceback(marker: str) -> None:
    def how() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer é") from error

    with fails(1, "raised ValueError: outer é") as caught:
        run_and_fail_on_rank_1(how, marker)
    text = str(caught[0].__cause__)
    assert "KeyError: 'inner'" in text and "direct cause" in text and 'raise ValueError("outer é") from error' in text
    assert "launch/worker/worker.py" not in text, "our own frames help nobody"
    assert caught[0].exitcode is None
    lines = remove_links(str(caught[0])).splitlines()
    assert lines[1] == "  from KeyError: 'inner'", "what is printed first may be far above"
    assert [line.split(")")[1] for line in lines[3:]] == [" was stopped after that"] * 2


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), (None, 0), ("a text", 1)])
def test_sys_exit_is_a_failure(code: Any, status: int, marker: str) -> None:
    argument = "" if code is None else repr(code)
    with fails(1, f"called sys.exit({argument}) before work() returned") as caught:
        run_and_fail_on_rank_1(lambda: sys.exit(code), marker)
    assert caught[0].exitcode == status


@pytest.mark.parametrize("code", [0, 5])
def test_an_end_without_a_word_is_a_failure(code: int, marker: str) -> None:
    def how() -> None:
        print("my last words", file=sys.stderr)
        os._exit(code)

    with fails(1, f"ended with exit status {code} before work() returned") as caught:
        run_and_fail_on_rank_1(how, marker)
    assert "my last words" in str(caught[0].__cause__)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal_is_named(number: signal.Signals, marker: str) -> None:
    with fails(1, f"was killed by signal {int(number)} ({number.name})") as caught:
        run_and_fail_on_rank_1(lambda: os.kill(os.getpid(), number), marker)
    assert caught[0].exitcode == -number
    if number == signal.SIGSEGV:
        assert "Fatal Python error: Segmentation fault" in str(caught[0].__cause__), "the Python stack at the crash"


def test_memory_is_told_when_the_kernel_may_have_killed() -> None:
    # A child's peak begins with that of this process, which many tests have used before.
    mebibytes = (child_process.MemoryBaseline.take().peak_bytes >> 20) + 300

    def work() -> None:
        held = b"x" * (mebibytes << 20)
        os.kill(os.getpid(), signal.SIGKILL)
        del held

    with fails(0, "its memory peaked at ", " MiB", "out of memory") as caught:
        run_local(work, 1)
    peak = re.search(r"peaked at (\d+) MiB", str(caught[0]))
    assert peak and mebibytes <= int(peak[1]) < mebibytes + 300


def test_an_exception_of_an_unusual_kind_is_told(marker: str) -> None:
    class Mute(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    def how() -> None:
        raise Mute

    with fails(1, "raised ", "Mute"):
        run_and_fail_on_rank_1(how, marker)


def test_only_the_ranks_whose_value_is_wanted_pickle_it() -> None:
    assert run_local(lambda: threading.Lock() if rank() else "fine", 2) == ["fine"]


def test_every_rank_s_value_comes_back_in_rank_order_when_asked_for() -> None:
    def work(word: str) -> tuple[str, int, bytes]:
        return word, rank(), bytes([rank()]) * (2 << 20)  # chunks of several ranks at the same time

    values = run_local(work, 3, JobOptions(args=("ab",), all_results=True))
    assert values == [("ab", number, bytes([number]) * (2 << 20)) for number in range(3)]
    with pytest.raises(ResultError, match=r"rank 1 .*returned a value of 65\.0 MiB when pickled"):
        run_local(lambda: bytes(65 << 20) if rank() == 1 else None, 2, JobOptions(all_results=True))


def test_a_value_that_cannot_be_pickled_is_told() -> None:
    with pytest.raises(
        ResultError, match=r"rank 0 .*returned a _thread.lock, which cannot be pickled.*return the path"
    ):
        run_local(lambda: threading.Lock(), 2)


def test_a_value_that_is_too_large_is_told() -> None:
    with pytest.raises(ResultError, match=r"a value of 65\.0 MiB when pickled; at most 64 MiB.*Save it to storage"):
        run_local(lambda: bytes(65 << 20), 2)
    assert len(run_local(lambda: bytes(63 << 20), 1)[0]) == 63 << 20


def test_a_value_that_the_driver_cannot_load_is_told(tmp_path: Path) -> None:
    def work() -> Any:
        (tmp_path / "only_there.py").write_text("class Thing: pass")
        sys.path.append(str(tmp_path))
        import only_there

        return only_there.Thing()

    with pytest.raises(ResultError, match=r"cannot be loaded on the driver: ModuleNotFoundError: .*only_there"):
        run_local(work, 1)


def test_a_module_that_is_missing_in_the_workers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(os)("only_on_the_driver")
    exec("def work(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_on_the_driver", module)
    with fails(0, "could not load work()", "'only_on_the_driver', but this host doesn't", "addPyFile"):
        run_local(module.work, 1)


def test_what_a_rank_leaves_running_ends_with_the_job(marker: str) -> None:
    def work() -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    run_local(work, 2, JobOptions(environment={clusters.MARKER: marker}))
    clusters.wait_until_gone(marker, 5)


def test_a_process_that_holds_the_pipes_open_does_not_hold_the_job_up() -> None:
    def work() -> int:
        return subprocess.Popen(["sleep", "30"], start_new_session=True).pid

    started = time.monotonic()
    [pid] = run_local(work, 1)
    assert time.monotonic() - started < 20
    os.kill(pid, signal.SIGKILL)


def test_a_rank_that_prints_without_end_is_shown_and_stopped(marker: str, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        if rank() == 1:
            time.sleep(1)
            raise ValueError("enough")
        while True:
            print("x" * 200)

    with fails(1, "enough"):
        run_local(work, 2, JobOptions(environment={clusters.MARKER: marker}))


def test_what_keeps_a_rank_from_ending_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And such a process doesn't keep the job: what its function has returned counts."""
    monkeypatch.setattr(supervisor, "_SLOW_END", timedelta(seconds=1))
    monkeypatch.setattr(supervisor, "_LONGEST_END", timedelta(seconds=2))

    def work() -> int:
        import atexit

        if rank() == 0:

            def upload() -> None:
                threading.Event().wait()

            threading.Thread(target=upload, name="the uploader").start()
            # A loader's thread is idle then, and no cause.
            from spark_estimator.data.rank.prefetch import Ahead

            ahead = Ahead()
            assert len(list(ahead.make_items(str, range(10), 1))) == 10
            threading.main_thread().loader = ahead  # type: ignore[attr-defined]
        else:
            atexit.register(time.sleep, 1000)
        return rank()

    assert run_local(work, 2, JobOptions(all_results=True)) == [0, 1]
    captured = capfd.readouterr()
    shown = captured.out + captured.err
    assert "work() returned 1 s ago on rank 0 " in shown
    place = (
        rf"threads: 'the uploader' \(in upload, {re.escape(__file__)} line \d+\)\. Join them before work\(\) returns"
    )
    assert re.search(place, shown), shown
    assert "spark_estimator batches" not in shown
    assert "work() returned 1 s ago on rank 1 " in shown and "but its process has not ended; a library may" in shown
    assert "What it returned has arrived; the process is killed in 1 s." in shown


def test_a_rank_that_llvm_ends_is_explained() -> None:
    """By the last lines of LLVM, which the stacks of the abort follow."""

    def work() -> None:
        print(": CommandLine Error: Option 'bitcode-mdindex-threshold' registered more than once!", file=sys.stderr)
        print("LLVM ERROR: inconsistency in registered CommandLine options", file=sys.stderr)
        print("a frame\n" * 100, file=sys.stderr)
        os.abort()

    with fails(0, "killed by signal 6 (SIGABRT) (LLVM ended it", "import torch first"):
        run_local(work, 1)


def test_the_first_lines_of_an_error_show_what_its_type_and_message_do_not() -> None:
    """The line is of a notebook's cell, which only the driver has."""
    file = "<a cell of a test>"
    text = "def work():\n    try:\n        {}['batch']\n    except KeyError as error:\n        assert 1 > 2\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), cell)
    with pytest.raises(WorkerFailedError) as raised:
        run_local(cell["work"], 1)
    lines = str(raised.value).splitlines()
    assert lines[0].endswith(" raised AssertionError")
    assert lines[1:3] == [f'  File "{file}", line 5, in work', "    assert 1 > 2"]


def test_jobs_do_not_meet() -> None:
    """Two jobs of one process at the same time."""

    def work(number: int) -> int:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        return int(arrays.allreduce(numpy.array([number]), arrays.ReduceOp.SUM)[0])

    values = {}
    threads = [
        threading.Thread(target=lambda n=n: values.update({n: run_local(work, 2, JobOptions(args=(n,)))}))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {0: [0], 1: [2]}


def test_no_descriptor_is_left_open() -> None:
    run_local(lambda: 1, 2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run_local(lambda: 1, 2)
        with pytest.raises(JobFailedError):
            run_local(lambda: 1 / 0, 2)
    time.sleep(0.2)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_pyspark_is_not_needed() -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'pyarrow', 'torch'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from spark_estimator import HorovodRunner\n"
        "print('VALUE', HorovodRunner(np=-2).run(lambda x: x + 1, x=1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clusters.environment(), capture_output=True, text=True, timeout=60
    )
    assert "VALUE 2" in done.stdout, done.stderr


@pytest.mark.parametrize("moment", ["before init", "between collectives", "at the end"])
def test_a_rank_that_freezes_while_another_waits_for_it_is_named(moment: str) -> None:
    def freeze() -> None:
        import signal

        from spark_estimator.collectives import arrays, context

        def freeze_at(here: str) -> None:
            if here == moment and os.environ["HOROVOD_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGSTOP)

        freeze_at("before init")
        context.init()
        arrays.barrier()
        freeze_at("between collectives")
        arrays.barrier()
        context.shutdown()
        freeze_at("at the end")

    limits = {"SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.3", "SPARK_ESTIMATOR_SILENCE_SECONDS": "2"}
    with pytest.raises(WorkerFailedError, match=r"rank 1 .* was stopped by a signal \(SIGSTOP\)") as caught:
        run_local(freeze, 2, JobOptions(environment=limits))
    assert caught.value.rank == 1


def test_a_rank_that_freezes_after_its_function_has_returned_fails_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def freeze_at_exit() -> int:
        import atexit
        import signal

        atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
        return 7

    assert run_local(freeze_at_exit, 1, JobOptions(environment={"SPARK_ESTIMATOR_SILENCE_SECONDS": "1"})) == [7]
    assert "the worker ended with signal 9 (SIGKILL) after" in "".join(capfd.readouterr())


@pytest.mark.parametrize("size", [1, 3])
def test_a_rank_that_freezes_after_its_last_collective_is_named(size: int) -> None:
    """No other rank misses it: its supervisor does."""

    def freeze() -> None:
        import signal

        from spark_estimator.collectives import arrays, context

        context.init()
        arrays.barrier()
        if context.rank() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        context.shutdown()

    limits = {"SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.3", "SPARK_ESTIMATOR_SILENCE_SECONDS": "2"}
    with pytest.raises(
        WorkerFailedError, match=r"rank 0 \(host .*, pid \d+\) was stopped by a signal \(SIGSTOP\)"
    ) as caught:
        run_local(freeze, size, JobOptions(environment=limits))
    assert (caught.value.rank, caught.value.kind, caught.value.signal) == (0, "killed", 9)
