"""Shared by all framework bindings: the constants of reductions, and the name of a call."""

from __future__ import annotations

import warnings

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context, ops

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def describe_call(kind: str) -> str:
    """Return the beginning of an error's text: the operation that the user called, and its rank."""
    return f"{kind} on rank {context.rank()}" if context.is_initialized() else kind


def describe_op(op: object) -> str:
    """Return a reduction as users write it, such as ``hvd.Min``; anything else as Python shows it."""
    return f"hvd.{op.name.title()}" if isinstance(op, ReduceOp) else repr(op)


def make_request_name(kind: str, name: str | None) -> tuple[str, bool]:
    """Return the name that matches the ranks' requests, one for each kind, and whether it is that of unnamed ones.

    Raises TypeError: the name is not a string.
    """
    if name is None:
        return ops.kind_of_unnamed(kind), True
    if not isinstance(name, str):
        raise TypeError(f"{describe_call(kind)}: name must be a string, not {name!r}.")
    return f"{kind}.{name}", False


def check_adasum(op: ReduceOp, size: int, kind: str) -> None:
    """Refuse what Adasum cannot do, as Horovod does. Raises NotImplementedError: `size` is no power of two."""
    if op is ReduceOp.ADASUM and size & (size - 1):
        raise NotImplementedError(
            f"{describe_call(kind)}: op=hvd.Adasum needs a power of two of ranks, but there are {size}; use "
            "hvd.Average."
        )


def reduce_op(average: bool | None, op: int | None, stacklevel: int = 3) -> ReduceOp:
    """Return the one operation that the old argument `average` and the newer `op` ask for together.

    Args:
        average: True is Average, False is Sum; warns that it is deprecated.
        op: one of the constants; None is Average.
        stacklevel: of the warning; by default that of the caller's caller.

    Raises:
        ValueError: both are set, `average` is not a truth value, or `op` is none of the constants.
    """
    if average is not None:
        if op is not None:
            raise ValueError(f"Pass either op={describe_op(op)} or the deprecated average={average!r}, not both.")
        # A reduction or a name, passed in this position, would count as True.
        operation: object = average
        if isinstance(operation, (str, ReduceOp)) or operation not in (True, False):
            raise ValueError(f"average={average!r} must be True or False; for others use op= (hvd.Sum, ...) and name=.")
        text = "average= is deprecated; use op=hvd.Average or op=hvd.Sum."
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
        return Average if average else Sum
    try:
        return Average if op is None else ReduceOp(op)
    except ValueError:
        raise ValueError(
            f"op={op!r} must be hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum."
        ) from None
