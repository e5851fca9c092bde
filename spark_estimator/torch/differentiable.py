"""The blocking collectives that return a new tensor; autograd can differentiate through them.

The gradient of a collective is a collective, so that all ranks must call backward, too. It meets under the name of the
forward operation with ``.gradient`` after it, in whatever order the ranks get there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.torch import ops
from spark_estimator.torch.compression import Compression


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks into a new one of the same shape, type and device, with the same bits everywhere.

    Args:
        tensor: of the same shape and type on all ranks; any strides, 0 elements and 0 dimensions included.
        average: deprecated; True is ``op=Average``, False ``op=Sum``.
        name: by which the ranks' calls find each other; None: by the order of the calls.
        compression: what to send in place of the tensor; see `Compression`.
        op: `Average` (when None), `Sum`, `Min`, `Max` or `Product`. Averages of integers are truncated.
        prescale_factor: multiplied before the reduction; integers are truncated after it.
        postscale_factor: multiplied after the reduction; integers are truncated after it.

    The gradient is the same operation on the incoming gradient.

    Raises:
        ValueError: `average` and `op` are both given, or the tensor is sparse or of an unsupported type.
        HorovodInternalError: the ranks disagree about the operation, or a rank is lost.
    """
    operation = ops.reduce_op(average, op)
    compressed, ctx = compression.compress(tensor)
    gradient_name = _gradient_name("allreduce", name)
    if compressed.requires_grad and torch.is_grad_enabled():
        arguments = (operation, prescale_factor, postscale_factor)
        reduced = _Allreduce.apply(compressed, name, gradient_name, *arguments)
    else:
        reduced = ops.reduced(compressed, name, operation, prescale_factor, postscale_factor)
    restored: torch.Tensor = compression.decompress(reduced, ctx)
    return restored


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Joins all ranks' tensors along their first dimension, in rank order, into a new tensor on every rank.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        name: by which the ranks' calls find each other; None: by the order of the calls.

    The gradient is this rank's slice of the average of all ranks' gradients.

    Raises:
        IndexError: the tensor has no dimension to join along.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension, or a rank is lost.
    """
    gradient_name = _gradient_name("allgather", name)
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = _Allgather.apply(tensor, name, gradient_name)
        return result
    return ops.waited(ops.allgather_async(tensor, name))


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Copies the root's tensor into a new one on every rank.

    Args:
        tensor: of the same shape and type on all ranks.
        root_rank: whose values are wanted.
        name: by which the ranks' calls find each other; None: by the order of the calls.

    The gradient is the average of all ranks' gradients at the root, and zero elsewhere.

    Raises:
        ValueError: there is no such rank.
        HorovodInternalError: the ranks disagree about the operation, or a rank is lost.
    """
    gradient_name = _gradient_name("broadcast", name)
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, gradient_name)
        return result
    return ops.waited(ops.broadcast_async(tensor, root_rank, name))


def _gradient_name(kind: str, name: str | None) -> str:
    """The gradient's name; asked for in every call, also in those that need no gradient, so that all ranks count alike.

    Gradients have names where the operation has none, because autograd may come to them in another order on each rank.
    """
    if name is None:
        name = f"noname.{collectives.unnamed_number(kind)}"
    return f"{name}.gradient"


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        gradient_name: str,
        operation: ReduceOp,
        prescale: float,
        postscale: float,
    ) -> torch.Tensor:
        ctx.arguments = (gradient_name, operation, prescale, postscale)
        return ops.reduced(tensor, name, operation, prescale, postscale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        name, operation, prescale, postscale = ctx.arguments
        if operation not in (ops.Average, ops.Sum):
            raise NotImplementedError(
                f"allreduce with {operation.name.title()} has no gradient here; use Average or Sum."
            )
        return ops.reduced(gradient, name, operation, prescale, postscale), None, None, None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, gradient_name: str) -> torch.Tensor:
        joined, rows = ops.allgather_with_rows(tensor, name)
        ctx.gradient_name = gradient_name
        ctx.start, ctx.length = sum(rows[: context.rank()]), rows[context.rank()]
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        averaged = ops.reduced(gradient, ctx.gradient_name, ops.Average)
        return averaged.narrow(0, ctx.start, ctx.length), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, gradient_name: str) -> torch.Tensor:
        ctx.root_rank = root_rank
        ctx.gradient_name = gradient_name
        return ops.waited(ops.broadcast_async(tensor, root_rank, name))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        averaged = ops.reduced(gradient, ctx.gradient_name, ops.Average)
        return (averaged if context.rank() == ctx.root_rank else torch.zeros_like(averaged)), None, None, None
