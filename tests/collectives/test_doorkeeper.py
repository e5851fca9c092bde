"""The Doorkeeper: garbage and floods end in a close, silent strangers delay nobody, friends always get in."""

from __future__ import annotations

import os
import queue
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from spark_estimator.authentication import HandshakeServer, NotReadyError, connect
from spark_estimator.collectives.rendezvous import Endpoint
from spark_estimator.errors import AuthenticationError

KEY = os.urandom(32)


class Door:
    """A listening endpoint, its doorkeeper, and what came through."""

    def __init__(self, **options: object) -> None:
        endpoint = Endpoint.open("127.0.0.1")
        assert endpoint.local is not None
        self.tcp_address = (endpoint.address, endpoint.port)
        self.local_address = b"\x00" + endpoint.local_name.encode()
        self.admitted: queue.Queue[tuple[socket.socket, bytes, str]] = queue.Queue()
        self.doorkeeper = HandshakeServer(
            [endpoint.tcp, endpoint.local], KEY, lambda *arrival: self.admitted.put(arrival), **options
        )

    def knock(self, *, local: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        sock.settimeout(60)
        sock.connect(self.local_address if local else self.tcp_address)
        return sock

    def enter(self, context: bytes = b"friend", *, local: bool = False) -> socket.socket:
        """A friend comes in; gives the inner end."""
        with self.knock(local=local) as outer:
            connect(outer, KEY, context)
            inner, stated, _ = self.admitted.get(timeout=60)
            assert stated == context
            outer.sendall(b"hello")
            assert inner.recv(5) == b"hello"
        return inner


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.doorkeeper.close()


def is_closed(sock: socket.socket) -> bool:
    """Waits for the other end to close."""
    with suppress(ConnectionError):
        while sock.recv(4096):
            pass
    return True


@pytest.mark.parametrize("local", [False, True])
def test_a_friend_gets_in(door: Door, local: bool) -> None:
    inner = door.enter(local=local)
    assert inner.gettimeout() is None
    assert not os.get_inheritable(inner.fileno())
    inner.close()


def test_the_origin_is_told(door: Door) -> None:
    with door.knock() as outer:
        connect(outer, KEY, b"")
        inner, _, origin = door.admitted.get(timeout=60)
        assert origin == f"127.0.0.1 port {outer.getsockname()[1]}"
        inner.close()
    with door.knock(local=True) as outer:
        connect(outer, KEY, b"")
        inner, _, origin = door.admitted.get(timeout=60)
        assert origin == f"pid {os.getpid()} of this host"
        inner.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.0\r\n\r\n", os.urandom(100_000), b"\x00"])
def test_garbage_is_closed(door: Door, garbage: bytes) -> None:
    with door.knock() as outer:
        with suppress(ConnectionError):
            outer.sendall(garbage)
        assert is_closed(outer)
    door.enter().close()


def test_a_tls_client_is_closed(door: Door) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with door.knock() as outer, pytest.raises(OSError):
        context.wrap_socket(outer)
    door.enter().close()


def test_another_key_is_closed(door: Door) -> None:
    with door.knock() as outer, pytest.raises(AuthenticationError, match="closed the connection"):
        connect(outer, bytes(32), b"")
    door.enter().close()
    assert door.admitted.empty()


def test_the_silent_delay_nobody_and_are_closed_at_the_deadline() -> None:
    door = Door(timeout=timedelta(seconds=1))
    silent = [door.knock() for _ in range(20)]
    for _ in range(3):
        door.enter().close()
    assert all(is_closed(sock) for sock in silent)
    for sock in silent:
        sock.close()
    door.doorkeeper.close()


def test_what_comes_above_the_capacity_is_closed_at_once() -> None:
    door = Door(capacity=2, timeout=timedelta(seconds=2))
    silent = [door.knock(), door.knock()]
    deadline = time.monotonic() + 60
    while len(door.doorkeeper._in_handshake) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    with door.knock() as outer, pytest.raises(NotReadyError):
        connect(outer, KEY, b"")
    assert all(is_closed(sock) for sock in silent)
    for sock in silent:
        sock.close()
    door.enter().close()
    door.doorkeeper.close()


def test_a_callback_that_refuses_closes() -> None:
    endpoint = Endpoint.open("127.0.0.1")

    def admit(_sock: socket.socket, _context: bytes, _origin: str) -> None:
        raise AuthenticationError("changed its mind")

    doorkeeper = HandshakeServer([endpoint.tcp], KEY, admit)
    with socket.create_connection((endpoint.address, endpoint.port), timeout=60) as outer:
        connect(outer, KEY, b"")
        assert is_closed(outer)
    doorkeeper.close()
    endpoint.close()


def test_close_ends_everything(door: Door) -> None:
    with door.knock() as silent:
        deadline = time.monotonic() + 60
        while not door.doorkeeper._in_handshake and time.monotonic() < deadline:
            time.sleep(0.01)
        door.doorkeeper.close()
        door.doorkeeper.close()
        assert is_closed(silent)
    with pytest.raises(OSError):
        door.knock()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_this_host_is_refused_even_with_the_key(door: Door) -> None:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setuid(65534)
            with door.knock(local=True) as outer:
                connect(outer, KEY, b"", timeout=timedelta(seconds=30))
            code = 0
        except AuthenticationError:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert door.admitted.empty()
    door.enter(local=True).close()
