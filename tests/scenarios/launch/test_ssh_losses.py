"""Ranks on several hosts over a real ssh: when a part of a job is lost, all of it ends, or the rest continues."""

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

from benchmarks.namespaces import Network, UnavailableError
from tests.launch import clusters
from tests.launch.ssh_jobs import ELASTIC, SCRIPT, endless, horovodrun, pid_of
from tests.launch.sshd import ROOT, SshHosts, environment, ssh_hosts

pytestmark = pytest.mark.timeout(200)

AGENT = "spark_estimator.launch.agent.agent"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """alpha and beta: two names of one machine."""
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), {"alpha": "127.0.0.1", "beta": "127.0.0.1"}) as ssh:
        yield ssh


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
            match = re.search(r"rank 3 is pid (\d+)", driver.output())
            assert match is not None
            os.kill(int(match[1]), signal.SIGKILL)
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
        output = re.sub(r"pid \d+", "pid PID", driver.output())
    if victim == "launcher":
        return
    if victim in ("interrupt", "terminate"):
        assert status == (130 if victim == "interrupt" else 143)
        how = "interrupted" if victim == "interrupt" else "ended by SIGTERM"
        assert f"{how}; all ranks were stopped" in output
        return
    assert status == (137 if victim == "rank" else 1), output
    expected = {
        "rank": "rank 3 (host beta, pid PID) was killed by signal 9 (SIGKILL)",
        "ssh": "(host beta, pid PID) is out of contact: ssh to it was killed by signal 9 (SIGKILL)",
        "agent": "(host beta, pid PID) is out of contact: ssh to it, or its supervisor there, was killed",
        "sshd": "(host beta, pid PID) is out of contact: ssh to it",
    }[victim]
    assert expected in output.split("The other ranks of ")[0], output


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ancestors(pid: int) -> list[int]:
    pids = []
    while pid > 1:
        pid = _parent(pid)
        pids.append(pid)
    return pids


def test_a_launcher_that_is_interrupted_while_a_host_does_not_answer_ends(hosts: SshHosts, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(60)
        command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", "-H", "me@localhost,alpha"]
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
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "interrupted" in stderr
    clusters.wait_until_gone(marker)


# --- elastic jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
def test_an_elastic_job_goes_on_without_a_host_that_is_lost(hosts: SshHosts, tmp_path: Path, replaced: bool) -> None:
    """Its ssh is killed; if new processes are requested, they start in the remaining slots: one."""
    marker = uuid.uuid4().hex
    # The second time a rank of alpha is killed, and replaced there.
    flags = ["--min-np", "1", *(["--max-np", "3"] if replaced else [])]
    with endless(hosts, "alpha:2,beta:1", 3, tmp_path, marker, ELASTIC, *flags) as driver:
        os.kill(pid_of("ssh -F", marker, " beta exec "), signal.SIGKILL)
        driver.wait_for("2 ranks: alpha 0 of 2, alpha 1 of 2")
        assert "host beta is out of contact and will not be used again" in driver.output()
        assert "(host beta, pid " in driver.output() and "ssh to it was killed by signal 9" in driver.output()
        pids = re.findall(r"rank 1 is pid (\d+)", driver.output())
        os.kill(int(pids[-1]), signal.SIGKILL)
        driver.wait_for("1 ranks: alpha 0 of 1")
        if replaced:
            driver.wait_for("starting 1 more on alpha")
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
            match = re.search(r"rank 2 is pid (\d+)", driver.output())
            assert match is not None
            os.kill(int(match[1]), signal.SIGKILL)
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


RECOVERING = """
import os, signal
from pathlib import Path

import torch

import spark_estimator.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(model.weight)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=hvd.Sum)
state = hvd.elastic.TorchState(model, optimizer, step=0)
killed = Path(__file__).with_name("killed")

@hvd.elastic.run(mode="step")
def train(state):
    while state.step < 20:
        if (state.step, hvd.rank()) == (7, 2) and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
print("weights", model.weight.tolist(), "of", hvd.size(), flush=True)
"""


def test_a_rank_on_another_network_is_replaced_within_a_step(network: Network, tmp_path: Path) -> None:
    here, there = network.hosts
    (tmp_path / "train.py").write_text(RECOVERING)
    with ssh_hosts(tmp_path, {"far": there.address}, [there.entered()]) as hosts, here.entered():
        flags = ("-np", "4", "--min-np", "4", "--max-np", "4", "-H", f"{here.address}:2,far:2")
        done = horovodrun(hosts, *flags, "python", str(tmp_path / "train.py"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists() and "round 2 starts with 4 ranks" in done.stderr
    assert done.stdout.count("weights [[-80.0, -80.0]] of 4") == 4, done.stdout


def warned_program() -> str:
    """`RECOVERING`, but for rank 0, whose agent gets SIGTERM at step 7; each step takes 50 ms, and is printed."""
    changes = {
        "import os, signal": "import os, signal, time",
        "state.step < 20": "state.step < 300",
        "(7, 2)": "(7, 0)",
        "os.kill(os.getpid(), signal.SIGKILL)": "os.kill(parent(os.getppid()), signal.SIGTERM)",
        "        optimizer.step()": "        say_step(state.step)\n        optimizer.step()",
        "hvd.size(), f": "hvd.size(), 'on', os.environ['HOROVOD_HOSTNAME'], f",
        "killed = ": """
def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def say_step(step):
    time.sleep(0.05)
    print("step", step, "of", hvd.rank(), flush=True)

killed = """,
    }
    program = RECOVERING
    for old, new in changes.items():
        assert old in program
        program = program.replace(old, new)
    return program


def test_the_ranks_of_a_warned_host_move_and_no_step_is_repeated(network: Network, tmp_path: Path) -> None:
    """Rank 0's agent gets SIGTERM; the other host has a free slot."""
    here, there = network.hosts
    (tmp_path / "train.py").write_text(warned_program())
    with ssh_hosts(tmp_path, {"far": there.address}, [there.entered()]) as hosts, here.entered():
        flags = ("-np", "2", "--min-np", "2", "--max-np", "2", "-H", f"far:1,{here.address}:2")
        variables = {"SPARK_ESTIMATOR_PREEMPTION_SIGNAL": "TERM"}
        done = horovodrun(hosts, *flags, "python", str(tmp_path / "train.py"), folder=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "rank 0 (host far, pid " in done.stderr and "is about to lose its machine (it got SIGTERM)" in done.stderr
    assert f"starting 1 more on {here.address}" in done.stderr and "lost rank" not in done.stderr
    steps = re.findall(r"step (\d+) of (\d)", done.stdout)
    assert sorted(steps) == sorted((str(step), str(rank)) for step in range(300) for rank in range(2))
    assert done.stdout.count(f"weights [[-600.0, -600.0]] of 2 on {here.address}") == 2, done.stdout
