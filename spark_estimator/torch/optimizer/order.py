"""The order in which ranks exchange what belongs to their parameters, where they have the same ones in other orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from spark_estimator.collectives.objects import allgather_object
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.errors import MismatchError


def find_first_rank_order(names: Sequence[Hashable], *, name: str, process_set: ProcessSet | None) -> list[int] | None:
    """Return the positions of this rank's names in the order that the first rank has them in. Collective.

    None, on all ranks, if their orders are the same, or their names are not the same or not unique.
    """
    try:
        of_rank = allgather_object(list(names), name=name, process_set=process_set)
    except MismatchError:  # a rank has joined
        return None
    first, counted = of_rank[0], Counter(of_rank[0])
    if any(Counter(others) != counted for others in of_rank) or len(counted) < len(first):
        return None
    if all(others == first for others in of_rank):
        return None
    position_of = {text: position for position, text in enumerate(names)}
    return [position_of[text] for text in first]
