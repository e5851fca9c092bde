"""Keeps what each rank alone has, such as its random number generators, in the memory of a rank of the next host.

Order of events in a step: each rank sends its content to the next rank of the ring, and then all exchange one number,
the *agreement*: whether the launcher has announced other ranks. A rank that has passed the agreement knows that the
content of every rank is in another one's memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy

from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.elastic.resumption import Facts, Resumption
from spark_estimator.log import get_logger

_log = get_logger(__name__)


def choose_ring_target(rank: int, size: int, host_ranks: int) -> int:
    """Return the rank that keeps what `rank` alone has: one on the next host, where all hosts have as many ranks."""
    shift = host_ranks if host_ranks < size else 1
    return (rank + shift) % size


def select_smallest(sizes: Sequence[int], most_bytes: int) -> set[int]:
    """Return the positions of the smallest of some sizes, in bytes, which have at most `most_bytes` together."""
    by_size = sorted(range(len(sizes)), key=lambda position: sizes[position])
    totals = itertools.accumulate(sizes[position] for position in by_size)
    return {position for position, total in zip(by_size, totals, strict=True) if total <= most_bytes}


def ranks_stay(facts: Sequence[Facts]) -> bool:
    """Return whether a new round has as many ranks as before, and new processes only replace lost ones."""
    former_sizes = {each.size for each in facts if each.rank >= 0}
    return former_sizes == {len(facts)} and all(each.rank in (-1, new) for new, each in enumerate(facts))


class PeerCopies:
    """The copies that this rank keeps of another one, of the last commit and of the step in progress.

    Attributes:
        rank, size: of this process in its round; -1: none has begun.
    """

    def __init__(self) -> None:
        self.rank = self.size = -1
        self._host_ranks = 1
        self._copies: dict[tuple[int, int], bytes] = {}  # by source and step

    def agree(self, content: bytes, committed: int, *, announced: bool) -> bool:
        """Send what only this rank has after the step after `committed`, and wait for the agreement. A collective.

        Args:
            announced: this rank knows that the job's ranks are about to change.

        Returns:
            Whether any rank knows that.

        Raises:
            HorovodInternalError: a rank was lost, so that this one has no agreement.
        """
        if self.size <= 1:
            return announced
        self._copies = {key: value for key, value in self._copies.items() if key[1] == committed}
        self._send(content, committed + 1)
        return bool(arrays.allgather(numpy.array([announced], numpy.uint8), "elastic.step.agreement").any())

    def carry_over(self, step: int) -> None:
        """Use the copies of the commit before for the commit with this number: no step was taken between them."""
        of_last = {key: value for key, value in self._copies.items() if key[1] == step - 1}
        self._copies = {(source, step): value for (source, _), value in of_last.items()}

    def recover(self, facts: Sequence[Facts], at: Resumption) -> bytes | None:
        """Return, on a process that replaces a lost one, what only that had, or warn. None on others. A collective."""
        rank = context.rank()
        missing = [new for new, each in enumerate(facts) if each.rank < 0] if ranks_stay(facts) else []
        if not missing or at.from_full:
            return None
        own_copies = {new: self._copies[new, at.step] for new in missing if (new, at.step) in self._copies}
        copies: dict[int, bytes] = {}
        for each in allgather_object(own_copies, name="elastic.step.missing"):
            copies.update(each)
        if rank in missing and rank not in copies and at.step:
            _log.warning(
                "rank %d replaces a lost process, and the rank that had a copy of its random number generators and "
                "statistics was lost, too. It starts with new ones: numbers differ from those of a training without a "
                "loss. If they must not, start again from a checkpoint.",
                rank,
            )
        return copies.get(rank)

    def inherit(self, facts: Sequence[Facts], at: Resumption) -> list[bytes]:
        """Return, or warn of, what lost ranks without a replacement alone had. A collective."""
        present = {each.rank for each in facts if each.rank >= 0}
        lost = set(range(max((each.size for each in facts), default=0))) - present
        if not present or not lost or ranks_stay(facts):
            return []
        own_copies = {
            source: content for (source, step), content in self._copies.items() if step == at.step and source in lost
        }
        saved = set().union(*allgather_object(sorted(own_copies), name="elastic.step.inherited"))
        if context.rank() == 0 and lost - saved:
            _log.warning(
                "the statistics of the lost ranks %s are lost, too, as are those that kept their copies: averages of "
                "the present epoch do not count their rows.",
                sorted(lost - saved),
            )
        return [own_copies[source] for source in sorted(own_copies)]

    def begin(self, content: bytes, step: int) -> None:
        """Begin a round on all ranks, at a commit, with what only this rank has. A collective."""
        position = context.rank(), context.size()
        if position != (self.rank, self.size):
            self._copies.clear()  # they are named by the ranks of the round before
        self.rank, self.size = position
        former = set(self._copies)  # until there are others: a rank may be lost meanwhile
        host_ranks = arrays.allgather(numpy.array([context.local_size()], numpy.int64), "elastic.step.hosts")
        self._host_ranks = int(host_ranks.max())
        if self.size > 1:
            former.discard(self._send(content, step))
        self._copies = {key: value for key, value in self._copies.items() if key not in former}

    def _send(self, content: bytes, step: int) -> tuple[int, int]:
        """Send this rank's content to the next rank of the ring. Return the key of what it receives. A collective."""
        splits = [0] * self.size
        splits[choose_ring_target(self.rank, self.size, self._host_ranks)] = len(content)
        received, counts = arrays.alltoall(numpy.frombuffer(content, numpy.uint8), splits, "elastic.step.copies")
        source = next(other for other, count in enumerate(counts) if count)
        self._copies[source, step] = received.tobytes()
        return source, step
