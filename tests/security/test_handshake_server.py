"""The server of handshakes: garbage and floods are closed, silent peers delay no other, valid ones are accepted."""

from __future__ import annotations

import logging
import os
import queue
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.collectives.rendezvous import Endpoint
from spark_estimator.errors import AuthenticationError
from spark_estimator.security import authentication
from spark_estimator.security.authentication import NotReadyError, connect
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer

KEY = os.urandom(32)


class Door:
    """A listening endpoint, its server, and the accepted connections."""

    def __init__(self, **options: object) -> None:
        endpoint = Endpoint.open("127.0.0.1")
        assert endpoint.local is not None
        self.tcp_address = (endpoint.address, endpoint.port)
        self.local_address = b"\x00" + endpoint.local_name.encode()
        self.admitted: queue.Queue[tuple[socket.socket, bytes, str, Session | None]] = queue.Queue()
        self.server = HandshakeServer(
            [endpoint.tcp, endpoint.local], KEY, lambda *arrival: self.admitted.put(arrival), **options
        )

    def knock(self, *, local: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        sock.settimeout(60)
        sock.connect(self.local_address if local else self.tcp_address)
        return sock

    def enter(self, context: bytes = b"friend", *, local: bool = False) -> socket.socket:
        """A valid peer connects; returns the inner end."""
        with self.knock(local=local) as outer:
            connect(outer, KEY, context)
            inner, stated, _, _ = self.admitted.get(timeout=60)
            assert stated == context
            outer.sendall(b"hello")
            assert inner.recv(5) == b"hello"
        return inner


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.server.close()


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
        inner, _, origin, _ = door.admitted.get(timeout=60)
        assert origin == f"127.0.0.1 port {outer.getsockname()[1]}"
        inner.close()
    with door.knock(local=True) as outer:
        connect(outer, KEY, b"")
        inner, _, origin, _ = door.admitted.get(timeout=60)
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
    door.server.close()


def test_a_connector_that_takes_too_long_may_try_again() -> None:
    """A process may get no processor time for seconds, as where many ranks of a host start at once."""
    door = Door(timeout=timedelta(seconds=0.3))
    with door.knock() as slow:
        slow.sendall(authentication._HELLO.pack(authentication._MAGIC, b"connect", 0, 0, b"", bytes(32)))
        assert len(slow.recv(authentication._CHALLENGE.size, socket.MSG_WAITALL)) == authentication._CHALLENGE.size
        assert slow.recv(100) == authentication.BUSY
        assert is_closed(slow)
    door.server.close()


def test_what_has_arrived_counts_though_the_server_was_slow() -> None:
    door = Door(timeout=timedelta(seconds=0.3))
    with door.knock() as early, ThreadPoolExecutor(1) as pool:
        early.settimeout(20)
        door.server.before_fork()  # as a process without processor time: nothing is read
        entered = pool.submit(connect, early, KEY, b"early")
        time.sleep(1)
        door.server.after_fork_in_parent()
        entered.result(20)
        inner, context, _, _ = door.admitted.get(timeout=60)
        assert context == b"early"
        inner.close()
    door.server.close()


def test_the_oldest_makes_room_for_the_newest(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(capacity=2)
    silent, half_way = door.knock(), door.knock()
    hello = authentication._HELLO.pack(authentication._MAGIC, b"connect", 0, 0, b"", bytes(32))
    half_way.sendall(hello)
    assert len(half_way.recv(100)) == authentication._CHALLENGE.size
    with caplog.at_level(logging.INFO):
        door.enter().close()
        assert is_closed(silent)
        second, third = door.knock(), door.knock()
    assert half_way.recv(100) == authentication.BUSY
    assert is_closed(half_way)
    for sock in (silent, half_way, second, third):
        sock.close()
    door.server.close()
    assert (
        "has 2 connections that have not proved that they hold the job's key (the oldest from 127.0.0.1" in caplog.text
    )


def test_a_connector_that_made_room_tries_again() -> None:
    """The first try is answered "busy", as it is when others connect between its hello and its proof."""
    door = Door(capacity=1)
    tries = []

    def interrupting(*arguments: Any, **options: Any) -> None:
        tries.append(arguments[0])
        if len(tries) == 1:
            raise NotReadyError("the other end is busy with other connections")
        connect(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authentication, "connect", interrupting)
        outer, _ = authentication.dial(door.tcp_address, KEY, b"again")
    with outer:
        assert (len(tries), outer.gettimeout()) == (2, None)
        inner, context, _, _ = door.admitted.get(timeout=60)
        assert context == b"again"
        inner.close()
    door.server.close()


def test_a_dial_ends_in_time() -> None:
    door = Door()
    with pytest.raises(AuthenticationError, match="closed the connection"):
        authentication.dial(door.tcp_address, bytes(32), b"")
    door.server.close()
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(NotReadyError, match="within"):
        authentication.dial(mute.getsockname(), KEY, b"", timeout=timedelta(seconds=0.3))
    with pytest.raises(ConnectionRefusedError):
        authentication.dial(door.tcp_address, KEY, b"")


_STRANGERS = """
import resource, socket, sys
port, count, begins, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True", int(sys.argv[4])
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
sockets = []
for number in range(count):
    sock = socket.socket()
    sock.bind((f"127.0.0.{2 + number % addresses}", 0))
    sock.settimeout(30)
    try:
        sock.connect(("127.0.0.1", port))
        if begins:
            sock.sendall(b"SPKEST\\x00\\x02connect\\x00" + bytes(80))
    except OSError:
        pass
    sockets.append(sock)
    if number == count // 2:
        print("half", flush=True)
print("all", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("begins", "addresses"), [(False, 1), (True, 200)], ids=["silent", "begin a handshake"])
def test_ten_thousand_strangers_keep_no_friend_out(door: Door, begins: bool, addresses: int) -> None:
    arguments = [str(door.tcp_address[1]), "10000", str(begins), str(addresses)]
    with subprocess.Popen(
        [sys.executable, "-c", _STRANGERS, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as strangers:
        assert strangers.stdout is not None
        for moment in ("half", "all"):
            assert strangers.stdout.readline().strip() == moment
            for _ in range(10):
                outer, _ = authentication.dial(door.tcp_address, KEY, b"friend", timeout=timedelta(seconds=60))
                inner, _, _, _ = door.admitted.get(timeout=60)
                for sock in (inner, outer):
                    sock.close()
        assert len(door.server._handshakes.in_progress) <= door.server._handshakes.capacity


def test_a_failing_callback_ends_one_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = Endpoint.open("127.0.0.1")
    admitted: queue.Queue[socket.socket] = queue.Queue()

    def admit(sock: socket.socket, context: bytes, _origin: str, _session: object) -> None:
        if context == b"bad":
            raise RuntimeError("a defect")
        admitted.put(sock)

    server = HandshakeServer([endpoint.tcp], KEY, admit)
    with authentication.dial((endpoint.address, endpoint.port), KEY, b"bad")[0] as outer:
        assert is_closed(outer)
    with authentication.dial((endpoint.address, endpoint.port), KEY, b"good")[0]:
        admitted.get(timeout=60).close()
    server.close()
    assert "RuntimeError: a defect" in caplog.text


def test_a_callback_that_refuses_closes() -> None:
    endpoint = Endpoint.open("127.0.0.1")

    def admit(_sock: socket.socket, _context: bytes, _origin: str, _session: object) -> None:
        raise AuthenticationError("changed its mind")

    server = HandshakeServer([endpoint.tcp], KEY, admit)
    with socket.create_connection((endpoint.address, endpoint.port), timeout=60) as outer:
        connect(outer, KEY, b"")
        assert is_closed(outer)
    server.close()
    endpoint.close()


def test_close_ends_everything(door: Door) -> None:
    with door.knock() as silent:
        deadline = time.monotonic() + 60
        while not door.server._handshakes.in_progress and time.monotonic() < deadline:
            time.sleep(0.01)
        door.server.close()
        door.server.close()
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
