"""A rank's progress, which its process reports once a second to its supervisor for the launcher's status line.

The rank counts; a thread reads the counts once a second and writes them into a pipe that its launcher has put there.
Without that pipe, which is the rule, there is no thread. A report is dropped when the pipe is
full: training never waits for a screen.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from spark_estimator.env import PROGRESS_FD_VARIABLE
from spark_estimator.log import get_logger
from spark_estimator.observe.step_times import Sample, take_sample
from spark_estimator.observe.training_meter import TrainingMeter, TrainingReport
from spark_estimator.posix import register_at_fork

INTERVAL_SECONDS = 1.0
_SAMPLE_SECONDS = 0.25
_STOP_SECONDS = 2.0
_FIELDS = {"at": (int, float), "steps": (int,), "calls": (int,), "waiting": (int, float), "waits_in": (str,)}
_LONGEST_NAME = 100
_log = get_logger(__name__)

_steps = 0
# Taken at the end of a step after it was asked for, so that all ranks' samples are of whole steps.
_sample: Sample | None = None
_is_sample_due = False
_meter: TrainingMeter | None = None
_descriptor: int | None = None


@dataclass(frozen=True)
class Progress:
    """One rank's progress.

    Attributes:
        at: when, in seconds on its host's clock.
        steps: that its optimizers have made.
        calls: collectives that it has submitted.
        waiting: for how many seconds it has waited for other ranks by now; 0: it does other work.
        waits_in: the collective in which it waits, in words.
        training: of an estimator; None: the rank runs another program, or its first epoch has not begun.
        sample: where the time went until a recent step; None: there was none yet.
    """

    at: float
    steps: int
    calls: int
    waiting: float = 0.0
    waits_in: str = ""
    training: TrainingReport | None = None
    sample: Sample | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "sample": None if self.sample is None else self.sample.to_dict()}

    @classmethod
    def from_dict(cls, fields: object) -> Progress:
        """Make the progress from what `to_dict` returned. Raises ValueError if the value is invalid."""
        if not isinstance(fields, dict) or fields.keys() != {*_FIELDS, "training", "sample"}:
            raise ValueError("a rank's progress with unknown fields")
        for name, kinds in _FIELDS.items():
            if not isinstance(fields[name], kinds):
                raise ValueError(f"field {name!r} of a rank's progress is {fields[name]!r}")
        training = None if fields["training"] is None else TrainingReport.from_dict(fields["training"])
        sample = None if fields["sample"] is None else Sample.from_dict(fields["sample"])
        waits_in = fields["waits_in"][:_LONGEST_NAME]
        return cls(**{**fields, "waits_in": waits_in, "training": training, "sample": sample})


def count_step() -> None:
    """Count a step of an optimizer of this process."""
    global _steps, _sample, _is_sample_due
    _steps += 1
    if _is_sample_due:
        _sample, _is_sample_due = take_sample(_steps), False


def report_training(meter: TrainingMeter | None) -> None:
    """Have this process's reports carry what `meter` has counted; None: nothing of a training."""
    global _meter
    _meter = meter


def identify_pipe(descriptor: int) -> str:
    """Return the value of `PROGRESS_FD_VARIABLE` for a pipe: its number, and by what to know it again."""
    return f"{descriptor}:{os.fstat(descriptor).st_ino}"


def find_pipe(environ: MutableMapping[str, str]) -> int | None:
    """Return the pipe that this process has inherited from the launcher; None if there is none.

    A process that has inherited the variable but not the pipe may have another file open under that number.
    """
    number, _, inode = environ.get(PROGRESS_FD_VARIABLE, "").partition(":")
    with suppress(ValueError, OSError):
        status = os.fstat(int(number))
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode):
            return int(number)
    return None


class ProgressReporter:
    """A daemon thread that reports this process's progress, until `stop`: the last report has no wait and no training.

    Args:
        measure: returns (calls, seconds of waiting, in which collective); any exception ends the reports.
    """

    def __init__(self, descriptor: int, measure: Callable[[], tuple[int, float, str]]) -> None:
        self._descriptor = descriptor
        self._measure = measure
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report_until_stopped, name="spark_estimator progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the reports. Idempotent."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _report_until_stopped(self) -> None:
        global _is_sample_due
        try:
            # The sample is asked for a little before, so that a step that ends meanwhile is in this report.
            while not self._stopped.wait(INTERVAL_SECONDS - _SAMPLE_SECONDS):
                _is_sample_due = True
                if self._stopped.wait(_SAMPLE_SECONDS):
                    break
                calls, waiting, waits_in = self._measure()
                training = None if _meter is None else _meter.report()
                now = time.monotonic()
                self._write(Progress(now, _steps, calls, waiting, waits_in[:_LONGEST_NAME], training, _sample))
            calls, _, _ = self._measure()
            self._write(Progress(time.monotonic(), _steps, calls))
        except Exception as error:
            _log.debug("progress reports end: %s", error)

    def _write(self, report: Progress) -> None:
        with suppress(BlockingIOError):
            # Shorter than PIPE_BUF, so that it is written completely or not at all.
            os.write(self._descriptor, json.dumps(report.to_dict()).encode() + b"\n")


def start_reporter(measure: Callable[[], tuple[int, float, str]]) -> ProgressReporter | None:
    """Start a reporter, where the launcher has provided a pipe; None elsewhere."""
    global _descriptor
    if _descriptor is None:
        _descriptor = find_pipe(os.environ)
        if _descriptor is not None:
            os.set_inheritable(_descriptor, False)
            os.set_blocking(_descriptor, False)
    return None if _descriptor is None else ProgressReporter(_descriptor, measure)


def _after_fork_in_child() -> None:
    """Close the pipe in a forked child, which is no rank."""
    global _descriptor
    if _descriptor is not None:
        with suppress(OSError):
            os.close(_descriptor)
        _descriptor = None


register_at_fork(after_in_child=_after_fork_in_child)
