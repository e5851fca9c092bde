"""One message: its header on a socket, and the wait for its end."""

from __future__ import annotations

import ctypes
import socket
import threading
from datetime import timedelta

import pytest
import torch

from spark_estimator.extensions.process_group.transfer import Envelope, TensorSpec, Transfer, view_memory


def test_headers_are_read_as_they_were_packed() -> None:
    near, far = socket.socketpair()
    with near, far:
        envelopes = [
            Envelope(3, -7, 48, TensorSpec.from_tensor(torch.ones(2, 0, 5, dtype=torch.bfloat16))),
            Envelope(0, 2**40, 0, TensorSpec("float32", ())),
        ]
        near.sendall(b"".join(envelope.pack() for envelope in envelopes))
        assert [Envelope.read(far) for _ in envelopes] == envelopes
        near.sendall(envelopes[0].pack()[:-1])
        near.close()
        with pytest.raises(ConnectionResetError, match="in the middle of a message"):
            Envelope.read(far)
        assert Envelope.read(far) is None


def test_which_tensors_a_message_fits() -> None:
    spec = TensorSpec.from_tensor(torch.ones(2, 3))
    assert spec.fits(TensorSpec("float32", (6,))) and not spec.fits(TensorSpec("float32", (5,)))
    assert not spec.fits(TensorSpec("int32", (2, 3)))
    assert str(spec) == "float32 [2, 3]"


def transfer(stall_seconds: float = 0.0) -> Transfer:
    return Transfer("rank 0", "a message of rank 1", lambda: "Rank 1 has sent nothing.", stall_seconds)


def test_a_wait_ends_with_the_transfer() -> None:
    waited = transfer()
    assert not waited.done()
    threading.Timer(0.05, waited.end).start()
    waited.wait(timedelta(seconds=10))
    assert waited.done()
    waited.end(ConnectionResetError("rank 1 is gone"))
    with pytest.raises(ConnectionResetError, match="rank 1 is gone"):
        waited.wait()


def test_a_wait_that_is_too_long_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    waited = transfer(stall_seconds=0.05)
    text = r"rank 0 has waited .* seconds for a message of rank 1\. Rank 1 has sent nothing\."
    for _ in range(2):
        with pytest.raises(TimeoutError, match=text):
            waited.wait(timedelta(seconds=0.15))
    assert sum("stalled: rank 0" in message for message in caplog.messages) == 1


def test_memory_at_an_address() -> None:
    buffer = ctypes.create_string_buffer(b"abc", 3)
    view = view_memory(ctypes.addressof(buffer), 3)
    view[1:2] = b"X"
    assert buffer.raw == b"aXc"
    assert len(view_memory(0, 0)) == 0
