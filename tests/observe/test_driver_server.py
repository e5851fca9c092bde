"""A supervisor's connection at the driver: frames in pieces, frames of others, and peers that do not read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_estimator.errors import AuthenticationError
from spark_estimator.observe.driver_server import Inbound
from spark_estimator.observe.frames import ALIVE, LOG, MAX_FRAME_BYTES, STOP, encode, take_frames
from spark_estimator.observe.silence import Silence
from spark_estimator.security.encrypted_stream import Sealer
from spark_estimator.security.encryption import SECRET_BYTES, Cipher, Session

Ends = tuple[Inbound, socket.socket]
SECRETS = bytes(SECRET_BYTES), bytes([1]) * SECRET_BYTES


def ends_with(session: Session | None) -> Iterator[Ends]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.settimeout(30)
        yield Inbound(mine, 3, "host:1", Silence(0), session), theirs


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The connection, and the supervisor's end."""
    yield from ends_with(None)


@pytest.fixture
def encrypted() -> Iterator[Ends]:
    yield from ends_with(Session(Cipher.AES_128_GCM, *SECRETS))


def log(rank: int, text: str = "x") -> dict[str, Any]:
    return {"kind": LOG, "rank": rank, "text": text}


def test_frames_are_complete_in_whatever_pieces_they_come(ends: Ends) -> None:
    inbound, supervisor = ends
    frames = [log(0), {"kind": ALIVE}, log(1, "\u20ac" * 100)]
    content = b"".join(map(encode, frames))
    received = []
    for start in range(0, len(content), 7):
        supervisor.sendall(content[start : start + 7])
        received += list(inbound.receive())
    assert received == frames
    supervisor.sendall(content + content[:5])
    assert list(inbound.receive()) == frames
    supervisor.sendall(content[5:])
    assert list(inbound.receive()) == frames


def test_nothing_to_read_and_the_end(ends: Ends) -> None:
    inbound, supervisor = ends
    with pytest.raises(BlockingIOError):
        list(inbound.receive())
    supervisor.sendall(encode(log(0))[:-1])
    assert list(inbound.receive()) == []
    supervisor.close()
    with pytest.raises(EOFError):
        list(inbound.receive())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), f"at most {MAX_FRAME_BYTES} are allowed"),
        (b"\0\0\0\0", "Expecting value"),
        (b"\0\0\0\2{}", "a frame of another protocol"),
        (encode({"kind": "unknown"}), "a frame of another protocol"),
        (encode({"kind": LOG, "rank": "0", "text": "x"}), "a frame of another protocol"),
        (b"\0\1\x86\xa0" + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_breaks_the_rules(ends: Ends, content: bytes, message: str) -> None:
    inbound, supervisor = ends
    thread = threading.Thread(target=supervisor.sendall, args=(content,))
    thread.start()
    with pytest.raises(ValueError, match=message):
        while True:
            try:
                list(inbound.receive())
            except BlockingIOError:
                continue
    thread.join()


def read_frames(supervisor: socket.socket, count: int) -> list[dict[str, Any]]:
    pending, frames = bytearray(), list[dict[str, Any]]()
    while len(frames) < count:
        pending += supervisor.recv(1 << 16)
        frames += take_frames(pending)
    return frames


def test_threads_send_whole_frames(ends: Ends) -> None:
    inbound, supervisor = ends
    texts = [f"{thread} {number}" for thread in range(4) for number in range(50)]
    threads = [
        threading.Thread(target=lambda mine: [inbound.send(STOP, {"text": text}) for text in mine], args=(texts[n::4],))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    received = [frame["text"] for frame in read_frames(supervisor, len(texts))]
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted(texts)
    assert not inbound.has_more


def test_what_the_kernel_does_not_take_is_sent_later(ends: Ends) -> None:
    inbound, supervisor = ends
    texts = ["x" * 500_000, "y" * 500_000, "z"]
    for text in texts:
        inbound.send(STOP, {"text": text})
    assert inbound.has_more
    received: list[dict[str, Any]] = []
    pending = bytearray()
    while len(received) < len(texts):
        pending += supervisor.recv(1 << 16)
        received += take_frames(pending)
        inbound.send_more()
    assert [frame["text"] for frame in received] == texts and not inbound.has_more


def test_a_peer_that_does_not_read_is_disconnected(ends: Ends) -> None:
    inbound, _ = ends
    for _ in range(40):
        inbound.send(STOP, {"text": "x" * 500_000})
        if not inbound.has_more:
            break
    else:
        pytest.fail("16 MiB wait, and more are taken")
    with pytest.raises(EOFError):
        list(inbound.receive())
    inbound.send(STOP, {"text": "late"})
    assert not inbound.has_more


def test_a_broken_connection_is_found_by_reading(ends: Ends) -> None:
    inbound, supervisor = ends
    supervisor.close()
    inbound.send(STOP, {"text": "x"})
    assert not inbound.has_more
    with pytest.raises((EOFError, OSError)):
        list(inbound.receive())


def test_encrypted_frames_and_one_that_was_changed(encrypted: Ends) -> None:
    inbound, supervisor = encrypted
    sealer = Sealer(Session(Cipher.AES_128_GCM, *reversed(SECRETS)))
    supervisor.sendall(sealer.seal(encode(log(1))))
    assert list(inbound.receive()) == [log(1)]
    inbound.send(STOP, {"text": "the reason"})
    assert b"the reason" not in supervisor.recv(1 << 16)
    record = bytearray(sealer.seal(encode(log(2))))
    record[-1] ^= 1
    supervisor.sendall(record)
    with pytest.raises(AuthenticationError):
        list(inbound.receive())
