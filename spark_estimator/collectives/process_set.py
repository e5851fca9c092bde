"""Process sets: some ranks of a job that run collectives among themselves, beside those of all ranks.

A process set has a separate engine, with its own connections, shared memory and negotiation: collectives of different
sets do not wait for each other, and a name means a different collective in each. Sets are added and removed by all
ranks of the job together, also by those that are not in them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from spark_estimator.collectives.agreement import Agreement
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.connections.connection import RankGroup
from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import HorovodInternalError, NotInitializedError

#: The advice of errors about a set that is not registered.
HOW_TO_REGISTER = (
    "Register a set with init(process_sets=[...]), or with add_process_set() in a job that has "
    "HOROVOD_DYNAMIC_PROCESS_SETS=1."
)


class ProcessSet:
    """Some ranks of the job. Register it by ``init(process_sets=[...])`` or `add_process_set`, then pass it to an op.

    Attributes:
        process_set_id: its number, the same on all ranks; None while it is not registered. 0 is the set of all ranks.
        ranks: its ranks' numbers in the job, ascending.
        mpi_comm: None; Horovod has it.

    Args:
        ranks_or_comm: the ranks' numbers in the job, in any order.

    Raises:
        ValueError: they are no whole numbers.
    """

    mpi_comm = None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            ranks = [None]  # type: ignore[list-item]
        if any(isinstance(rank, bool) or not hasattr(rank, "__index__") for rank in ranks):
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r}): pass a list of ranks; MPI communicators are not supported."
            )
        self.process_set_id: int | None = None
        self.ranks: list[int] = sorted(rank.__index__() for rank in ranks)
        self._global_rank: int | None = None  # this process's number in the job, while the set is registered

    def size(self) -> int | None:
        """Return how many ranks it has; None while it is not registered."""
        return len(self.ranks) if self._is_registered() else None

    def rank(self) -> int | None:
        """Return this process's number in the set; None while it is not registered.

        Raises:
            ValueError: this process is not in the set.
        """
        if not self._is_registered():
            return None
        if self._global_rank not in self.ranks:
            raise ValueError(f"rank {self._global_rank} is not in {self}.")
        return self.ranks.index(self._global_rank)

    def included(self) -> bool:
        """Return whether this process is in the set, registered or not. Raises ValueError before ``init()``."""
        if self._is_registered():
            return self._global_rank in self.ranks
        return global_process_set.rank() in self.ranks

    def register(self, number: int, own_rank: int) -> None:
        """Note that it is registered, in a process whose number in the job is `own_rank`."""
        self.process_set_id, self._global_rank = number, own_rank

    def invalidate(self) -> None:
        """Note that it is registered no more."""
        self.process_set_id = self._global_rank = None

    def _is_registered(self) -> bool:
        return self.process_set_id is not None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0

    def invalidate(self) -> None:
        self.ranks, self._global_rank = [], None

    def _is_registered(self) -> bool:
        if self._global_rank is None:
            raise NotInitializedError
        return True


#: All ranks of the job. Its `ranks` are known between ``init()`` and ``shutdown()``.
global_process_set: ProcessSet = _GlobalProcessSet()


def check_registered(process_set: object) -> ProcessSet:
    """Return the argument, checked. Raises ValueError when it is no process set, or not registered."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, not {process_set!r}. {HOW_TO_REGISTER}")
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered. {HOW_TO_REGISTER}")
    return process_set


class ProcessSets:
    """The process sets of one membership of a job, beginning with the set of all ranks.

    Args:
        job: the engine of all ranks.
        make_engine: connects the ranks of a group, of which this rank is one, and starts its engine.
        needed_descriptors: how many file descriptors that takes, for the ranks of a group.
        dynamic: whether sets may be added and removed later.
    """

    def __init__(
        self,
        job: Engine,
        make_engine: Callable[[RankGroup], Engine],
        needed_descriptors: Callable[[Sequence[int]], int],
        dynamic: bool,
    ) -> None:
        self._job = job
        self._agreement = Agreement(job)
        self._make_engine = make_engine
        self._needed_descriptors = needed_descriptors
        self._dynamic = dynamic
        self._numbers = itertools.count(1)
        self._changing = threading.Lock()
        global_process_set.ranks = list(job.ranks)
        global_process_set.register(0, job.global_rank)
        self._sets = {0: global_process_set}
        #: By number: the engine; None of a set that this rank is not in.
        self.engines: dict[int, Engine | None] = {0: job}
        self._groups: list[Engine] = []

    def start(self, static: Sequence[ProcessSet]) -> None:
        """Register the sets that were passed to ``init()``. All ranks call it, also those that passed none.

        Raises ValueError, MismatchError: on all ranks: a set is invalid, or not passed by all.
        """
        problem = next(filter(None, map(self._find_problem, static)), "")
        wish = {"init": [process_set.ranks for process_set in static]}
        self._agreement.reach(wish, problem, self._find_shortage(static), dynamic=self._dynamic)
        for process_set in static:
            duplicate = self._find_duplicate(process_set)
            if duplicate:
                raise ValueError(f"init(process_sets=...): {duplicate}")
            self._register(process_set)

    def add(self, process_set: ProcessSet) -> None:
        """Register a set. All ranks of the job call it. Raises as ``context.add_process_set``."""
        with self._changing:
            problem = self._find_prohibition() or self._find_problem(process_set)
            self._agreement.reach({"add": process_set.ranks}, problem, self._find_shortage([process_set]))
            duplicate = self._find_duplicate(process_set)
            if duplicate:
                raise ValueError(f"add_process_set: {duplicate}")
            self._register(process_set)

    def make_group(
        self, ranks: Sequence[int], what: str, problem: str = "", timeout: timedelta | None = None
    ) -> Engine | None:
        """Make an engine for some of the ranks beside the sets, or return the job's for all. All ranks call it.

        For code with its own API for groups of ranks (torch.distributed); works also if users' sets may not change.

        Args:
            ranks: in any order.
            what: that API's name for the call, for messages.
            problem: why this rank refuses; '' for nothing.
            timeout: for the ranks' agreement.

        Returns:
            None on a rank that is not in it. Others end it with `end_group`.

        Raises:
            ValueError: on all ranks: some refuse, or the ranks make no group.
            MismatchError: on all ranks: they gave different ranks.
            HorovodInternalError: on all ranks: its ranks could not connect.
            TimeoutError: some did not call it in time. The same call, made again, continues to wait for them.
        """
        with self._changing:
            made = ProcessSet(ranks)
            is_job = made.ranks == list(self._job.ranks)
            lacking = "" if is_job else self._find_shortage([made])
            self._agreement.reach(
                {"group": made.ranks}, problem or self._find_problem(made), lacking, timeout, what=what
            )
            if is_job:
                return self._job
            _, engine = self._connect(made)
            if engine is not None:
                self._groups.append(engine)
            return engine

    def end_group(self, engine: Engine) -> None:
        """End this rank's part in a group: what others still wait for in it fails there with ShutDownError."""
        with suppress(ValueError):
            self._groups.remove(engine)
            engine.shutdown()

    def remove(self, process_set: ProcessSet) -> bool:
        """End a set. All ranks of the job call it. Return and raise as ``context.remove_process_set``."""
        if not isinstance(process_set, ProcessSet):
            raise TypeError(
                f"remove_process_set takes the ProcessSet that add_process_set returned, not {process_set!r}."
            )
        if not process_set.process_set_id:
            return False  # at once, as in Horovod
        with self._changing:
            number = process_set.process_set_id if self._sets.get(process_set.process_set_id or 0) else None
            self._agreement.reach({"remove": number or None}, self._find_prohibition())
            if not number:
                return False
            engine = self.engines.pop(number)
            self._sets.pop(number).invalidate()
            process_set.invalidate()
            if engine is not None:
                engine.shutdown()
            return True

    def engine(self, process_set: ProcessSet) -> Engine:
        """Return the engine of a set. Raises TypeError: it is none; ValueError: it is not usable by this rank."""
        try:
            number = process_set.process_set_id
        except AttributeError:
            raise TypeError(
                f"process_set must be a registered ProcessSet, not {process_set!r}. {HOW_TO_REGISTER}"
            ) from None
        engine = None if number is None else self.engines.get(number)
        if engine is not None:
            return engine
        if number is None or number not in self._sets:
            raise ValueError(f"{process_set} is not registered. {HOW_TO_REGISTER}")
        raise ValueError(f"rank {self._job.global_rank} is not in {process_set} and can't run its collectives.")

    def of(self, number: int) -> ProcessSet:
        """Return the set of that id. Raises ValueError when there is none."""
        process_set = self._sets.get(number)
        if process_set is None:
            raise ValueError(
                f"process_set_id={number} is not registered in this job, whose process sets have the ids "
                f"{sorted(self._sets)}. {HOW_TO_REGISTER}"
            )
        return process_set

    def ranks(self) -> dict[int, list[int]]:
        """Return the registered sets' ranks, by their numbers."""
        return {number: list(process_set.ranks) for number, process_set in self._sets.items()}

    def list_running(self) -> list[Engine]:
        """Return the engines of the sets and groups that this rank is in, that of the job first."""
        return [engine for engine in [*self.engines.values(), *self._groups] if engine is not None]

    def shutdown(self) -> None:
        """End all sets, and with them the membership."""
        for engine in reversed(self.list_running()):
            engine.shutdown()
        for process_set in self._sets.values():
            process_set.invalidate()

    # --- what all ranks do alike -------------------------------------------------------------------------------------

    def _find_prohibition(self) -> str:
        if self._dynamic:
            return ""
        return (
            "process sets are static in this job: pass the set to init(process_sets=[...]), or allow new ones with "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1 or init(process_sets='dynamic')."
        )

    def _find_problem(self, process_set: ProcessSet) -> str:
        """Return what is wrong with a set, as far as one rank can determine alone; '' for nothing."""
        ranks = process_set.ranks
        if process_set.process_set_id is not None:
            return f"{process_set} is already registered."
        if not ranks:
            return "a process set needs at least one rank."
        outside = [rank for rank in ranks if not 0 <= rank < self._job.size]
        if outside:
            last = self._job.size - 1
            valid_ranks = f"0 to {last}" if last else "which has only rank 0"
            return f"ranks must be among those of the job, {valid_ranks}: {ranks}."
        if len(set(ranks)) < len(ranks):
            return f"ranks {ranks} contain a rank twice."
        return ""

    def _find_duplicate(self, process_set: ProcessSet) -> str:
        for number, other in self._sets.items():
            if other.ranks == process_set.ranks:
                return f"a process set with the ranks {process_set.ranks} already exists, with the id {number}."
        return ""

    def _find_shortage(self, process_sets: Sequence[ProcessSet]) -> str:
        """Return what this process lacks to connect with the ranks of new sets, before other ranks wait for it."""
        own_sets = [process_set for process_set in process_sets if self._job.global_rank in process_set.ranks]
        return descriptors.find_shortage(sum(self._needed_descriptors(process_set.ranks) for process_set in own_sets))

    def _register(self, process_set: ProcessSet) -> None:
        """Register a set on which all ranks of the job have agreed."""
        number, engine = self._connect(process_set)
        process_set.register(number, self._job.global_rank)
        self._sets[number] = process_set
        self.engines[number] = engine

    def _connect(self, process_set: ProcessSet) -> tuple[int, Engine | None]:
        """Start an engine for the ranks of a set; give its number, and this rank's end of it if it has one."""
        number = next(self._numbers)
        engine: Engine | None = None
        failure: Exception | None = None
        try:
            if self._job.global_rank in process_set.ranks:
                try:
                    engine = self._make_engine(RankGroup(number, tuple(process_set.ranks)))
                except (HorovodInternalError, OSError, MemoryError) as error:
                    failure = error
            stated = self._agreement.exchange({"failure": str(failure or "")})
            failed = {rank: statement["failure"] for rank, statement in stated.items() if statement["failure"]}
            if failed:
                rank, text = next(iter(failed.items()))
                raise HorovodInternalError(
                    f"the process set of the ranks {process_set.ranks} could not be made: rank {rank}: {text}"
                ) from failure
        except BaseException:
            if engine is not None:
                engine.shutdown()
            raise
        return number, engine
