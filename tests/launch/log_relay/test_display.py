"""Where the ranks' lines are shown: on streams, with or without the time, and in files of each rank."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
from pathlib import Path

import pytest

from spark_estimator.launch.log_relay.display import OutputFiles, make_line_printer
from spark_estimator.observe.driver_log import coloured, print_line, shown_on


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
    make_line_printer(file)(3, "stdout", safe)
    assert file.getvalue() == f"[3]<stdout>:{escaped}\n"


def test_lines_go_to_the_stream_of_their_name() -> None:
    output, errors = io.StringIO(), io.StringIO()
    show = make_line_printer(output, errors, with_time=True)
    show(0, "stdout", "a")
    show(11, "stderr", "b")
    when = r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}"
    assert re.fullmatch(rf"{when}\[0\]<stdout>:a\n", output.getvalue())
    assert re.fullmatch(rf"{when}\[11\]<stderr>:b\n", errors.getvalue())
    assert make_line_printer() is print_line


@pytest.mark.parametrize("stream", [3, io.BytesIO()])
def test_what_takes_no_text_is_refused(stream: object) -> None:
    with pytest.raises(TypeError, match="stderr must be an open text file or an object with write"):
        make_line_printer(stderr=stream)  # type: ignore[arg-type]


def test_each_rank_has_files_also_when_the_job_grows(tmp_path: Path) -> None:
    shown: list[tuple[int, str, str]] = []
    with OutputFiles(tmp_path / "logs", 11, lambda *line: shown.append(line)) as files:
        files.show(3, "stderr", "é")
        files.show(11, "stdout", "of a new rank")
        files.show(-1, "stdout", "before it has a rank")
    assert (tmp_path / "logs/rank.03/stderr").read_text(encoding="utf-8") == "é\n"
    assert (tmp_path / "logs/rank.11/stdout").read_text() == "of a new rank\n"
    assert len(list((tmp_path / "logs").iterdir())) == 12 and [line[0] for line in shown] == [3, 11, -1]


class Full(io.StringIO):
    """Takes nothing."""

    name = "/full/log.txt"

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_stream_that_takes_nothing_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    errors = io.StringIO()
    show = make_line_printer(Full(), errors)
    for number in range(2):
        show(number, "stdout", "lost")
        show(number, "stderr", "shown")
    assert errors.getvalue() == "[0]<stderr>:shown\n[1]<stderr>:shown\n"
    assert capsys.readouterr().err == (
        "spark_estimator: /full/log.txt can't be written: No space left on device. Lines are lost from now on; the job "
        "continues.\n"
    )
