"""Connections between ranks beside the engine's: which are accepted, and whole messages."""

from __future__ import annotations

import socket
import threading

import pytest
import torch.distributed as dist

from spark_estimator.errors import AuthenticationError
from spark_estimator.extensions.process_group import links as links_module
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_strangers_are_not_let_in(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        import socket

        from spark_estimator.extensions.process_group import creation

        links = creation._current.links
        with socket.create_connection(("127.0.0.1", links._ports[1 - rank]), timeout=5) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert sock.recv(100) == b""
        with pytest.raises(RuntimeError, match="refused this connection"):
            links.connect(1 - rank, "nonsense")
        dist.barrier()

    two_ranks.run(check)


def test_whole_messages_are_received() -> None:
    near, far = socket.socketpair()
    with near, far:
        memory = bytearray(6)
        sender = threading.Thread(target=lambda: [near.sendall(part) for part in (b"ab", b"cd", b"ef")])
        sender.start()
        assert links_module.receive_exactly(far, memoryview(memory)) and memory == b"abcdef"
        sender.join()
        near.sendall(b"abc")
        near.close()
        with pytest.raises(ConnectionResetError, match="in the middle of a message"):
            links_module.receive_exactly(far, memoryview(memory))
        assert not links_module.receive_exactly(far, memoryview(memory))


def test_purpose_and_rank_of_a_connection() -> None:
    assert links_module._read_context(links_module._make_context("store", 12)) == ("store", 12)
    for stated in (b"store", b"store x", b"", b"\xff\xfe 1x"):
        with pytest.raises(AuthenticationError, match="instead of its purpose and rank"):
            links_module._read_context(stated)
