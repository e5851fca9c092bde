"""Frames of the driver channel: whole, in parts, too long and of another protocol."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from spark_estimator.observe import frames


def framed(content: bytes) -> bytearray:
    return bytearray(struct.pack(">I", len(content)) + content)


def test_frames_are_taken_as_soon_as_they_are_whole() -> None:
    first = {"kind": frames.LOG, "rank": 1, "text": "ä"}
    second = {"kind": frames.BYE}
    sent = frames.encode(first) + frames.encode(second)
    pending = bytearray()
    received = []
    for byte in sent:
        pending.append(byte)
        received += [(len(pending), frame) for frame in frames.take_frames(pending)]
    assert received == [(0, first), (0, second)]
    assert not pending


def test_several_frames_at_once_and_the_rest_stays() -> None:
    pending = bytearray(frames.encode({"kind": frames.BYE}) * 2 + b"\x00\x00")
    assert len(list(frames.take_frames(pending))) == 2
    assert pending == b"\x00\x00"


@pytest.mark.parametrize(
    "frame",
    [
        {"kind": frames.PLACED, "rank": 0, "host": "h", "pid": 1},
        {"kind": frames.LINE, "rank": 0, "stream": "stdout", "text": "x"},
        {"kind": frames.EVERYONE, "facts": []},
        {"kind": frames.STOP, "text": "x", "more": "is ignored"},
    ],
)
def test_valid_frames(frame: dict[str, Any]) -> None:
    assert frames.check_frame(frame) is frame


@pytest.mark.parametrize(
    "frame",
    [
        None,
        [],
        {},
        {"kind": "other"},
        {"kind": ["log"]},
        {"kind": frames.GONE},  # made by the driver itself, never sent
        {"kind": frames.LOG, "rank": 1},
        {"kind": frames.LOG, "rank": "1", "text": "x"},
        {"kind": frames.FAILURE, "report": "x"},
    ],
)
def test_frames_of_another_protocol_are_refused(frame: Any) -> None:
    with pytest.raises(ValueError, match="a frame of another protocol"):
        frames.check_frame(frame)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (bytearray(struct.pack(">I", frames.MAX_FRAME_BYTES + 1)), "1048577 bytes; at most 1048576"),
        (framed(b"{]"), "."),
        (framed(b"\xff\xfe"), "."),
        (framed(b"[" * 200_000), "nested too deeply"),
    ],
    ids=["too long", "no JSON", "no UTF-8", "too deep"],
)
def test_invalid_bytes_are_a_value_error(sent: bytearray, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        list(frames.take_frames(sent))
