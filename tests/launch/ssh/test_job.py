"""Ranks on several hosts over a real ssh: what they share, and how they fail."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_estimator import run
from spark_estimator.errors import PreflightError, WorkerFailedError
from tests.launch.ssh_jobs import SCRIPT, horovodrun
from tests.launch.sshd import ROOT, SshHosts, environment, ssh_hosts

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("functions_travel_by_value")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """alpha and beta: two names of one machine."""
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), {"alpha": "127.0.0.1", "beta": "127.0.0.1"}) as ssh:
        yield ssh


@pytest.fixture
def reachable(hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process can use them."""
    for name, value in environment(hosts).items():
        monkeypatch.setenv(name, value)


# --- what ranks share ------------------------------------------------------------------------------------------------


def test_ranks_stand_in_the_order_of_the_hosts_and_find_what_the_launcher_has(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hosts").write_text("# a comment\nbeta slots=2\n\nalpha slots = 4  # of which one is used\n")
    flags = ["-np", "3", "--hostfile", "hosts", "--output-filename", "logs", "--verbose"]
    # Port and key are set by the flags here, not by ssh's configuration.
    config = (hosts.folder / "config").read_text()
    port = re.search(r"Port (\d+)", config)
    assert port is not None
    (tmp_path / "config").write_text(re.sub(r"(?m)^ *(Port|IdentityFile) .*\n", "", config))
    flags += ["-p", port[1], "-i", str(hosts.folder / "user_key")]
    env = {"MY_SETTING": "a 'quoted' $value", "TMPDIR": str(tmp_path)}
    env["SPARK_ESTIMATOR_SSH_COMMAND"] = f"ssh -F {tmp_path}/config"
    done = horovodrun(hosts, *flags, "python", "train.py", "-x", folder=tmp_path, **env)
    assert done.returncode == 0, done.stderr
    expected = ["0 3 0 2 0 2 beta 7.0", "1 3 1 2 0 1 beta 7.0", "2 3 0 1 1 2 alpha 7.0"]
    for rank, line in enumerate(expected):
        rank_lines = re.findall(rf"^\[{rank}\]<stdout>:(.*)$", done.stdout, re.MULTILINE)
        assert rank_lines[:2] == [line, f"{tmp_path} a 'quoted' $value None ['-x'] ''"]
        assert rank_lines[2:] == [f"line {number}" for number in range(0, 3000, 2)] + ["\\x1b[31m"]
        errors = re.findall(rf"^\[{rank}\]<stderr>:(line .*)$", done.stderr, re.MULTILINE)
        assert errors == [f"line {number}" for number in range(1, 3000, 2)]
        assert (tmp_path / f"logs/rank.{rank}/stdout").read_text().startswith(line)
    assert "horovodrun: 3 ranks, 2 on beta, 1 on alpha: python train.py -x" in done.stderr


@pytest.mark.usefixtures("reachable")
def test_a_function_s_values_come_back_from_all_hosts_and_secrets_show_nowhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(reversed_canary: str) -> tuple[int, str, bytes, str, list[str]]:
        import numpy

        from spark_estimator.collectives import arrays, context, rendezvous

        membership = rendezvous.find_current()
        assert membership is not None
        context.init()
        arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM, "all are there")
        in_any = {"key": membership.key.hex(), "function": reversed_canary}
        in_commands = {**in_any, "variable": os.environ["A_SECRET"]}
        places = []
        for process in Path("/proc").glob("[0-9]*"):
            for name, secrets in (("cmdline", in_commands), ("environ", in_any)):
                with contextlib.suppress(OSError):
                    text = (process / name).read_bytes().decode("latin-1")
                    places += [f"{what} in {process}/{name}" for what, secret in secrets.items() if secret in text]
        arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM, "all have looked")
        context.shutdown()
        rank = int(os.environ["HOROVOD_RANK"])
        return rank, os.environ["HOROVOD_HOSTNAME"], bytes(rank << 20), in_any["key"], places

    canary = uuid.uuid4().hex
    monkeypatch.setenv("A_SECRET", uuid.uuid4().hex)
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "trace")
    values = run(work, (canary,), num_proc=3, hosts="alpha:1,beta:2", verbose=2)
    assert [value[:2] for value in values] == [(0, "alpha"), (1, "beta"), (2, "beta")]
    assert [len(value[2]) for value in values] == [0, 1 << 20, 2 << 20]
    assert [value[4] for value in values] == [[], [], []]
    printed = "".join(capfd.readouterr())
    assert "spark_estimator: 3 ranks on alpha, beta" in printed and values[0][3] not in printed


# --- how they fail ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("reachable")
def test_the_first_failure_is_raised_with_rank_host_and_traceback() -> None:
    def work() -> float:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        if context.rank() == 1:
            return {}["no such key"]
        return float(arrays.allreduce(numpy.ones(1), arrays.ReduceOp.SUM, "x")[0])

    with pytest.raises(WorkerFailedError, match=r"rank 1 \(host beta, pid \d+\) raised KeyError") as caught:
        run(work, num_proc=2, hosts="alpha:1,beta:1")
    assert (caught.value.rank, caught.value.host) == (1, "beta")
    assert 'return {}["no such key"]' in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("exit $((HOROVOD_RANK * 7))", 7, "rank 1 (host beta, pid PID) ended with exit status 7"),
        ("[ $HOROVOD_RANK = 0 ] && sleep 1000; kill -9 $$", 137, "rank 1 (host beta, pid PID) was killed by signal 9"),
    ],
)
def test_a_command_s_status_and_signal_are_told(hosts: SshHosts, command: str, status: int, says: str) -> None:
    done = horovodrun(hosts, "-np", "2", "-H", "alpha:1,beta:1", "bash", "-c", command)
    assert done.returncode == status, done.stderr
    assert says in re.sub(r"pid \d+", "pid PID", done.stderr)


def test_every_host_that_cannot_be_had_is_named_with_the_remedy(hosts: SshHosts, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = {"mute": mute.getsockname()[1], "closed": closed.getsockname()[1]}
        closed.close()
        config = tmp_path / "config"
        text = (hosts.folder / "config").read_text()
        port = re.search(r"Port (\d+)", text)
        assert port is not None
        ports |= dict.fromkeys(("stranger", "denied"), int(port[1]))
        for name, number in ports.items():
            text = f"Host {name}\n  HostName 127.0.0.1\n  Port {number}\n" + text
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other_key"], check=True)
        text = f"Host denied\n  IdentityFile {tmp_path}/other_key\n  PubkeyAuthentication no\n" + text
        text = "Host stranger\n  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n" + text
        config.write_text(text)
        names = ["alpha", "no-such-host.invalid", *ports]
        asked = ",".join(f"{name}:1" for name in names)
        marker = tmp_path / "it ran"
        done = horovodrun(
            hosts, "-np", str(len(names)), "-H", asked, "--start-timeout", "5", "touch", str(marker),
            SPARK_ESTIMATOR_SSH_COMMAND=f"ssh -F {config}",
        )  # fmt: skip
    assert done.returncode == 1
    messages = {
        name: next((line for line in done.stderr.splitlines() if line.startswith(f"  {name}:")), "") for name in names
    }
    assert "5 of 6 other hosts can't be used; no rank was started" in done.stderr, done.stderr
    assert not messages["alpha"] and not marker.exists()
    for name, words in {
        "no-such-host.invalid": ["Could not resolve hostname", "check the name"],
        "closed": ["Connection refused", "is sshd running"],
        "stranger": ["Host key verification failed", "ssh stranger"],
        "denied": ["Permission denied (publickey", "ssh-copy-id denied"],
        "mute": ["did not answer within 5 seconds", "--start-timeout"],
    }.items():
        assert all(word in messages[name] for word in words), (name, done.stderr)


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/no/such/python", "the host has no /no/such/python"),
        ("BARE", "No module named 'spark_estimator'. To fix it: install the same wheel there"),
        ("OTHER", "has spark_estimator 0.0.7, but this host has"),
    ],
)
def test_another_python_over_there_is_refused(hosts: SshHosts, tmp_path: Path, python: str, says: str) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexport PYTHONPATH={tmp_path}\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    if python == "OTHER":
        package = tmp_path / "spark_estimator"
        package.mkdir()
        for path in (ROOT / "spark_estimator").iterdir():
            (package / path.name).symlink_to(path)
        (package / "__init__.py").unlink()
        text = (ROOT / "spark_estimator/__init__.py").read_text()
        (package / "__init__.py").write_text(re.sub(r'(?m)^__version__ = ".*"', '__version__ = "0.0.7"', text))
        program.write_text(program.read_text().replace(" -S ", " "))
    remote_python = str(program) if python in ("BARE", "OTHER") else python
    done = horovodrun(hosts, "-np", "1", "-H", "alpha", "true", SPARK_ESTIMATOR_REMOTE_PYTHON=remote_python)
    assert done.returncode == 1 and "  alpha: " in done.stderr and says in done.stderr, done.stderr


@pytest.mark.usefixtures("reachable")
def test_what_cannot_be_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PreflightError, match=r"it has no address on any of the network interfaces ib7, ib8; .*\blo\b"):
        run(os.getpid, hosts="alpha:1", network_interfaces="ib7,ib8")
    assert len(run(os.getpid, hosts="alpha:1", network_interfaces={"ib7", "lo"})) == 1
    monkeypatch.setenv("SPARK_ESTIMATOR_SSH_COMMAND", "/no/such/ssh -v")
    with pytest.raises(PreflightError, match=r"'/no/such/ssh -v' .* was not found: install an ssh client"):
        run(os.getpid, hosts="alpha:1")
