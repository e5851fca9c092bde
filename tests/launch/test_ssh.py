"""Ranks on several hosts over a real ssh: what they share, how they fail, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_estimator import run
from spark_estimator.benchmarks.namespaces import Network, UnavailableError
from spark_estimator.errors import PreflightError, WorkerFailedError
from tests.launch import clusters
from tests.launch.sshd import ROOT, SshHosts, environment, ssh_hosts

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("functions_travel_by_value")]

AGENT = "spark_estimator.launch.ssh.agent"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """alpha and beta: one machine that goes by two names."""
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), {"alpha": "127.0.0.1", "beta": "127.0.0.1"}) as found:
        yield found


@pytest.fixture
def reachable(hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process can use them."""
    for name, value in environment(hosts).items():
        monkeypatch.setenv(name, value)


def horovodrun(
    hosts: SshHosts, *arguments: str, folder: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_estimator.launch.cli", *arguments],
        env=environment(hosts, **env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


# --- what ranks share ------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys
import numpy
from spark_estimator.collectives import arrays, context
context.init()
total = arrays.allreduce(numpy.array([2.0 ** context.rank()]), arrays.ReduceOp.SUM, "total")
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
print(*(os.environ["HOROVOD_" + name] for name in names), total[0])
print(os.getcwd(), os.environ.get("MY_SETTING"), os.environ.get("TMPDIR"), sys.argv[1:], repr(sys.stdin.read()))
for number in range(3000):
    print("line", number, file=sys.stderr if number % 2 else sys.stdout)
print("\\x1b[31m", end="")
context.shutdown()
"""


def test_ranks_stand_in_the_order_of_the_hosts_and_find_what_the_launcher_has(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hosts").write_text("# a comment\nbeta slots=2\n\nalpha slots = 4  # of which one is used\n")
    flags = ["-np", "3", "--hostfile", "hosts", "--output-filename", "logs", "--verbose"]
    # Port and key come from the flags here, not from ssh's configuration.
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
        own = re.findall(rf"^\[{rank}\]<stdout>:(.*)$", done.stdout, re.MULTILINE)
        assert own[:2] == [line, f"{tmp_path} a 'quoted' $value None ['-x'] ''"]
        assert own[2:] == [f"line {number}" for number in range(0, 3000, 2)] + ["\\x1b[31m"]
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

        found = rendezvous.current()
        assert found is not None
        context.init()
        arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM, "all are there")
        in_any = {"key": found.key.hex(), "function": reversed_canary}
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
    said = {
        name: next((line for line in done.stderr.splitlines() if line.startswith(f"  {name}:")), "") for name in names
    }
    assert "5 of 6 other hosts cannot be had; nothing was started" in done.stderr, done.stderr
    assert not said["alpha"] and not marker.exists()
    for name, words in {
        "no-such-host.invalid": ["Could not resolve hostname", "check the name"],
        "closed": ["Connection refused", "does sshd run there"],
        "stranger": ["Host key verification failed", "ssh stranger"],
        "denied": ["Permission denied (publickey", "ssh-copy-id denied"],
        "mute": ["did not answer within 5 seconds", "--start-timeout"],
    }.items():
        assert all(word in said[name] for word in words), (name, done.stderr)


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/no/such/python", "there is no such Python there: ranks run in /no/such/python"),
        ("BARE", "No module named 'spark_estimator'. What to do: install the same wheel there"),
        ("OTHER", "has spark_estimator 0.0.7, but here it is"),
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
    given = str(program) if python in ("BARE", "OTHER") else python
    done = horovodrun(hosts, "-np", "1", "-H", "alpha", "true", SPARK_ESTIMATOR_REMOTE_PYTHON=given)
    assert done.returncode == 1 and "  alpha: " in done.stderr and says in done.stderr, done.stderr


@pytest.mark.usefixtures("reachable")
def test_what_cannot_be_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        PreflightError, match=r"it has none of the network interfaces ib7, ib8 with an address; .*\blo\b"
    ):
        run(os.getpid, hosts="alpha:1", network_interfaces="ib7,ib8")
    assert len(run(os.getpid, hosts="alpha:1", network_interfaces="ib7,lo")) == 1
    monkeypatch.setenv("SPARK_ESTIMATOR_SSH_COMMAND", "/no/such/ssh -v")
    with pytest.raises(PreflightError, match="'/no/such/ssh -v', which is not there: install an ssh client"):
        run(os.getpid, hosts="alpha:1")


# --- what is left ----------------------------------------------------------------------------------------------------

ENDLESS = """
import os, subprocess, time
import numpy
from spark_estimator.collectives import arrays, context
context.init()
subprocess.Popen(["sleep", "1000"])
for step in range(100_000_000):
    arrays.allreduce(numpy.ones(1000), arrays.ReduceOp.SUM, "x")
    if step == 100:
        print("rank", context.rank(), "is pid", os.getpid(), flush=True)
"""


ELASTIC = """
import os, time
import numpy
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.elastic import ObjectState, rejoin, run_fn

def loop(state):
    own = f"{os.environ['HOROVOD_HOSTNAME']} {context.local_rank()} of {context.local_size()}"
    found = allgather_object(own)
    print("rank", context.rank(), "is pid", os.getpid(), flush=True)
    if context.rank() == 0:
        print(f"{len(found)} ranks: {', '.join(found)}", flush=True)
    while True:
        arrays.allreduce(numpy.ones(10), arrays.ReduceOp.SUM, "x")
        state.commit()
        time.sleep(0.01)

context.init()
run_fn(loop, rejoin)(ObjectState(broadcast_object, context.rank))
"""


@contextlib.contextmanager
def endless(
    hosts: SshHosts, where: str, size: int, folder: Path, marker: str, code: str = ENDLESS, *flags: str
) -> Iterator[clusters.Driver]:
    """A job that trains until something happens to it. All of its processes have the marker in their environment."""
    script, log = folder / "train.py", folder / "log"
    script.write_text(code)
    command = [sys.executable, "-m", "spark_estimator.launch.cli", "-np", str(size), "-H", where, *flags]
    command += ["python", str(script)]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            # The agents' own environment is that of a login, and the path to our modules.
            env=environment(hosts, PYTHONPATH=f"{ROOT}:/{marker}"),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        driver = clusters.Driver(process, log)
        for rank in range(size):
            driver.wait_for(f"[{rank}]<stdout>:rank {rank} is pid")
        yield driver
    finally:
        clusters.kill_group(process)


def pid_of(text: str, marker: str, word: str) -> int:
    """Of the job's processes the one in whose command line a word stands, and another one."""
    found = [pid for pid, command in clusters.processes_with(marker).items() if text in command and word in command]
    assert len(found) == 1, clusters.processes_with(marker)
    return found[0]


@pytest.mark.parametrize("victim", ["interrupt", "terminate", "launcher", "ssh", "agent", "sshd", "rank"])
def test_nothing_is_left_and_who_was_lost_is_named(hosts: SshHosts, tmp_path: Path, victim: str) -> None:
    marker = uuid.uuid4().hex
    with endless(hosts, "alpha:2,beta:2", 4, tmp_path, marker) as driver:
        assert len(clusters.processes_with(marker)) >= 1 + 2 * 2 + 4 * 3
        launcher = driver.process.pid
        if victim in ("interrupt", "terminate", "launcher"):
            number = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "launcher": signal.SIGKILL}[victim]
            os.kill(launcher, number)
        elif victim == "rank":
            own = re.search(r"rank 3 is pid (\d+)", driver.output())
            assert own is not None
            os.kill(int(own[1]), signal.SIGKILL)
        else:
            ssh = pid_of("ssh -F", marker, " beta exec ")
            agents = [
                pid
                for pid, command in clusters.processes_with(marker).items()
                if AGENT in command and "ssh -F" not in command
            ]
            of_rank_3 = _ancestors(int(re.search(r"rank 3 is pid (\d+)", driver.output())[1]))  # type: ignore[index]
            agent = next(pid for pid in agents if pid in of_rank_3)
            os.kill({"ssh": ssh, "agent": agent, "sshd": _parent(agent)}[victim], signal.SIGKILL)
        status = driver.process.wait(30)
        clusters.wait_until_gone(marker)
        said = re.sub(r"pid \d+", "pid PID", driver.output())
    if victim == "launcher":
        return
    if victim in ("interrupt", "terminate"):
        assert status == 130 and "interrupted; all ranks have been ended" in said
        return
    assert status == (137 if victim == "rank" else 1), said
    expected = {
        "rank": "rank 3 (host beta, pid PID) was killed by signal 9 (SIGKILL)",
        "ssh": "(host beta, pid PID) is out of contact: ssh to it was ended by signal 9 (SIGKILL)",
        "agent": "(host beta, pid PID) is out of contact: ssh to it, or its supervisor there, was killed",
        "sshd": "(host beta, pid PID) is out of contact: ssh to it",
    }[victim]
    assert expected in said.split("The other ranks of ")[0], said


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = _parent(pid)
        found.append(pid)
    return found


def test_a_launcher_that_is_interrupted_while_a_host_does_not_answer_ends(hosts: SshHosts, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(60)
        command = [sys.executable, "-m", "spark_estimator.launch.cli", "-np", "2", "-H", "me@localhost,alpha"]
        ssh = f"ssh -F {hosts.folder}/config -o HostName=127.0.0.1"
        process = subprocess.Popen(
            [*command, "-p", str(mute.getsockname()[1]), "--start-timeout", "1000", "true"],
            env=environment(hosts, SPARK_ESTIMATOR_SSH_COMMAND=ssh, PYTHONPATH=f"{ROOT}:/{marker}"),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2):
            mute.accept()  # ssh is there, and waits for a greeting
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "interrupted" in said
    clusters.wait_until_gone(marker)


# --- elastic jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
def test_an_elastic_job_goes_on_without_a_host_that_is_lost(hosts: SshHosts, tmp_path: Path, replaced: bool) -> None:
    """Its ssh is killed; where new processes are wanted, they come to the slots that are left: one."""
    marker = uuid.uuid4().hex
    # The second time a rank of alpha is killed, and replaced there.
    flags = ["--min-np", "1", *(["--max-np", "3"] if replaced else [])]
    with endless(hosts, "alpha:2,beta:1", 3, tmp_path, marker, ELASTIC, *flags) as driver:
        os.kill(pid_of("ssh -F", marker, " beta exec "), signal.SIGKILL)
        driver.wait_for("2 ranks: alpha 0 of 2, alpha 1 of 2")
        assert "host beta is out of contact and will not be used again" in driver.output()
        assert "(host beta, pid " in driver.output() and "ssh to it was ended by signal 9" in driver.output()
        own = re.findall(r"rank 1 is pid (\d+)", driver.output())
        os.kill(int(own[-1]), signal.SIGKILL)
        driver.wait_for("1 ranks: alpha 0 of 1")
        if replaced:
            driver.wait_for("starting 1 in place of those that were lost")
            before = driver.output().count("2 ranks: alpha 0 of 2, alpha 1 of 2")
            while driver.output().count("2 ranks: alpha 0 of 2, alpha 1 of 2") <= before:
                driver.wait_for("1 ranks: alpha 0 of 1")
                time.sleep(0.05)
        os.kill(driver.process.pid, signal.SIGINT)
        assert driver.process.wait(30) == 130
        clusters.wait_until_gone(marker)


# --- several networks ------------------------------------------------------------------------------------------------


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        opened = Network.open(2)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.mark.parametrize("harm", ["none", "killed", "cut"])
def test_between_two_networks(network: Network, tmp_path: Path, harm: str) -> None:
    """The launcher, with two ranks, on one; the other two on the other, and what becomes of them."""
    here, there = network.hosts
    marker = uuid.uuid4().hex
    with contextlib.ExitStack() as closing:
        hosts = closing.enter_context(ssh_hosts(tmp_path, {"far": there.address}, [there.entered()]))
        where = f"{here.address}:2,far:2"
        closing.enter_context(here.entered())
        if harm == "none":
            (tmp_path / "train.py").write_text(SCRIPT)
            done = horovodrun(hosts, "-np", "4", "-H", where, "python", "train.py", folder=tmp_path)
            assert done.returncode == 0, done.stderr
            for line in (f"[1]<stdout>:1 4 1 2 0 2 {here.address} 15.0", "[3]<stdout>:3 4 1 2 1 2 far 15.0"):
                assert line in done.stdout
            return
        driver = closing.enter_context(endless(hosts, where, 4, tmp_path, marker))
        if harm == "killed":
            own = re.search(r"rank 2 is pid (\d+)", driver.output())
            assert own is not None
            os.kill(int(own[1]), signal.SIGKILL)
        else:
            there.cut()
        status = driver.process.wait(40)
        clusters.wait_until_gone(marker, 40)
        cause = driver.output().split("horovodrun: ")[-1].splitlines()[0]
        print(cause)
        if harm == "killed":
            assert status == 137 and re.match(r"rank 2 \(host far, pid \d+\) was killed by signal 9", cause)
        else:
            assert status == 1 and re.match(r"rank \d \(host", cause) and "host far" in cause, driver.output()
