"""Processes that a real Slurm starts become the ranks of one job, on one node and on two."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.launchers.slurm import Slurm
from benchmarks.namespaces import Network, UnavailableError
from tests.collectives.other_launchers.test_join import SCRIPT, expected, lines, started
from tests.scenarios.collectives.test_foreign_hosts import EXPECTED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        opened = Network.open(2)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def slurm(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    try:
        opened = Slurm.open(tmp_path_factory.mktemp("slurm"), network.hosts)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def results(network: Network, slurm: Slurm, words: list[str], program: Path, **variables: str) -> list[list[object]]:
    home = network.hosts[0]
    with home.entered():
        command = [*home.named, "srun", *words, sys.executable, str(program)]
        return lines(started(command, **slurm.environment, HOME=str(program.parent), **variables))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_one_node(network: Network, slurm: Slurm, program: Path, plugin: str) -> None:
    assert results(network, slurm, ["-n", "3", f"--mpi={plugin}"], program) == expected(3)


def test_two_nodes_with_a_shared_home(network: Network, slurm: Slurm, program: Path) -> None:
    assert results(network, slurm, ["-N", "2", "--ntasks-per-node=2"], program) == EXPECTED


def test_two_nodes_with_a_key_in_a_file(network: Network, slurm: Slurm, program: Path) -> None:
    folder = program.parent / ".spark_estimator"
    folder.mkdir()
    (folder / "job_key").touch(0o600)
    (folder / "job_key").write_text("0123456789abcdef" * 4)
    master = network.hosts[0].address
    assert results(network, slurm, ["-N", "2", "--ntasks-per-node=2"], program, MASTER_ADDR=master) == EXPECTED
    assert not (folder / "jobs").exists() or not os.listdir(folder / "jobs")


def test_a_task_that_does_not_join_is_named(network: Network, slurm: Slurm, program: Path) -> None:
    program.write_text("import os, sys\nif os.environ['SLURM_PROCID'] == '1': sys.exit()\n" + SCRIPT)
    answers = results(network, slurm, ["-N", "2", "-n", "3", "-K0"], program, HOROVOD_START_TIMEOUT="4")
    assert [answer[0] for answer in answers] == ["PeerLostError"] * 2
    # What is seen first: that the process on this host has ended, or that it does not come to the meeting.
    reasons = (
        "Slurm's srun runs only 1 of the 2 processes on host host0 that its variables name",
        "rank 1 of number 0 of 3 processes started by Slurm's srun",
    )
    assert all(any(reason in str(text) for reason in reasons) for _, text in answers), answers
