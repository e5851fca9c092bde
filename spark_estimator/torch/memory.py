"""Turns tensors into what the engine reads and writes: an address, a shape and an element type in host memory.

The *wire form* of a tensor holds its elements densely in the host's memory, in an order that is the same on all ranks.
It is the tensor itself where that is so already; else a copy, and the result is copied back. Tensors of other devices
(CUDA, MPS) are such a case: what is computed is right, at the price of two copies through the host.
"""

from __future__ import annotations

import torch

from spark_estimator._native import DType
from spark_estimator.collectives.ops import Tensor

ELEMENT_TYPES: dict[torch.dtype, DType] = {
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bool: DType.BOOL,
}


def element_type(dtype: torch.dtype) -> DType:
    """The engine's code of an element type. Raises ValueError for one that it does not know."""
    code = ELEMENT_TYPES.get(dtype)
    if code is None:
        known = ", ".join(str(known).removeprefix("torch.") for known in ELEMENT_TYPES)
        raise ValueError(f"Tensors of type {dtype} cannot be sent; supported are {known}.")
    return code


def wire_form(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor in host memory with the elements of `tensor`: itself, detached, where it is one already.

    Raises:
        ValueError: the tensor is sparse or of an unsupported element type.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"A torch.Tensor is needed, not {type(tensor).__name__} ({tensor!r}).")
    element_type(tensor.dtype)
    if tensor.layout is not torch.strided:
        raise ValueError(f"A dense tensor is needed, not one of layout {tensor.layout}; use tensor.to_dense().")
    return tensor.detach().to("cpu").contiguous()


def write_back(wire: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a result into the tensor that it belongs to, unless it is there already."""
    if wire.data_ptr() != tensor.data_ptr() or wire.device != tensor.device:
        tensor.detach().copy_(wire)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements share one place in memory, as in an expanded tensor: it cannot be written to."""
    return any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True))


def described(wire_input: torch.Tensor, wire_output: torch.Tensor | None = None) -> Tensor:
    """The addresses of a wire form; without `wire_output` the result goes where the input is."""
    source = wire_input.data_ptr()
    target = source if wire_output is None else wire_output.data_ptr()
    return Tensor(source, target, element_type(wire_input.dtype), tuple(wire_input.shape))
