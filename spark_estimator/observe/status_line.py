"""The status line: how many ranks are up, how fast they step, and where the time goes; while a job runs.

It is there for a person who looks on: on a terminal, at the bottom, below the ranks' lines, which are printed above it
whole; in a notebook, in the output of the cell. It is removed when the job ends. In a pipe, a file or CI there is none,
and ``SPARK_ESTIMATOR_STATUS_LINE=0`` turns it off. While an estimator trains, the line has the epoch, the step, rows
per second, the time left and the loss; in a notebook there are a bar and the loss curve, too, and where there is
neither terminal nor notebook, the line is printed when nothing else was for half a minute.

No library draws it: one line needs two escape codes. tqdm and rich would need ipywidgets in a notebook, and rich would
redirect stdout through its own console and break long lines.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TextIO

from spark_estimator.env import Settings
from spark_estimator.observe.driver_log import announce, printable
from spark_estimator.observe.progress import Progress
from spark_estimator.observe.step_times import StepParts, divide
from spark_estimator.observe.training_display import TrainingDisplay, TrainingState, format_training

_REDRAWN_SECONDS = 0.2
# In a log, a training is reported when nothing else was printed for this time.
LOG_SECONDS = 30.0
# Shorter waits are part of every step.
_TOLD_SECONDS = 1.0
# Rates are those of the last seconds: this number of reports, one a second.
_REPORTS = 6
# Ranks whose rates differ by less step together.
_ALIKE = 1.05
_MOST_NAMES = 3
_ERASE = "\r\x1b[2K"


class ProgressDisplay(enum.Enum):
    """Where a job's progress is displayed."""

    OFF = "nowhere"
    ON_SCREEN = "on a terminal or in a notebook"
    ANYWHERE = "on a terminal or in a notebook; elsewhere in lines of text, if it is a training"


class Screen(Protocol):
    """A screen on which the line can be redrawn in place.

    Attributes:
        interval: seconds between two drawings, at least.
        only_training: whether only the progress of a training is drawn.
    """

    interval: float
    only_training: bool

    def draw(self, text: str, html: str) -> None:
        """Show `text` in place of what was shown; where there is HTML, `html` if it is not empty."""

    def hide(self) -> None:
        """Remove the line before other lines are printed."""

    def close(self) -> None:
        """Leave nothing behind."""


class Terminal:
    """The last line of a terminal; see `Screen`."""

    interval = _REDRAWN_SECONDS
    only_training = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, text: str, html: str) -> None:
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
    """An area in the output of a notebook's cell, above later lines; see `Screen`."""

    interval = _REDRAWN_SECONDS
    only_training = False

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def draw(self, text: str, html: str) -> None:
        if text == self._shown:  # each update is sent to every browser, and stored in the notebook's file
            return
        self._shown = text
        shown = {"text/plain": text, **({"text/html": html} if html else {})}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def hide(self) -> None:
        pass  # no other code writes there

    def close(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


class Log:
    """Lines of text on stderr, which stay; see `Screen`."""

    interval = LOG_SECONDS
    only_training = True

    def __init__(self) -> None:
        self._shown = ""

    def draw(self, text: str, html: str) -> None:
        if text != self._shown:
            self._shown = text
            announce(text)

    def hide(self) -> None:
        pass

    def close(self) -> None:
        pass


def wants_progress(display: ProgressDisplay = ProgressDisplay.ON_SCREEN) -> bool:
    """Return whether ranks report their progress: also without a screen, so that slow ranks are named."""
    return display is not ProgressDisplay.OFF and Settings.read().status_line


def find_screen(display: ProgressDisplay = ProgressDisplay.ON_SCREEN) -> Screen | None:
    """Return the screen for progress; None: nowhere, because of `display`, the settings, or for lack of a screen."""
    if not wants_progress(display):
        return None
    front_end = None if os.environ.get("CI") else _find_front_end()
    return Log() if front_end is None and display is ProgressDisplay.ANYWHERE else front_end


def _find_front_end() -> Screen | None:
    """Return a notebook or a terminal; None in a pipe or a file."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return Notebook()
    with contextlib.suppress(AttributeError, ValueError, OSError):  # a stderr that is closed, or is no file
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            os.get_terminal_size(sys.stderr.fileno())
            return Terminal(sys.stderr)
    return None


class StatusLine:
    """Follows one job. All methods are called in the thread that prints the ranks' lines; `size`: number of ranks."""

    def __init__(self, screen: Screen, size: int) -> None:
        self._screen = screen
        self._size = size
        self._reports: dict[int, collections.deque[Progress]] = {}
        self._came: dict[int, float] = {}
        self._training = TrainingDisplay()
        self._shown = False
        # On a screen at once, in a log later.
        self._quiet_since = time.monotonic() if screen.only_training else 0.0
        self._over = False

    @classmethod
    def open_on_screen(cls, size: int, display: ProgressDisplay = ProgressDisplay.ON_SCREEN) -> StatusLine | None:
        """Make a status line where there is a screen; None elsewhere."""
        target = find_screen(display)
        return None if target is None else cls(target, size)

    def note(self, rank: int, progress: Progress) -> None:
        """Record a rank's progress report."""
        self._reports.setdefault(rank, collections.deque(maxlen=_REPORTS)).append(progress)
        self._came[rank] = time.monotonic()
        self._training.note(rank, progress)

    def resize(self, size: int) -> None:
        """Continue with this number of ranks: what others have reported is no longer shown."""
        self._size = size
        for rank in [rank for rank in self._reports if rank >= size]:
            del self._reports[rank], self._came[rank]

    def hide(self) -> None:
        """Hide the line; called before something is printed."""
        if self._screen.only_training:
            self._quiet_since = time.monotonic()
        if self._shown:
            self._shown = False
            self._try(self._screen.hide)

    def draw(self, begun: Collection[int]) -> None:
        """Draw the line; called now and then when nothing is being printed. `begun`: the ranks that are up."""
        now = time.monotonic()
        if self._over or now - self._quiet_since < self._screen.interval:
            return
        training = self._training.update_state(self._reports)
        if training is None and self._screen.only_training:
            return
        self._quiet_since, self._shown = now, True
        since = {rank: now - came for rank, came in self._came.items()}
        text = format_status(self._size, begun, self._reports, since, training)
        html = "" if training is None else self._training.to_html(training, text)
        self._try(lambda: self._screen.draw(text, html))

    def close(self) -> None:
        """Remove the line permanently. Idempotent."""
        if not self._over:
            self._over = True
            self._try(self._screen.close)

    def _try(self, call: Any) -> None:
        try:
            call()
        except Exception:  # after any error of the screen: the job continues without the line
            self._over = True


def format_status(
    size: int,
    begun: Collection[int],
    reports: Mapping[int, Sequence[Progress]],
    since: Mapping[int, float],
    training: TrainingState | None = None,
) -> str:
    """Return the status line's text, by rank the last reports, oldest first, and the newest's age in seconds."""
    ranks, waits = f"{len(begun)} of {size} ranks up", _format_waits(size, reports, since)
    waits = waits or _format_time(reports)
    if training is None:
        parts = [ranks, _format_rates(reports), waits]
    else:
        now, last_epoch = format_training(training)
        parts = [ranks if len(begun) < size else "", now, waits, last_epoch]
    return printable("; ".join(filter(None, parts)))


def _format_time(reports: Mapping[int, Sequence[Progress]]) -> str:
    """Return the shares of the steps' time, over all ranks, as percentages; those below one are left out."""
    total = [0.0] * len(StepParts._fields)
    for history in reports.values():
        samples = [report.sample for report in history if report.sample is not None]
        parts = divide(samples[0], samples[-1]) if samples else None
        if parts is not None:
            total = [before + more for before, more in zip(total, parts, strict=True)]
    shares = {name: each / (sum(total) or 1.0) for name, each in zip(StepParts._fields, total, strict=True)}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01)


def _format_rates(reports: Mapping[int, Sequence[Progress]]) -> str:
    steps = any(history[-1].steps for history in reports.values())
    rates = []
    for rank, history in reports.items():
        first, last = history[0], history[-1]
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


def _format_waits(size: int, reports: Mapping[int, Sequence[Progress]], since: Mapping[int, float]) -> str:
    """Return for whom the others wait: the ranks that do not wait themselves, while some do."""
    waiting = {rank: history[-1].waiting + since[rank] for rank, history in reports.items() if history[-1].waiting}
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
