"""Ranks that mpirun or plain variables number on several hosts (network namespaces) become one job."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.namespaces import Network, UnavailableError, remote_shell
from tests.collectives.other_launchers.test_join import KEY, SCRIPT, lines, started
from tests.scenarios.collectives.test_encrypted import capture

EXPECTED = [[0, 4, 0, 2, 0, 2, 10], [1, 4, 1, 2, 0, 2, 10], [2, 4, 0, 2, 1, 2, 10], [3, 4, 1, 2, 1, 2, 10]]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("unshare and nsenter are needed")
    try:
        opened = Network.open(2)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "train.py")]


def rank(network: Network, number: int, script: list[str], **variables: str) -> subprocess.Popen[str]:
    host = network.hosts[number // 2]
    with host.entered():
        return started([*host.named, *script], RANK=str(number), WORLD_SIZE="4", **variables)


@pytest.mark.parametrize("encryption", ["off", "require"])
def test_a_key_and_rank_0s_address(network: Network, script: list[str], encryption: str) -> None:
    variables = {"MASTER_ADDR": network.hosts[0].address, "MASTER_PORT": "1", "SPARK_ESTIMATOR_JOB_KEY": KEY}
    variables["SPARK_ESTIMATOR_ENCRYPTION"] = encryption
    assert lines(*(rank(network, number, script, **variables) for number in (3, 0, 2, 1))) == EXPECTED


def test_a_shared_folder(network: Network, script: list[str], tmp_path: Path) -> None:
    variables = {"MASTER_ADDR": "203.0.113.1", "MASTER_PORT": "1", "SPARK_ESTIMATOR_JOB_FOLDER": str(tmp_path)}
    assert lines(*(rank(network, number, script, **variables) for number in range(4))) == EXPECTED


def test_a_host_that_does_not_come_is_named_by_its_ranks(network: Network, script: list[str]) -> None:
    variables = {"MASTER_ADDR": network.hosts[0].address, "MASTER_PORT": "1", "SPARK_ESTIMATOR_JOB_KEY": KEY}
    results = lines(*(rank(network, number, script, **variables, HOROVOD_START_TIMEOUT="4") for number in (0, 1)))
    assert [result[0] for result in results] == ["PeerLostError"] * 2
    assert all("ranks 2, 3 of number 0 of 4" in str(text) for _, text in results)


@pytest.mark.parametrize("way", ["key", "key file", pytest.param("folder", marks=pytest.mark.slow), "home"])
@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun(network: Network, script: list[str], tmp_path: Path, name: str, way: str) -> None:
    mpirun = shutil.which(name)
    if mpirun is None:
        pytest.skip(f"{name} is not installed here")
    hosts = ",".join(f"{host.name}:2" for host in network.hosts)
    (tmp_path / ".spark_estimator").mkdir()
    if way == "key file":
        key_file = tmp_path / ".spark_estimator" / "job_key"
        key_file.touch(0o600)
        key_file.write_text(f"{KEY}\n")
    master = {"HOME": str(tmp_path), "MASTER_ADDR": network.hosts[0].address}
    variables = {
        "key": {"SPARK_ESTIMATOR_JOB_KEY": KEY} | master,
        "key file": master,
        "folder": {"SPARK_ESTIMATOR_JOB_FOLDER": str(tmp_path)},
        "home": {"HOME": str(tmp_path)},
    }[way]
    remote = remote_shell(tmp_path, network.hosts)
    if name.endswith("openmpi"):
        options = ["--allow-run-as-root", "--mca", "plm_rsh_agent", remote, "-H", hosts]
        options += [word for variable in (*variables, "PYTHONPATH") for word in ("-x", variable)]
    else:
        options = ["-launcher", "ssh", "-launcher-exec", remote, "-hosts", hosts, "-iface", "eth0"]
    home = network.hosts[0]
    sniffed, stop = bytearray(), threading.Event()
    thread = capture(network, 0, sniffed, stop)
    try:
        with home.entered():
            command = [*home.named, mpirun, *options, "-np", "4", *script]
            assert lines(started(command, **variables)) == EXPECTED
    finally:
        stop.set()
        thread.join()
    # Both send the environment in clear, which is why SECURITY.md recommends a file.
    assert (KEY.encode() in sniffed) == (way == "key")
