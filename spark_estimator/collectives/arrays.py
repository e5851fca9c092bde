"""Collectives on numpy arrays: for metrics, for tests, and for whoever has no framework."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.ops import Tensor, auto_name, submit

__all__ = ["ReduceOp", "allgather", "allreduce", "allreduce_into", "broadcast", "dtype_of"]

_DTYPES = {
    "uint8": DType.UINT8,
    "int8": DType.INT8,
    "int16": DType.INT16,
    "int32": DType.INT32,
    "int64": DType.INT64,
    "float16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,  # as the ml_dtypes package has it
    "float32": DType.FLOAT32,
    "float64": DType.FLOAT64,
    "bool": DType.BOOL,
}


def dtype_of(array: NDArray[Any]) -> DType:
    """The engine's code for an array's element type. Raises ValueError for a type that it does not have."""
    try:
        return _DTYPES[array.dtype.name]
    except KeyError:
        raise ValueError(f"arrays of {array.dtype} cannot be sent; these can: {', '.join(_DTYPES)}.") from None


def allreduce_into(
    output: NDArray[Any],
    array: NDArray[Any],
    op: ReduceOp,
    name: str,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Handle:
    """Submits the reduction of all ranks' `array` into `output` and returns at once.

    Args:
        output: C-contiguous, of the shape and type of `array`; may be `array` itself. Not to be touched until done.
        array: C-contiguous.
        op: the reduction.
        name: by which the ranks' calls meet.
        prescale, postscale: factors before and after it.
    """
    for which in (array, output):
        if not which.flags.c_contiguous:
            raise ValueError(f"allreduce {name!r} needs C-contiguous arrays.")
    if output.shape != array.shape or output.dtype != array.dtype or not output.flags.writeable:
        raise ValueError(f"allreduce {name!r} needs a writable output of shape {array.shape} and type {array.dtype}.")
    tensor = Tensor(array.ctypes.data, output.ctypes.data, array.size, array.shape)
    keep = (array, output)
    dtype = dtype_of(array)
    return submit(Op.ALLREDUCE, name, [tensor], dtype, reduce_op=op, prescale=prescale, postscale=postscale, keep=keep)


def allreduce(
    array: NDArray[Any],
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> NDArray[Any]:
    """All ranks' arrays reduced to one, on every rank: a new array of the same shape and type.

    Args:
        array: the same shape and type on all ranks.
        op: the reduction.
        name: by which the ranks' calls meet; None: the n-th call without a name meets the others' n-th.
        prescale, postscale: factors before and after it.
    """
    source = numpy.ascontiguousarray(array).reshape(array.shape)
    output = numpy.empty_like(source)
    name = auto_name("allreduce") if name is None else name
    allreduce_into(output, source, op, name, prescale=prescale, postscale=postscale).wait()
    return output


def allgather(array: NDArray[Any], name: str | None = None) -> NDArray[Any]:
    """All ranks' arrays joined along the first dimension, in rank order, on every rank.

    Args:
        array: at least one dimension; all but the first must be alike on all ranks.
        name: as in `allreduce`.
    """
    if array.ndim == 0:
        raise ValueError("allgather needs at least one dimension to join along; this array has none.")
    source = numpy.ascontiguousarray(array)
    name = auto_name("allgather") if name is None else name
    tensor = Tensor(source.ctypes.data, 0, source.size, source.shape)
    data, rows = submit(Op.ALLGATHER, name, [tensor], dtype_of(source), keep=source).gathered()
    return numpy.frombuffer(data, source.dtype).reshape(sum(rows), *source.shape[1:])


def broadcast(array: NDArray[Any], root_rank: int = 0, name: str | None = None) -> NDArray[Any]:
    """The root's array, on every rank: a new array.

    Args:
        array: the same shape and type on all ranks; the values of the root count.
        root_rank: whose.
        name: as in `allreduce`.
    """
    output = numpy.array(array, order="C", copy=True)
    name = auto_name("broadcast") if name is None else name
    tensor = Tensor(output.ctypes.data, output.ctypes.data, output.size, output.shape)
    submit(Op.BROADCAST, name, [tensor], dtype_of(output), root_rank=root_rank, keep=output).wait()
    return output
