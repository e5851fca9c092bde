"""Lines of source that only the driver has, added to a rank's traceback."""

from __future__ import annotations

import linecache

import pytest

from spark_estimator.launch.job.source_lines import with_source

CELL = "/tmp/ipykernel_7/1.py"


@pytest.fixture(autouse=True)
def cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's cell, of which this process has the source in memory."""
    lines = ["def bad():\n", "    return 1 // 0  # \x1b[2J\n"]
    monkeypatch.setitem(linecache.cache, CELL, (60, None, lines, CELL))


def test_a_frame_without_source_gets_its_line_once() -> None:
    traceback = f'Traceback (most recent call last):\n  File "{CELL}", line 2, in bad\nZeroDivisionError: no'
    added = with_source(traceback)
    assert added == traceback.replace("in bad\n", "in bad\n    return 1 // 0  # \\x1b[2J\n")
    assert with_source(added) == added


def test_frames_of_an_exception_group_keep_their_indent() -> None:
    group = f'  | Traceback (most recent call last):\n  |   File "{CELL}", line 2, in bad\n  | E'
    assert "in bad\n  |     return 1 // 0" in with_source(group)


def test_other_text_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing line, a file that is not in memory, an entry that is not loaded, invalid text."""
    monkeypatch.setitem(linecache.cache, "lazy.py", (list,))
    frames = [f'  File "{file}", line {number}, in x' for file, number in ((CELL, 3), (CELL, 0), ("lazy.py", 1))]
    for other in (*frames, f'  File "{__file__}x", line 1, in x', '  File "", line 1, in', "", "\n\n", "x" * 99):
        assert with_source(other) == other
