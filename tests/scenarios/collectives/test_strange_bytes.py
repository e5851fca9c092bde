"""Parsers of untrusted bytes against bytes that were made up or changed in flight: each ends as documented.

Random, with seeds that are fixed; SPARK_ESTIMATOR_TEST_EXAMPLES=100000 looks longer.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from spark_estimator.errors import AuthenticationError
from spark_estimator.observe import frames
from spark_estimator.security import authentication

KEY = bytes(range(32))
CONTEXT = b"round 1, rank 0 to 1"
SOON = timedelta(seconds=20)
EXAMPLES = int(os.environ.get("SPARK_ESTIMATOR_TEST_EXAMPLES", "300"))

# The bytes of a valid exchange in each direction.
FROM_CONNECTOR = 96 + 32
FROM_ACCEPTOR = 48 + 32


def outcome_of(call: Callable[[socket.socket], object], sock: socket.socket) -> object:
    """What a call gives, or the error that it raises; the socket is closed then."""
    with sock:
        try:
            return call(sock)
        except Exception as error:
            return error


def accept(sock: socket.socket) -> object:
    return authentication.accept(sock, KEY, timeout=SOON)


def connect(sock: socket.socket) -> object:
    authentication.connect(sock, KEY, CONTEXT, timeout=SOON)
    return "connected"


def send(sock: socket.socket, data: bytes, generator: random.Random) -> None:
    """In pieces, then nothing more. An end that is already closed has decided."""
    try:
        while data:
            cut = generator.randint(1, len(data))
            sock.sendall(data[:cut])
            data = data[cut:]
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def made_up(generator: random.Random, honest: bytes) -> bytes:
    """Bytes that begin like valid ones, up to a random length, and that are cut short or too long."""
    kept = honest[: generator.choice([0, 4, 8, 15, 16, 17, len(honest)])]
    changed = bytearray(kept + generator.randbytes(generator.randint(0, 200)))
    for _ in range(generator.choice([0, 0, 1, 5])):
        if changed:
            changed[generator.randrange(len(changed))] = generator.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("answer", [accept, connect])
def test_nobody_gets_in_by_chance(answer: Callable[[socket.socket], object]) -> None:
    generator = random.Random(7)
    as_connector = authentication._HELLO.pack(b"SPKEST\x00\x02", b"connect", 0, len(CONTEXT), CONTEXT, bytes(32))
    as_acceptor = authentication._CHALLENGE.pack(b"SPKEST\x00\x02", b"accept", 0, bytes(32))
    for _ in range(EXAMPLES):
        end, peer = socket.socketpair()
        with peer:
            send(peer, made_up(generator, as_connector if answer is accept else as_acceptor), generator)
            outcome = outcome_of(answer, end)
        assert isinstance(outcome, AuthenticationError), outcome


def test_whatever_is_changed_on_its_way_is_noticed() -> None:
    """An attacker between the two ends, who changes one bit of one direction: the receiver refuses it."""
    generator = random.Random(11)
    for _ in range(EXAMPLES):
        to_acceptor = generator.random() < 0.5
        where = generator.randrange(FROM_CONNECTOR if to_acceptor else FROM_ACCEPTOR)
        outcomes = converse(where, 1 << generator.randrange(8), to_acceptor)
        assert isinstance(outcomes["accept" if to_acceptor else "connect"], AuthenticationError), (where, outcomes)


def test_what_is_only_passed_on_is_accepted() -> None:
    for to_acceptor in (True, False):
        assert converse(0, 0, to_acceptor) == {"accept": CONTEXT, "connect": "connected"}


def converse(where: int, flip: int, to_acceptor: bool) -> dict[str, object]:
    """Both valid ends with a relay between, which flips bits of the byte at `where`; the result of each end."""
    connector, near = socket.socketpair()
    far, acceptor = socket.socketpair()
    outcomes: dict[str, object] = {}

    def relay(source: socket.socket, target: socket.socket, changes: bool) -> None:
        passed = 0
        while data := bytearray(source.recv(4096)):
            if changes and passed <= where < passed + len(data):
                data[where - passed] ^= flip
            passed += len(data)
            try:
                target.sendall(data)
            except OSError:
                return
        try:
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threads = [
        threading.Thread(target=lambda: outcomes.update(connect=outcome_of(connect, connector))),
        threading.Thread(target=lambda: outcomes.update(accept=outcome_of(accept, acceptor))),
        threading.Thread(target=relay, args=(near, far, to_acceptor)),
        threading.Thread(target=relay, args=(far, near, not to_acceptor)),
    ]
    with near, far:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    return outcomes


def test_the_driver_channel_takes_its_own_frames_only() -> None:
    generator = random.Random(13)
    honest = [
        {"kind": frames.PLACED, "rank": 1, "host": "a", "pid": 2},
        {"kind": frames.BEGUN, "rank": 1, "host": "a", "pid": 3},
        {"kind": frames.LINE, "rank": 1, "stream": "stdout", "text": "\u00e9\n"},
        {"kind": frames.FAILURE, "report": {"rank": 0}},
        {"kind": frames.BYE},
    ]
    for _ in range(EXAMPLES * 10):
        sent = generator.choices(honest, k=3)
        stream = bytearray(b"".join(frames.encode(frame) for frame in sent))
        if generator.random() < 0.1:
            assert list(frames.take_frames(stream)) == sent
            assert not stream
            continue
        for _ in range(generator.randint(1, 4)):
            where = generator.randrange(len(stream))
            stream[where : where + generator.randint(0, 3)] = generator.randbytes(generator.randint(0, 3))
            if not stream:
                break
        try:
            for frame in frames.take_frames(stream):
                # What has another kind, or lacks a field of its kind, does not get here.
                kind = frame["kind"]
                like = next((each for each in honest if each["kind"] == kind), {})
                assert kind in frames._FIELDS
                assert all(isinstance(frame.get(name), type(value)) for name, value in like.items()), frame
        except ValueError:
            pass  # as documented; a UnicodeDecodeError or JSONDecodeError is one


@pytest.mark.parametrize("opening", [b"[", b'{"kind":', b'{"a":['])
def test_frames_that_are_nested_deeply_are_refused(opening: bytes) -> None:
    content = opening * 100_000
    with pytest.raises(ValueError, match=r"nested|Expecting|frame"):
        list(frames.take_frames(bytearray(len(content).to_bytes(4, "big") + content)))
