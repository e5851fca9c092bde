"""What all ranks agree on before a copy, by a message of some bytes. Collectives of a job of several ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from spark_estimator.checkpoint.schedule import read_clock
from spark_estimator.checkpoint.writer_link import WriterLink
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.layout import Layout
from spark_estimator.torch import allgather, allgather_object


class RankState(NamedTuple):
    """What a rank informs the others of."""

    is_busy: int  # its writer has work
    failed: int  # the last copy that its writer could not write; -1: none
    completed: int  # the last copy that its writer could write; -1: none
    clock: int  # in milliseconds
    structure: int  # the beginning of the digest of its state's structure; 0: not known yet
    stops: int  # it has an error that all ranks raise
    spent: int  # milliseconds of copies on standby
    date: int  # in seconds since 1970


def exchange_states(
    link: WriterLink, layout: Layout | None, spent: float, ranks: int, *, stops: bool = False
) -> list[RankState]:
    """Return the states of all ranks. Writers give up a copy that one of them could not write."""
    control = link.control
    structure = 0 if layout is None else int(layout.digest[:15], 16)
    present = control.is_busy, control.failed, control.completed, int(1000 * read_clock())
    mine = RankState(*present, structure, stops, int(spent), int(time.time()))
    rows = torch.tensor([mine], dtype=torch.int64, device="cpu")
    if ranks > 1:
        rows = allgather(rows, name="checkpoint.states")
    states = [RankState(*row) for row in rows.tolist()]
    failed = max(state.failed for state in states)
    if failed >= 0:
        link.give_up(failed)
    return states


def check_states(states: Sequence[RankState], layout: Layout | None, error: str) -> None:
    """Check that all ranks have a state of the same structure, and none an error.

    Args:
        error: why this rank has no state, or could not write.

    Raises:
        DataError: on all ranks.
    """
    stops = any(state.stops for state in states)
    if not stops and len({state.structure for state in states}) == 1:
        return
    mine = error, () if layout is None else layout.structure
    of_ranks = allgather_object(mine, name="checkpoint.problems") if len(states) > 1 else [mine]
    first = set(of_ranks[0][1])
    for rank, (text, structure) in enumerate(of_ranks):
        if text and states[rank].stops:
            raise DataError(text)
        more, less = sorted(set(structure) - first), sorted(first - set(structure))
        if (more or less) and not stops:
            raise DataError(
                f"the state of rank {rank} differs from rank 0's: it has {more[:1]} and lacks {less[:1]} (name, "
                "type, shape). Objects of which each rank has its own are given as local={...}."
            )
    raise DataError("a rank could not write its part of a checkpoint; see its log.")
