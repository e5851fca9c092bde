"""The status line: how many ranks are up, how fast they step, and for whom the others wait; while a job runs.

It is there for a person who looks on: on a terminal, at the bottom, below the ranks' lines, which are printed above it
whole; in a notebook, in the output of the cell. It is gone when the job is. In a pipe, a file or CI there is none, and
``SPARK_ESTIMATOR_STATUS_LINE=0`` turns it off. No library draws it: one line needs two escape codes, and rich would
send what goes to stdout through its own console, break long lines, and need ipywidgets in a notebook.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TextIO

from spark_estimator.env import Settings
from spark_estimator.observe.driver_log import printable
from spark_estimator.observe.progress import Progress

_REDRAWN_SECONDS = 0.2
# Shorter waits are part of every step.
_TOLD_SECONDS = 1.0
# Rates are those of the last seconds: so many reports, one a second.
_REPORTS = 6
# Ranks whose rates differ by less step together.
_ALIKE = 1.05
_MOST_NAMES = 3
_ERASE = "\r\x1b[2K"


class Screen(Protocol):
    """Where the line can be drawn, again and again in its own place."""

    def draw(self, text: str) -> None:
        """Shows `text` in place of what was shown."""

    def hide(self) -> None:
        """Makes way for lines that are about to be printed."""

    def close(self) -> None:
        """Leaves nothing behind."""


class Terminal:
    """The last line of a terminal; see `Screen`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, text: str) -> None:
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        # ASCII takes a column a character; in the last column some terminals begin another line.
        self._write(_ERASE + text.encode("ascii", "replace").decode()[: columns - 1])

    def hide(self) -> None:
        self._write(_ERASE)

    def close(self) -> None:
        self.hide()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Notebook:
    """A place in the output of a notebook's cell, above the lines that come after it; see `Screen`."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def draw(self, text: str) -> None:
        if text == self._shown:  # each update goes to every browser, and into the notebook's file
            return
        self._shown = text
        if self._handle is None:
            from IPython.display import display

            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)

    def hide(self) -> None:
        pass  # nobody else writes where it is

    def close(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


def screen() -> Screen | None:
    """Where somebody looks on; None in a pipe, a file, CI, or when it is not wanted."""
    if os.environ.get("CI") or not Settings.read().status_line:
        return None
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return Notebook()
    with contextlib.suppress(AttributeError, ValueError, OSError):  # a stderr that is closed, or is no file
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            os.get_terminal_size(sys.stderr.fileno())
            return Terminal(sys.stderr)
    return None


class StatusLine:
    """Follows one job. All methods are called in the thread that prints the ranks' lines.

    Args:
        size: number of ranks.
    """

    def __init__(self, screen: Screen, size: int) -> None:
        self._screen = screen
        self._size = size
        self._reports: dict[int, collections.deque[Progress]] = {}
        self._came: dict[int, float] = {}
        self._shown = False
        self._drawn_at = 0.0
        self._over = False

    @classmethod
    def on_screen(cls, size: int) -> StatusLine | None:
        """One where somebody looks on; None elsewhere."""
        found = screen()
        return None if found is None else cls(found, size)

    def note(self, rank: int, progress: Progress) -> None:
        """A rank has said how far it is."""
        self._reports.setdefault(rank, collections.deque(maxlen=_REPORTS)).append(progress)
        self._came[rank] = time.monotonic()

    def hide(self) -> None:
        """To be called before something is printed."""
        if self._shown:
            self._shown = False
            self._do(self._screen.hide)

    def draw(self, begun: Collection[int]) -> None:
        """To be called now and then when nothing is being printed.

        Args:
            begun: the ranks that are up.
        """
        now = time.monotonic()
        if not self._over and now - self._drawn_at >= _REDRAWN_SECONDS:
            self._drawn_at, self._shown = now, True
            since = {rank: now - came for rank, came in self._came.items()}
            text = told(self._size, begun, self._reports, since)
            self._do(lambda: self._screen.draw(text))

    def close(self) -> None:
        """Removes the line for good. Idempotent."""
        if not self._over:
            self._over = True
            self._do(self._screen.close)

    def _do(self, what: Any) -> None:
        try:
            what()
        except Exception:  # whatever becomes of the screen: the job goes on without the line
            self._over = True


def told(
    size: int, begun: Collection[int], reports: Mapping[int, Sequence[Progress]], since: Mapping[int, float]
) -> str:
    """The status line's text.

    Args:
        size: number of ranks.
        begun: the ranks that are up.
        reports: by rank, the last that it said of its progress, the oldest first.
        since: by rank, how many seconds ago the newest of them came.
    """
    parts = [f"{len(begun)} of {size} ranks up", _rates(reports), _waits(size, reports, since)]
    return printable("; ".join(filter(None, parts)))


def _rates(reports: Mapping[int, Sequence[Progress]]) -> str:
    steps = any(own[-1].steps for own in reports.values())
    rates = []
    for rank, own in reports.items():
        first, last = own[0], own[-1]
        if last.at > first.at:
            count = last.steps - first.steps if steps else last.calls - first.calls
            rates.append((count / (last.at - first.at), rank))
    if not rates:
        return ""
    unit = "steps/s" if steps else "collectives/s"
    (slow, slowest), (fast, _) = min(rates), max(rates)
    if fast <= slow * _ALIKE:
        return f"{slow:.3g} {unit}"
    return f"{slow:.3g} {unit} (rank {slowest}) to {fast:.3g}"


def _waits(size: int, reports: Mapping[int, Sequence[Progress]], since: Mapping[int, float]) -> str:
    """For whom the others wait: the ranks that do not wait themselves, while some do."""
    waiting = {rank: own[-1].waiting + since[rank] for rank, own in reports.items() if own[-1].waiting}
    busy = [rank for rank in range(size) if rank not in waiting]
    seconds = max(waiting.values(), default=0.0)
    if not busy or seconds < _TOLD_SECONDS:
        return ""
    names = ", ".join(map(str, busy[:_MOST_NAMES]))
    more = f" and {len(busy) - _MOST_NAMES} more" if len(busy) > _MOST_NAMES else ""
    longest = max(waiting, key=lambda rank: waiting[rank])
    others = f"rank {longest}" if len(waiting) == 1 else f"{len(waiting)} ranks"
    verb = "waits" if len(waiting) == 1 else "wait"
    where = f" in {reports[longest][-1].waits_in}" if reports[longest][-1].waits_in else ""
    return f"{others} {verb} for rank{'s' * (len(busy) > 1)} {names}{more} since {seconds:.0f} s{where}"
