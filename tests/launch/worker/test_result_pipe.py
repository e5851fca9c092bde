"""The frames of the result pipe: written by the worker, read by its supervisor."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from spark_estimator.launch.worker.result_pipe import CHUNK, CHUNK_BYTES, RESULT, FrameReader, ResultWriter


def test_frames_do_not_depend_on_how_the_bytes_come() -> None:
    read, write = os.pipe()
    writer = ResultWriter(write)
    writer.send(CHUNK, b"abc")
    writer.send(CHUNK, b"")
    writer.send_json(b"B", {"pid": 1})
    raw = os.read(read, 1000)
    for descriptor in (read, write):
        os.close(descriptor)
    reader = FrameReader()
    frames = [frame for byte in raw for frame in reader.feed(bytes([byte]))]
    assert frames == [(CHUNK, b"abc"), (CHUNK, b""), (b"B", b'{"pid": 1}')]


def test_a_frame_of_nonsense_is_refused_before_it_is_stored() -> None:
    with pytest.raises(ValueError, match="frame of"):
        list(FrameReader().feed(b"hello, this is no frame"))


def test_a_value_is_cut_into_chunks_behind_its_size_and_hash() -> None:
    value = os.urandom(CHUNK_BYTES // 2) * 3
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        ResultWriter(write).send_value(value, ["saver"])
        os._exit(0)
    os.close(write)
    reader, frames = FrameReader(), []
    while received := os.read(read, 1 << 20):
        frames += reader.feed(received)
    os.close(read)
    os.waitpid(child, 0)
    (letter, header), *chunks = frames
    assert letter == RESULT
    digest = hashlib.sha256(value).hexdigest()
    assert json.loads(header) == {"bytes": len(value), "sha256": digest, "threads": ["saver"]}
    assert [letter for letter, _ in chunks] == [CHUNK, CHUNK]
    assert b"".join(content for _, content in chunks) == value


def test_a_forked_child_is_silent() -> None:
    """Its frames would get mixed with those of the worker."""
    read, write = os.pipe()
    writer = ResultWriter(write)
    child = os.fork()
    if child == 0:
        writer.send(CHUNK, b"of the child")
        os._exit(int(writer.usable))
    assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    assert os.read(read, 100) == b"" and writer.usable
    os.close(read)
