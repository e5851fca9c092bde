"""Finds gradients that share memory with other gradients: while one is in flight, the other must not be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._compile import _disable_dynamo

from spark_estimator.torch.collectives.memory import find_overlapping, is_alone
from spark_estimator.torch.optimizer.slot import Slot


@_disable_dynamo  # which follows a compiled step into what runs at its graph's breaks
def note_gradients(
    slots: Sequence[Slot], other_params: Callable[[], Sequence[torch.Tensor]], first: int | None
) -> bool:
    """Note in each slot the gradient that its parameter has, usually none. Return whether one shares memory.

    None may be sent then before the pass has ended. New gradients of autograd are checked when they are sent.
    """
    present = []
    for slot in slots:
        gradient = slot.before = slot.param.grad
        if gradient is not None and gradient.layout is torch.strided:
            present.append(gradient)
    if not present or (len(present) == 1 and _is_new(slots, present[0], first)):
        return False
    keys = {id(slot.param) for slot in slots}
    others = [param.grad for param in other_params() if id(param) not in keys and param.grad is not None]
    overlaps = find_overlapping([*present, *(gradient for gradient in others if gradient.layout is torch.strided)])
    for slot in slots:
        slot.overlapped = id(slot.before) in overlaps
        gradient = slot.before
        if id(slot.param) != first or gradient is None or gradient.layout is not torch.strided:
            continue
        if not slot.overlapped and not is_alone(gradient):
            # It may be new. It is not where it is in the storage of an old one, as parts of one array are.
            storage = gradient.untyped_storage().data_ptr()
            if all(old is gradient or old.untyped_storage().data_ptr() != storage for old in present):
                slot.before = None
    return any(slot.overlapped for slot in slots)


def _is_new(slots: Sequence[Slot], gradient: torch.Tensor, first: int | None) -> bool:
    """Return whether a gradient is the one that the pass has just made, alone, as in nearly every pass."""
    param = next((slot.param for slot in slots if id(slot.param) == first), None)
    # Memory that PyTorch has not allocated, as an array's, cannot be resized.
    return (
        param is not None and param.grad is gradient and is_alone(gradient) and gradient.untyped_storage().resizable()
    )
