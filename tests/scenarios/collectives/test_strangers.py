"""Unauthenticated connections to a rank's ports while a job runs: all are refused, and the job is not affected."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from spark_estimator.collectives.rendezvous import Rendezvous, make_local_rendezvous
from spark_estimator.errors import AuthenticationError
from spark_estimator.security import authentication
from spark_estimator.security.authentication import RefusedError
from tests.ranks import Ranks


def reduce_until_told(rank: int, stop: str) -> int:
    """Allreduces and checks the numbers until the file `stop` exists; gives how many."""
    import pathlib

    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    generator = numpy.random.default_rng(rank)
    rounds = 0
    done = False
    while not done:
        mine = generator.integers(0, 1000, 10_000)
        total = arrays.allreduce(mine, arrays.ReduceOp.SUM)
        everyone = arrays.allgather(mine[None])
        assert numpy.array_equal(total, everyone.sum(0))
        stopped = numpy.array([pathlib.Path(stop).exists()])
        done = bool(arrays.allreduce(stopped, arrays.ReduceOp.MAX)[0])
        rounds += 1
        if rounds == 5:
            print("runs", flush=True)
    context.shutdown()
    # The next round is open to its ranks as well.
    context.init()
    assert arrays.allreduce(numpy.ones(1), arrays.ReduceOp.SUM)[0] == 2
    return rounds


class Job:
    """A running job of two ranks, and the addresses of its ports."""

    def __init__(self, stop: Path, shared_memory: bool) -> None:
        self._stop = stop
        job = make_local_rendezvous(2)
        self.rendezvous: Rendezvous = job[0][0]
        environ = {"SPARK_ESTIMATOR_SHARED_MEMORY": str(int(shared_memory)), "HOROVOD_LOG_LEVEL": "info"}
        self.ranks = Ranks(reduce_until_told, job, args=(str(stop),), environ=environ)
        for rank in range(2):
            self.ranks.await_output(rank, "runs")

    def ports(self) -> Iterator[socket.socket]:
        """A connection to each listening socket of each rank."""
        for peer in self.rendezvous.peers:
            for family, address in (
                (socket.AF_INET, (peer.address, peer.port)),
                (socket.AF_UNIX, b"\x00" + peer.local_name.encode()),
            ):
                with socket.socket(family) as sock:
                    sock.settimeout(60)
                    sock.connect(address)
                    yield sock

    def ends_well(self) -> None:
        self._stop.touch()
        outcomes = self.ranks.wait(timeout=60)
        assert all(outcome.returned for outcome in outcomes), "\n".join(map(str, outcomes))
        assert outcomes[0].value == outcomes[1].value >= 5
        assert any("refused a connection from" in outcome.output for outcome in outcomes)
        assert all(self.rendezvous.key.hex() not in outcome.output for outcome in outcomes)


@pytest.fixture(params=[True, False], ids=["shared", "tcp"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    job = Job(tmp_path / "stop", request.param)
    with job.ranks:
        yield job


def is_closed(sock: socket.socket) -> bool:
    with suppress(ConnectionError):
        while sock.recv(4096):
            pass
    return True


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: rank\r\n\r\n", b"\x00" * 200, os.urandom(1 << 20), b"SPKEST\x00\x01" + bytes(500)],
)
def test_garbage(job: Job, garbage: bytes) -> None:
    for sock in job.ports():
        with suppress(ConnectionError):
            sock.sendall(garbage)
        assert is_closed(sock)
    job.ends_well()


def test_a_tls_hello(job: Job) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for sock in job.ports():
        with pytest.raises(OSError):
            context.wrap_socket(sock)
    job.ends_well()


def test_a_wrong_key(job: Job) -> None:
    for sock in job.ports():
        with pytest.raises(AuthenticationError, match="closed the connection"):
            authentication.connect(sock, os.urandom(32), bytes(33))
        assert is_closed(sock)
    job.ends_well()


def test_the_right_key_at_the_wrong_time(job: Job) -> None:
    """What has the key but belongs to another job, or to a round that is over, gets no further."""
    for sock in job.ports():
        with pytest.raises(RefusedError):
            authentication.connect(sock, job.rendezvous.key, bytes(33))
        assert is_closed(sock)
    job.ends_well()


def test_silence_and_slowness(job: Job) -> None:
    silent = []
    for _ in range(20):
        for sock in job.ports():
            silent.append(sock.dup())
    for number, sock in enumerate(silent):
        sock.settimeout(60)
        sock.sendall(b"SPKEST\x00\x01connect"[: number % 16])
    # They hold no rank up: who knows the key is still answered at once, though too late for the round.
    for sock in job.ports():
        with pytest.raises(RefusedError):
            authentication.connect(sock, job.rendezvous.key, bytes(33), timeout=timedelta(seconds=60))
    for sock in silent:
        assert is_closed(sock)
        sock.close()
    job.ends_well()


def test_a_flood(job: Job) -> None:
    """More connections than concurrent handshakes: the surplus is closed, and the flood passes."""
    peer = job.rendezvous.peers[0]
    flood = []
    for _ in range(500):
        sock = socket.socket()
        sock.settimeout(60)
        sock.connect((peer.address, peer.port))
        flood.append(sock)
    for sock in flood:
        assert is_closed(sock)
        sock.close()
    job.ends_well()
