"""Messages and lines of ranks at the driver: where they are written, and what is escaped."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spark_estimator.observe import driver_log

RED, PLAIN = "\x1b[31m", "\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _without_sink() -> Iterator[None]:
    yield
    driver_log.set_sink(None)


def test_outside_a_job_messages_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    driver_log.log_to_driver(5)
    assert capsys.readouterr().out == "5\n"


@pytest.mark.parametrize(("accepted", "printed"), [(True, ""), (False, "hello\n")])
def test_messages_that_the_sink_refuses_are_printed(
    capsys: pytest.CaptureFixture[str], accepted: bool, printed: str
) -> None:
    messages: list[str] = []
    driver_log.set_sink(lambda text: messages.append(text) or accepted)  # type: ignore[func-returns-value]
    driver_log.log_to_driver("hello")
    assert messages == ["hello"] and capsys.readouterr().out == printed


def test_long_messages_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    driver_log.log_to_driver("x" * 4000)
    assert capsys.readouterr().out == "x" * 4000 + "\n"
    driver_log.log_to_driver("x" * 4001)
    assert capsys.readouterr().out == "x" * 4000 + " [cut: the first 4000 of 4001 characters]\n"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\x07", "a\\x0db\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("\udcff", "\\udcff"),
        ("grün", "grün"),
    ],
)
def test_control_characters_are_escaped(text: str, escaped: str) -> None:
    assert driver_log.printable(text) == escaped


def test_only_codes_for_colours_are_kept() -> None:
    assert driver_log.coloured(f"{RED}a\x1b[2J{PLAIN}") == f"{RED}a\\x1b[2J{PLAIN}"


def test_colours_are_shown_on_a_terminal_only() -> None:
    assert driver_log.shown_on(Terminal(), f"{RED}a") == f"{RED}a{PLAIN}"
    assert driver_log.shown_on(io.StringIO(), f"{RED}a") == "\\x1b[31ma"
    assert driver_log.shown_on(object(), f"{RED}a") == "\\x1b[31ma"
    closed = io.StringIO()
    closed.close()
    assert driver_log.shown_on(closed, f"{RED}a") == "\\x1b[31ma"
    assert driver_log.shown_on(Terminal(), "a") == "a"


def test_lines_go_to_the_stream_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    driver_log.print_line(3, "stdout", "a")
    driver_log.print_line(3, "stderr", "b")
    driver_log.print_message(3, "c\x1b")
    driver_log.announce("d")
    assert capsys.readouterr() == ("[3]<stdout>:a\n[3] c\\x1b\n", "[3]<stderr>:b\nspark_estimator: d\n")


def test_characters_that_the_stream_cannot_encode_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    driver_log.print_line(0, "stdout", "ü→")
    assert written.getvalue() == b"[0]<stdout>:\\xfc\\u2192\n"


def test_a_program_without_stdout_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    driver_log.print_line(0, "stdout", "a")
    driver_log.flush()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    driver_log.flush()


# --- output that can't be written -------------------------------------------------------------------------------------

LOSS = "can't be written: No space left on device. Lines are lost from now on; the job continues."
FULL = """
import sys
from spark_estimator.observe import driver_log
for number in range(3):
    driver_log.print_line(0, "stdout", "a line")
    driver_log.print_line(0, "stderr", "another line")
    driver_log.print_message(0, "a message")
    driver_log.flush()
    driver_log.announce("news")
print("the end", file=sys.stderr)
"""


def printed(stdout: int | str, stderr: int | str) -> subprocess.CompletedProcess[str]:
    with contextlib.ExitStack() as opened:
        streams = [
            opened.enter_context(open(stream, "w")) if isinstance(stream, str) else stream
            for stream in (stdout, stderr)
        ]
        command = [sys.executable, "-c", FULL]
        return subprocess.run(command, stdout=streams[0], stderr=streams[1], text=True, timeout=60, check=False)


def test_a_full_disk_of_stdout_is_reported_once() -> None:
    lines = printed("/dev/full", subprocess.PIPE).stderr.splitlines()
    assert lines.count(f"spark_estimator: stdout (/dev/full) {LOSS}") == 1
    assert lines.count("[0]<stderr>:another line") == lines.count("spark_estimator: news") == 3
    assert lines.index("the end") == 7


def test_a_full_disk_of_stderr_is_reported_on_stdout() -> None:
    lines = printed(subprocess.PIPE, "/dev/full").stdout.splitlines()
    assert [line for line in lines if "can't be written" in line] == [f"spark_estimator: stderr (/dev/full) {LOSS}"]
    assert lines.count("spark_estimator: news") == lines.count("[0]<stdout>:a line") == 3


def test_both_streams_on_a_full_disk() -> None:
    printed("/dev/full", "/dev/full")
