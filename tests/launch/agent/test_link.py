"""The stream of frames between a launcher and an agent, over real pipes: order, heartbeats and ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink, SilentError, split_process
from spark_estimator.launch.worker.result_pipe import CHUNK_BYTES
from tests.support.high_descriptors import high_descriptor

NEVER = timedelta(0)


class Pipe:
    """Two links, so that what the first sends is what the second reads."""

    def __init__(self, heartbeat: timedelta = NEVER, silence: timedelta = NEVER, opening: bytes = b"") -> None:
        self.unused, unused_write = os.pipe()
        read, self.write = os.pipe()
        self.read = read
        self.sender = AgentLink(self.unused, self.write, heartbeat, NEVER)
        self.receiver = AgentLink(read, unused_write, heartbeat, silence, opening=opening)

    def close(self) -> None:
        for end in (self.sender, self.receiver):
            end.give_up()
            end.close(timedelta(seconds=5))
        os.close(self.unused)
        os.close(self.read)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_frames_arrive_in_order_and_end_with_the_stream(pipe: Pipe) -> None:
    large = os.urandom(2 * CHUNK_BYTES + 1)
    thread = threading.Thread(target=pipe.sender.send_bytes, args=(frames.VALUE, 7, large))
    pipe.sender.send_json(frames.STARTED, process=7)
    thread.start()
    received = pipe.receiver.read_frames()
    assert next(received) == (frames.STARTED, b'{"process": 7}')
    pieces = [next(received) for _ in range(3)]
    assert {letter for letter, _ in pieces} == {frames.VALUE} and {split_process(piece)[0] for _, piece in pieces} == {
        7
    }
    assert b"".join(split_process(piece)[1] for _, piece in pieces) == large
    thread.join()
    pipe.sender.close(timedelta(seconds=5))
    assert list(received) == []


def test_a_launcher_of_many_ranks_has_descriptors_above_1023() -> None:
    pipe = Pipe()
    unused_read, unused_write = os.pipe()
    high = high_descriptor(pipe.read)
    listener = AgentLink(high, unused_write, timedelta(seconds=30), timedelta(seconds=30))
    pipe.sender.send(frames.HELLO, b"{}")
    assert next(listener.read_frames()) == (frames.HELLO, b"{}")
    listener.give_up()
    os.close(high)
    os.close(unused_read)
    pipe.close()


def test_output_of_a_login_shell_is_skipped() -> None:
    pipe = Pipe(opening=frames.OPENING)
    os.write(pipe.write, b"Welcome!\n" + frames.OPENING)
    pipe.sender.send(frames.HELLO, b"{}")
    assert next(pipe.receiver.read_frames()) == (frames.HELLO, b"{}")
    assert pipe.receiver.noise == b"Welcome!\n"
    pipe.close()


def test_heartbeats_keep_a_silent_connection() -> None:
    """They are sent without being asked for, and are no frames for the reader."""
    pipe = Pipe(heartbeat=timedelta(seconds=0.02), silence=timedelta(seconds=30))
    received: list[tuple[bytes, bytes]] = []
    thread = threading.Thread(target=lambda: received.extend(pipe.receiver.read_frames()))
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive() and received == []
    pipe.sender.close(timedelta(seconds=5))
    thread.join(10)
    assert not thread.is_alive() and received == []
    pipe.close()


def test_silence_is_an_error() -> None:
    pipe = Pipe()
    unused_read, unused_write = os.pipe()
    listener = AgentLink(pipe.read, unused_write, timedelta(seconds=30), timedelta(seconds=0.05))
    with pytest.raises(SilentError, match=r"no data or heartbeat for 0\.05 seconds"):
        next(listener.read_frames())
    listener.give_up()
    os.close(unused_read)
    pipe.close()


def test_data_that_is_no_frame_is_an_error(pipe: Pipe) -> None:
    os.write(pipe.write, b"Segmentation fault\n")
    with pytest.raises(ValueError, match="frame of"):
        next(pipe.receiver.read_frames())
    with pytest.raises(ValueError, match="without a process number"):
        split_process(b"abc")


def test_a_lost_receiver_does_not_block_the_sender() -> None:
    pipe = Pipe()
    sending = threading.Thread(target=lambda: [pipe.sender.send(frames.LINE, bytes(1 << 20)) for _ in range(20)])
    sending.start()
    sending.join(0.1)
    assert sending.is_alive(), "20 MiB neither fit into the pipe nor into the queue"
    pipe.sender.give_up()
    sending.join(10)
    assert not sending.is_alive()
    while os.read(pipe.read, 1 << 20):  # the writer's thread may be in the middle of a piece
        pass
    pipe.close()
