"""Detects, while a process waits for the others, that its job can never be complete: then waiting is useless."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from spark_estimator.collectives.other_launchers.launchers import ForeignJob
from spark_estimator.collectives.other_launchers.local_processes import LocalProcesses
from spark_estimator.collectives.other_launchers.notices import NoticeBoard
from spark_estimator.collectives.other_launchers.rank_locks import RankLocks
from spark_estimator.collectives.other_launchers.rendezvous_server import (
    JobTerms,
    connect_to_server,
    exchange_with_server,
)
from spark_estimator.errors import ForeignLauncherError

# Processes of an earlier job may still be about to end, and rank 0 about to leave its notice.
_CERTAIN_SECONDS = 2.5
_NO_NOTICE_SECONDS = 4.0
# The first process of a rank gives up after the second, which would otherwise take its place.
_FIRST_GIVES_UP_SECONDS = 3.5
_SEEN_SECONDS = 1.0
_VISIT_SECONDS = 5.0


class _Holder(NamedTuple):
    """A process that has a rank, and when this was seen first and last; no process: 0."""

    process: int
    first: float
    last: float


_NO_HOLDER = _Holder(0, 0.0, 0.0)


class Watch:
    """The checks of one process while it waits.

    Args:
        job: of this process.
        locks: to the ranks on this host.
        first: the launcher's number of the rank at whose server all meet.
        whole: whether all processes of the launcher are to be in the job.
    """

    def __init__(self, job: ForeignJob, locks: RankLocks, first: int, *, whole: bool) -> None:
        self._job = job
        self._locks = locks
        self._first = first
        self._local_processes = LocalProcesses(job) if whole else None
        self._has_lock = locks.acquire(job.rank or 0)
        self._holders: dict[int, _Holder] = {}

    def check(self) -> None:
        """Raise PeerLostError if processes of this host have ended."""
        if self._local_processes is not None:
            self._local_processes.check()

    def check_unanswered(self, *, noticed: bool) -> None:
        """Raise ForeignLauncherError if the ranks show that no server will answer; `noticed`: one has a notice."""
        self.check()
        self._check_own_rank()
        process = self._find_lasting_holder(self._first, _NO_NOTICE_SECONDS)
        if self._has_lock and process and not noticed:
            raise ForeignLauncherError(
                f"init(): this process is {self._job.process}, but rank {self._first} (process {process} on this host) "
                "does not wait for it: its job is complete. Give all processes the same number of processes, and each "
                f"a different rank. {self._advise()}"
            )

    def make_gathering_check(self, board: NoticeBoard, terms: JobTerms) -> Callable[[], None]:
        """Return the check of the rank that has the server: also whether another process has the same rank."""

        def check() -> None:
            self.check()
            self._check_own_rank()
            rival = board.find_rival()
            deadline = time.monotonic() + _VISIT_SECONDS
            sock = None if rival is None else connect_to_server(rival, deadline)
            if rival is not None and sock is not None:
                with sock:  # the other process raises an error, and answers with its text
                    exchange_with_server(sock, rival.key, 0, terms, deadline, one_host=True)

        return check

    def _check_own_rank(self) -> None:
        rank = self._job.rank or 0
        second = -1 - rank  # what a process locks that finds its rank locked, so that the first notices it
        self._has_lock = self._has_lock or self._locks.acquire(rank)
        if self._has_lock:
            process = self._find_former_holder(second)
        else:
            self._locks.acquire(second)
            process = self._find_lasting_holder(rank, _CERTAIN_SECONDS)
        if process:
            raise ForeignLauncherError(
                f"init(): this process is {self._job.process}, but process {process} on this host has the same "
                f"number. Give each process a different rank. {self._advise()}"
            )

    def _find_lasting_holder(self, rank: int, seconds: float) -> int:
        """Return the process that has had a rank for at least `seconds`; 0 if there is none."""
        holder = self._update_holder(rank)
        return holder.process if holder.process and holder.last - holder.first > seconds else 0

    def _find_former_holder(self, rank: int) -> int:
        """Return the process that has had a rank for a second, some seconds ago; 0 if there is none."""
        process = self._locks.find_holder(rank)
        holder = self._update_holder(rank) if process else self._holders.get(rank, _NO_HOLDER)
        waited = time.monotonic() - holder.first
        return holder.process if holder.last - holder.first > _SEEN_SECONDS and waited > _FIRST_GIVES_UP_SECONDS else 0

    def _update_holder(self, rank: int) -> _Holder:
        process, before, now = self._locks.find_holder(rank), self._holders.get(rank, _NO_HOLDER), time.monotonic()
        self._holders[rank] = _Holder(process, before.first if process == before.process else now, now)
        return self._holders[rank]

    def _advise(self) -> str:
        return (
            "If that process belongs to an earlier job, end it first"
            + (", or set another MASTER_PORT" if not self._job.has_parent else "")
            + "."
        )
