"""Lets all ranks find out, by one small exchange, whether they are about to do the same; if not, where they differ.

Without it, ranks that disagree about how many requests there will be wait for one another: each for a name that the
other never submits.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence

from spark_estimator._native import DType, Op
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.errors import MismatchError


def agree(lines: Sequence[str], *, name: str, subject: str, detail_name: str | None = None) -> None:
    """Returns when every rank has called it with the same lines. Collective.

    Args:
        lines: what this rank means to do, in words for people.
        name: of the request that carries the digest, 32 bytes a rank.
        subject: what the lines describe, for the error.
        detail_name: of the request that carries the lines when the digests differ.

    Raises:
        MismatchError: on all ranks, naming the first line in which a rank differs from rank 0.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    if len(set(_gathered(digest, name))) == 1:
        return
    of_rank = allgather_object(list(lines), name=detail_name or f"{name}.detail")
    rank, theirs = next((rank, theirs) for rank, theirs in enumerate(of_rank) if theirs != of_rank[0])
    raise MismatchError(f"The ranks disagree about {subject}. {_difference(of_rank[0], theirs, rank)}")


def _gathered(digest: bytes, name: str) -> list[bytes]:
    if context.size() == 1:
        return [digest]
    source = (ctypes.c_ubyte * len(digest)).from_buffer_copy(digest)
    described = collectives.Tensor(ctypes.addressof(source), 0, DType.UINT8, (1, len(digest)))
    handle = collectives.submit(Op.ALLGATHER, name, [described], keep=source)
    joined = bytes(handle.gathered().data)
    return [joined[start : start + len(digest)] for start in range(0, len(joined), len(digest))]


def _difference(first: Sequence[str], other: Sequence[str], rank: int) -> str:
    for ours, theirs in zip(first, other, strict=False):
        if ours != theirs:
            return f"Rank 0 has: {ours}. Rank {rank} has: {theirs}."
    longer, who = (first, 0) if len(first) > len(other) else (other, rank)
    extra = longer[min(len(first), len(other))]
    return f"Only rank {who} has: {extra}. (Rank 0 has {len(first)} such lines, rank {rank} {len(other)}.)"
