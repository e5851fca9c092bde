"""A training's progress as a person sees it: one line of text, and a bar with a loss curve for notebooks."""

from __future__ import annotations

import collections
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_estimator.observe.progress import Progress
from spark_estimator.observe.training_meter import TRAIN, VALIDATION, Point, TrainingReport

_BAR_CHARACTERS = 10
_MAX_SAMPLES = 200
_WIDTH, _HEIGHT = 420, 90
_TRAIN_COLOUR, _VALIDATION_COLOUR = "#1f77b4", "#ff7f0e"
_PARTS = (TRAIN, VALIDATION)


@dataclass(frozen=True)
class TrainingState:
    """All ranks together.

    Attributes:
        report: of the rank that is behind the others; its `averages` and `points` are those that any rank reported.
        loss: mean over the rows of the ranks that are as far as `report`; None: unknown.
        rows_per_second: of all ranks; None: unknown yet.
        seconds_left: until the last epoch ends, at the average speed so far; None: unknown.
    """

    report: TrainingReport
    loss: float | None
    rows_per_second: float | None
    seconds_left: float | None

    @property
    def epochs_done(self) -> float:
        """Return the epochs that are done, with the current one's share."""
        return _count_epochs_done(self.report)


class TrainingDisplay:
    """Follows the reports of one training's ranks."""

    def __init__(self) -> None:
        self._first: dict[int, Progress] = {}
        self._samples: collections.deque[tuple[float, float]] = collections.deque(maxlen=_MAX_SAMPLES)

    def note(self, rank: int, progress: Progress) -> None:
        """Record a rank's progress report, which the time left is counted from if it is its first of a training."""
        if progress.training is not None:
            self._first.setdefault(rank, progress)

    def update_state(self, reports: Mapping[int, Sequence[Progress]]) -> TrainingState | None:
        """Return the state to show, by the ranks' last reports, oldest first, all noted; None: no rank trains."""
        state = merge_reports(reports, self._first)
        if state is not None and state.loss is not None and state.report.part == TRAIN:
            sample = state.epochs_done, state.loss
            if self._samples and int(self._samples[-1][0]) != int(sample[0]):
                self._samples.clear()
            if not self._samples or self._samples[-1] != sample:
                self._samples.append(sample)
        return state

    def to_html(self, state: TrainingState, text: str) -> str:
        """Return the status line's text, a bar and the loss curve, for a notebook."""
        epochs = state.report.epochs
        bar = f'<progress style="width:{_WIDTH}px" max="{epochs}" value="{state.epochs_done:.4f}"></progress><br>'
        curve = draw_loss_curve(state.report.points, list(self._samples), epochs)
        return f'<div style="font-family:monospace">{bar if epochs else ""}{html.escape(text)}<br>{curve}</div>'


def merge_reports(reports: Mapping[int, Sequence[Progress]], first: Mapping[int, Progress]) -> TrainingState | None:
    """Merge all ranks' last reports, oldest first, and their first ones; None: no rank trains."""
    histories = {
        rank: [(report.at, report.training) for report in history if report.training is not None]
        for rank, history in reports.items()
        if history[-1].training is not None  # else it has not begun, or has ended
    }
    if not histories:
        return None
    latest = {rank: history[-1][1] for rank, history in histories.items()}
    behind = min(latest.values(), key=lambda report: (report.epoch, _PARTS.index(report.part), report.step))
    alike = [report for report in latest.values() if (report.epoch, report.part) == (behind.epoch, behind.part)]
    weighed = [(report.loss, report.loss_rows) for report in alike if report.loss is not None and report.loss_rows]
    rows = sum(count for _, count in weighed)
    full = max(latest.values(), key=lambda report: len(report.points))
    shown = TrainingReport(**{**vars(behind), "averages": full.averages, "points": full.points})
    seconds_left = None
    for rank, history in histories.items():
        if history[-1][1] is behind and rank in first:
            seconds_left = _compute_seconds_left(first[rank], history[-1][0], behind)
    return TrainingState(
        report=shown,
        loss=sum(loss * count for loss, count in weighed) / rows if rows else None,
        rows_per_second=_compute_rows_per_second(histories.values()),
        seconds_left=seconds_left,
    )


def format_training(state: TrainingState) -> tuple[str, str]:
    """Return (where the training is, what the last epoch that has ended gave or ""), for the status line."""
    report = state.report
    of_epochs = f"/{report.epochs}" if report.epochs else ""
    parts = [f"epoch {report.epoch}{of_epochs}"]
    if report.epochs:
        filled = min(_BAR_CHARACTERS, int(state.epochs_done / report.epochs * _BAR_CHARACTERS))
        parts[0] += f" [{'#' * filled}{'.' * (_BAR_CHARACTERS - filled)}]"
    of_steps = f"/{report.steps}" if report.steps else ""
    parts.append(f"{'step' if report.part == TRAIN else 'validation step'} {report.step}{of_steps}")
    if state.rows_per_second is not None:
        parts.append(f"{state.rows_per_second:,.0f} rows/s")
    if state.seconds_left is not None:
        parts.append(f"ETA {format_clock(state.seconds_left)}")
    if state.loss is not None:
        parts.append(f"{'loss' if report.part == TRAIN else 'val_loss'} {state.loss:.4g}")
    averages = ", ".join(f"{name} {value:.4g}" for name, value in report.averages.items())
    ended = report.points[-1][0] if report.points else report.epoch - 1
    return ", ".join(parts), f"epoch {ended}: {averages}" if averages else ""


def format_clock(seconds: float) -> str:
    """Format seconds as 0:05, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def draw_loss_curve(points: Sequence[Point], samples: Sequence[tuple[float, float]], epochs: int) -> str:
    """Draw the losses of ended epochs, and (epochs done, mean so far), as SVG; "" with fewer than two numbers."""
    train = [(float(epoch), loss) for epoch, loss, _ in points]
    validation = [(float(epoch), loss) for epoch, _, loss in points if loss is not None]
    lines = [(_select_finite(train), _TRAIN_COLOUR, ""), (_select_finite(validation), _VALIDATION_COLOUR, "")]
    lines.append((_select_finite(samples), _TRAIN_COLOUR, ' stroke-dasharray="3 2"'))
    numbers = [place for line, _, _ in lines for place in line]
    if len(numbers) < 2:
        return ""
    right = max(float(epochs), *(x for x, _ in numbers))
    low, high = min(y for _, y in numbers), max(y for _, y in numbers)
    span = (high - low) or 1.0

    def draw(line: Sequence[tuple[float, float]], colour: str, style: str) -> str:
        points = [(x / right * (_WIDTH - 2) + 1, (high - y) / span * (_HEIGHT - 2) + 1) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in points)
        polyline = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{style}/>'
        return polyline if style else polyline + dots

    picture = "".join(draw(line, colour, style) for line, colour, style in lines if line)
    legend = f'<span style="color:{_TRAIN_COLOUR}">loss</span>'
    if validation:
        legend += f' <span style="color:{_VALIDATION_COLOUR}">validation loss</span>'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" style="border:1px solid #8888">{picture}</svg><br>'
        f"{legend}, from {low:.4g} to {high:.4g}, over {right:g} epochs"
    )


def _select_finite(line: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in line if math.isfinite(y)]


def _count_epochs_done(report: TrainingReport) -> float:
    if report.part != TRAIN:
        return float(report.epoch)
    # Below 1: the epoch has not ended, and its number must not become the next one's.
    return report.epoch - 1 + (min(report.step / report.steps, 0.999) if report.steps else 0.0)


def _compute_rows_per_second(histories: Iterable[Sequence[tuple[float, TrainingReport]]]) -> float | None:
    """Return the rate of all ranks; None while one of them has reported only once."""
    total = 0.0
    for history in histories:
        (began, first), (ended, last) = history[0], history[-1]
        if ended <= began:
            return None
        total += (last.rows - first.rows) / (ended - began)
    return total


def _compute_seconds_left(first: Progress, at: float, report: TrainingReport) -> float | None:
    assert first.training is not None
    done = _count_epochs_done(report) - _count_epochs_done(first.training)
    left = report.epochs - _count_epochs_done(report)
    return (at - first.at) * left / done if report.epochs and done > 0 and left >= 0 else None
