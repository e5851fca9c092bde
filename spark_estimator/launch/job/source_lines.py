"""Adds to a rank's traceback the lines of source that only the driver has: those of a notebook's cells."""

from __future__ import annotations

import linecache
import re

from spark_estimator.observe.driver_log import printable

_FRAME = re.compile(r'(?P<indent>[ |]*)File "(?P<file>[^"\n]+)", line (?P<number>\d{1,9}), in .+')


def with_source(traceback: str) -> str:
    """`traceback`, with a line of source below each frame that has none, where this process has it in memory.

    No file is read: the rank names the file, and must not choose which file's lines are shown.

    Args:
        traceback: as Python prints it, of a rank; lines that are not a frame's stay as they are.
    """
    lines = traceback.split("\n")
    annotated = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        annotated.append(line)
        frame = _FRAME.fullmatch(line)
        if frame and not after.startswith(f"{frame['indent']}  "):
            source = _line(frame["file"], int(frame["number"]))
            annotated += [f"{frame['indent']}  {source}"] if source else []
    return "\n".join(annotated)


def _line(file: str, number: int) -> str:
    entry = linecache.cache.get(file)
    if entry is None or len(entry) != 4 or not 0 < number <= len(entry[2]):  # shorter ones are not loaded
        return ""
    return printable(entry[2][number - 1].strip())
