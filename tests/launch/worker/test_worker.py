"""What a worker reads from its supervisor, and the report of each way in which its function ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.spec import WorkerSpec
from spark_estimator.launch.worker.result_pipe import BEGUN, CHUNK, ENDED, FAILURE, RESULT, FrameReader, ResultWriter
from spark_estimator.launch.worker.worker import make_input, read_spec, run_command


def spec(**changes: Any) -> WorkerSpec:
    rendezvous = Rendezvous(make_job_id(), make_key(), 0, (PeerFacts(0, "host", "id", "127.0.0.1", 1),), -1)
    fields: dict[str, Any] = {
        "function": "work()",
        "command": (),
        "rendezvous": rendezvous,
        "environment": {},
        "sys_path": tuple(sys.path),
        "python_path": os.environ.get("PYTHONPATH"),
        "all_results": False,
        "max_result_bytes": 1 << 20,
    }
    return WorkerSpec(**{**fields, **changes})


def test_the_payload_follows_the_spec() -> None:
    sent = spec(environment={"A": "é"})
    stream = io.BytesIO(b"".join(make_input(sent, b"payload")))
    assert read_spec(stream) == sent and stream.read() == b"payload"


@pytest.mark.parametrize("length", [0, 5, 8, 20])
def test_a_supervisor_that_is_gone_is_an_error(length: int) -> None:
    with pytest.raises(EOFError, match="the supervisor ended before it sent the job"):
        read_spec(io.BytesIO(b"".join(make_input(spec(), b""))[:length]))


def frames_of(sent: WorkerSpec, payload: bytes) -> tuple[int, list[tuple[bytes, Any]]]:
    """Runs the worker program; returns its exit status, and its frames with JSON read."""
    read, write = os.pipe()
    arguments = ["--parent", str(os.getpid()), "--result-fd", str(write)]
    code = "from spark_estimator.launch.worker.worker import main; main()"
    worker = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=b"".join(make_input(sent, payload)),
        pass_fds=[write],
        timeout=100,
        capture_output=True,
        start_new_session=True,
    )
    os.close(write)
    with open(read, "rb") as results:
        frames = list(FrameReader().feed(results.read()))
    return worker.returncode, [
        (letter, content if letter == CHUNK else json.loads(content)) for letter, content in frames
    ]


def test_a_function_s_value_follows_the_begin_of_user_code() -> None:
    payload = cloudpickle.dumps((lambda word, *, times: word * times, ("ab",), {"times": 2}))
    status, frames = frames_of(spec(), payload)
    assert status == 0 and [letter for letter, _ in frames] == [BEGUN, RESULT, CHUNK]
    assert cloudpickle.loads(frames[2][1]) == "abab"


def test_garbage_is_collected_from_the_function_s_begin_on() -> None:
    class Late:
        """As it is unpickled, a worker imports."""

        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return eval, ("__import__('gc').isenabled()",)

    def work(while_loading: bool) -> tuple[bool, bool]:
        import gc

        return while_loading, gc.isenabled()

    status, frames = frames_of(spec(), cloudpickle.dumps((work, (Late(),), {})))
    assert status == 0 and cloudpickle.loads(frames[2][1]) == (False, True)


def test_an_exception_is_reported_without_the_launcher_s_frames() -> None:
    def work() -> None:
        raise KeyError("missing")

    status, frames = frames_of(spec(), cloudpickle.dumps((work, (), {})))
    letter, report = frames[-1]
    assert (status, letter, report["kind"], report["message"]) == (
        1,
        FAILURE,
        failures.RAISED,
        "raised KeyError: 'missing'",
    )
    assert report["traceback"].count('  File "') == 1 and "in work" in report["traceback"]


def test_a_function_that_cannot_be_loaded_is_explained() -> None:
    status, frames = frames_of(spec(), b"cmissing_module\nname\n.")
    report = frames[-1][1]
    assert (status, report["kind"]) == (1, failures.NOT_LOADED)
    assert "The driver has the module 'missing_module', but this host doesn't" in report["message"]


def test_a_command_that_cannot_be_started_is_reported() -> None:
    read, write = os.pipe()
    code = run_in_child(lambda: run_command(spec(command=("/missing/program",)), ResultWriter(write)))
    os.close(write)
    with open(read, "rb") as results:
        [(letter, content)] = FrameReader().feed(results.read())
    report = json.loads(content)
    assert (code, letter, report["exit_code"]) == (127, FAILURE, 127)
    assert report["message"] == "could not start the command '/missing/program': No such file or directory"


def test_a_script_without_its_interpreter_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sc.py").touch()
    read, write = os.pipe()
    run_in_child(lambda: run_command(spec(command=("sc.py", "--name", "a b")), ResultWriter(write)))
    os.close(write)
    with open(read, "rb") as results:
        [(_, content)] = FrameReader().feed(results.read())
    hint = "No such file or directory; did you mean: horovodrun -np 1 python sc.py --name 'a b'?"
    assert json.loads(content)["message"].endswith(hint)


def test_a_command_s_signal_becomes_a_status() -> None:
    read, write = os.pipe()
    code = run_in_child(lambda: run_command(spec(command=("sh", "-c", "kill -9 $$")), ResultWriter(write)))
    os.close(write)
    with open(read, "rb") as results:
        frames = [(letter, json.loads(content)) for letter, content in FrameReader().feed(results.read())]
    assert code == 128 + 9 and [letter for letter, _ in frames] == [BEGUN, ENDED] and frames[1][1] == {"status": -9}


def run_in_child(function: Any) -> int:
    """The exit status of a forked process that returns the function's value: the function changes signal handlers."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            # `ResultWriter` is silent in forked children, except the one in which it is made.
            status = function()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
