"""Turns tensors into what the engine reads and writes: an address, a shape and an element type.

The *wire form* of a tensor holds its elements densely, in an order that is the same on all ranks, in the memory where
the engine is to work: the host's, or that of the tensor's GPU (see ``device``). If the tensor already has this form, it
is the tensor itself; else a copy, and the result is copied back. Tensors of devices that the engine does not know (MPS)
are such a case: results are right, but cost two copies through the host.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable

import torch
from torch.autograd import forward_ad
from torch.nn.parameter import is_lazy

from spark_estimator._native import DType
from spark_estimator.collectives.ops import Tensor
from spark_estimator.collectives.reductions import describe_call as describe_call
from spark_estimator.torch.collectives.device import HOST

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


def find_element_type(dtype: torch.dtype) -> DType:
    """Return the engine's code of an element type. Raises ValueError for one that it does not know."""
    code = ELEMENT_TYPES.get(dtype)
    if code is None:
        supported = ", ".join(str(known_type).removeprefix("torch.") for known_type in ELEMENT_TYPES)
        raise ValueError(f"Tensors of type {dtype} cannot be sent; supported types: {supported}.")
    return code


def check_tensor(tensor: object, kind: str) -> torch.Tensor:
    """Return `tensor`, checked for the operation `kind`. Raises ValueError if it is not a tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(
            f"{describe_call(kind)}: a torch.Tensor is needed, not {type(tensor).__name__} ({reprlib.repr(tensor)}); "
            "torch.as_tensor() makes one of numbers and arrays."
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise ValueError(
            f"{describe_call(kind)}: collectives do not support tensors inside torch.func.grad, vmap, jvp and similar "
            "transforms. Transform this rank's own computation and call the collective on the result, or use "
            "backward() or torch.autograd.grad()."
        )
    # A dual level is open, which is rare.
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        raise ValueError(
            f"{describe_call(kind)}: this tensor carries a forward-mode tangent, which the collective would drop. Call "
            "the collective on both parts of torch.autograd.forward_ad.unpack_dual(tensor), and make_dual() of the "
            "results."
        )
    return tensor


def to_wire_form(tensor: object, kind: str, device: torch.device = HOST) -> torch.Tensor:
    """Return a contiguous tensor on `device` with the elements of `tensor`: itself, detached, if possible.

    Raises ValueError: it is no tensor, or one without data, sparse, nested or of an unsupported element type.
    """
    checked = check_tensor(tensor, kind)
    try:
        find_element_type(checked.dtype)
    except ValueError as error:
        raise ValueError(f"{describe_call(kind)}: {error}") from None
    if checked.layout is not torch.strided or checked.is_nested:
        layout = "nested" if checked.is_nested else checked.layout
        raise ValueError(
            f"{describe_call(kind)}: a dense tensor is needed, not one of layout {layout}; use tensor.to_dense()."
        )
    wire = checked.detach()
    if not (wire.is_cpu and device is HOST):
        if wire.is_meta:
            raise ValueError(
                f"{describe_call(kind)}: a tensor of shape {tuple(wire.shape)} on device 'meta' has no values to send; "
                "materialize its module first, for example with module.to_empty(device='cpu')."
            )
        wire = wire.to(device)
    # A lazily negated view (of a conjugate's imaginary part) has other bits in memory than its values.
    return wire.resolve_neg().contiguous()


def check_parameter(name: str, tensor: torch.Tensor, kind: str) -> None:
    """Raise ValueError for a parameter, or buffer, whose values or gradients the operation `kind` could not send."""
    if is_lazy(tensor):
        problem = "has no shape yet, as its module is lazy: run one forward pass of the model first"
    elif tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        problem = f"is of layout {layout}, and dense tensors can be sent: use a dense one, or leave it out"
    elif tensor.is_meta:
        problem = (
            f"of shape {tuple(tensor.shape)} is on device 'meta' and holds no values: move its module to memory first, "
            "for example by module.to_empty(device='cpu')"
        )
    elif tensor.is_complex():
        problem = (
            f"is of type {tensor.dtype}, which cannot be sent: keep it as real numbers, torch.view_as_real(...), and "
            "use torch.view_as_complex(...) where the model computes with it"
        )
    elif tensor.dtype not in ELEMENT_TYPES:
        supported = ", ".join(str(known_type).removeprefix("torch.") for known_type in ELEMENT_TYPES)
        problem = f"is of type {tensor.dtype}, which cannot be sent: convert it to one of {supported}, or leave it out"
    else:
        return
    raise ValueError(f"{describe_call(kind)}: {reprlib.repr(name)} {problem}.")


def to_writable_wire_form(tensor: object, kind: str, device: torch.device = HOST) -> torch.Tensor:
    """Return the wire form of a tensor into which the result can be written back. Raises ValueError where it cannot."""
    wire = to_wire_form(tensor, kind, device)
    assert isinstance(tensor, torch.Tensor)
    if not tensor.is_contiguous() and overlaps_itself(tensor):
        raise ValueError(
            f"{describe_call(kind)}: an in-place operation needs a tensor whose elements do not share memory; this one "
            f"has shape {tuple(tensor.shape)} and strides {tensor.stride()}. Use tensor.contiguous()."
        )
    return wire


def write_back(wire: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Copy a result into the tensor that it belongs to, unless it is there already. Return that tensor."""
    if wire.data_ptr() != tensor.data_ptr() or wire.device != tensor.device:
        tensor.detach().copy_(wire)
    return tensor


def is_alone(tensor: torch.Tensor) -> bool:
    """Return whether no other tensor shares memory with a dense one, as far as PyTorch itself knows.

    A gradient may share its memory with another gradient, or with a tensor that autograd will still read: for
    parameters that are joined by a view, ``cat`` or ``+``, autograd returns views of one tensor. The very same
    tensor as the gradient of two parameters is alone, and so are two tensors that were made of one array:
    `find_overlapping` knows of these.
    """
    return references(storage_of(tensor)) <= ALONE


#: The address of a dense tensor's storage object. Without an object of Python's for the storage it takes a third of the
#: time.
storage_of: Callable[[torch.Tensor], int] = getattr(
    torch._C, "_storage_address", lambda tensor: tensor.untyped_storage()._cdata
)
# How many tensors refer to a storage. Some older builds for CPUs do not report it: there no gradient counts as alone.
references: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda storage: 1)
_lone_tensor = torch.empty(1)
#: What `references` gives for a storage that one tensor has.
ALONE = references(storage_of(_lone_tensor)) if hasattr(torch._C, "_storage_Use_Count") else 0


def find_overlapping(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the ids of dense tensors that share memory with another, or are listed twice, gaps included."""
    ranges = []
    for tensor in tensors:
        if tensor.numel():
            start, length = tensor.data_ptr(), tensor.nbytes
            if not tensor.is_contiguous():
                last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
                length = (last + 1) * tensor.itemsize
            ranges.append((start, start + length, id(tensor)))
    ranges.sort()
    overlaps: set[int] = set()
    furthest, end_of_all = 0, 0  # of all before: the one with the largest end address, and that address
    for start, end, number in ranges:
        if start < end_of_all:
            overlaps.update((furthest, number))
        if end > end_of_all:
            furthest, end_of_all = number, end
    return overlaps


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether several elements share one address, as in an expanded tensor: it cannot be written to."""
    return any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True))


def make_wire_tensor(wire_input: torch.Tensor, wire_output: torch.Tensor | None = None) -> Tensor:
    """Make the engine's form of a wire form; without `wire_output` the result replaces the input."""
    source = wire_input.data_ptr()
    target = source if wire_output is None else wire_output.data_ptr()
    return Tensor(source, target, find_element_type(wire_input.dtype), tuple(wire_input.shape))
