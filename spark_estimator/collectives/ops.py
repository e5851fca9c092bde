"""Submits collectives by address: the one door from every framework binding to the engine."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from spark_estimator._native import Buffer, DType, Op, ReduceOp, Request
from spark_estimator.collectives import context
from spark_estimator.collectives.handle import Handle

__all__ = ["DType", "Handle", "Op", "ReduceOp", "Tensor", "auto_name", "barrier", "submit"]


class Tensor(NamedTuple):
    """Contiguous memory that takes part in a collective.

    Attributes:
        input: address of the first element that this rank gives; may equal output; 0 when count is 0.
        output: address at which the result is put, `count` elements; 0 for an allgather, which makes its own memory.
        count: elements.
        shape: the tensor's dimensions, compared across ranks (an allgather's first may differ).
    """

    input: int
    output: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a tensor
    shape: tuple[int, ...]


def submit(
    op: Op,
    name: str,
    tensors: Sequence[Tensor],
    dtype: DType,
    *,
    reduce_op: ReduceOp = ReduceOp.SUM,
    root_rank: int = 0,
    process_set: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    keep: object = None,
) -> Handle:
    """Submits one collective and returns at once. It runs when every rank has submitted one of that name.

    Args:
        op: the kind.
        name: by which the ranks' requests meet; 1 to 4095 bytes of UTF-8. One request of a name may be in flight.
        tensors: one; for an allreduce also several (a bucket), reduced as if joined end to end; none for a barrier.
        dtype: of all elements.
        reduce_op: allreduce only.
        root_rank: broadcast only: whose input everyone's output becomes.
        process_set: 0, all ranks.
        prescale, postscale: allreduce only: factors before and after the reduction.
        keep: referenced until the collective is done; put the owners of the tensors' memory here.

    Raises:
        NotInitializedError: ``init()`` has not been called, or ``shutdown()`` has.
        DuplicateNameError: one of that name is still in flight on this rank.
        ValueError: an argument is malformed. Nothing was sent. What is well-formed but cannot be done (a root that is
            no rank, an average of bools) fails on all ranks alike, when it is waited for.
        HorovodInternalError: the job has failed or ended before.
    """
    engine = context.engine()
    encoded = name.encode()
    if b"\x00" in encoded:
        raise ValueError(f"a name must not hold a NUL character: {name!r}.")
    dims = tensors[0].shape if len(tensors) == 1 else tuple(tensor.count for tensor in tensors)
    request = Request(
        ctypes.sizeof(Request),
        encoded,
        op,
        dtype,
        reduce_op,
        root_rank,
        process_set,
        len(tensors),
        (Buffer * len(tensors))(*[Buffer(*tensor[:3]) for tensor in tensors]),
        len(dims),
        (ctypes.c_int64 * len(dims))(*dims),
        prescale,
        postscale,
    )
    return Handle(engine, engine.submit(request), name, op, keep)


def barrier() -> None:
    """Returns when every rank is in it. Raises as `submit` and ``Handle.wait`` do."""
    submit(Op.BARRIER, auto_name("barrier"), (), DType.UINT8).wait()


def auto_name(kind: str) -> str:
    """A name for a collective that the caller gave none: ``'allreduce.noname.3'``, counted per kind since ``init()``.

    Ranks that call in the same order get the same names.
    """
    return f"{kind}.noname.{context.next_number(kind)}"
