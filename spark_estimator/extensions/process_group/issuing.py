"""Submits a process group's operations to the engine, and has the group's other methods that torch calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError, ProcessGroup
from torch.distributed.distributed_c10d import Store

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.call import Call, Tensor
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.ops import kind_of_unnamed, unnamed_number
from spark_estimator.collectives.requests import run, submit
from spark_estimator.errors import MismatchError, ShutDownError
from spark_estimator.extensions.process_group import callbacks
from spark_estimator.extensions.process_group.callbacks import ProgramPoint
from spark_estimator.extensions.process_group.elements import ElementReduction
from spark_estimator.extensions.process_group.messages import Mailbox
from spark_estimator.extensions.process_group.work import (
    AllOf,
    GroupWork,
    is_running_callbacks,
    prepare_to_block,
    translate_error,
)

BACKEND_NAME = "spark_estimator"
_KIND = "torch.distributed"
_SUM = ElementReduction(ReduceOp.SUM)

#: Called with the handle of an operation that has succeeded (None if it made no memory): writes its results.
Finish = Callable[[Handle | None], list[Any]]


class IssuingGroup(ProcessGroup):
    """A process group without its operations.

    Args:
        store: of torch, for the group.
        engine: of the ranks.
        number: of the group in its job, the same on all ranks.
        timeout: for operations without their own.
        mailbox: for messages between two ranks.
        at_end: called at `shutdown`, once.
        more: makes a group of some of the ranks; see `new_group`.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        number: int,
        timeout: timedelta,
        mailbox: Mailbox,
        *,
        at_end: Callable[[], None] | None = None,
        more: Callable[..., ProcessGroup | None] | None = None,
    ) -> None:
        super().__init__(engine.rank, engine.size)  # type: ignore[call-arg]
        self._store = store
        self._name = self._desc = ""
        self._engine = engine
        self._number = number
        self._timeout = timeout
        self._mailbox = mailbox
        self._at_end = at_end
        self._more = more
        # One kind for all operations: ranks that call in different orders get an error, instead of waiting for ever.
        self._kind = kind_of_unnamed(f"{_KIND}.{number}" if number else _KIND)
        self._coalesced: list[GroupWork] | None = None
        self._ended = False

    # --- what it is --------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return ``'spark_estimator'``."""
        return BACKEND_NAME

    # Torch's own keep the two below in the backends that a group has; this one is its own backend.

    @property
    def _device_types(self) -> list[torch.device]:
        """Return the devices of its tensors, for distributed checkpoints and object collectives."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"{BACKEND_NAME} takes tensors in host memory, not on {device}.")
        return self

    # Torch checks these before it uses features that only NCCL has.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: there is no memory that only the backend can allocate."""
        return False

    def setGroupName(self, name: str) -> None:
        """Set torch's name for the group."""
        self._name = name

    def getGroupName(self) -> str:
        """Return torch's name for the group, by which compiled code finds it."""
        return self._name

    def setGroupDesc(self, text: str) -> None:
        """Set the purpose of the group."""
        self._desc = text

    def getGroupDesc(self) -> str:
        """Return the purpose of the group: ``'default_pg'``, ``'undefined'`` or the argument of ``new_group``."""
        return self._desc

    def name(self) -> str:
        """Return `getBackendName`'s name."""
        return BACKEND_NAME

    def get_group_store(self) -> Store:
        """Return torch's store for the group."""
        return self._store

    def new_group(self, ranks: Sequence[int], **options: Any) -> ProcessGroup | None:
        """Return a group of some of the job's ranks, or None on other ranks; torch's ``new_group`` calls it on all
        ranks.
        """
        if self._more is None:
            raise RuntimeError(
                "new groups can only be created from the default group's ranks, not from another group's."
            )
        # PyTorch before 2.14 does not pass the name of the requested backend, and would report the group as one of it.
        if "backend" not in options:
            options["backend"] = sys._getframe(1).f_locals.get("backend")
        return self._more(ranks, **options)

    @property
    def timeout(self) -> timedelta:
        """Return the time-out of operations without their own."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later operations without their own."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """End the group on this rank. ``destroy_process_group`` calls it on each of the group's ranks separately."""
        self._ended = True
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()

    abort = shutdown

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _start_coalescing(self, _device: object) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: object) -> GroupWork:
        works, self._coalesced = self._coalesced or [], None
        return self._join_works("coalesced operations", works)

    def _join_works(self, operation: str, works: Sequence[GroupWork]) -> GroupWork:
        def collect_outputs() -> list[Any]:
            return [output for work in works for output in work.result()]

        point = ProgramPoint(works[0].point.path and f"{works[0].point.path}/together") if works else None
        return GroupWork(self._make_label(operation), AllOf(works), collect_outputs, self._timeout, point=point)

    def _note_work(self, work: GroupWork) -> GroupWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _get_root(self, operation: str, opts: Any) -> int:
        """Return the root's number in the group, from options or a plain number. Raise ValueError if it is not a
        rank.
        """
        return self._check_rank(operation, "root", getattr(opts, "rootRank", opts))

    def _get_peer(self, operation: str, rank: int) -> int:
        """Return the job's number of a rank of the group. Raise ValueError if it is not a rank."""
        return self._engine.ranks[self._check_rank(operation, "other end", rank)]

    def _check_rank(self, operation: str, role: str, rank: int) -> int:
        if not 0 <= rank < self._engine.size:
            raise ValueError(
                f"{self._make_label(operation)}: the {role} is rank {rank}, and the group has the ranks 0 to "
                f"{self._engine.size - 1}."
            )
        return rank

    def _make_label(self, operation: str) -> str:
        return f"torch.distributed.{operation} on rank {self._engine.global_rank}"

    def _issue(
        self,
        operation: str,
        op: Op,
        tensors: list[Tensor],
        keep: object,
        finish: Finish,
        opts: Any,
        how: ElementReduction = _SUM,
        *,
        root: int = 0,
        splits: tuple[int, ...] | None = None,
    ) -> GroupWork:
        """Submit an operation to the engine, and wait for it if the caller does."""
        label = self._make_label(operation)
        if self._ended:
            raise ShutDownError(f"{label}: this group was destroyed; make another with torch.distributed.new_group.")
        path, ordered = self._make_next_path(label)
        call = Call(op, self._kind if ordered else path, how.op, how.prescale, 1.0, root, splits, ordered)
        timeout = getattr(opts, "timeout", None)
        limit = timeout if timeout is not None and timeout > timedelta(0) else self._timeout
        point = ProgramPoint(path)
        try:
            if getattr(opts, "asyncOp", True):
                handle = submit(self._engine, call, tensors, keep)
                return self._note_work(GroupWork(label, handle, lambda: finish(handle), limit, point=point))
            prepare_to_block()
            done = run(self._engine, call, tensors, keep, repeats=ordered, timeout=limit)
        except TimeoutError as error:
            raise DistBackendError(f"{label}: {error}") from None
        except MismatchError as error:
            raise translate_error(error) from None
        return self._note_work(GroupWork(label, None, None, limit, outputs=finish(done), point=point))

    def _make_next_path(self, label: str) -> tuple[str, bool]:
        """Return the path of the present call, and whether it is matched by order: not in a future's callback."""
        callback = callbacks.get_current()
        if callback is None and not is_running_callbacks():
            # Also where no caller asks for it: all ranks count, and only some may ask.
            number = unnamed_number(self._kind) if context.is_initialized() else -1
            return f"{self._kind}.{number}", True
        if callback is None or callback.path is None:
            raise RuntimeError(
                f"{label} was called in a callback of the future of a message, or of one that torch made of several. "
                "Ranks run callbacks at different moments, and only a collective's own future tells where in the "
                "program it stands. Wait for the future, and call it then."
            )
        return callback.call(), False
