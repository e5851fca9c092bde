"""The asynchronous collectives on tensors: each returns a number, for `synchronize` to wait with.

Ranks' operations find each other by name; those without a name by their order, so that unnamed operations of one kind
must be called in the same order by all ranks. A tensor must not be written, and the result of an operation in place
must not be read, before `synchronize` has returned. Names, order of arguments and defaults are Horovod's.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.handle import Handle
from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch.memory import described, overlaps_itself, wire_form, write_back

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
#: Horovod's number for the adaptive sum. Asking for it is an error, as it is in a Horovod built without MPI.
Adasum = 2


class _Pending(NamedTuple):
    handle: Handle
    result: Callable[[], torch.Tensor]


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)


def synchronize(handle: int) -> torch.Tensor | None:
    """Waits for an asynchronous operation.

    Args:
        handle: what the operation returned.

    Returns:
        Its result; None when the handle is unknown or was used before.

    Raises:
        HorovodInternalError: the operation failed: the ranks disagree about it, or one of them is lost.
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    try:
        pending.handle.wait()
    except HorovodInternalError:
        _pending.pop(handle, None)
        raise
    # Popped only now: a wait that Ctrl-C has ended may be taken up again.
    _pending.pop(handle, None)
    return pending.result()


def poll(handle: int) -> bool:
    """Whether `synchronize(handle)` would return at once; True also for a handle that is unknown or used."""
    pending = _pending.get(handle)
    return pending is None or pending.handle.done()


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces a tensor over all ranks into a new one; see `allreduce` for the arguments. Returns a handle."""
    operation = reduce_op(average, op)
    source = wire_form(tensor)
    output = torch.empty_like(source)
    handle = _allreduce(source, output, name, operation, prescale_factor, postscale_factor)
    return _registered(handle, lambda: output.to(tensor.device))


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces a tensor over all ranks in place; see `allreduce` for the arguments. Returns a handle."""
    operation = reduce_op(average, op)
    wire = _writable_wire_form(tensor)
    handle = _allreduce(wire, wire, name, operation, prescale_factor, postscale_factor)
    return _registered(handle, lambda: _written_back(wire, tensor))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks in place and returns it; see `allreduce`. Not differentiable."""
    operation = reduce_op(average, op)
    wire = _writable_wire_form(tensor)
    _allreduce_now(wire, wire, name, operation, prescale_factor, postscale_factor)
    return _written_back(wire, tensor)


def reduced(
    tensor: torch.Tensor, name: str | None, operation: ReduceOp, prescale: float = 1.0, postscale: float = 1.0
) -> torch.Tensor:
    """The blocking allreduce into a new tensor, without a gradient."""
    source = wire_form(tensor)
    output = torch.empty_like(source)
    _allreduce_now(source, output, name, operation, prescale, postscale)
    return output.to(tensor.device)


def allgather_async(tensor: torch.Tensor, name: str | None = None) -> int:
    """Joins all ranks' tensors along their first dimension, in rank order; see `allgather`. Returns a handle.

    Raises:
        IndexError: the tensor has no dimension to join along.
    """
    handle = _allgather(tensor, name)
    return _registered(handle, lambda: _joined(handle, tensor)[0])


def allgather_with_rows(tensor: torch.Tensor, name: str | None = None) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The blocking allgather, together with the number of rows that each rank gave."""
    handle = _allgather(tensor, name)
    handle.wait()
    return _joined(handle, tensor)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Copies the root's tensor into a new one on every rank; see `broadcast`. Returns a handle."""
    source = wire_form(tensor)
    output = torch.empty_like(source)
    return _broadcast(source, output, root_rank, name, lambda: output.to(tensor.device))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Copies the root's tensor into every rank's tensor; see `broadcast`. Returns a handle."""
    wire = _writable_wire_form(tensor)
    return _broadcast(wire, wire, root_rank, name, lambda: _written_back(wire, tensor))


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Copies the root's tensor into every rank's and returns that; see `broadcast`. Not differentiable."""
    return waited(broadcast_async_(tensor, root_rank, name))


def reduce_op(average: bool | None, op: int | None) -> ReduceOp:
    """The one operation that the old argument `average` and the newer `op` ask for together.

    Raises:
        ValueError: both are given, or `op` is none of the constants.
        HorovodInternalError: Adasum is asked for.
    """
    if average is not None:
        if op is not None:
            raise ValueError(f"Give either op ({op!r}) or the deprecated average ({average!r}), not both.")
        warnings.warn("average= is deprecated; use op=hvd.Average or op=hvd.Sum.", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op == Adasum:
        raise HorovodInternalError(
            "No Adasum operation enabled: op=hvd.Adasum is not offered; use hvd.Average or hvd.Sum."
        )
    try:
        return Average if op is None else ReduceOp(op)
    except ValueError:
        raise ValueError(f"op={op!r} is none of hvd.Average, hvd.Sum, hvd.Min, hvd.Max and hvd.Product.") from None


def request_name(kind: str, name: str | None) -> str:
    """The name under which the ranks' requests meet; one user name may serve several kinds at the same time.

    Args:
        kind: of the operation.
        name: None: what is returned is for ``unnamed=True``.
    """
    return collectives.kind_of_unnamed(kind) if name is None else f"{kind}.{name}"


def waited(handle: int) -> torch.Tensor:
    """`synchronize` for a handle that is known to be fresh."""
    tensor = synchronize(handle)
    assert tensor is not None
    return tensor


def _registered(handle: Handle, result: Callable[[], torch.Tensor]) -> int:
    number = next(_numbers)
    _pending[number] = _Pending(handle, result)
    return number


def _allreduce(
    source: torch.Tensor, output: torch.Tensor, name: str | None, operation: ReduceOp, prescale: float, postscale: float
) -> Handle:
    return collectives.submit(
        Op.ALLREDUCE,
        request_name("allreduce", name),
        [described(source, output)],
        reduce_op=operation,
        prescale=prescale,
        postscale=postscale,
        keep=(source, output),
        unnamed=name is None,
    )


def _allreduce_now(
    source: torch.Tensor, output: torch.Tensor, name: str | None, operation: ReduceOp, prescale: float, postscale: float
) -> None:
    """As `_allreduce`, and waits: in this thread, which is the shortest way."""
    collectives.run(
        Op.ALLREDUCE,
        request_name("allreduce", name),
        [described(source, output)],
        reduce_op=operation,
        prescale=prescale,
        postscale=postscale,
        keep=(source, output),
        unnamed=name is None,
    )


def _allgather(tensor: torch.Tensor, name: str | None) -> Handle:
    source = wire_form(tensor)
    if source.dim() == 0:
        raise IndexError(
            "allgather joins tensors along dimension 0, and a 0-dimensional tensor has none: unsqueeze it."
        )
    rows = described(source)._replace(output=0)  # the engine makes the memory for the result
    return collectives.submit(Op.ALLGATHER, request_name("allgather", name), [rows], keep=source, unnamed=name is None)


def _joined(handle: Handle, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    gathered = handle.gathered()
    shape = (sum(gathered.rows), *tensor.shape[1:])
    if 0 in shape:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device), gathered.rows
    # The memory that the engine filled becomes the tensor's memory and lives as long as it does.
    return torch.frombuffer(gathered.data, dtype=tensor.dtype).view(shape).to(tensor.device), gathered.rows


def _broadcast(
    source: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None, result: Callable[[], torch.Tensor]
) -> int:
    if not 0 <= root_rank < context.size():
        raise ValueError(f"root_rank={root_rank!r} is none of the ranks 0 to {context.size() - 1}.")
    handle = collectives.submit(
        Op.BROADCAST,
        request_name("broadcast", name),
        [described(source, output)],
        root_rank=root_rank,
        keep=(source, output),
        unnamed=name is None,
    )
    return _registered(handle, result)


def _writable_wire_form(tensor: torch.Tensor) -> torch.Tensor:
    wire = wire_form(tensor)
    if overlaps_itself(tensor):
        raise ValueError(
            f"An operation in place needs a tensor whose elements do not share memory; this one has shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()}. Use tensor.contiguous()."
        )
    return wire


def _written_back(wire: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    write_back(wire, tensor)
    return tensor
