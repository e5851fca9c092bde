"""Rendezvous, topology and endpoints: values in, values out, and where exactly is listened."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.collectives import rendezvous as module
from spark_estimator.collectives.rendezvous import (
    Endpoint,
    PeerFacts,
    Rendezvous,
    Topology,
    host_id,
    make_local_rendezvous,
)


@pytest.fixture
def job() -> list[tuple[Rendezvous, Endpoint]]:
    job = make_local_rendezvous(2)
    yield job
    for _, endpoint in job:
        endpoint.close()


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        # local_rank, local_size, cross_rank, cross_size of each rank
        ("a", [(0, 1, 0, 1)]),
        ("aa", [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ("ab", [(0, 1, 0, 2), (0, 1, 1, 2)]),
        ("aabb", [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]),
        ("abab", [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        ("abb", [(0, 1, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]),
        ("aaabcc", [(0, 3, 0, 3), (1, 3, 0, 2), (2, 3, 0, 1), (0, 1, 1, 3), (0, 2, 2, 3), (1, 2, 1, 2)]),
    ],
)
def test_topology(hosts: str, expected: list[tuple[int, int, int, int]]) -> None:
    for rank, numbers in enumerate(expected):
        topology = Topology.of(list(hosts), rank)
        assert (topology.rank, topology.size) == (rank, len(hosts))
        assert (topology.local_rank, topology.local_size, topology.cross_rank, topology.cross_size) == numbers
        assert topology.is_homogeneous is (hosts in ("a", "aa", "ab", "aabb", "abab"))


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_job_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is not one of the 2 ranks"):
        Topology.of(["a", "a"], rank)


def test_a_rendezvous_survives_its_journey(job: list[tuple[Rendezvous, Endpoint]]) -> None:
    for rendezvous, _ in job:
        assert Rendezvous.from_json(rendezvous.to_json()) == rendezvous


def test_ranks_of_a_local_job_know_each_other(job: list[tuple[Rendezvous, Endpoint]]) -> None:
    (first, endpoint), (second, other_endpoint) = job
    assert (first.key, first.job_id, first.peers) == (second.key, second.job_id, second.peers)
    assert [peer.port for peer in first.peers] == [endpoint.port, other_endpoint.port]
    assert first.topology == Topology.of([host_id()] * 2, 0)
    assert second.topology.rank == 1
    assert first.peers[0].shares_with(first.peers[1])


def test_jobs_have_keys_of_their_own() -> None:
    keys = [module.make_key() for _ in range(100)]
    assert {len(key) for key in keys} == {32}
    assert len({key[start : start + 8] for key in keys for start in range(0, 32, 8)}) == 400, "all of it is random"
    assert len({module.make_job_id() for _ in range(100)}) == 100


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"key": 5}', '{"key": "zz", "peers": []}'])
def test_a_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Rendezvous.from_json(text)


def test_a_rendezvous_checks_its_values(job: list[tuple[Rendezvous, Endpoint]]) -> None:
    rendezvous = job[0][0]
    with pytest.raises(ValueError, match="rank 2 is not one of the 2 peers"):
        dataclasses.replace(rendezvous, rank=2)
    with pytest.raises(ValueError, match=r"in order, not \[1, 0\]"):
        dataclasses.replace(rendezvous, peers=rendezvous.peers[::-1])
    with pytest.raises(ValueError, match="has 5") as raised:
        dataclasses.replace(rendezvous, key=b"short")
    assert "short" not in str(raised.value)


def test_facts_in_words() -> None:
    facts = PeerFacts(3, "worker-7", "id", "fe80::1", 4000, pid=12)
    assert str(facts) == "rank 3 (host worker-7, started as pid 12, address [fe80::1]:4000)"


def test_an_endpoint_listens_at_its_address_only() -> None:
    endpoint = Endpoint.open("127.0.0.1")
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
        assert [address for address in listening if address.endswith(f":{endpoint.port:04X}")] == [
            f"0100007F:{endpoint.port:04X}"
        ]
        assert endpoint.filenos() == (endpoint.tcp.fileno(), endpoint.local.fileno())
        assert not os.get_inheritable(endpoint.tcp.fileno())
    finally:
        endpoint.close()
        endpoint.close()


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    endpoint = Endpoint.open("::1")
    with socket.create_connection((endpoint.address, endpoint.port), timeout=10):
        assert endpoint.address == "::1"
    endpoint.close()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_every_interface_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.open(address)


def test_an_address_of_another_host_is_named() -> None:
    with pytest.raises(OSError, match=r"can't listen at 192\.0\.2\.1"):
        Endpoint.open("192.0.2.1")


def test_a_job_has_ranks() -> None:
    with pytest.raises(ValueError, match="not 0"):
        make_local_rendezvous(0)


COMMAND = """
import os, sys
from spark_estimator.collectives import rendezvous
from spark_estimator.env import Settings
received = rendezvous.find_current(Settings.read().rendezvous_fd)
again = rendezvous.find_current(Settings.read().rendezvous_fd)
assert again is received
try:
    os.fstat(Settings.read().rendezvous_fd)
    sys.exit("the descriptor is still open")
except OSError:
    print(received.rank, received.job_id, received.key.hex()[:4])
"""


def test_a_command_finds_its_rendezvous(job: list[tuple[Rendezvous, Endpoint]]) -> None:
    rendezvous = job[1][0]
    fd, variables = module.offer_to_command(rendezvous)
    # Through a shell, as a user's own script may be one.
    command = ["sh", "-c", 'exec "$0" "$@"', sys.executable, "-c", COMMAND]
    environ = {**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, pass_fds=[fd], env=environ, capture_output=True, text=True, timeout=60, check=False)
    os.close(fd)
    assert done.stdout.split() == ["1", rendezvous.job_id, rendezvous.key.hex()[:4]], done.stderr
    assert rendezvous.key.hex() not in "".join(variables.values())


def test_a_process_that_the_launcher_did_not_start_is_told(tmp_path: Path) -> None:
    with (tmp_path / "other").open("wb") as other:
        for fd in (other.fileno(), 999_999):
            with pytest.raises(ValueError, match=rf"SPARK_ESTIMATOR_RENDEZVOUS_FD={fd} is not a rendezvous") as raised:
                module.find_current(fd)
            assert 'if __name__ == "__main__"' in str(raised.value)


def test_without_anything_there_is_none() -> None:
    assert module.find_current(None) is None
