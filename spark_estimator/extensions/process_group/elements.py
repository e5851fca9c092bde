"""Converts tensors and reductions of a process group for the engine: to flat rows of known element types.

Ranks compare numbers of elements, not shapes, as torch does: everything is sent flat. An operation that only moves
elements takes any element type; one that the engine does not know is sent as bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import torch
from torch.distributed import ReduceOp as TorchReduceOp

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.call import Tensor
from spark_estimator.torch.collectives.memory import (
    ELEMENT_TYPES,
    make_wire_tensor,
    to_wire_form,
    to_writable_wire_form,
    write_back,
)

_REDUCTIONS = {
    TorchReduceOp.SUM: ReduceOp.SUM,
    TorchReduceOp.AVG: ReduceOp.AVERAGE,
    TorchReduceOp.MIN: ReduceOp.MIN,
    TorchReduceOp.MAX: ReduceOp.MAX,
    TorchReduceOp.PRODUCT: ReduceOp.PRODUCT,
    TorchReduceOp.PREMUL_SUM: ReduceOp.SUM,
}
_BITWISE: dict[object, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    TorchReduceOp.BAND: torch.bitwise_and,
    TorchReduceOp.BOR: torch.bitwise_or,
    TorchReduceOp.BXOR: torch.bitwise_xor,
}
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


class ElementReduction(NamedTuple):
    """A reduction as the engine does it.

    Attributes:
        op: the engine's.
        prescale: what each rank's elements are multiplied by before.
        bitwise: instead of `op`: what joins two ranks' elements; the engine gathers then, and each rank joins.
    """

    op: ReduceOp
    prescale: float = 1.0
    bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


def convert_reduction(op: object) -> ElementReduction:
    """Return the engine's form of torch's reduction.

    Args:
        op: a ``ReduceOp``, one of its constants, or options that hold one.

    Raises:
        ValueError: this backend does not have the reduction.
    """
    op = getattr(op, "reduceOp", op)
    kind = getattr(op, "op", op)
    if kind in _BITWISE:
        return ElementReduction(ReduceOp.SUM, bitwise=_BITWISE[kind])
    if kind not in _REDUCTIONS:
        raise ValueError(f"{kind!r} is not supported by this backend: use SUM, AVG, MIN, MAX, PRODUCT, PREMUL_SUM.")
    if kind != TorchReduceOp.PREMUL_SUM:
        return ElementReduction(_REDUCTIONS[kind])
    factor: Any = None
    with suppress(RuntimeError, TypeError):  # the constant, which has none
        factor = cast("Any", op).__getstate__()[1]  # PyTorch 2.7 has no op.factor
    if isinstance(factor, torch.Tensor):
        factor = factor.item() if factor.numel() == 1 else None
    if factor is None:
        raise ValueError("PREMUL_SUM takes one factor for all elements: torch.distributed.ReduceOp.PREMUL_SUM(0.5).")
    return ElementReduction(ReduceOp.SUM, float(factor))


def check_same_type(tensors: Sequence[torch.Tensor], operation: str) -> torch.dtype:
    """Return the element type of all tensors. Raise ValueError if they have several."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        raise ValueError(f"{operation} takes tensors of one element type, not of {sorted(map(str, kinds))}.")
    return kinds.pop()


def flatten(tensor: torch.Tensor, operation: str, *, moved: bool = False) -> torch.Tensor:
    """Return [elements] of a tensor as the engine reads them: its own memory where that is dense.

    Args:
        tensor: dense, of any device.
        operation: its name, for messages.
        moved: the operation only moves elements: those of an unknown type become their bytes.

    Raises:
        ValueError: the tensor is sparse, without data, or of a type that cannot be sent.
    """
    return to_wire_form(_convert_type(tensor, moved), operation).view(-1)


def flatten_all(tensors: Sequence[torch.Tensor], operation: str, *, moved: bool = False) -> torch.Tensor:
    """Return several tensors one after another, as `flatten` returns each."""
    wires = [flatten(tensor, operation, moved=moved) for tensor in tensors]
    return wires[0] if len(wires) == 1 else torch.cat(wires)


def flatten_writable(tensor: torch.Tensor, operation: str, *, moved: bool = False) -> torch.Tensor:
    """Return what `flatten` does, for a tensor that receives a result; `put` writes it there.

    Raises:
        ValueError: as `flatten`, or elements of the tensor share memory.
    """
    return to_writable_wire_form(_convert_type(tensor, moved), operation).view(-1)


def _convert_type(tensor: torch.Tensor, moved: bool) -> torch.Tensor:
    """Return a tensor with the same elements, of a type that the engine knows if possible."""
    if tensor.dtype in ELEMENT_TYPES or tensor.layout is not torch.strided:
        return tensor
    if tensor.is_quantized:  # elements alone, without their scale and zero point, would be other numbers elsewhere
        raise ValueError(f"Quantized tensors ({tensor.dtype}) cannot be sent; send tensor.int_repr() or dequantize().")
    if tensor.dtype in _COMPLEX:
        return torch.view_as_real(tensor.detach().resolve_conj())
    return tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8) if moved else tensor


def has_overlap(wires: Sequence[torch.Tensor]) -> bool:
    """Return whether some of these flat tensors share memory."""
    if len(wires) < 2:
        return False
    spans = sorted((wire.data_ptr(), wire.data_ptr() + wire.nbytes) for wire in wires if wire.numel())
    return any(end > start for (_, end), (start, _) in itertools.pairwise(spans))


def put(wire: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Put a flat result into the tensor that it belongs to, unless it is there already; return the tensor.

    Raises:
        ValueError: it has another number of elements.
    """
    target = tensor.detach()
    if wire.dtype != target.dtype:
        wire = wire.view(target.dtype)
    if wire.numel() != target.numel():
        raise ValueError(f"{wire.numel()} elements came for a tensor of shape {tuple(tensor.shape)}.")
    if wire.numel():
        write_back(wire.view(target.shape), target)
    return tensor


def view_received(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return the bytes that the engine gathered, as a flat tensor over the same memory."""
    return torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)


def describe_input(wire: torch.Tensor) -> Tensor:
    """Return a flat tensor's description for an operation whose result is in memory of the engine."""
    return make_wire_tensor(wire)._replace(output=0)


def distribute(operation: str, elements: torch.Tensor, rows: Sequence[int], outputs: Sequence[torch.Tensor]) -> None:
    """Write each rank's part into its target, or all parts into the single target.

    Args:
        operation: its name, for messages.
        elements: flat, in rank order.
        rows: [size], how many of them each rank gave.
        outputs: [size], or one, or none where nothing is to be put.

    Raises:
        ValueError: a rank gave another number than its place takes.
    """
    if len(outputs) == 1:
        put(elements, outputs[0])
        return
    for rank, (part, output) in enumerate(zip(elements.split(list(rows)), outputs, strict=False)):
        try:
            put(part, output)
        except ValueError as error:
            raise ValueError(f"{operation}: from rank {rank} of the group {error}") from None


def split_rows(tensor: torch.Tensor, splits: Sequence[int], size: int, which: str) -> list[torch.Tensor]:
    """Divide a tensor along its first dimension into one part for each rank.

    Args:
        tensor: as the caller gave it.
        splits: rows for each rank; empty: equal shares.
        size: number of ranks.
        which: ``'output'`` or ``'input'``, for messages.

    Raises:
        ValueError: it cannot be cut so.
    """
    length = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if tensor.dim() == 0 or length % size:
            raise ValueError(
                f"all_to_all_single: the {which}'s {length} rows cannot be divided into {size} equal parts."
            )
        splits = [length // size] * size
    if len(splits) != size or sum(splits) != length or min(splits) < 0:
        raise ValueError(
            f"all_to_all_single: {which}_split_sizes={list(splits)} for {length} rows and {size} ranks: there must be "
            "one for each rank, and they must add up to the rows."
        )
    return list(tensor.split(list(splits)))


def check_one_each(operation: str, tensors: Sequence[Any], size: int) -> list[Any]:
    """Return the tensors if there is one for each of `size` ranks. Raise ValueError otherwise."""
    if len(tensors) != size:
        raise ValueError(f"{operation}: {len(tensors)} tensors were given for the {size} ranks of the group.")
    return list(tensors)


def to_list(tensors: Sequence[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
    """Return a list of tensors; torch's callers may pass a single tensor instead."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def to_lists(tensors: Sequence[Any]) -> list[list[torch.Tensor]]:
    """Return a list of lists; torch's callers may pass its single list instead."""
    return [list(tensors)] if tensors and isinstance(tensors[0], torch.Tensor) else [list(row) for row in tensors]


def get_only(tensors: Sequence[torch.Tensor] | torch.Tensor, operation: str) -> torch.Tensor:
    """Return the only tensor of a message. Raise ValueError if there are more."""
    tensors = to_list(tensors)
    if len(tensors) != 1:
        raise ValueError(f"{operation} takes one tensor at a time, not {len(tensors)}.")
    return tensors[0]
