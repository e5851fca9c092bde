from __future__ import annotations

import io
import pty
import random

import pytest

from spark_estimator.launch.worker.line_splitter import MAX_LINE_BYTES, LineSplitter
from spark_estimator.launch.worker.output import lines_to
from spark_estimator.launch.worker.result_pipe import CHUNK, FrameReader, ResultWriter
from spark_estimator.observe.driver_log import coloured, shown_on


def test_lines_do_not_depend_on_how_the_bytes_come() -> None:
    text = "one\ntwo\r\nthrée\n\n 10%\r 20%\r100%\nlast"
    expected = ["one", "two", "thrée", "", " 10%", " 20%", "100%", "last"]
    for seed in range(50):
        chance = random.Random(seed)
        splitter, lines, rest = LineSplitter(), [], text.encode()
        while rest:
            cut = chance.randint(1, 6)
            lines += splitter.feed(rest[:cut])
            rest = rest[cut:]
        assert lines + splitter.flush() == expected


def test_colours_reach_a_terminal_and_nothing_else_does() -> None:
    sent = "\x1b[1;31mred\x1b[m\t\x1b[2J\x1b]0;title\x07\x1b[31\x9b5m \x1b[?25l\x1b[6n"
    safe = "\x1b[1;31mred\x1b[m\t\\x1b[2J\\x1b]0;title\\x07\\x1b[31\\x9b5m \\x1b[?25l\\x1b[6n"
    assert coloured(sent) == safe
    terminal, inside = pty.openpty()
    with open(inside, "w") as screen, open(terminal, "rb"):
        assert shown_on(screen, safe) == safe + "\x1b[0m", "colours end with the line"
        assert shown_on(screen, "plain") == "plain"
    escaped = safe.replace("\x1b", "\\x1b")
    file = io.StringIO()
    lines_to(file)(3, "stdout", safe)
    assert file.getvalue() == f"[3]<stdout>:{escaped}\n"


def test_bytes_that_are_not_utf_8_do_no_harm() -> None:
    assert LineSplitter().feed(b"\xff\xfe\n") == ["��"]


def test_a_line_without_an_end_does_not_pile_up() -> None:
    splitter = LineSplitter()
    lines = [line for _ in range(64) for line in splitter.feed(b"x" * 10_000)]
    assert {len(line) for line in lines} == {MAX_LINE_BYTES}
    assert sum(map(len, lines + splitter.flush())) == 640_000


def test_frames_do_not_depend_on_how_the_bytes_come() -> None:
    import os

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
