"""`Checkpointer`: a rank's side of checkpoints that training does not wait for.

All ranks make the same decisions, and a checkpoint is the whole state of one step. A copy is made in this order:

1. `StepClock` counts the step; the rest follows if a checkpoint is due.
2. `StateCopier` finds the state and has room for it. What cannot be saved is an error after 3, on all ranks.
3. `exchange_states` exchanges what each rank knows; `check_states` raises where a state differs or, if asked to, a
   rank could not write.
   Else a copy that failed on one rank is given up by all, and logged by that one; no later copy is lost by it.
4. `Standby` decides: it is written at once, waits, or is not made. `wait` has a copy that waits written.
5. The state is copied into a slot, with ``overlap`` partly in a thread, and then submitted. A parameter that changes
   meanwhile costs that copy.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

import spark_estimator.torch as hvd
from spark_estimator.checkpoint.shared_control import SlotState
from spark_estimator.checkpoint.writer_link import WriterLink
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import restoring
from spark_estimator.extensions.checkpoint.agreement import RankState, check_states, exchange_states
from spark_estimator.extensions.checkpoint.copying import StateCopier
from spark_estimator.extensions.checkpoint.job import Packed, write_job
from spark_estimator.extensions.checkpoint.part_writer import WritePart
from spark_estimator.extensions.checkpoint.reading import open_store
from spark_estimator.extensions.checkpoint.standby import OWED, WAITS, Standby, StandbyEvent, StandbyState
from spark_estimator.extensions.checkpoint.state import StateEntry, check_names
from spark_estimator.extensions.checkpoint.step_clock import StepClock
from spark_estimator.store import Store

_log = logging.getLogger(__name__)
_ASKED_EVERY = timedelta(seconds=0.05)
_ENDS_WITHIN = timedelta(seconds=10)


class _CopyLog:
    """Which copy is of which step, and lines of the log on what became of them.

    Attributes:
        last_error: why a copy was not written; empty: all were.
    """

    def __init__(self, link: WriterLink, root: str, rank: int) -> None:
        self.last_error = ""
        self._link = link
        self._root = root
        self._who = f"rank {rank} (host {socket.gethostname()})"
        self._steps: list[int] = []  # [tickets]
        self._level = logging.DEBUG if rank else logging.WARNING

    def add(self, step: int) -> int:
        """Return the ticket of a new copy."""
        self._steps.append(step)
        return len(self._steps) - 1

    def get_step(self, ticket: int) -> int | None:
        """Return the step of a copy; None: there is none of this ticket."""
        return self._steps[ticket] if 0 <= ticket < len(self._steps) else None

    def read(self, timeout: timedelta = timedelta(0)) -> None:
        """Log what became of earlier copies. Wait this time for the first report."""
        for report in self._link.read_reports(timeout):
            step = self.get_step(report.ticket)
            what = f"the checkpoint of step {'?' if step is None else step}"
            if report.error:
                self.last_error = f"{what} was not written: {report.path or self._root} on {self._who}: {report.error}"
                _log.error("%s", self.last_error)
            elif report.again:
                _log.warning("%s is tried again on %s: %s", what, self._who, report.again)
            elif report.note:
                _log.warning("%s: %s", self._who, report.note)
            else:
                _log.info(
                    "%s: %s wrote %d bytes of %s in %.1f s", what, self._who, report.bytes, report.path, report.seconds
                )

    def note_change(self, step: int) -> None:
        """Log that a copy is no whole state."""
        _log.error(
            "the checkpoint of step %d is given up on %s: parameters were changed while they were copied, and not by "
            "an optimizer's step. Use overlap=False.", step, self._who,
        )  # fmt: skip

    def note_replaced(self, step: int | None, by: str) -> None:
        """Log that the state of a step is not written, as another step's is."""
        _log.log(
            self._level,
            "the state of step %s is not written, as an earlier checkpoint is still being written: that of %s replaces "
            "it (others that are replaced are logged at level debug)", step, by,
        )  # fmt: skip
        self._level = logging.DEBUG


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
        store = open_store(folder)
        if store.prefix_path.startswith("memory:"):
            raise ValueError(f"{store.prefix_path} is in this process's memory, where no writer can write.")
        self._store = store
        self._state = state
        self._keep = keep, keep_every
        self._rank, self._ranks = (hvd.rank(), hvd.size()) if hvd.is_initialized() else (0, 1)
        commits = [getattr(value, "committed_steps", None) for value in state.values()]
        every = None if every_seconds is None else timedelta(seconds=every_seconds)
        self._clock = StepClock(store, next(filter(None, commits), None), every_steps, every)
        self._stop_on_error = stop_on_error
        self._standby = Standby()
        optimizers = [value for value in state.values() if overlap and isinstance(value, torch.optim.Optimizer)]
        self._copier = StateCopier(state, self._local, self._rank, self._ranks, optimizers)
        self._hooks = [optimizer.register_step_pre_hook(self._wait_before_optimizer_step) for optimizer in optimizers]
        self._link: WriterLink | None = WriterLink(WritePart(store))
        self._copies = _CopyLog(self._link, store.prefix_path, self._rank)

    @property
    def steps(self) -> int:
        """Return the number of steps so far: calls of `step`, and those before the restored checkpoint."""
        return self._clock.steps

    @property
    def writer_pid(self) -> int:
        """Return the process id of the writer of this rank's part."""
        return self._open().pid

    def step(self) -> bool:
        """Count a step of the training, and make a checkpoint if one is due. Return whether it did."""
        if self._clock.count():
            return self._save(may_be_left_out=True)
        if self._copier.layout is None:  # from the first step on optimizers have a state
            with contextlib.suppress(DataError):  # save() raises it, on all ranks
                self._copier.make_room(self.steps, self._open())
        return False

    def save(self) -> None:
        """Copy the state now, to be written by the writers.

        Raises:
            DataError: the ranks' states differ in structure, or hold what cannot be read back without running code;
                with ``stop_on_error`` also: a rank could not write its part of an earlier checkpoint.
        """
        self._save(may_be_left_out=False)

    def _save(self, *, may_be_left_out: bool) -> bool:
        """Copy the state; return whether it did.

        Args:
            may_be_left_out: a copy that would only be on standby is not made if such copies have taken more than
                `_STANDBY_SHARE` of the time since the checkpoint that is being written; `close` makes up for it.
        """
        link = self._open()
        self._copier.wait()
        began = time.perf_counter()
        self._clock.begin_interval()
        self._copies.read()
        # Errors in the state are found before the collective, and all ranks get them.
        problem = ""
        entries: list[StateEntry] = []
        objects: list[Packed] = []
        try:
            entries, objects = self._copier.prepare(self.steps, link)
        except DataError as error:
            problem = str(error)
        states = self._exchange(link, stops=bool(problem) or (self._stop_on_error and link.control.failed >= 0))
        check_states(states, self._copier.layout, problem or self._copies.last_error)
        decision = self._standby.decide(
            is_free=not any(state.is_busy for state in states),
            now=states[0].clock,
            spent=max(state.spent for state in states),
            may_be_left_out=may_be_left_out,
        )
        if decision in OWED:
            self._copies.note_replaced(self.steps, "a later step")
            return False
        step, staging = self.steps, self._copier.staging
        assert staging is not None
        number, replaced = link.take_slot(replaces=SlotState.STANDBY)
        if replaced is not None:
            self._copies.note_replaced(self._copies.get_step(replaced), f"step {step}")
        ticket = self._copies.add(step)
        path = f"{self._store.prefix_path}/{self._clock.name_folder(states[0].date)}"
        targets = staging.get_targets(number)  # before `write_job`: it makes room, which could cut the job off
        job = write_job(link.slots[number], staging.layout, objects, path, self._rank, self._ranks, self._keep)

        def submit_copy(whole: bool) -> None:
            if whole:
                link.submit(number, ticket, job, now=decision is StandbyState.WRITING)
            else:
                link.note_failure(ticket)
                self._copies.note_change(step)

        self._copier.copy(entries, targets, submit_copy)
        self._standby.add(time.perf_counter() - began)
        return True

    def wait(self) -> int | None:
        """Wait until the last copy is complete or has failed. Return the last complete checkpoint's step, or None."""
        link = self._open()
        self._copier.wait()
        while True:
            self._copies.read(_ASKED_EVERY if link.control.is_busy else timedelta(0))
            states = self._exchange(link)
            if any(state.is_busy for state in states):
                if self._ranks > 1 and not link.control.is_busy:
                    time.sleep(_ASKED_EVERY.total_seconds())
            elif self._standby.state in WAITS:
                link.begin_standby()
                self._standby.fire(StandbyEvent.BEGIN)
            else:
                self._standby.fire(StandbyEvent.END)
                return self._copies.get_step(states[0].completed)

    def close(self) -> int | None:
        """Wait as `wait` does, and end the writers. Return the step of the last complete checkpoint, or None."""
        if self._link is None:
            return None
        if self._standby.state in OWED:
            self.save()
        completed = self.wait()
        self._leave(_ENDS_WITHIN)
        return completed

    def abandon(self) -> None:
        """Detach the writers, which complete what they have and end. No collective, and no waiting."""
        if self._link is not None:
            self._copier.wait()
            self._leave(None)

    def restore(self, step: int | None = None) -> int:
        """Give all objects the state of a checkpoint.

        In a later round of an elastic job the ranks have a newer state, which stays unless `step` is a number.

        Args:
            step: of the training; None: the last complete one.

        Returns:
            Its step; 0 where there is no checkpoint. In a later round, the steps so far.

        Raises:
            DataError: it cannot be read, is damaged, does not fit the objects, or there is none of that step.
        """
        self.wait()
        if step is None and self._clock.continues:
            return self.steps
        root = self._store.prefix_path
        self._clock.steps = restoring.restore(
            self._store, root, step, self._state, self._local, self._rank, self._ranks
        )
        self._clock.begin_interval()
        return self.steps

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # the other ranks may be elsewhere
            self.abandon()

    def _wait_before_optimizer_step(self, *_: Any) -> None:
        began = time.perf_counter()
        self._copier.wait()
        self._standby.add(time.perf_counter() - began)

    def _exchange(self, link: WriterLink, *, stops: bool = False) -> list[RankState]:
        return exchange_states(link, self._copier.layout, self._standby.spent, self._ranks, stops=stops)

    def _open(self) -> WriterLink:
        if self._link is None:
            raise ValueError("this Checkpointer is closed.")
        return self._link

    def _leave(self, timeout: timedelta | None) -> None:
        link, self._link = self._open(), None
        for hook in self._hooks:
            hook.remove()
        self._copies.read()
        self._copier.staging = None
        link.close(timeout)
