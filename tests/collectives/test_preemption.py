"""Warnings that a machine is about to be taken back: by a signal, by a command, and at all ranks at the same step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.collectives.preemption import PreemptionWatch
from spark_estimator.env import Settings
from tests.ranks import run_ranks

_WAIT = """
import os, signal, sys, time
from spark_estimator import preemption_warning
from spark_estimator.collectives import preemption
from spark_estimator.env import Settings
deadline = time.monotonic() + 60
def wait():
    while preemption_warning() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    print(preemption_warning(), flush=True)
"""


def run(program: str, **variables: str) -> str:
    """The output of a program."""
    done = subprocess.run(
        [sys.executable, "-c", _WAIT + program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_warning_that_comes_while_the_process_ends_does_not_kill_it() -> None:
    program = """
import ctypes
preemption.watch().begin(Settings.read())
# When Python has ended, libc calls raise(SIGTERM): on_exit passes the exit status.
libc = ctypes.CDLL(None)
libc.on_exit(libc["raise"], None)
sys.exit(int(signal.SIGTERM))
"""
    environment = {**os.environ, "SPARK_ESTIMATOR_PREEMPTION_SIGNAL": "term"}
    assert subprocess.run([sys.executable, "-c", _WAIT + program], env=environment, timeout=100).returncode == 15


def test_a_signal_is_noted_and_passed_on_and_ends_a_forked_child_only_if_it_is_sigterm() -> None:
    program = """
signal.signal(signal.{0}, lambda *_: print("mine", flush=True))
preemption.watch().begin(Settings.read())
print(preemption_warning())
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.{0})
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.kill(os.getpid(), signal.{0})
os.kill(os.getpid(), signal.{0})
wait()
"""
    for name, status in (("SIGUSR1", 7), ("SIGTERM", -signal.SIGTERM)):
        output = run(program.format(name), SPARK_ESTIMATOR_PREEMPTION_SIGNAL=name[3:].lower())
        assert output == f"None\n{status}\nmine\nit got {name}\n", "the second one is not passed on"


def test_the_first_warning_stays() -> None:
    watch = PreemptionWatch()
    for reason in ("first", "second"):
        watch.note(reason)
    assert watch.reason == "first"


def test_a_command_is_asked_again_and_again_until_it_succeeds(tmp_path: Path) -> None:
    script = tmp_path / "notice.sh"
    script.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/asked ] && echo 'terminate at noon' || {{ touch {tmp_path}/asked; exit 1; }}\n"
    )
    script.chmod(0o755)
    program = "preemption.ASK_SECONDS = 1\npreemption.watch().begin(Settings.read())\nwait()\n"
    assert run(program, SPARK_ESTIMATOR_PREEMPTION_COMMAND=str(script)) == f"{script} printed: terminate at noon\n"


def test_a_command_may_print_anything_and_hang(tmp_path: Path) -> None:
    """What it has started ends with it."""
    mark = f"--max-time=1.{os.getpid()}"
    program = "preemption.ASK_SECONDS = 0.5\npreemption.watch().begin(Settings.read())\nwait()\n"
    script = tmp_path / "notice.sh"
    hang = f"touch {tmp_path}/asked; {sys.executable} -c 'import time; time.sleep(60)' {mark} | cat"
    script.write_text(f"#!/bin/sh\n[ -e {tmp_path}/asked ] && printf '\\377\\033[31m\\n' || {{ {hang}; }}\n")
    script.chmod(0o755)
    output = run(program, SPARK_ESTIMATOR_PREEMPTION_COMMAND=f"{script} {mark}")
    assert output == f"{script} printed: \ufffd\\x1b[31m\n"
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(path)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_setting_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SPARK_ESTIMATOR_PREEMPTION_SIGNAL='KILL'.*SIGTERM, SIGUSR1"):
        Settings.read({"SPARK_ESTIMATOR_PREEMPTION_SIGNAL": "KILL"})
    with pytest.raises(ValueError, match=r"SPARK_ESTIMATOR_PREEMPTION_COMMAND=.*No closing quotation"):
        Settings.read({"SPARK_ESTIMATOR_PREEMPTION_COMMAND": "curl 'http"})


def warned(rank: int) -> list[bool]:
    """What a rank knows at four steps; rank 1 is warned before the third."""
    from spark_estimator.checkpoint.schedule import find_new_warning
    from spark_estimator.collectives import context, preemption

    context.init()
    results = []
    for step in range(4):
        if step == 2 and rank == 1:
            preemption.watch().note("a test")
        results.append(find_new_warning())
    return results


def test_all_ranks_learn_of_a_warning_once_at_the_same_step() -> None:
    assert run_ranks(3, warned, 60) == [[False, False, True, False]] * 3
