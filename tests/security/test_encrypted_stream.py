"""The record layer in Python, and sockets whose bytes are sent by it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from spark_estimator._native import Cipher
from spark_estimator.errors import AuthenticationError
from spark_estimator.security.encrypted_stream import RECORD_BYTES, RECORD_OVERHEAD, Opener, Sealer, open_tunnel
from spark_estimator.security.encryption import Session

HERE = Session(Cipher.AES_128_GCM, b"a" * 32, b"\0" * 31 + b"b")
THERE = Session(Cipher.AES_128_GCM, HERE.receive, HERE.send)


@pytest.mark.parametrize("cipher", list(Cipher))
@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES, RECORD_BYTES + 1, 1 << 20])
def test_bytes_arrive_whatever_the_cuts(cipher: Cipher, size: int) -> None:
    sealer = Sealer(Session(cipher, HERE.send, HERE.receive))
    opener = Opener(Session(cipher, THERE.send, THERE.receive))
    data = os.urandom(size)
    records = sealer.seal(data)
    assert len(records) == size + -(-size // RECORD_BYTES) * RECORD_OVERHEAD
    assert b"".join(opener.open(records[start : start + 1000]) for start in range(0, len(records), 1000)) == data


@pytest.mark.parametrize("fault", ["altered", "repeated", "left out", "in clear"])
def test_what_was_tampered_with_is_refused_for_good(fault: str) -> None:
    sealer, opener = Sealer(HERE), Opener(THERE)
    first, second = sealer.seal(b"first"), sealer.seal(b"second")
    assert fault == "left out" or opener.open(first) == b"first"
    bad = {
        "altered": second[:-1] + bytes([second[-1] ^ 1]),
        "repeated": first,
        "left out": second,
        "in clear": b"x" * 99,
    }
    with pytest.raises(AuthenticationError, match="altered, repeated, left out or reordered"):
        opener.open(bad[fault])
    with pytest.raises(AuthenticationError):
        opener.open(second)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a tunnel, as its users have them."""
    wire = socket.socketpair()
    here, there = open_tunnel(wire[0], HERE, "here"), open_tunnel(wire[1], THERE, "there")
    for sock in (here, there):
        sock.settimeout(60)
    yield here, there
    here.close()
    there.close()


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while data := sock.recv(1 << 16):
        received += data
    return received


def test_a_tunnel_carries_both_directions_to_their_ends(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    data = os.urandom(5 << 20)
    sending = threading.Thread(target=lambda: (here.sendall(data), here.shutdown(socket.SHUT_WR)))
    sending.start()
    assert read_all(there) == data
    sending.join()
    there.sendall(b"answer")
    there.close()
    assert read_all(here) == b"answer"


def test_a_tunnel_ends_at_the_first_bad_record(caplog: pytest.LogCaptureFixture) -> None:
    user, wire = socket.socketpair()
    end = open_tunnel(user, HERE, "the connection with rank 3")
    end.settimeout(60)
    with wire, end:
        wire.sendall(Sealer(THERE).seal(b"good"))
        assert end.recv(100) == b"good"
        wire.sendall(b"nonsense" * 100)
        assert read_all(end) == b""
        assert "the connection with rank 3" in caplog.text and "altered" in caplog.text


def test_without_secrets_there_is_no_tunnel() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert open_tunnel(here, None, "plain") is here


def test_a_forked_child_keeps_no_tunnel_open() -> None:
    wire = socket.socketpair()
    here, there = open_tunnel(wire[0], HERE, "here"), open_tunnel(wire[1], THERE, "there")
    here.settimeout(60)
    stay, leave = os.pipe()
    child = os.fork()
    if child == 0:
        here.close()
        there.close()
        os.read(stay, 1)  # until the parent has seen the end
        os._exit(0)
    there.close()
    try:
        assert here.recv(1) == b""
    finally:
        os.write(leave, b"x")
        os.waitpid(child, 0)
        here.close()
        for descriptor in (stay, leave):
            os.close(descriptor)


# --- the end of the process -------------------------------------------------------------------------------------------

OWN = """
import atexit, os, socket, sys, threading, time
from spark_estimator._native import Cipher
from spark_estimator.security.encryption import KeyPair, Session
HERE = Session(Cipher.AES_128_GCM, b"a" * 32, b"\\0" * 31 + b"b")
THERE = Session(Cipher.AES_128_GCM, HERE.receive, HERE.send)
"""


def program(text: str, *descriptors: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", OWN + text, *map(str, descriptors)]
    return subprocess.Popen(arguments, pass_fds=descriptors, stdout=subprocess.PIPE, text=True)


def test_nothing_is_freed_before_the_process_ends() -> None:
    """Daemon threads run until then."""
    last = """
def use():  # after all finalizers that are called at exit
    data = bytes(100_000)
    assert opener.open(sealer.seal(data)) == data
    assert pair.derive_shared_secret(KeyPair().share)
    print("used", flush=True)

atexit.register(use)
from spark_estimator.security.encrypted_stream import Opener, Sealer
sealer, opener, pair = Sealer(HERE), Opener(THERE), KeyPair()
"""
    child = program(last)
    assert (child.communicate(timeout=60)[0], child.returncode) == ("used\n", 0)


def test_tunnels_at_work_do_no_harm_at_the_end() -> None:
    busy = """
from spark_estimator.security.encrypted_stream import open_tunnel

def run(act, sock):
    try:
        while act(sock):
            pass
    except OSError:
        pass

data = bytes(1 << 20)
kept = []
for _ in range(4):
    wire = socket.socketpair()
    kept += [open_tunnel(wire[0], HERE, "here"), open_tunnel(wire[1], THERE, "there")]
    for sock in kept[-2:]:
        for act in (lambda sock: sock.sendall(data) is None, lambda sock: sock.recv(1 << 20)):
            threading.Thread(target=run, args=(act, sock), daemon=True).start()
time.sleep(0.1)
"""
    children = [program(busy) for _ in range(8)]
    assert [child.wait(100) for child in children] == [0] * 8
    for child in children:
        child.communicate()


def test_what_was_sent_before_the_end_arrives() -> None:
    ours, theirs = socket.socketpair()
    child = program(
        """
from spark_estimator.security.encrypted_stream import open_tunnel
end = open_tunnel(socket.socket(fileno=int(sys.argv[1])), HERE, "here")
end.sendall(bytes(150_000))
""",
        theirs.fileno(),
    )
    theirs.close()
    end = open_tunnel(ours, THERE, "there")
    end.settimeout(60)
    with end:
        assert len(read_all(end)) == 150_000
    assert child.wait(60) == 0
    child.communicate()


def test_an_end_that_takes_nothing_does_not_hold_the_process() -> None:
    ours, theirs = socket.socketpair()
    child = program(
        """
from spark_estimator.security.encrypted_stream import open_tunnel
end = open_tunnel(socket.socket(fileno=int(sys.argv[1])), HERE, "here")
end.setblocking(False)
try:
    while True:
        end.send(bytes(100_000))
        time.sleep(0.001)
except BlockingIOError:
    pass
""",
        theirs.fileno(),
    )
    theirs.close()
    with ours:
        assert child.wait(60) == 0
    child.communicate()
