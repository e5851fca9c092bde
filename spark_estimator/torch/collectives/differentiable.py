"""The blocking collectives that return a new tensor; autograd can differentiate through them.

The gradient of a collective is a collective, so that all ranks must call backward, too. It is matched by a name that is
made from that of the forward operation, in any order of the ranks. Gradients follow Horovod's rules: those of allgather
and broadcast are averages over the ranks, those of allreduce and alltoall sums, as the operation has them, and that of
reducescatter is such that a reducescatter followed by an allgather has the gradient of an allreduce.

The autograd functions bear Horovod's names and take their arguments in its order; scripts call their ``apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.torch.collectives.collective import (
    make_allgather,
    make_allreduce,
    make_alltoall,
    make_broadcast,
    make_reducescatter,
)
from spark_estimator.torch.collectives.compressors import NoneCompressor, checked_compressor
from spark_estimator.torch.collectives.memory import check_tensor
from spark_estimator.torch.collectives.reductions import Adasum, Average, Sum, reduce_op

# From the gradients of an operation's results to those of its inputs.
Derivative = Callable[..., "tuple[torch.Tensor, ...]"]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks into a new one of the same shape, type and device, with the same bits everywhere.

    Args:
        tensor: of the same shape and type on all ranks; any strides, 0 elements and 0 dimensions included.
        average: deprecated; True is ``op=Average``, False ``op=Sum``.
        name: by which the ranks' calls find each other; None: by the order of the calls.
        compression: what to send in place of the tensor; see `Compression`.
        op: `Average` (when None), `Sum`, `Min`, `Max`, `Product` or `Adasum`, which needs a floating-point type and a
            power of two of ranks. Averages of integers are truncated.
        prescale_factor: multiplied before the reduction; integers are truncated after it.
        postscale_factor: multiplied after the reduction; integers are truncated after it.
        process_set: whose ranks take part; by default all.

    The gradient is the same operation on the incoming gradient; there is none of Min, Max and Product.

    Raises:
        ValueError: `average` and `op` are both set, `tensor` is not a tensor, or one that cannot be sent or reduced so,
            or this rank is not in the set. Nothing was sent.
        HorovodInternalError: the ranks disagree about the operation, or a rank is lost.
    """
    operation = reduce_op(average, op)
    if compression is not NoneCompressor:
        compression = checked_compressor(compression, "allreduce")
    compressed, ctx = compression.compress(check_tensor(tensor, "allreduce"))
    reduced = _allreduce(compressed, name, operation, prescale_factor, postscale_factor, process_set)
    restored: torch.Tensor = compression.decompress(reduced, ctx)
    return restored


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Join all ranks' tensors along their first dimension, in rank order, into a new tensor on every rank.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        name, process_set: as in `allreduce`.

    The gradient is this rank's slice of the average of all ranks' gradients.

    Raises:
        IndexError: the tensor has no dimension to join along.
        ValueError: as in `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension, or a rank is lost.
    """
    if needs_gradient(tensor, "allgather"):
        result: torch.Tensor = HorovodAllgather.apply(tensor, name, process_set)
        return result
    [(joined, _rows)] = make_allgather([tensor], "allgather", name, process_set).run()
    make_gradient_name("allgather", name, process_set)
    return joined


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Copy the root's tensor into a new one on every rank.

    Args:
        tensor: of the same shape and type on all ranks.
        root_rank: whose values are wanted; its number in the job, also for a process set.
        name, process_set: as in `allreduce`.

    The gradient is the average of all ranks' gradients at the root, and zero elsewhere.

    Raises:
        ValueError: `root_rank` is not a rank of the set; else as in `allreduce`.
        HorovodInternalError: the ranks disagree about the operation, or a rank is lost.
    """
    if needs_gradient(tensor, "broadcast"):
        result: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
        return result
    copied = make_broadcast(tensor, root_rank, "broadcast", name, process_set).run()
    make_gradient_name("broadcast", name, process_set)
    return copied


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send some rows of the tensor to each rank, and join what all ranks sent to this one, in rank order.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        splits: [size] how many rows each rank gets, the first to rank 0; whole numbers, whose sum is at most n. Rows
            after those are not sent. None, or empty: equally many.
        name, process_set: as in `allreduce`.

    Returns:
        The rows that this rank got; with `splits` a pair of them and of [size] how many of them each rank sent (int32).

    The gradient is each row's gradient, sent back to the rank that sent the row; zero for rows that were not sent.

    Raises:
        ValueError: the splits do not fit the tensor, or without them n is not a multiple of size; else as in
            `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension, or a rank is lost.
    """
    if needs_gradient(tensor, "alltoall"):
        result: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
        result = HorovodAlltoall.apply(tensor, splits, name, process_set)
        return result
    rows, received = make_alltoall(tensor, splits, "alltoall", name, process_set).run()
    make_gradient_name("alltoall", name, process_set)
    return rows if splits is None else (rows, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and gives each rank its share of the rows, the first of them to rank 0.

    Args:
        tensor: [n, *shape], the same on all ranks. Where n is not a multiple of size, the lower ranks get a row more.
        name, compression, process_set, prescale_factor, postscale_factor: as in `allreduce`.
        op: `Average` or `Sum`.

    The gradient is all ranks' gradients joined; of a Sum, size times that.

    Raises:
        ValueError: the tensor has no rows; else as in `allreduce`.
        HorovodInternalError: `op` is another one, the ranks disagree about the operation, or a rank is lost.
    """
    operation = reduce_op(None, op)
    if compression is not NoneCompressor:
        compression = checked_compressor(compression, "reducescatter")
    compressed, ctx = compression.compress(check_tensor(tensor, "reducescatter"))
    if needs_gradient(compressed, "reducescatter"):
        arguments = (name, operation, process_set, prescale_factor, postscale_factor)
        reduced = HorovodReducescatter.apply(compressed, *arguments)
    else:
        factors = (prescale_factor, postscale_factor)
        reduced = make_reducescatter([compressed], "reducescatter", name, operation, *factors, process_set).run()[0]
        make_gradient_name("reducescatter", name, process_set)
    restored: torch.Tensor = compression.decompress(reduced, ctx)
    return restored


def needs_gradient(tensor: object, kind: str) -> bool:
    """Return whether autograd records an operation on `tensor`. Raises ValueError if it is not a tensor."""
    return check_tensor(tensor, kind).requires_grad and torch.is_grad_enabled()


def make_gradient_name(kind: str, name: str | None, process_set: ProcessSet | None) -> str:
    """Return the gradient's name; called after every call, also without a gradient, so that all ranks count alike.

    After it, as a refused call does not count. Gradients need names, as autograd's order may differ among ranks.
    """
    if name is None:
        # Each set counts separately: ranks outside it do not see its calls.
        number = collectives.unnamed_number(f"{kind} {getattr(process_set, 'process_set_id', None)}")
        name = f"noname.{number}"
    return f"{kind}.{name}.gradient"


def check_has_gradient(operation: ReduceOp, kind: str) -> None:
    """Raise NotImplementedError for a reduction that has no gradient here."""
    if operation not in (Average, Sum, Adasum):
        raise NotImplementedError(f"{kind} with {operation.name.title()} is not differentiable; use Average or Sum.")


def compute_scatter_scale(
    operation: ReduceOp, process_set: ProcessSet | None, prescale: float, postscale: float
) -> float:
    """Return the factor of a reducescatter's incoming gradients, before they are joined."""
    return prescale * postscale * (context.engine(process_set).size if operation is Sum else 1)


def apply_derivative(forth: Derivative, back: Derivative, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return ``forth(*gradients)``, whose derivative is by `back`: autograd's would be too small by the ranks."""
    if torch.is_grad_enabled() and any(gradient.requires_grad for gradient in gradients):
        result: tuple[torch.Tensor, ...] = _Derivative.apply(forth, back, *gradients)
        return result
    return forth(*gradients)


class _Derivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forth: Derivative, back: Derivative, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.back = back
        return forth(*gradients)

    @staticmethod
    def backward(ctx: Any, *again: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, None, *ctx.back(*again))


def _allreduce(
    tensor: torch.Tensor,
    name: str | None,
    operation: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    reduced: torch.Tensor
    if needs_gradient(tensor, "allreduce"):
        reduced = HorovodAllreduce.apply(tensor, None, name, operation, prescale, postscale, process_set)
        return reduced
    [reduced] = make_allreduce([tensor], "allreduce", name, operation, prescale, postscale, process_set).run()
    make_gradient_name("allreduce", name, process_set)
    return reduced


class HorovodAllreduce(torch.autograd.Function):
    """`allreduce` without compression, as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        operation = reduce_op(average, op)
        ctx.arguments = arguments = (operation, prescale_factor, postscale_factor, process_set)
        [reduced] = make_allreduce([tensor], "allreduce", name, *arguments).run()
        ctx.gradient_name = make_gradient_name("allreduce", name, process_set)
        return reduced

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Apply the same operation to the gradient."""
        check_has_gradient(ctx.arguments[0], "allreduce")
        return _allreduce(gradient, ctx.gradient_name, *ctx.arguments), None, None, None, None, None, None


class HorovodAllgather(torch.autograd.Function):
    """`allgather` as an autograd function."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        [(joined, rows)] = make_allgather([tensor], "allgather", name, process_set).run()
        ctx.gradient_name = make_gradient_name("allgather", name, process_set)
        rank = context.engine(process_set).rank
        ctx.start, ctx.length, ctx.process_set = sum(rows[:rank]), rows[rank], process_set
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return this rank's rows of the average."""
        name, process_set, own_rows = ctx.gradient_name, ctx.process_set, (ctx.start, ctx.length)

        def take_own_rows(gradient: torch.Tensor) -> tuple[torch.Tensor]:
            return (_allreduce(gradient, name, Average, 1.0, 1.0, process_set).narrow(0, *own_rows),)

        [derived] = apply_derivative(take_own_rows, lambda again: (allgather(again, name, process_set),), gradient)
        return derived, None, None


class HorovodBroadcast(torch.autograd.Function):
    """`broadcast` as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        copied = make_broadcast(tensor, root_rank, "broadcast", name, process_set).run()
        ctx.gradient_name = make_gradient_name("broadcast", name, process_set)
        return copied

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the average at the root."""
        name, process_set, root_rank = ctx.gradient_name, ctx.process_set, ctx.root_rank

        def keep_at_root(gradient: torch.Tensor) -> tuple[torch.Tensor]:
            averaged = _allreduce(gradient, name, Average, 1.0, 1.0, process_set)
            return (averaged if context.rank() == root_rank else torch.zeros_like(averaged),)

        [derived] = apply_derivative(
            keep_at_root, lambda again: (broadcast(again, root_rank, name, process_set),), gradient
        )
        return derived, None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """`alltoall` as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: torch.Tensor | Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        rows, received = make_alltoall(tensor, splits, "alltoall", name, process_set).run()
        ctx.gradient_name = make_gradient_name("alltoall", name, process_set)
        ctx.received, ctx.process_set, ctx.rows = received, process_set, tensor.shape[0]
        if splits is None:
            return rows
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: object) -> tuple[torch.Tensor | None, ...]:
        """Return every row's gradient to the rank that sent the row."""
        back, _received = alltoall(gradient, ctx.received, ctx.gradient_name, ctx.process_set)
        not_sent = ctx.rows - len(back)
        if not_sent:
            back = torch.cat([back, back.new_zeros(not_sent, *back.shape[1:])])
        return back, None, None, None


class HorovodReducescatter(torch.autograd.Function):
    """`reducescatter` without compression, as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        operation = reduce_op(None, op)
        ctx.process_set = process_set
        factors = (prescale_factor, postscale_factor)
        [reduced] = make_reducescatter([tensor], "reducescatter", name, operation, *factors, process_set).run()
        ctx.scale = compute_scatter_scale(operation, process_set, *factors)
        ctx.gradient_name = make_gradient_name("reducescatter", name, process_set)
        return reduced

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Join all ranks' gradients."""
        joined = allgather(gradient * ctx.scale, ctx.gradient_name, ctx.process_set)
        return joined, None, None, None, None, None
