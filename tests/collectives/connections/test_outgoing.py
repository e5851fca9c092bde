"""Connections to higher ranks: in time, late, dead, and with another key."""

from __future__ import annotations

import dataclasses
import queue
import socket
import time
from collections.abc import Iterator

import pytest

from spark_estimator.collectives.connections.connection import CONTROL, DATA, Connection, RankGroup
from spark_estimator.collectives.connections.outgoing import connect, plan_data_connections
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, make_local_rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, PeerLostError
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer

TAG = bytes(16)
Job = list[tuple[Rendezvous, Endpoint]]


@pytest.fixture
def job() -> Iterator[Job]:
    ranks = make_local_rendezvous(3)
    yield ranks
    for _, endpoint in ranks:
        endpoint.close()


def serve(job: Job, rank: int, *, key: bytes | None = None) -> HandshakeServer:
    """Accepts connections of those who hold the key, as a rank does."""
    rendezvous, endpoint = job[rank]
    assert endpoint.local is not None
    sockets: queue.Queue[object] = queue.Queue()
    return HandshakeServer(
        [endpoint.tcp.dup(), endpoint.local.dup()], key or rendezvous.key, lambda *arrival: sockets.put(arrival)
    )


def dialled(job: Job, rank: int, *, seconds: float = 20, shared_memory: bool = True) -> dict[Connection, socket.socket]:
    connections: dict[Connection, socket.socket] = {}
    deadline = time.monotonic() + seconds
    settings = Settings(shared_memory=shared_memory, start_timeout_seconds=seconds)

    def keep(connection: Connection, sock: socket.socket, session: Session | None) -> None:
        assert session is None
        connections[connection] = sock

    group = RankGroup.job(3)
    wanted = []
    for higher in range(rank + 1, 3):
        wanted.append(Connection(1, rank, higher, CONTROL))
        wanted += plan_data_connections(job[rank][0], 1, group, higher, settings)
    connect(job[rank][0], group, wanted, TAG, settings, deadline, keep)
    return connections


@pytest.mark.parametrize(
    ("shared_memory", "family"), [(True, socket.AF_UNIX), (False, socket.AF_INET)], ids=["Unix", "TCP"]
)
def test_two_connections_with_each_higher_rank(job: Job, shared_memory: bool, family: int) -> None:
    servers = [serve(job, 1), serve(job, 2)]
    connections = dialled(job, 0, shared_memory=shared_memory)
    assert set(connections) == {Connection(1, 0, rank, purpose) for rank in (1, 2) for purpose in (CONTROL, DATA)}
    assert {sock.family for sock in connections.values()} == {family}
    for closable in (*connections.values(), *servers):
        closable.close()


def test_the_highest_rank_connects_with_none(job: Job) -> None:
    assert dialled(job, 2) == {}


def test_a_rank_that_does_not_answer_is_named_at_the_deadline(job: Job) -> None:
    server = serve(job, 1)
    with pytest.raises(PeerLostError, match=r"rank 2 .* could not be reached"):
        dialled(job, 0, seconds=0.5)
    server.close()


def test_a_rank_that_has_ended_is_named_at_once(job: Job) -> None:
    server = serve(job, 2)
    job[1][1].close()
    with pytest.raises(PeerLostError, match=r"no connection with rank 1 .*its process has ended"):
        dialled(job, 0, seconds=600, shared_memory=False)
    server.close()


def test_a_rank_with_another_key_is_not_retried(job: Job) -> None:
    servers = [serve(job, 1), serve(job, 2, key=bytes(32))]
    job[0] = (dataclasses.replace(job[0][0]), job[0][1])
    with pytest.raises(AuthenticationError, match="no connection with rank 2"):
        dialled(job, 0, seconds=600)
    for server in servers:
        server.close()
