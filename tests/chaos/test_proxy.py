from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from chaos.plan import Fault, Kind
from chaos.proxy import Proxy


def fault(kind: Kind) -> Fault:
    return Fault(kind, 1, 0, 0)


@pytest.fixture
def ends() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and both ends of a connection through it."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = Proxy(listener.getsockname()[1], "seed")
        stack.callback(proxy.close)
        near = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 20))
        far = stack.enter_context(listener.accept()[0])
        near.settimeout(20)
        far.settimeout(20)
        yield proxy, near, far


def received(sock: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count and (part := sock.recv(count - len(content))):
        content += part
    return content


@pytest.mark.parametrize("kind", [None, Kind.DELAY, Kind.FLAP])
def test_all_bytes_pass_in_order(ends: tuple[Proxy, socket.socket, socket.socket], kind: Kind | None) -> None:
    proxy, near, far = ends
    if kind is not None:
        proxy.strike(fault(kind))
    content = bytes(range(256)) * 4_000
    for source, target in ((near, far), (far, near)):
        thread = threading.Thread(target=source.sendall, args=(content,))
        thread.start()
        assert received(target, len(content)) == content
        thread.join()
    near.shutdown(socket.SHUT_WR)
    assert far.recv(1) == b""


@pytest.mark.parametrize(("kind", "passes"), [(Kind.CUT, False), (Kind.ONE_WAY, True)])
def test_a_cut_is_silent(ends: tuple[Proxy, socket.socket, socket.socket], kind: Kind, passes: bool) -> None:
    proxy, near, far = ends
    proxy.strike(fault(kind))
    near.sendall(b"in")
    far.sendall(b"out")
    far.settimeout(0.3)
    with pytest.raises(TimeoutError):
        far.recv(1)
    near.settimeout(20 if passes else 0.3)
    if passes:
        assert received(near, 3) == b"out"
    else:
        with pytest.raises(TimeoutError):
            near.recv(1)


def test_one_bit_is_flipped(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, near, far = ends
    proxy.strike(fault(Kind.CORRUPT))
    near.sendall(bytes(100))
    assert sorted(received(far, 100)) == [*[0] * 99, 1]
    near.sendall(bytes(100))
    assert received(far, 100) == bytes(100)


def test_a_reset_reaches_both_ends(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, near, far = ends
    proxy.strike(fault(Kind.RESET))
    for sock in (near, far):
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_nothing_is_left_of_it_when_one_direction_has_ended(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, near, far = ends
    far.shutdown(socket.SHUT_WR)
    assert near.recv(1) == b""
    proxy.close()
    assert far.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), 20)
