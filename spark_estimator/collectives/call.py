"""A collective call and its tensors, and the engine's request that is made of them."""

from __future__ import annotations

import ctypes
import itertools
import reprlib
from collections.abc import Sequence
from ctypes import c_int64
from typing import NamedTuple

from spark_estimator._native import DType, MemoryKind, Op, ReduceOp, Request, TensorStruct
from spark_estimator.collectives.engine import Engine

Form = tuple[DType, tuple[int, ...]]


class Tensor(NamedTuple):
    """Contiguous memory that takes part in a collective.

    Attributes:
        input: address of the first element that this rank gives; may equal output; 0 when there are no elements.
        output: address at which the result is put; 0 for an allgather or alltoall, which makes its own memory.
        dtype: of its elements.
        shape: its dimensions, compared across ranks (the first of an allgather or alltoall may differ).
    """

    input: int
    output: int
    dtype: DType
    shape: tuple[int, ...]


class Gpu(NamedTuple):
    """The GPU and the stream of a collective's tensors that are not in host memory.

    Attributes:
        device: the GPU, as this process counts them.
        stream: address of the CUDA stream on which they are written; 0 is CUDA's default stream.
    """

    device: int
    stream: int


class Call(NamedTuple):
    """All of a collective but its tensors.

    Attributes:
        op: the kind.
        name: matches the ranks' requests; 1 to 4095 bytes of UTF-8. One request of a name may be in flight. Without a
            name a kind, see `unnamed`.
        reduce_op: allreduce and reducescatter only.
        prescale, postscale: allreduce and reducescatter only: factors before and after the reduction.
        root_rank: broadcast only: whose input everyone's output becomes; its number in the group.
        splits: alltoall only: [size] rows for each rank; None: even shares.
        unnamed: the requests of this kind are matched by order: this rank's n-th and every other's. Any number may be
            in flight. The engine calls them ``<kind>.<n>``, counted from 0, and from 0 again when all have joined.
        device: index, in this process, of the GPU that holds the tensors; None: they are in host memory.
        residues: allreduce (sum, average) of host memory only: for each tensor the address of as many float32 elements,
            0 for a tensor that is sent unchanged. The others are float32, and may be sent as int8 between hosts. The
            rounding error is written there, and added to the next tensor that is submitted with this residue.
    """

    op: Op
    name: str
    reduce_op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root_rank: int = 0
    splits: tuple[int, ...] | None = None
    unnamed: bool = False
    device: int | None = None
    residues: tuple[int, ...] = ()


def make_native_request(engine: Engine, call: Call, tensors: Sequence[Tensor], stream: int = 0) -> Request:
    """Make the engine's form of a collective. It keeps what it points to, but for the tensors' memory.

    Raises:
        TypeError: an argument is of another type than it should be.
        ValueError: it is of the right type, and not possible.
    """
    try:
        return _convert(engine, call, tensors, stream)
    except (TypeError, ValueError, AttributeError, ctypes.ArgumentError) as error:
        # Asked only now: a call that is right should not pay for it.
        raise find_bad_argument(engine, call) or error from None


def find_bad_argument(engine: Engine, call: Call) -> TypeError | None:
    """Return the error of a call that could not be converted; None if its cause is unknown."""
    name: object = call.name
    if not isinstance(name, str):
        return TypeError(f"the name of a collective must be a string, not {reprlib.repr(name)}.")
    label = f"{call.op.name.lower()} on rank {engine.global_rank}" + ("" if call.unnamed else f" (name {name!r})")
    reduce_op: object = call.reduce_op
    if not isinstance(reduce_op, int):
        choices = ", ".join(f"ReduceOp.{op.name}" for op in ReduceOp)
        return TypeError(f"{label}: op must be one of {choices}, not {reduce_op!r}.")
    for argument, value in (("prescale_factor", call.prescale), ("postscale_factor", call.postscale)):
        try:
            ctypes.c_double(value)
        except (TypeError, ValueError):  # a tensor of several numbers, for one
            return TypeError(f"{label}: {argument} must be a number, not {value!r}.")
    if call.splits is not None and not all(isinstance(split, int) for split in call.splits):
        return TypeError(f"{label}: splits must be whole numbers, one for each rank, not {call.splits!r}.")
    return None


def _encode_name(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a name must be text that UTF-8 can encode; {reprlib.repr(name)} has {name[error.start]!r} at position "
            f"{error.start}, an unpaired surrogate."
        ) from None
    if b"\x00" in encoded:
        raise ValueError(f"a name must not contain a NUL character: {reprlib.repr(name)}.")
    return encoded


def _convert(engine: Engine, call: Call, tensors: Sequence[Tensor], stream: int) -> Request:
    name = _encode_name(call.name)
    if call.splits is not None and len(call.splits) != engine.size:
        raise ValueError(f"alltoall {call.name!r}: {len(call.splits)} splits, but its group has {engine.size} ranks.")
    dims = (c_int64 * sum(len(tensor.shape) for tensor in tensors))(
        *itertools.chain.from_iterable(tensor.shape for tensor in tensors)
    )
    structs = (TensorStruct * len(tensors))()
    at = ctypes.addressof(dims)
    for struct, (source, target, dtype, shape) in zip(structs, tensors, strict=True):
        struct.input, struct.output, struct.dtype = source, target, dtype
        struct.num_dims, struct.dims = len(shape), at
        at += len(shape) * ctypes.sizeof(c_int64)
    for struct, residue in zip(structs, call.residues, strict=bool(call.residues)):
        struct.residue = residue or None
    splits = None if call.splits is None else (c_int64 * len(call.splits))(*call.splits)
    request = Request(
        ctypes.sizeof(Request),
        name,
        call.op,
        call.reduce_op,
        call.root_rank,
        len(tensors),
        structs,
        splits,
        call.prescale,
        call.postscale,
        call.unnamed,
        *((MemoryKind.HOST, 0, None) if call.device is None else (MemoryKind.GPU, call.device, stream)),
    )
    request.dims = dims
    return request
