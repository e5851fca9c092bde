"""The driver channel: accepted frames, refused peers, and the end of either side."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.errors import AuthenticationError
from spark_estimator.observe import channel, frames
from spark_estimator.observe.channel import SupervisorChannel
from spark_estimator.observe.driver_server import DriverServer
from spark_estimator.security import authentication

JOB = "0123456789abcdef"
CONTEXT = channel.pack_context(JOB, 0)


class Side:
    """A server, what it has received, and a way to connect to it."""

    def __init__(self, size: int = 2, lost_after: float = 0.0) -> None:
        self.received: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.server = DriverServer(
            "127.0.0.1",
            JOB,
            size,
            lambda partition, frame: self.received.put((partition, frame)),
            lost_after=lost_after,
        )
        self.stops: queue.Queue[str] = queue.Queue()

    def connect(self, partition: int = 0, token: bytes | None = None, job: str = JOB) -> SupervisorChannel:
        address = (self.server.address, self.server.port)
        return SupervisorChannel.connect(address, token or self.server.token, job, partition, self.stops.put)

    def next(self) -> tuple[int, dict[str, Any]]:
        return self.received.get(timeout=20)


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.server.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_everything_arrives_in_order(side: Side) -> None:
    first, second = side.connect(0), side.connect(1)
    for number in range(100):
        assert first.send(frames.LINE, rank=0, stream="stdout", text=f"é {number}")
    assert [side.next()[1]["text"] for _ in range(100)] == [f"é {number}" for number in range(100)]
    second.send(frames.FAILURE, report={"rank": 1})
    assert side.next() == (1, {"kind": "failure", "report": {"rank": 1}})
    second.send(frames.LOG, rank=1, text="last words")
    second.close()
    assert side.next()[1]["text"] == "last words"
    first.close()
    wait_for(lambda: side.server.connected == 0)
    assert side.received.empty() and side.stops.empty(), "an end in good order is nothing to tell"


def test_an_error_in_taking_a_frame_loses_that_supervisor_only() -> None:
    heard: queue.Queue[tuple[int, str]] = queue.Queue()

    def receive(partition: int, frame: dict[str, Any]) -> None:
        if frame["kind"] == frames.LOG and partition == 1:
            raise MemoryError
        heard.put((partition, frame["kind"]))

    server = DriverServer("127.0.0.1", JOB, 2, receive)
    first, second = (
        SupervisorChannel.connect((server.address, server.port), server.token, JOB, partition, lambda reason: None)
        for partition in range(2)
    )
    second.send(frames.LOG, rank=1, text="a message")
    assert heard.get(timeout=20) == (1, frames.GONE)
    first.send(frames.LOG, rank=0, text="a message")
    assert heard.get(timeout=20) == (0, frames.LOG)
    first.close()
    second.close()
    server.close()


FREEZES = """
import sys
from spark_estimator.observe import channel
channel.HEARTBEAT_SECONDS = 0.05
host, port, token, job, partition = sys.argv[1:]
channel.SupervisorChannel.connect((host, int(port)), bytes.fromhex(token), job, int(partition), print)
sys.stdin.read()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    monkeypatch.setattr(channel, "HEARTBEAT_SECONDS", 0.05)
    made = Side(lost_after=4.0)
    yield made
    made.server.close()


def test_a_frozen_supervisor_is_reported_and_then_lost(impatient: Side) -> None:
    server = impatient.server
    arguments = [server.address, str(server.port), server.token.hex(), JOB, "1"]
    beating = impatient.connect(0)
    with subprocess.Popen([sys.executable, "-c", FREEZES, *arguments], stdin=subprocess.PIPE) as process:
        wait_for(lambda: server.connected == 2)
        process.send_signal(signal.SIGSTOP)
        assert impatient.next() == (1, {"kind": frames.SILENT, "seconds": 2, "limit": 4})
        process.send_signal(signal.SIGCONT)
        assert impatient.next() == (1, {"kind": frames.HEARD})
        process.send_signal(signal.SIGSTOP)
        assert impatient.next()[1]["kind"] == frames.SILENT
        assert impatient.next() == (1, {"kind": frames.GONE, "silent_seconds": 4})
        process.kill()
    wait_for(lambda: server.connected == 1)
    assert impatient.received.empty() and impatient.stops.empty(), "one that only sends heartbeats is heard"
    beating.close()


def test_a_driver_that_was_busy_judges_nobody(impatient: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock jumps by an hour while it looks at nothing."""
    supervisor = impatient.connect(0)
    clock = time.monotonic
    for hours in (1, 2, 3):
        monkeypatch.setattr(time, "monotonic", lambda hours=hours: clock() + 3600 * hours)
        supervisor.send(frames.LOG, rank=0, text="here")
        assert impatient.next()[1]["kind"] == frames.LOG
    supervisor.close()


def test_a_supervisor_that_vanishes_is_told(side: Side) -> None:
    supervisor = side.connect(1)
    supervisor.send(frames.LOG, rank=1, text="x")
    assert side.next()[1]["kind"] == "log"
    supervisor._sock.shutdown(socket.SHUT_RDWR)
    assert side.next() == (1, {"kind": frames.GONE})
    supervisor.close()


def test_what_was_flushed_outlives_a_supervisor_that_is_killed(side: Side) -> None:
    child = os.fork()
    if child == 0:
        supervisor = side.connect(1)
        supervisor.send(frames.PLACED, rank=1, host="there", pid=7)
        os._exit(0 if supervisor.flush(timedelta(seconds=20)) else 1)  # no farewell, as after SIGKILL
    assert os.waitpid(child, 0)[1] == 0
    assert side.next() == (1, {"kind": frames.PLACED, "rank": 1, "host": "there", "pid": 7})
    assert side.next() == (1, {"kind": frames.GONE})


def test_a_flush_does_not_wait_for_a_driver_that_is_gone(side: Side) -> None:
    supervisor = side.connect(0)
    side.server.close()
    wait_for(lambda: not supervisor.usable)
    assert not supervisor.flush(timedelta(seconds=20))
    supervisor.close()


def test_the_order_to_stop_reaches_all_also_those_who_come_late(side: Side) -> None:
    early = side.connect(0)
    side.server.stop("because of that")
    side.server.stop("again")
    late = side.connect(1)
    assert [side.stops.get(timeout=20) for _ in range(2)] == ["because of that"] * 2
    early.close()
    late.close()


def test_when_the_driver_is_gone_its_supervisors_notice(side: Side) -> None:
    supervisor = side.connect(0)
    side.server.close()
    assert "driver" in side.stops.get(timeout=20)
    assert not supervisor.usable
    wait_for(lambda: not supervisor.send(frames.LINE, rank=0, stream="stdout", text="x"))
    supervisor.close()


@pytest.mark.parametrize(
    "wrong",
    [{"token": b"x" * 32}, {"job": "another job"}, {"partition": 2}],
)
def test_who_does_not_belong_to_the_job_is_refused(side: Side, wrong: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError):
        side.connect(**wrong)
    assert side.server.connected == 0


def test_who_lacks_the_token_is_not_answered(side: Side) -> None:
    """One that asks for no proof of the server's own, either."""
    with socket.create_connection((side.server.address, side.server.port), timeout=20) as stranger:
        stranger.sendall(authentication._HELLO.pack(authentication._MAGIC, b"connect", 0, 20, CONTEXT, bytes(32)))
        assert len(stranger.recv(authentication._CHALLENGE.size, socket.MSG_WAITALL)) == authentication._CHALLENGE.size
        stranger.sendall(bytes(32))
        assert stranger.recv(100) == b""
    assert side.server.connected == 0


def test_a_partition_connects_once(side: Side) -> None:
    supervisor = side.connect(0)
    with pytest.raises(AuthenticationError):
        side.connect(0)
    supervisor.close()


def authenticated(side: Side) -> socket.socket:
    """A connection of one who knows the token, but then speaks as it likes."""
    connected = side.server.connected
    sock = socket.create_connection((side.server.address, side.server.port))
    authentication.connect(sock, side.server.token, struct.pack(">16sI", JOB.encode(), 1))
    wait_for(lambda: side.server.connected > connected)  # frames that are sent before are lost
    sock.settimeout(20)
    return sock


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


@pytest.mark.parametrize(
    "evil",
    [
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", frames.MAX_FRAME_BYTES + 1),
        frame(b"no json"),
        frame(b"[1, 2]"),
        frame(b"\xff\xfe"),
        frame(b"null"),
        frame(json.dumps({"kind": "run"}).encode()),
        frame(json.dumps({"kind": "gone"}).encode()),
        frame(json.dumps({"kind": "line", "rank": "0", "stream": "stdout", "text": "x"}).encode()),
        frame(json.dumps({"kind": "line", "rank": 0}).encode()),
        frame(b'{"kind":' + b"[" * 100_000),
    ],
)
def test_who_breaks_the_rules_is_disconnected_and_the_others_are_not(side: Side, evil: bytes) -> None:
    good = side.connect(0)
    with authenticated(side) as bad:
        bad.sendall(evil)
        assert bad.recv(10) == b"", "disconnected"
    assert side.next() == (1, {"kind": frames.GONE})
    good.send(frames.LOG, rank=0, text="still here")
    assert side.next() == (0, {"kind": "log", "rank": 0, "text": "still here"})
    good.close()


def test_what_goes_down_arrives_whole_also_where_the_network_is_slow(side: Side) -> None:
    with authenticated(side) as slow:
        fast = side.connect(0)
        everyone = [f"facts of {number} " + "x" * 400 for number in range(1500)]
        for _ in range(8):
            side.server.send(1, frames.EVERYONE, {"facts": everyone})
        side.server.send(0, frames.EVERYONE, {"facts": ["of one"]})
        assert fast.wait_for_answer() == {"kind": frames.EVERYONE, "facts": ["of one"]}, "nobody waits for the slow one"
        side.server.stop("in between")
        received = bytearray()
        came: list[dict[str, Any]] = []
        while len(came) < 9:
            received += slow.recv(20_000)
            came += frames.take_frames(received)
        assert [frame.get("facts") for frame in came[:8]] == [everyone] * 8
        assert came[8] == {"kind": frames.STOP, "text": "in between"}
        side.server.send(7, frames.GATHER, {})  # no process listens
        fast.close()


def test_a_supervisor_that_takes_nothing_is_disconnected(side: Side) -> None:
    with authenticated(side):
        everyone = ["x" * 1000] * 1000
        for _ in range(100):
            side.server.send(1, frames.EVERYONE, {"facts": everyone})
        assert side.next() == (1, {"kind": frames.GONE})


def test_messages_that_the_network_is_too_slow_for_are_dropped_and_counted(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        supervisor = SupervisorChannel(ours, side.stops.put)
        for number in range(20_000):
            assert supervisor.send(frames.LOG, rank=0, text=f"{number} " + "x" * 1000)
        assert supervisor._waiting_bytes <= channel._MAX_WAITING_BYTES
        received, came = bytearray(), list[dict[str, Any]]()
        theirs.settimeout(0.1)

        def read() -> None:
            with contextlib.suppress(TimeoutError):
                received.extend(theirs.recv(1 << 20))
            came.extend(frames.take_frames(received))

        while not came or supervisor._waiting_bytes:
            read()
        supervisor.send(frames.LOG, rank=0, text="last")
        while came[-1].get("text") != "last":
            read()
        (dropped,) = [frame["text"] for frame in came if frame["kind"] == frames.LINE]
        assert len([frame for frame in came if frame["kind"] == frames.LOG]) + int(dropped[1:].split()[0]) == 20_001
        supervisor.close()


def test_whoever_waits_for_an_answer_is_woken_by_the_order_to_stop_and_by_the_end(side: Side) -> None:
    stopped = side.connect(0)
    threading.Timer(0.2, side.server.stop, ("because",)).start()
    assert stopped.wait_for_answer() is None
    stopped.close()
    deserted = side.connect(1)
    threading.Timer(0.2, side.server.close).start()
    assert deserted.wait_for_answer() is None
    deserted.close()


def test_strangers_do_no_harm(side: Side) -> None:
    address = (side.server.address, side.server.port)
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 10_000, b""):
        with socket.create_connection(address) as stranger:
            stranger.sendall(greeting)
    good = side.connect(0)
    good.send(frames.LOG, rank=0, text="x")
    assert side.next()[1]["text"] == "x"
    good.close()


def test_a_driver_that_does_not_read_costs_lines_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_MAX_WAITING_BYTES", 10_000)
    left, right = socket.socketpair()
    for sock in (left, right):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    supervisor = SupervisorChannel(left, lambda reason: None)
    for number in range(10_000):
        assert supervisor.send(frames.LINE, rank=0, stream="stdout", text=f"line {number} " + "x" * 100)
    supervisor.send(frames.FAILURE, report={})
    received = bytearray()
    right.settimeout(20)
    came: list[dict[str, Any]] = []
    while not any(frame["kind"] == frames.FAILURE for frame in came):
        received += right.recv(100_000)
        came += frames.take_frames(received)
    assert len(came) < 5000
    supervisor.send(frames.LINE, rank=0, stream="stdout", text="the end")
    while came[-1].get("text") != "the end":
        received += right.recv(100_000)
        came += frames.take_frames(received)
    assert "lines were dropped" in came[-2]["text"]
    right.close()
    supervisor.close()
