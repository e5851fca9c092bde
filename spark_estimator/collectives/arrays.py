"""Collectives on numpy arrays: for metrics, for tests, and for programs without a framework."""

from __future__ import annotations

import ctypes
import math
import operator
import reprlib
import weakref
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import DTypeLike, NDArray

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.compression import int8
from spark_estimator.collectives.handle import Gathered, Handle
from spark_estimator.collectives.ops import Tensor, barrier, join, kind_of_unnamed, run, submit
from spark_estimator.collectives.process_set import ProcessSet

__all__ = [
    "ReduceOp",
    "allgather",
    "allreduce",
    "allreduce_into",
    "alltoall",
    "barrier",
    "broadcast",
    "dtype_of",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "shared_empty",
]

Array = NDArray[Any]

_addressof = ctypes.addressof
_from_buffer = ctypes.c_char.from_buffer

#: The alignment in bytes that TensorFlow and JAX require: they share such an array, and copy others.
_ALIGNMENT = 64
_WORTH_ALIGNING = 4096

_NAMES = {
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
    "uint16": DType.UINT16,
}
_codes: dict[
    numpy.dtype[Any], DType
] = {}  # found once: asking a dtype for its name takes longer than a small collective


def dtype_of(array: Array) -> DType:
    """Return the engine's code for an array's element type. Raises ValueError for a type that it does not have."""
    code = _codes.get(array.dtype)
    if code is None:
        if array.dtype.name not in _NAMES or not array.dtype.isnative:
            raise ValueError(f"arrays of {array.dtype} aren't supported; the supported types are {', '.join(_NAMES)}.")
        code = _codes[array.dtype] = _NAMES[array.dtype.name]
    return code


def allreduce_into(
    output: Array,
    array: Array,
    op: ReduceOp,
    name: str,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Submit the reduction of all ranks' `array` into `output` and return at once.

    Args:
        output: C-contiguous, of the shape and type of `array`; may be `array` itself. Not to be touched until done.
        array: C-contiguous.
        op: the reduction.
        name: matches the ranks' calls.
        prescale, postscale: factors before and after it.
        process_set: whose ranks take part; None: all.

    Raises:
        TypeError: one of the arrays is none.
        ValueError: they cannot be used as they are.
    """
    for argument, which in (("output", output), ("array", array)):
        if not isinstance(which, numpy.ndarray):
            raise TypeError(
                f"allreduce {name!r}: {argument} must be a numpy array, whose memory is used as it is, not "
                f"{reprlib.repr(which)} ({type(which).__name__})."
            )
        if not which.flags.c_contiguous:
            raise ValueError(
                f"allreduce {name!r}: {argument} must be C-contiguous; this one has shape {which.shape} and strides "
                f"{which.strides}. Use numpy.ascontiguousarray."
            )
    if output.shape != array.shape or output.dtype != array.dtype or not output.flags.writeable:
        raise ValueError(
            f"allreduce {name!r} needs a writable output of shape {array.shape} and type {array.dtype}; this "
            f"one has shape {output.shape} and type {output.dtype}{'' if output.flags.writeable else ', read-only'}."
        )
    return submit(
        Op.ALLREDUCE,
        name,
        [_make_tensor(array, output)],
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        keep=(array, output),
    )


def allreduce(
    array: Array,
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Array:
    """Return all ranks' arrays reduced to one, on every rank: a new array of the same shape and type.

    Args:
        array: the same shape and type on all ranks.
        op: the reduction. Adasum needs a floating-point type and a power of two of ranks.
        name: matches the ranks' calls; None: a rank's n-th call without a name matches the others' n-th.
        prescale, postscale: factors before and after it.
        process_set: whose ranks take part; None: all.

    Raises:
        ValueError: the array cannot be sent, or this rank is not in the set. Nothing was sent.
        MismatchError: the ranks' arrays, ops or factors differ.
        HorovodInternalError: the collective failed otherwise; see ``Handle.wait``.
    """
    source = _make_contiguous(array)
    output = _make_empty(source.shape, source.dtype)
    run(
        Op.ALLREDUCE,
        kind_of_unnamed("allreduce") if name is None else name,
        (_make_tensor(source, output),),
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        keep=(source, output),
        unnamed=name is None,
    )
    return output


def grouped_allreduce(
    arrays: Sequence[Array],
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet | None = None,
    residues: Sequence[object] = (),
) -> list[Array]:
    """Reduce several arrays in one request, as `allreduce` does: all of them, or none.

    Args:
        arrays: of any shapes and types; at least one, and as many on all ranks.
        residues: a key for each array: they are sent as int8 between hosts, and the rounding error is added to
            the arrays with these keys in the next call; see `int8`.
    """
    return _reduce("grouped_allreduce", arrays, op, name, prescale, postscale, process_set, residues)


def allgather(array: Array, name: str | None = None, *, process_set: ProcessSet | None = None) -> Array:
    """Join all ranks' arrays along the first dimension, in rank order, on every rank.

    Args:
        array: at least one dimension; all but the first must be alike on all ranks.
        name, process_set: as in `allreduce`.
    """
    return _gather("allgather", [array], name, process_set)[0]


def grouped_allgather(
    arrays: Sequence[Array], name: str | None = None, *, process_set: ProcessSet | None = None
) -> list[Array]:
    """Gather several arrays in one request, as `allgather` does: all of them, or none.

    Args:
        arrays: of any types; at least one, and as many on all ranks.
    """
    return _gather("grouped_allgather", arrays, name, process_set)


def broadcast(
    array: Array, root_rank: int = 0, name: str | None = None, *, process_set: ProcessSet | None = None
) -> Array:
    """Return the root's array on every rank, as a new array.

    Args:
        array: the same shape and type on all ranks; the values of the root count.
        root_rank: whose; its number in the job, also for a process set.
        name, process_set: as in `allreduce`.
    """
    output = numpy.array(array, order="C", copy=True)
    name, unnamed = _choose_name("broadcast", name)
    tensors = [_make_tensor(output, output)]
    run(Op.BROADCAST, name, tensors, root_rank=root_rank, process_set=process_set, keep=output, unnamed=unnamed)
    return output


def alltoall(
    array: Array, splits: Sequence[int] | None = None, name: str | None = None, *, process_set: ProcessSet | None = None
) -> tuple[Array, tuple[int, ...]]:
    """Send some rows of the array to each rank, and join what all ranks sent to this one, in rank order.

    Args:
        array: at least one dimension; all but the first must be alike on all ranks.
        splits: [size] how many rows each rank gets, the first to rank 0; None: equally many.
        name, process_set: as in `allreduce`.

    Returns:
        (rows, received): the rows that this rank got, and [size] how many of them each rank sent.
    """
    source = _prepare_source(array, "alltoall")
    size = context.engine(process_set).size
    rows = source.shape[0]
    if splits is None and rows % size:
        raise ValueError(f"alltoall: {rows} rows can't be divided equally among {size} ranks; pass splits.")
    checked_splits = None if splits is None else _check_splits(splits)
    if checked_splits is not None and (
        len(checked_splits) != size or min(checked_splits) < 0 or sum(checked_splits) != rows
    ):
        raise ValueError(
            f"alltoall: splits must be {size} numbers, 0 or more, with the sum {rows}; got {checked_splits}."
        )
    name, unnamed = _choose_name("alltoall", name)
    tensors = [_make_tensor(source, None)]
    handle = run(
        Op.ALLTOALL, name, tensors, splits=checked_splits, process_set=process_set, keep=source, unnamed=unnamed
    )
    assert handle is not None
    gathered = handle.gathered()
    return _join_rows(gathered, source), gathered.rows


def reducescatter(
    array: Array,
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Array:
    """Reduce all ranks' arrays to one. Each rank gets its share of the rows, rank 0 the first ones.

    Args:
        array: the same shape and type on all ranks, at least one dimension. Where the ranks cannot share the
            first equally, the lower ranks get one row more.
        op: Average or Sum.
        name, prescale, postscale, process_set: as in `allreduce`.
    """
    return _reduce("reducescatter", [array], op, name, prescale, postscale, process_set)[0]


def grouped_reducescatter(
    arrays: Sequence[Array],
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet | None = None,
) -> list[Array]:
    """Reduce and scatter several arrays in one request, as `reducescatter` does: all of them, or none.

    Args:
        arrays: of any types; at least one, and as many on all ranks.
    """
    return _reduce("grouped_reducescatter", arrays, op, name, prescale, postscale, process_set)


def shared_empty(
    shape: int | Sequence[int], dtype: DTypeLike = numpy.float32, *, process_set: ProcessSet | None = None
) -> Array:
    """Make a zeroed array in memory that all ranks of this host see: an allreduce of it in place copies nothing.

    It is in place when ``allreduce_into(array, array, ...)`` is called, and copies nothing when all ranks' arrays
    are in such memory. In all other ways it is an ordinary array, and lives as long as something refers to it. A
    rank that shares memory with no other rank gets private memory.

    Args:
        shape, dtype: of the array.
        process_set: for whose allreduces; None: those of all ranks.

    Raises:
        ValueError: the shape, or the type, is none.
        MemoryError: there is no more.
    """
    form = numpy.dtype(dtype)
    dimensions: Sequence[Any] = shape if isinstance(shape, (list, tuple)) else [shape]
    try:
        dims = tuple(operator.index(length) for length in dimensions)
    except TypeError:
        dims = (-1,)
    if any(length < 0 for length in dims):
        raise ValueError(f"shared_empty: shape={shape!r} must be whole numbers, 0 or more.")
    count = math.prod(dims) * form.itemsize
    if count == 0:
        return numpy.empty(dims, form)
    engine = context.engine(process_set)
    if not engine.read_counter("shared_memory"):
        return numpy.zeros(dims, form)
    address = engine.allocate_shared(count)
    memory = (ctypes.c_ubyte * count).from_address(address)
    # Not at exit: the process gives all memory back then. The engine lives as long as its memory is in use.
    weakref.finalize(memory, engine.free_shared, address).atexit = False
    array: Array = numpy.frombuffer(memoryview(memory).cast("B"), form).reshape(dims)
    return array


def _reduce(
    kind: str,
    arrays: Sequence[Array],
    op: ReduceOp,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet | None,
    residues: Sequence[object] = (),
) -> list[Array]:
    """Reduces arrays into new ones, of which this rank gets all rows, or in a reducescatter its share."""
    _check_group(kind, arrays)
    if kind.endswith("allreduce"):
        code = Op.ALLREDUCE
        sources = [_make_contiguous(array) for array in arrays]
        outputs = [_make_empty(source.shape, source.dtype) for source in sources]
    else:
        code = Op.REDUCESCATTER
        sources = [_prepare_source(array, kind) for array in arrays]
        engine = context.engine(process_set)
        rows = [divmod(source.shape[0], engine.size) for source in sources]
        shares = [even + (engine.rank < rest) for even, rest in rows]  # as ``se_rows_of`` has it
        outputs = [
            _make_empty((share, *source.shape[1:]), source.dtype) for share, source in zip(shares, sources, strict=True)
        ]
    name, unnamed = _choose_name(kind, name)
    tensors = [_make_tensor(source, output) for source, output in zip(sources, outputs, strict=True)]
    run(
        code,
        name,
        tensors,
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        keep=(sources, outputs),
        unnamed=unnamed,
        residues=int8.find_residues(process_set, residues, [tensor[2:] for tensor in tensors]) if residues else (),
    )
    return outputs


def _make_empty(shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Array:
    """Make a new, aligned array."""
    size = math.prod(shape) * dtype.itemsize
    if size < _WORTH_ALIGNING:
        return numpy.empty(shape, dtype)
    room = numpy.empty(size + _ALIGNMENT, numpy.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _gather(kind: str, arrays: Sequence[Array], name: str | None, process_set: ProcessSet | None) -> list[Array]:
    _check_group(kind, arrays)
    sources = [_prepare_source(array, kind) for array in arrays]
    name, unnamed = _choose_name(kind, name)
    tensors = [_make_tensor(source, None) for source in sources]
    handle = run(Op.ALLGATHER, name, tensors, process_set=process_set, keep=sources, unnamed=unnamed)
    assert handle is not None
    return [_join_rows(handle.gathered(number), source) for number, source in enumerate(sources)]


def _choose_name(kind: str, name: str | None) -> tuple[str, bool]:
    """Return the name of a request, or its kind; and whether it is a kind."""
    return (kind_of_unnamed(kind), True) if name is None else (name, False)


def _check_group(kind: str, arrays: object) -> None:
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"{kind} takes a list of arrays, not {reprlib.repr(arrays)} ({type(arrays).__name__}).")
    if not arrays:
        raise ValueError(f"{kind} needs at least one array.")


def _make_contiguous(array: Array) -> Array:
    if type(array) is numpy.ndarray and array.flags.c_contiguous:
        return array
    return numpy.ascontiguousarray(array).reshape(numpy.shape(array))


def _prepare_source(array: Array, kind: str) -> Array:
    source = _make_contiguous(array)
    if source.ndim == 0:
        raise ValueError(f"{kind} needs an array with at least one dimension.")
    return source


def _check_splits(splits: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(split) for split in splits)
    except TypeError:
        raise TypeError(f"alltoall: splits must be whole numbers, one for each rank, not {splits!r}.") from None


def _make_tensor(source: Array, output: Array | None) -> Tensor:
    target = 0 if output is None else _find_address(output)
    return Tensor(target if output is source else _find_address(source), target, dtype_of(source), source.shape)


def _find_address(array: Array) -> int:
    try:
        return _addressof(_from_buffer(array))  # type: ignore[arg-type]  # six times as fast as array.ctypes.data
    except (TypeError, ValueError, BufferError):  # read-only, without elements, or of a type that is not numpy's own
        return array.ctypes.data if array.size else 0


def _join_rows(gathered: Gathered, source: Array) -> Array:
    return numpy.frombuffer(gathered.data, source.dtype).reshape(sum(gathered.rows), *source.shape[1:])
