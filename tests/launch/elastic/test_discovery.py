"""A script that names hosts: its answers, good and bad, and jobs that follow them, on this host and over ssh."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from spark_estimator.errors import PreflightError
from spark_estimator.launch.elastic.discovery import HostScript, HostWatch, wait_for_first_hosts
from spark_estimator.launch.job.hosts import Host
from tests.elastic.horovodrun import horovodrun
from tests.launch import clusters
from tests.launch.ssh_jobs import ELASTIC
from tests.launch.sshd import ROOT, environment, ssh_hosts

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("printf 'a:2\\n# none\\n\\nb\\nc:0\\nme@d slots=4  # a comment\\n'", [("a", 2), ("b", 3), ("me@d", 4)]),
        ("echo [::1]:2; echo a:1; echo a:2", [("::1", 2), ("a", 3)]),
        ("sleep 60 & echo a", [("a", 3)]),
    ],
)
def test_a_script_s_answers(command: str, hosts: list[tuple[str, int]]) -> None:
    script = HostScript(command, 3, timedelta(seconds=20))
    assert script.ask() == [Host(*host) for host in hosts]
    script.stop()
    with pytest.raises(PreflightError, match="is no longer run"):
        script.ask()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/no/such/script", r"'/no/such/script' ended with exit status 127; its last output: .*not found"),
        ("echo a:1; echo oh; echo no >&2; exit 3", r"ended with exit status 3; its last output: no\."),
        ("kill -9 $$", r"ended with signal 9"),
        ("echo a:1; echo soon >&2; sleep 1000", r"did not end within 0\.5 seconds, and was killed; .*: soon\."),
        ("exec >&- 2>&-; sleep 1000", r"did not end within 0\.5 seconds"),
        ("yes a:1", r"prints endlessly|did not end within"),
        ("echo 'a:1'; echo 'there is no host: sorry'", r"printed, in line 2, 'there is no host: sorry', which doesn't"),
        ("echo -oProxyCommand=evil", "doesn't have the form host:slots"),
        ("true", "printed no host with a slot"),
        ("echo a:0", "printed no host with a slot"),
    ],
)
def test_what_is_no_answer_is_told(command: str, says: str) -> None:
    with pytest.raises(PreflightError, match=says):
        HostScript(command, longest=timedelta(seconds=0.5)).ask()


def test_who_watches_tells_of_changes_and_once_of_failures(tmp_path: Path) -> None:
    named = tmp_path / "hosts"
    named.write_text("a:1")
    script = HostScript(f"cat {named}")
    every = timedelta(seconds=0.01)
    watch = HostWatch(script, wait_for_first_hosts(script, 1, timedelta(0), print, every), every)
    offers: list[list[Host]] = []
    messages: list[str] = []
    changed = threading.Event()

    def until(what: list[object], count: int) -> None:
        deadline = time.monotonic() + 20
        while len(what) < count:
            assert time.monotonic() < deadline, (offers, messages)
            changed.wait(0.05)

    watch.start(lambda hosts: offers.append(list(hosts)), messages.append)
    named.write_text("a:1\nb:2")
    until(offers, 1)  # type: ignore[arg-type]
    named.unlink()
    until(messages, 1)  # type: ignore[arg-type]
    time.sleep(0.2)
    named.write_text("b:2")
    until(offers, 2)  # type: ignore[arg-type]
    watch.stop()
    assert offers == [[Host("a", 1), Host("b", 2)], [Host("b", 2)]] and len(messages) == 1
    assert "ended with exit status 1; its last output: cat:" in messages[0]
    assert messages[0].endswith("the hosts remain a:1, b:2 until it succeeds again")


def test_too_few_slots_are_waited_for_and_then_told(tmp_path: Path) -> None:
    named = tmp_path / "hosts"
    named.write_text("a:1")
    script = HostScript(f"cat {named}")
    messages: list[str] = []
    timer = threading.Timer(0.3, lambda: named.write_text("a:1\nb:1"))
    timer.start()
    assert wait_for_first_hosts(script, 2, timedelta(seconds=20), messages.append, timedelta(seconds=0.05)) == [
        Host("a", 1),
        Host("b", 1),
    ]
    timer.join()
    assert len(messages) == 1 and "offers 1 slots (a:1), and 2 ranks are requested: waiting" in messages[0]
    with pytest.raises(PreflightError, match=r"offers 2 slots \(a:1, b:1\), and 3 ranks were requested"):
        wait_for_first_hosts(script, 3, timedelta(0), messages.append)
    with pytest.raises(PreflightError, match=r"'sleep 60' did not end within 1 seconds, and was killed"):
        wait_for_first_hosts(HostScript("sleep 60"), 1, timedelta(seconds=1), messages.append)


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_script_that_fails_at_the_start_is_an_error() -> None:
    done = horovodrun("-np", "1", "--host-discovery-script", "echo lost >&2; exit 4", "true")
    assert done.returncode == 1
    assert "horovodrun: the host discovery script 'echo lost >&2; exit 4' ended with exit status 4" in done.stderr
    assert "its last output: lost." in done.stderr


@contextlib.contextmanager
def job(
    folder: Path, env: dict[str, str], named: str, *flags: str, code: str = ELASTIC
) -> Iterator[tuple[clusters.Driver, Path]]:
    """A job that trains until it is interrupted, on the hosts that a file lists. It leaves nothing behind.

    The folder is in the environment of all of its processes.
    """
    hosts, log, script = folder / "hosts", folder / "log", folder / "train.py"
    hosts.write_text(named)
    script.write_text(code)
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "1", "--verbose"]
    command += ["--host-discovery-script", f"cat {hosts}", *flags, "python", str(script)]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env={**env, "PYTHONPATH": f"{ROOT}:{folder}"},
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        driver = clusters.Driver(process, log)
        yield driver, hosts
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        assert process.wait(30) == 130, driver.output()
        assert "interrupted; all ranks were stopped" in driver.output()
        clusters.wait_until_gone(str(folder))
    finally:
        clusters.kill_group(process)


def test_ranks_come_to_new_slots_and_leave_those_that_are_gone(tmp_path: Path) -> None:
    flags = ["--max-np", "2", "--output-filename", str(tmp_path / "logs")]
    with job(tmp_path, clusters.environment(), "localhost:1", *flags) as (driver, hosts):
        driver.wait_for("1 ranks: localhost 0 of 1")
        first = re.search(r"rank 0 is pid (\d+)", driver.output())
        assert first is not None
        hosts.write_text("localhost:5")
        driver.wait_for("2 ranks: localhost 0 of 2, localhost 1 of 2")
        assert "host localhost has 5 slots, before 1" in driver.output()
        assert "starting 1 more on localhost" in driver.output(), "no more than --max-np"
        hosts.unlink()
        driver.wait_for("ended with exit status 1; its last output: cat:")
        hosts.write_text("localhost:1")
        driver.wait_for("is stopped: its slot was removed")
        deadline = time.monotonic() + 60
        while driver.output().count("1 ranks: localhost 0 of 1") < 2:
            assert time.monotonic() < deadline, driver.output()
            time.sleep(0.05)
        assert driver.output().rpartition("rank 0 is pid ")[2].startswith(first[1]), "who came last has left"
        assert "lost rank" not in driver.output() and driver.output().count("until it succeeds again") == 1
    assert "rank 1 is pid" in (tmp_path / "logs/rank.1/stdout").read_text()


def test_a_host_where_ranks_fail_again_and_again_is_left_out_for_a_while(tmp_path: Path) -> None:
    other = socket.gethostname()  # this one by another name, which counts as another
    code = ELASTIC.replace("    while True:\n", f"    while True:\n        if {other!r} in own: sys.exit(3)\n")
    flags = ["--blacklist-cooldown-range", "1", "5"]
    with job(tmp_path, clusters.environment(), f"localhost:1\n{other}:1", *flags, code=code) as (driver, _):
        driver.wait_for(f"3 ranks or more have failed on host {other}: it will not be used for 1 seconds")
        driver.wait_for(f"host {other} may be used again")
        driver.wait_for(f"3 ranks or more have failed on host {other}: it will not be used for 2 seconds")
        assert "localhost is" not in driver.output()


def test_a_job_moves_to_hosts_that_come_later_and_loses_contact_for_a_while(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, {"alpha": "127.0.0.1", "beta": "127.0.0.1"}) as there:
        env = environment(there, HOROVOD_START_TIMEOUT="20")
        with job(tmp_path, env, "alpha:1", "--blacklist-cooldown-range", "2", "60") as (driver, hosts):
            driver.wait_for("1 ranks: alpha 0 of 1")
            hosts.write_text("alpha:1\nno-such-host.invalid:1\nbeta:1")
            driver.wait_for("2 ranks: alpha 0 of 1, beta 0 of 1")
            assert "host no-such-host.invalid: ssh to it failed: " in driver.output()
            assert "host no-such-host.invalid will not be used for 2 seconds" in driver.output()
            hosts.write_text("beta:1")
            driver.wait_for("1 ranks: beta 0 of 1")
            assert "host alpha is gone" in driver.output() and "lost rank" not in driver.output()
            hosts.write_text("beta:1\nalpha:1")
            driver.wait_for("2 ranks: beta 0 of 1, alpha 0 of 1")
            (ssh,) = [
                pid for pid, command in clusters.processes_with(str(tmp_path)).items() if " alpha exec " in command
            ]
            os.kill(ssh, signal.SIGKILL)
            driver.wait_for("host alpha is out of contact and will not be used for 2 seconds")
            before = driver.output().count("2 ranks: beta 0 of 1, alpha 0 of 1")
            driver.wait_for("host alpha may be used again")
            deadline = time.monotonic() + 60
            while driver.output().count("2 ranks: beta 0 of 1, alpha 0 of 1") == before:
                assert time.monotonic() < deadline, driver.output()
                time.sleep(0.05)
