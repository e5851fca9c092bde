"""`Checkpointer`: a rank's side of checkpoints that training does not wait for."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import numpy
import torch
from typing_extensions import Self

import spark_estimator.torch as hvd
from spark_estimator.checkpoint import schedule
from spark_estimator.checkpoint.file_saver import is_in_memory
from spark_estimator.checkpoint.random_state import random_state
from spark_estimator.checkpoint.shared_control import SlotState
from spark_estimator.checkpoint.writer_link import Report, WriterLink
from spark_estimator.collectives import arrays
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import restoring
from spark_estimator.extensions.checkpoint.copying import Copying, Pair
from spark_estimator.extensions.checkpoint.folders import Folder
from spark_estimator.extensions.checkpoint.job import Objects, part_job
from spark_estimator.extensions.checkpoint.layout import Staging, layout_of, part_of, structure_of
from spark_estimator.extensions.checkpoint.part_writer import WritePart
from spark_estimator.extensions.checkpoint.reading import store_of
from spark_estimator.extensions.checkpoint.round_counts import RoundCounts
from spark_estimator.extensions.checkpoint.state import (
    StateEntry,
    check_names,
    entries_of,
    own_buffers,
    parameters_of,
)
from spark_estimator.store import Store
from spark_estimator.torch import allgather_object

_log = logging.getLogger(__name__)
_ASKED_EVERY = timedelta(seconds=0.05)
_ENDS_WITHIN = timedelta(seconds=10)
# Of the time of training: copies that wait for a slow store take no more, but for the first.
_STANDBY_SHARE = 0.01


@dataclass
class _Standby:
    """The copies since the checkpoint that is being written.

    Attributes:
        since: when that began, by rank 0's clock, in milliseconds.
        spent: milliseconds that training has waited for copies since.
        is_last: the last copy is on standby.
        is_left_out: the last one that was due was not made.
    """

    since: int
    spent: float = 0.0
    is_last: bool = False
    is_left_out: bool = False


class Checkpointer:
    """Makes checkpoints of the objects that are passed to it. See ``spark_estimator.checkpoint`` for order and
    failures.

    A collective on ranks, as are `restore`, `step`, `save`, `wait` and `close`: all ranks call them at the same steps.
    In a process that is no rank it is one rank's.

    Args:
        folder: a path, a URL or a `FilesystemStore`, in whose `prefix_path` the checkpoints are.
        every_steps: the number of calls of `step` between two checkpoints; None: the number of calls doesn't matter.
        every_seconds: the seconds between two checkpoints, by rank 0's clock; None: time doesn't matter.
        keep: the number of complete checkpoints to keep; older ones are removed.
        keep_every: also keep one checkpoint of each such period; None: keep no others.
        overlap: parameters and the optimizers' state are copied while the next forward and backward pass runs; the
            optimizers' next step waits for it. Nothing but an optimizer's step may change them: a change is noticed and
            costs that checkpoint, but for one through ``.data``, which is not noticed.
        stop_on_error: all ranks raise DataError at the next `save` when one of them could not write; False: a line is
            logged.
        local: objects whose state differs from rank to rank, by name.
        state: objects that are equal on all ranks, or of which rank 0's is saved, by name: modules, optimizers,
            schedulers, samplers, loaders, anything with ``state_dict()`` and ``load_state_dict()``. Of a module the
            small buffers are each rank's own.

    Raises:
        TypeError, ValueError, DataError: something in `state` cannot be in a checkpoint, a number is not positive, or
            the folder cannot be read.
    """

    def __init__(
        self,
        folder: str | Store,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 2,
        keep_every: timedelta | None = None,
        overlap: bool = False,
        stop_on_error: bool = False,
        local: Mapping[str, Any] | None = None,
        **state: Any,
    ) -> None:
        for name, number in (("every_steps", every_steps), ("every_seconds", every_seconds), ("keep", keep)):
            if number is not None and number <= 0:
                raise ValueError(f"{name} must be more than 0; got {number}.")
        self._local = dict(local or {})
        check_names(list(state), list(state.values()), "state")
        check_names(list(self._local), list(self._local.values()), "local state")
        store = store_of(folder)
        if is_in_memory(store):
            raise ValueError(f"{store.prefix_path} is in this process's memory, where no writer can write.")
        self._store = store
        self._root = store.prefix_path
        self._state = state
        self._keep = keep, keep_every
        self._stop_on_error = stop_on_error
        self._is_rank = hvd.is_initialized()
        self._rank, self._ranks = (hvd.rank(), hvd.size()) if self._is_rank else (0, 1)
        commits = [getattr(value, "committed_steps", None) for value in state.values()]
        self._counts = RoundCounts(store, next(filter(None, commits), None))
        begun = self._counts.begin()
        self._group, self._steps = begun.group, begun.steps
        #: Whether this is a later round of an elastic job: its state is newer than every checkpoint.
        self._continues = begun.steps > 0
        self._schedule = schedule.Schedule(
            every_steps, None if every_seconds is None else timedelta(seconds=every_seconds), self._first_clock
        )
        if self._continues:
            self._schedule.resume(begun.since, begun.passed)
        self._staging: Staging | None = None
        self._next_ticket = 0
        self._steps_of: dict[int, int] = {}
        self._last = Folder(begun.generation, -1, self._group, 0)
        self._last_error = ""
        self._objects = Objects()
        self._copying = Copying()
        self._standby = _Standby(0)
        self._has_told = False
        self._hooks: list[Any] = []
        self._optimizers = [value for value in state.values() if isinstance(value, torch.optim.Optimizer)]
        self._overlaps = overlap
        if overlap:
            hook = self._before_optimizer_step
            self._hooks = [optimizer.register_step_pre_hook(hook) for optimizer in self._optimizers]
        self._link: WriterLink | None = WriterLink(WritePart(store))

    @property
    def steps(self) -> int:
        """Steps so far: calls of `step`, and those before the checkpoint that was restored."""
        return self._steps

    @property
    def writer_pid(self) -> int:
        """The process that writes this rank's part."""
        return self._open().pid

    def step(self) -> bool:
        """Counts a step of the training, and makes a checkpoint when one is due. Returns whether it did."""
        self._steps += 1
        self._counts.stepped(self._steps)
        if self._schedule.is_due():
            return self._save(may_be_left_out=True)
        if self._staging is None:  # from the first step on optimizers have a state
            with contextlib.suppress(DataError):  # save() raises it, on all ranks
                self._stage(self._entries())
        return False

    def save(self) -> None:
        """Copies the state now, to be written by the writers.

        Raises:
            DataError: the ranks' states differ in structure, or hold what cannot be read back without running code;
                with ``stop_on_error`` also: a rank could not write its part of an earlier checkpoint.
        """
        self._save(may_be_left_out=False)

    def _save(self, *, may_be_left_out: bool) -> bool:
        """Copies the state; returns whether it did.

        Args:
            may_be_left_out: a copy that would only be on standby is not made if such copies have taken more than
                `_STANDBY_SHARE` of the time since the checkpoint that is being written; `close` makes up for it.
        """
        link = self._open()
        self._copying.wait()
        began = time.perf_counter()
        self._made()
        self._log_reports(link.reports())
        # Errors in the state are found before the collective, and all ranks get them.
        problem, entries, objects = "", [], []
        try:
            entries = self._entries()
            self._stage(entries)
            objects = self._objects.packed(entries, self._own(), self._rank)
        except DataError as error:
            problem = str(error)
        all_free, milliseconds, spent, moment = self._agree(link, problem)
        if all_free:
            self._standby = _Standby(milliseconds)
        elif may_be_left_out and spent > _STANDBY_SHARE * (milliseconds - self._standby.since):
            self._log_replaced(self._steps, 0)
            self._standby.is_left_out = True
            return False
        self._standby.is_left_out = False
        staging = self._staging
        assert staging is not None
        number, replaced = link.free_slot(replaces=SlotState.STANDBY)
        if replaced is not None:
            self._log_replaced(self._steps_of.pop(replaced, 0), self._steps)
        generation = self._last.generation
        if self._steps <= self._last.step:  # then another generation makes its folder another one, which is newer
            generation += 1
            self._counts.begun_again(generation)
        self._last = folder = Folder(generation, self._steps, self._group, moment)
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._steps_of[ticket] = step = self._steps
        targets = staging.targets(number)
        path = f"{self._root}/{folder.name}"
        job = part_job(link.slots[number], staging.layout, objects, path, self._rank, self._ranks, self._keep)
        pairs = [
            (target, part_of(entries[placed.entry].value.detach(), placed))
            for target, placed in zip(targets, staging.layout.pieces, strict=True)
        ]

        def done(whole: bool) -> None:
            if whole:
                link.submit(number, ticket, job, now=all_free)
                return
            link.note_failure(ticket)
            _log.error(
                "the checkpoint of step %d is given up on rank %d (host %s): parameters were changed while they were "
                "copied, and not by an optimizer's step. Use overlap=False.",
                step, self._rank, socket.gethostname(),
            )  # fmt: skip

        self._copying.run(*self._divided(pairs), done)
        self._standby.is_last = not all_free
        if not all_free:
            self._standby.spent += 1000 * (time.perf_counter() - began)
        return True

    def wait(self) -> int | None:
        """Returns when the last copy is complete or has failed, with the last complete checkpoint's step, or None."""
        link = self._open()
        self._copying.wait()
        while True:
            self._log_reports(link.reports(_ASKED_EVERY if link.control.is_busy else timedelta(0)))
            states = self._states(link)
            if not states[:, 0].any() and not link.begin_standby():
                completed = int(states[0, 2])
                return self._steps_of.get(completed)
            if self._ranks > 1 and states[:, 0].any() and not link.control.is_busy:
                time.sleep(_ASKED_EVERY.total_seconds())

    def close(self) -> int | None:
        """Waits as `wait` does, and ends the writers. Returns the step of the last complete checkpoint, or None."""
        if self._link is None:
            return None
        if self._standby.is_left_out:
            self.save()
        completed = self.wait()
        self._leave(_ENDS_WITHIN)
        return completed

    def abandon(self) -> None:
        """Leaves the writers alone with what they have: they complete it and end. No collective, and no waiting."""
        if self._link is not None:
            self._copying.wait()
            self._leave(None)

    def restore(self, step: int | None = None) -> int:
        """Gives all objects the state of a checkpoint.

        In a later round of an elastic job the ranks have a newer state, which stays unless `step` is a number.

        Args:
            step: of the training; None: the last complete one.

        Returns:
            Its step; 0 where there is no checkpoint. In a later round, the steps so far.

        Raises:
            DataError: it cannot be read, is damaged, does not fit the objects, or there is none of that step.
        """
        self.wait()
        if step is None and self._continues:
            return self._steps
        result = restoring.restore(self._store, self._root, step, self._state, self._local, self._rank, self._ranks)
        self._steps = result
        self._made()
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # the other ranks may be elsewhere
            self.abandon()

    def _made(self) -> None:
        """A checkpoint is due now, or was restored: steps and time are counted from here. A collective."""
        self._schedule.made()
        self._counts.made(self._steps)

    def _entries(self) -> list[StateEntry]:
        return [*entries_of(self._state), StateEntry("step", ("step",), self._steps)]

    def _own(self) -> dict[str, Any]:
        """The state that is this rank's alone."""
        buffers = {}
        for name, value in self._state.items():
            for key, buffer in own_buffers(value).items() if self._rank else ():
                buffers[f"{name}.{key}"] = buffer.detach().cpu()
        return {
            "random": random_state(),
            "buffers": buffers,
            "local": {name: value.state_dict() for name, value in self._local.items()},
        }

    def _stage(self, entries: Sequence[StateEntry]) -> None:
        """Has room for this state; where its structure is another than last time, new room."""
        structure = structure_of(entries)
        if self._staging is None or self._staging.layout.structure != structure:
            layout = layout_of(entries, structure, self._rank, self._ranks)
            self._staging = Staging(layout, [entry.value for entry in entries], self._open())

    def _divided(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
        """The values to copy now, and those that may be copied until the optimizers' next step."""
        if not self._overlaps:
            return list(pairs), []
        unchanged = parameters_of(self._optimizers)
        now: list[Pair] = []
        later: list[Pair] = []
        for pair in pairs:
            (later if pair[1].untyped_storage().data_ptr() in unchanged else now).append(pair)
        return now, later

    def _before_optimizer_step(self, *_: Any) -> None:
        began = time.perf_counter()
        self._copying.wait()
        if self._standby.is_last:
            self._standby.spent += 1000 * (time.perf_counter() - began)

    def _states(self, link: WriterLink, problem: str = "") -> Any:
        """[ranks, 8] busy, last failed and completed copy, clock, structure, whether to stop, time spent, date.

        A collective. Times are in milliseconds, the date in seconds since 1970.
        """
        control = link.control
        digest = int(self._staging.layout.digest[:15], 16) if self._staging is not None else 0
        stop = int(bool(problem) or (self._stop_on_error and control.failed >= 0))
        mine = [
            int(control.is_busy),
            control.failed,
            control.completed,
            int(1000 * schedule.clock()),
            digest,
            stop,
            int(self._standby.spent),
            int(time.time()),
        ]
        states = numpy.array([mine], numpy.int64)
        if self._is_rank:
            states = arrays.allgather(states, "checkpoint.states")
        failed = int(states[:, 1].max())
        if failed >= 0:
            link.give_up(failed)
        return states

    def _agree(self, link: WriterLink, problem: str) -> tuple[bool, int, int, int]:
        """Whether all writers are free, rank 0's clock, the most that a rank has spent, rank 0's date. A collective.

        Raises:
            DataError: on all ranks, see `save`.
        """
        states = self._states(link, problem)
        if (states[:, 4] == states[0, 4]).all() and not states[:, 5].any():
            return not states[:, 0].any(), int(states[0, 3]), int(states[:, 6].max()), int(states[0, 7])
        structure = self._staging.layout.structure if self._staging is not None else ()
        mine = (problem or self._last_error, structure)
        of_ranks = allgather_object(mine, name="checkpoint.problems") if self._is_rank else [mine]
        for rank, (text, other) in enumerate(of_ranks):
            if text and states[rank, 5]:
                raise DataError(text)
            more, less = sorted(set(other) - set(of_ranks[0][1])), sorted(set(of_ranks[0][1]) - set(other))
            if (more or less) and not states[:, 5].any():
                raise DataError(
                    f"the state of rank {rank} differs from rank 0's: it has {more[:1]} and lacks {less[:1]} (name, "
                    "type, shape). Objects of which each rank has its own are given as local={...}."
                )
        raise DataError("a rank could not write its part of a checkpoint; see its log.")

    def _log_reports(self, reports: Sequence[Report]) -> None:
        """Logs what became of earlier copies."""
        for report in reports:
            who = f"rank {self._rank} (host {socket.gethostname()})"
            what = f"the checkpoint of step {self._steps_of.get(report.ticket, '?')}"
            if report.error:
                self._last_error = f"{what} was not written: {report.path or self._root} on {who}: {report.error}"
                _log.error("%s", self._last_error)
            elif report.again:
                _log.warning("%s is tried again on %s: %s", what, who, report.again)
            elif report.note:
                _log.warning("%s: %s", who, report.note)
            else:
                _log.info("%s: %s wrote %d bytes of %s in %.1f s", what, who, report.bytes, report.path, report.seconds)

    def _log_replaced(self, step: int, by: int) -> None:
        """Logs that the state of a step is not written, as that of another one, or of a later one, is."""
        level = _log.debug if self._has_told or self._rank else _log.warning
        self._has_told = True
        level(
            "the state of step %d is not written, as an earlier checkpoint is still being written: that of %s replaces "
            "it (others that are replaced are logged at level debug)", step, f"step {by}" if by else "a later step",
        )  # fmt: skip

    def _first_clock(self) -> float:
        if not self._is_rank:
            return schedule.clock()
        return float(arrays.broadcast(numpy.array([schedule.clock()]), 0, "checkpoint.clock")[0])

    def _open(self) -> WriterLink:
        if self._link is None:
            raise ValueError("this Checkpointer is closed.")
        return self._link

    def _leave(self, timeout: timedelta | None) -> None:
        link, self._link = self._open(), None
        for hook in self._hooks:
            hook.remove()
        self._log_reports(link.reports())
        self._staging = None
        link.close(timeout)
