"""Spark on several hosts, which are network namespaces: jobs over good, slow, lossy and cut links."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from benchmarks.namespaces import Network, UnavailableError
from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOSSY = shutil.which("nft") is not None


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    for name in ("unshare", "tc"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is needed")
    try:
        opened = Network.open(3)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def results(network: Network, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver program printed, while the links between the hosts changed."""
    folder = tmp_path_factory.mktemp("hosts")
    hosts, last = network.hosts, network.hosts[2]
    with (
        clusters.standalone_on(hosts, folder) as master,
        clusters.driver("on_hosts.py", master, str(folder), folder=folder, host=hosts[0]) as driver,
    ):
        wait_for(folder / "slow.ready", driver)
        for host in hosts:
            host.limit(20_000_000)
        (folder / "slow.done").touch()
        wait_for(folder / "lossy.ready", driver)
        for host in hosts:
            host.limit(1_000_000_000)
            if LOSSY:
                host.lose(5)
        (folder / "lossy.done").touch()
        wait_for(folder / "good.ready", driver)
        for host in hosts:
            if LOSSY:
                host.lose(0)
        (folder / "good.done").touch()
        wait_for(folder / "cut.ready", driver)
        last.cut()
        wait_for(folder / "mended.ready", driver)
        last.mend()
        (folder / "mended.done").touch()
        wait_for(folder / "elastic.ready", driver)
        last.cut()
        return driver.wait(400) | {"output": driver.output()}


def wait_for(path: Path, driver: clusters.Driver) -> None:
    """Waits until the driver program has made the file."""
    deadline = time.monotonic() + 300
    while not path.exists():
        assert driver.process.poll() is None, f"no {path.name}:\n{driver.output()[-6000:]}"
        assert time.monotonic() < deadline, f"no {path.name} within 300 s:\n{driver.output()[-6000:]}"
        time.sleep(0.05)


def test_ranks_of_a_host_have_consecutive_numbers(results: dict[str, Any]) -> None:
    total, ranks = results["places"]
    assert total == 21.0
    assert [[rank, *numbers] for rank, _, *numbers in ranks] == [[rank, rank % 2, 2, rank // 2, 3] for rank in range(6)]
    names = [name for _, name, *_ in ranks]
    assert names[::2] == names[1::2] and sorted(names[::2]) == ["host0", "host1", "host2"]


def test_an_estimator_fits(results: dict[str, Any]) -> None:
    assert results["fit"]["rows"] == 400 and results["fit"]["furthest off"] < 0.1


@pytest.mark.parametrize(
    "links",
    ["slow", pytest.param("lossy", marks=pytest.mark.skipif(not LOSSY, reason="nft is needed to drop packets"))],
)
def test_slow_and_lossy_links_change_no_result(results: dict[str, Any], links: str) -> None:
    assert results[links] == [21.0, results["fit"]]


def test_a_host_that_is_cut_off_is_named(results: dict[str, Any]) -> None:
    cut = results["cut"]
    assert cut["type"] == "WorkerFailedError" and "host2" in cut["text"].split("\n")[0], cut
    assert results["after cut"] == 21.0


def test_an_elastic_job_continues_without_the_host(results: dict[str, Any]) -> None:
    assert len(results["elastic"]) == 4
    assert all(sizes[:20] == [6] * 20 and sizes[-3:] == [4] * 3 for sizes in results["elastic"])
