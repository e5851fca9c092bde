"""Connections between ranks: how their sockets are tuned, and how another context is refused."""

from __future__ import annotations

import random
import socket

import pytest

from spark_estimator.collectives.connections.connection import CONTROL, DATA, Connection, tune
from spark_estimator.errors import AuthenticationError

TAG = bytes(range(16))


@pytest.mark.parametrize("silence", [0.1, 1.0, 6.0, 600.0, 1e9])
def test_the_kernel_gives_up_on_a_link_after_the_engine_does(silence: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        tune(sock, silence)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            gives_up = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
            assert min(silence, 32_000) < gives_up < 100_000
            # Probed often enough for that to be found by then.
            probed = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            assert probed <= max(1, gives_up / 2)


def test_a_unix_socket_has_nothing_to_tune() -> None:
    sock, peer = socket.socketpair()
    with sock, peer:
        sock.settimeout(1)
        tune(sock, 6.0)
        assert sock.gettimeout() is None


def test_a_context_comes_back_as_it_was() -> None:
    for connection in (
        Connection(1, 0, 1, CONTROL),
        Connection(2**40, 7, 1000, DATA, group=3),
        Connection(1, 0, 1, DATA, part=7, parts=8),
    ):
        unpacked = Connection.unpack(connection.pack(TAG), TAG)
        assert (unpacked, unpacked.parts) == (connection, connection.parts)


def test_strange_contexts_are_refused() -> None:
    generator = random.Random(1)
    good = Connection(1, 0, 1, CONTROL).pack(TAG)
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(generator.randint(0, 3)):
            bad[generator.randrange(len(bad))] = generator.randrange(256)
        del bad[generator.randint(0, len(bad)) :]
        bad += generator.randbytes(generator.randint(0, 3))
        whole = len(bad) == len(good) and bad.startswith(TAG)
        if whole:
            assert isinstance(Connection.unpack(bytes(bad), TAG), Connection)
        else:
            with pytest.raises(AuthenticationError):
                Connection.unpack(bytes(bad), TAG)
