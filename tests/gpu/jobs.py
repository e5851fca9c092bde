"""Runs tasks in ranks, so that one that hangs is named, and does not hide the results of the others.

Starting ranks costs seconds, so all tasks of a backend run in one job. Each that failed there, or was running when that
job ended early, is run again in a separate job; those that had no turn get theirs in one more job.
"""

from __future__ import annotations

import enum
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.gpu.goals import Line
from tests.gpu.in_rank import Note, Task, read_notes, run_tasks, stacks_file
from tests.gpu.ways import Way
from tests.ranks import Outcome, RanksFailedError, run_ranks

#: Less is not worth starting ranks for.
LEAST_SECONDS = 12.0
#: If more than this number of tasks of a backend fail, they have a common cause, and more runs would waste time.
MOST_ALONE = 4


class State(enum.Enum):
    """The result of a task."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_RUN = "not run"


class Result(NamedTuple):
    """The result of a task with a backend.

    Attributes:
        name: of the task.
        state: see there.
        text: why it is not OK.
        lines: its output, on rank 0.
    """

    name: str
    state: State
    text: str = ""
    lines: tuple[Line, ...] = ()


class Limits(NamedTuple):
    """Seconds.

    Attributes:
        job: of a job of all tasks, with the start of its ranks.
        task: of one task in it.
        alone: of a task in a separate job, with the start of its ranks.
    """

    job: float = 170.0
    task: float = 60.0
    alone: float = 45.0


class Budget:
    """The time that is left of a whole run."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def for_job(self, wanted: float) -> float:
        """How many seconds a job may take; 0: it is not to be started."""
        left = self.left()
        return 0.0 if left < min(wanted, LEAST_SECONDS) else min(wanted, left)


class Job(NamedTuple):
    """The records of a job.

    Attributes:
        notes: of each rank.
        trouble: why it did not end as it should; "": it did.
    """

    notes: list[dict[str, Note]]
    trouble: str

    def lines(self, name: str) -> tuple[Line, ...]:
        return self.notes[0][name].lines if name in self.notes[0] else ()

    def is_ok(self, name: str) -> bool:
        """Whether all ranks ended it, and without error."""
        return all(name in notes and notes[name].ended and not notes[name].error for notes in self.notes)

    def blame(self, name: str) -> str:
        """The error of a task; "": it did not run on any rank, or all is well."""
        told_by = {rank: notes[name].error for rank, notes in enumerate(self.notes) if name in notes}
        errors = [f"rank {rank}: {error}" for rank, error in told_by.items() if error]
        if told_by and not all(name in notes and notes[name].ended for notes in self.notes):
            errors.append(f"it was under way when its job {self.trouble or 'ended'}")
        return "\n".join(errors)

    def way(self) -> str:
        """Rank 0's description of how tensors are sent; "" if none was sent from a GPU."""
        return next((note.way for note in self.notes[0].values() if note.way), "")


def run_in_way(
    way: Way, tasks: Mapping[str, Task], begin: Callable[[int], None], budget: Budget, limits: Limits | None = None
) -> tuple[list[Result], str]:
    """The result of each task, and the engine's description of how tensors were sent.

    Args:
        way: how ranks get their GPUs.
        tasks: by name.
        begin: chooses a rank's GPU; its argument: the rank.
        budget: of the whole run.
        limits: see there; by default its own.
    """
    limits = limits or Limits()
    results: dict[str, Result] = {}
    waiting, way_told, alone = dict(tasks), "", 0
    while waiting:
        seconds = budget.for_job(limits.job)
        if not seconds:
            results.update({name: Result(name, State.NOT_RUN, "no time was left for it") for name in waiting})
            break
        together = _run_job(way, waiting, begin, seconds, limits.job, limits.task)
        way_told = way_told or together.way()
        had_a_turn = [name for name in waiting if any(name in notes for notes in together.notes)]
        blamed = {name: together.blame(name) for name in had_a_turn}
        for name in had_a_turn:
            if not blamed[name]:
                results[name] = Result(name, State.OK, lines=together.lines(name))
            elif len(tasks) == 1 or alone == MOST_ALONE:
                results[name] = Result(name, State.FAILED, blamed[name])
            else:
                alone += 1
                results[name] = _run_alone(way, name, tasks[name], begin, budget, limits, blamed[name])
        if together.trouble and not any(blamed.values()):
            everything = "the job as a whole"
            results[everything] = Result(everything, State.FAILED, f"it {together.trouble}")
        if not had_a_turn:
            results.update({name: Result(name, State.NOT_RUN, "its ranks did not begin") for name in waiting})
            break
        waiting = {name: task for name, task in waiting.items() if name not in had_a_turn}
    return list(results.values()), way_told


def _run_alone(
    way: Way, name: str, task: Task, begin: Callable[[int], None], budget: Budget, limits: Limits, blame: str
) -> Result:
    """The result of a failed task without the others. It counts as failed in any case."""
    seconds = budget.for_job(limits.alone)
    if not seconds:
        return Result(name, State.FAILED, f"{blame}\n(no time was left to run it alone)")
    alone = _run_job(way, {name: task}, begin, seconds, limits.alone, limits.task)
    if not alone.is_ok(name) or alone.trouble:
        return Result(name, State.FAILED, "alone: " + (alone.blame(name) or f"the job {alone.trouble}"))
    return Result(name, State.FAILED, f"{blame}\n(alone it went well)", alone.lines(name))


def _run_job(
    way: Way, tasks: Mapping[str, Task], begin: Callable[[int], None], seconds: float, wanted: float, each: float
) -> Job:
    with tempfile.TemporaryDirectory(prefix="check") as folder:
        args = (dict(tasks), begin, way.described, min(seconds, each), folder)
        trouble = ""
        try:
            run_ranks(way.size, run_tasks, seconds, args=args, environ=way.environ)
        except RanksFailedError as error:
            limit = f"{seconds:.0f} s for the job" + (", as --limit left no more" if seconds < wanted else "")
            trouble = outcome_text(error.outcomes, folder, limit)
        return Job([read_notes(folder, rank) for rank in range(way.size)], trouble)


def outcome_text(outcomes: list[Outcome], folder: str, limit: str) -> str:
    """What a job did that did not end as it should: hung, died or raised; with what its ranks left behind."""
    stacks = {outcome.rank: _stacks(folder, outcome.rank) for outcome in outcomes}
    hung = [outcome.rank for outcome in outcomes if outcome.exit_code is None or stacks[outcome.rank]]
    died = [outcome.rank for outcome in outcomes if outcome.exit_code and outcome.rank not in hung]
    raised = [outcome.rank for outcome in outcomes if outcome.error is not None]
    words = []
    if hung:
        words.append(f"hung (ranks {hung}, {limit})")
    if died:
        words.append(f"died (ranks {died})")
    if raised:
        words.append(f"raised an error outside of its tasks (ranks {raised})")
    parts = [f"{outcome}\n{stacks[outcome.rank]}".rstrip() for outcome in outcomes]
    return "\n".join([", ".join(words) or "gave no result", *parts])


def _stacks(folder: str, rank: int) -> str:
    path = stacks_file(folder, rank)
    return path.read_text() if path.exists() else ""
