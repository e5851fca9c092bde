"""How far an estimator's training is: a rank's loop counts, and its progress reports carry the counts to the driver.

A step costs the training thread one short call, and nothing is sent from it: the thread of `ProgressReporter` reads
the counts once a second, where the launcher asks for reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_estimator.observe.step_times import Sample, StepParts, divide, take_sample
from spark_estimator.observe.training_records import StepRecorder

TRAIN = "train"
VALIDATION = "validation"

# A report has to fit into PIPE_BUF, also when each character of a name becomes six in JSON.
MAX_POINTS = 40
_MAX_AVERAGES = 6
_MAX_NAME = 30
_DIGITS = 6

#: (epoch from 1, training loss, validation loss or None) of an epoch that has ended.
Point = tuple[int, float, float | None]
# (epoch, part, steps), step, rows since the beginning, loss, rows in that loss
_Counts = tuple[tuple[int, str, int], int, int, float | None, int]


@dataclass(frozen=True)
class TrainingReport:
    """How far one rank's training is.

    Attributes:
        epoch: the current one, from 1.
        epochs: number of epochs; 0: unknown.
        part: of the epoch, `TRAIN` or `VALIDATION`.
        step: batches of this part that this rank has finished.
        steps: number of batches of this part; 0: unknown.
        rows: that passed through the model on this rank since the training began.
        loss: mean over the rows of this part of the epoch on this rank; None: there is none yet.
        loss_rows: number of rows in that mean.
        averages: losses and metrics of the last epoch that has ended, over all ranks, by name.
        points: losses of epochs that have ended, over all ranks; at most `MAX_POINTS`, evenly chosen. Rank 0 alone
            reports averages and points.
    """

    epoch: int
    epochs: int
    part: str
    step: int
    steps: int
    rows: int
    loss: float | None = None
    loss_rows: int = 0
    averages: Mapping[str, float] = field(default_factory=dict)
    points: tuple[Point, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: object) -> TrainingReport:
        """Make the report from what `to_dict` returned. Raises ValueError: `fields` is not what `to_dict` returns."""
        names = set(cls.__dataclass_fields__)
        if not isinstance(fields, dict) or fields.keys() != names:
            raise ValueError("a training report with unknown fields")
        counts = [fields[name] for name in ("epoch", "epochs", "step", "steps", "rows", "loss_rows")]
        averages, points = fields["averages"], fields["points"]
        valid = (
            all(isinstance(count, int) and count >= 0 for count in counts)
            and fields["part"] in (TRAIN, VALIDATION)
            and _is_loss(fields["loss"])
            and isinstance(averages, dict)
            and len(averages) <= _MAX_AVERAGES
            and all(isinstance(name, str) and isinstance(value, (int, float)) for name, value in averages.items())
            and isinstance(points, (list, tuple))
            and len(points) <= MAX_POINTS
            and all(_is_point(point) for point in points)
        )
        if not valid:
            raise ValueError(f"a training report with invalid values: {fields!r:.200}")
        return cls(**{**fields, "points": tuple(tuple(point) for point in points)})


class TrainingMeter:
    """Counts one training on one rank.

    The training thread writes; any thread may call `report`. All that changes with a step is in one tuple, which is
    replaced as a whole, so that a report never mixes two steps.

    Args:
        epochs: number of epochs; 0: unknown.
        recorder: receives each training step; None: there is none.
    """

    def __init__(self, epochs: int, recorder: StepRecorder | None = None) -> None:
        self.epochs = epochs
        self._recorder = recorder
        self._now: _Counts | None = None
        self._before_validation: _Counts | None = None
        self._time = StepParts(0.0, 0.0, 0.0, 0.0)
        self._training_since: Sample | None = None  # None: it is validated, or the epoch's training has ended
        self._averages: dict[str, float] = {}
        self._points: list[Point] = []

    def begin_epoch(self, epoch: int, steps: int, step: int = 0, loss_rows: int = 0) -> None:
        """Begin an epoch, from 0, of `steps` batches (0: unknown); `step` of them, and their rows, are done already."""
        self._now = (epoch + 1, TRAIN, steps), step, self._rows, None, loss_rows
        if self._recorder is not None:
            self._recorder.begin_epoch(step)
        self._before_validation = None
        self._time, self._training_since = StepParts(0.0, 0.0, 0.0, 0.0), take_sample()

    def begin_validation(self, steps: int) -> None:
        """Begin validation, after the training of an epoch or in between."""
        self.end_training()
        if self._now is not None:
            self._before_validation = self._now
            self._now = (self._now[0][0], VALIDATION, steps), 0, self._rows, None, 0

    def end_validation(self) -> None:
        """End validation: the training of the epoch continues, or the epoch ends."""
        if self._before_validation is not None:
            position, step, _, loss, loss_rows = self._before_validation
            self._now = position, step, self._rows, loss, loss_rows
            self._before_validation = None
            self._training_since = take_sample()

    def end_step(self, rows: int, loss: float | None) -> None:
        """Count a finished batch, of 0 rows if only others have some, and this rank's mean loss, if known."""
        if self._now is None:
            return
        position, step, total, last_loss, loss_rows = self._now
        if not rows:
            self._now = position, step + 1, total, last_loss, loss_rows
        else:
            self._now = position, step + 1, total + rows, loss, loss_rows + rows
        (epoch, part, steps), done, _, mean, counted = self._now
        if self._recorder is not None and part == TRAIN:
            self._recorder.end_step(epoch - 1, done, steps, counted, mean)

    def end_training(self) -> StepParts:
        """Return where the time of the epoch's training has gone until now, on this rank, without validations."""
        if self._training_since is not None:
            more = divide(self._training_since, take_sample()) or (0.0, 0.0, 0.0, 0.0)
            self._time = StepParts(*(before + part for before, part in zip(self._time, more, strict=True)))
            self._training_since = None
        return self._time

    def end_epoch(self, averages: Mapping[str, Any]) -> None:
        """End an epoch with all ranks' averages, ``loss`` first; a few numbers among them are reported."""
        numbers = {name: float(value) for name, value in averages.items() if isinstance(value, (int, float))}
        self._averages = {name[:_MAX_NAME]: _round_digits(numbers[name]) for name in list(numbers)[:_MAX_AVERAGES]}
        loss, validation_loss = numbers.get("loss", math.nan), numbers.get("val_loss", math.nan)
        if self._now is not None and math.isfinite(loss):
            self._points.append(
                (
                    self._now[0][0],
                    _round_digits(loss),
                    _round_digits(validation_loss) if math.isfinite(validation_loss) else None,
                )
            )

    def report(self) -> TrainingReport | None:
        """Return the counts as they are now; None before the first epoch."""
        if self._now is None:
            return None
        (epoch, part, steps), step, rows, loss, loss_rows = self._now
        points = list(self._points)
        every = math.ceil(len(points) / MAX_POINTS) or 1
        return TrainingReport(
            epoch=epoch,
            epochs=self.epochs,
            part=part,
            step=step,
            steps=steps,
            rows=rows,
            loss=None if loss is None else _round_digits(float(loss)),
            loss_rows=loss_rows,
            averages=self._averages,
            points=tuple(points[::-every][::-1]),  # the last one always
        )

    @property
    def _rows(self) -> int:
        return 0 if self._now is None else self._now[2]


def _round_digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _is_loss(value: object) -> bool:
    return value is None or isinstance(value, (int, float))


def _is_point(point: object) -> bool:
    return (
        isinstance(point, (list, tuple))
        and len(point) == 3
        and isinstance(point[0], int)
        and isinstance(point[1], (int, float))
        and _is_loss(point[2])
    )
