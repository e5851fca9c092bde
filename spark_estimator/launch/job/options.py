"""The options of a job on any launcher: one checked value instead of an argument for each option."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.environment import check_environment
from spark_estimator.observe.driver_log import ShowLine, print_line
from spark_estimator.observe.status_line import ProgressDisplay
from spark_estimator.observe.training_records import TakeRecord

#: A rank's larger value is refused: it would pass through the memory of a worker, an executor and the driver.
MAX_RESULT_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of one job, independent of the launcher that runs it.

    Attributes:
        args, kwargs: of the function that every rank calls.
        environment: variables for the ranks.
        environment_if_unset: the same, where the rank's host doesn't set them. Only Spark's executors differ in this.
        all_results: return every rank's value, not only rank 0's.
        show_line: called with (rank, "stdout" or "stderr", text) for each line that a rank prints; None: the lines stay
            in the executors' logs.
        verbose: 0: only the ranks' lines; 1: also a status line on a terminal or in a notebook; 2: also the host of
            each rank.
        take_record: called with (rank, record) for each record of an estimator's training; None: they are dropped.
        progress: where progress is shown; None: on screens if `verbose` is 1 or more, else nowhere.
        start_timeout: user code must have begun on all ranks within this time; None: no limit.
        max_result_bytes: a rank's larger return value is an error.
        limits: restarts and total time.

    Raises:
        TypeError, ValueError: an option can't be used; the text names the argument and its value.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    environment_if_unset: Mapping[str, str] = field(default_factory=dict, repr=False)
    all_results: bool = False
    show_line: ShowLine | None = print_line
    take_record: TakeRecord | None = None
    verbose: int = 1
    progress: ProgressDisplay | None = None
    start_timeout: timedelta | None = None
    max_result_bytes: int = MAX_RESULT_BYTES
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not isinstance(self.verbose, int):
            raise TypeError(f"verbose must be 0, 1 or 2; got {self.verbose!r}.")
        if self.start_timeout is not None and self.start_timeout <= timedelta(0):
            raise ValueError(f"start_timeout must be more than 0 seconds; got {self.start_timeout.total_seconds():g}.")
        object.__setattr__(self, "environment", check_environment(self.environment))

    @property
    def progress_display(self) -> ProgressDisplay:
        """Return where progress is displayed."""
        if self.progress is not None:
            return self.progress
        return ProgressDisplay.ON_SCREEN if self.verbose >= 1 else ProgressDisplay.OFF

    @property
    def variables(self) -> dict[str, str]:
        """Return a copy of `environment`, as `check_environment` returned it."""
        return dict(self.environment or {})


def check_num_proc(num_proc: int | None, name: str = "num_proc") -> None:
    """Check a number of ranks; None is accepted. Raises TypeError, ValueError: it is not a positive int."""
    if num_proc is None:
        return
    if type(num_proc) is not int:
        raise TypeError(f"{name} must be an int, the number of ranks; got {num_proc!r}.")
    if num_proc < 1:
        raise ValueError(f"{name}={num_proc}: at least one rank is needed.")


def check_elastic_sizes(
    num_proc: int | None, min_num_proc: int | None, max_num_proc: int | None, reset_limit: int | None
) -> None:
    """Check the numbers of ranks of an elastic job; None is accepted. Raises TypeError, ValueError."""
    sizes = {"min_num_proc": min_num_proc, "num_proc": num_proc, "max_num_proc": max_num_proc}
    for name, size in sizes.items():
        check_num_proc(size, name)
    for (less, low), (more, high) in itertools.combinations(sizes.items(), 2):
        if low is not None and high is not None and low > high:
            raise ValueError(f"{less}={low} is more than {more}={high}.")
    if reset_limit is not None and (type(reset_limit) is not int or reset_limit < 0):
        raise ValueError(f"reset_limit must be an int, 0 or more; got {reset_limit!r}.")


def check_text(name: str, value: object) -> None:
    """Check a text or path; None is accepted. Raises TypeError, ValueError: it is neither, or empty."""
    if value is None:
        return
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a string; got {value!r} ({type(value).__name__}).")
    if not str(value).strip():
        raise ValueError(f"{name} must not be empty; got {value!r}.")
