"""Checks with one small exchange that all ranks are about to submit the same requests, or finds where they differ.

Without the check, ranks that disagree about the number of requests would wait for each other, each for a name that the
other never submits.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Sequence

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.errors import MismatchError

_SHOWN = 20  # lines of one rank, in an error


def check_identical(
    lines: Sequence[str],
    *,
    name: str,
    subject: str,
    detail_name: str | None = None,
    process_set: ProcessSet | None = None,
) -> None:
    """Return when every rank has called it with the same lines. Collective, except for ranks that have joined.

    Args:
        name: of the request that compares digests, an allreduce of 65 numbers.
        subject: what the lines describe, for the error.
        detail_name: of the request that carries the lines when the digests differ.

    Raises:
        MismatchError: on all ranks, naming the first line in which a rank differs from the first; where a rank has
            joined, each names its own lines.
    """
    engine = context.engine(process_set)
    if engine.size == 1 or _are_all_alike(lines, name, process_set):
        return
    try:
        of_rank = allgather_object(list(lines), name=detail_name or f"{name}.detail", process_set=process_set)
    except MismatchError as error:  # a rank has joined, and cannot report its values
        shown = "; ".join([*lines[:_SHOWN], *(["..."] if len(lines) > _SHOWN else [])])
        raise MismatchError(
            f"The ranks disagree about {subject}, and can't compare the details. Rank {engine.global_rank} has: "
            f"{shown}. {error}"
        ) from error
    ours, first = of_rank[0], engine.ranks[0]
    rank, theirs = next((engine.ranks[at], theirs) for at, theirs in enumerate(of_rank) if theirs != ours)
    raise MismatchError(
        f"The ranks disagree about {subject}. {_describe_difference(ours, first, theirs, rank)} Make them alike on all "
        "ranks."
    )


def _are_all_alike(lines: Sequence[str], name: str, process_set: ProcessSet | None) -> bool:
    """Return whether all ranks that have not joined gave the same lines.

    By sums, in which a rank that has joined takes part with zeros: n numbers are all alike if the n-fold sum of
    their squares is the square of their sum (Cauchy and Schwarz).
    """
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).digest()
    numbers = (ctypes.c_int64 * (1 + 2 * len(digest)))(1, *digest, *(byte * byte for byte in digest))
    address = ctypes.addressof(numbers)
    tensor = collectives.Tensor(address, address, DType.INT64, (len(numbers),))
    collectives.run(
        Op.ALLREDUCE, name, [tensor], reduce_op=ReduceOp.SUM, process_set=process_set, keep=numbers, repeats=False
    )
    ranks, sums, squares = numbers[0], numbers[1 : 1 + len(digest)], numbers[1 + len(digest) :]
    return all(total * total == ranks * square for total, square in zip(sums, squares, strict=True))


def _describe_difference(ours: Sequence[str], first: int, theirs: Sequence[str], rank: int) -> str:
    totals = f"(In all, rank {first} has {len(ours)}, and rank {rank} has {len(theirs)}.)"
    for who, lines, others in ((first, ours, theirs), (rank, theirs, ours)):
        if len(lines) > len(others) and not Counter(others) - Counter(lines):
            extra = next(iter(Counter(lines) - Counter(others)))
            return f"Only rank {who} has: {extra}. {totals}"
    line, other_line = next(pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1])
    values = f"Rank {first} has: {line}. Rank {rank} has: {other_line}."
    return values if len(ours) == len(theirs) else f"{values} {totals}"
