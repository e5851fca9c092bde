from __future__ import annotations

import random

from spark_estimator.launch.log_relay.lines import MAX_LINE_BYTES, LineSplitter


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


def test_bytes_that_are_not_utf_8_do_no_harm() -> None:
    assert LineSplitter().feed(b"\xff\xfe\n") == ["��"]


def test_a_line_without_an_end_does_not_pile_up() -> None:
    splitter = LineSplitter()
    lines = [line for _ in range(64) for line in splitter.feed(b"x" * 10_000)]
    assert {len(line) for line in lines} == {MAX_LINE_BYTES}
    assert sum(map(len, lines + splitter.flush())) == 640_000
