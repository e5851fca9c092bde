"""The blocking collectives on a list of tensors that return new ones; autograd can differentiate through them.

The gradient of a group is a group, of the gradients of those of its tensors that have one: the floating-point ones.
Names and autograd functions are as in `differentiable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.torch.collectives.collective import check_group, make_allgather, make_allreduce, make_reducescatter
from spark_estimator.torch.collectives.compressors import NoneCompressor, checked_compressor
from spark_estimator.torch.collectives.differentiable import (
    apply_derivative,
    check_has_gradient,
    compute_scatter_scale,
    make_gradient_name,
    needs_gradient,
)
from spark_estimator.torch.collectives.memory import check_tensor
from spark_estimator.torch.collectives.reductions import Average, reduce_op

_ALLREDUCE, _ALLGATHER, _REDUCESCATTER = "grouped_allreduce", "grouped_allgather", "grouped_reducescatter"


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces tensors over all ranks into new ones: all of them, or none.

    Args:
        tensors: of any shapes and types; at least one, and as many on all ranks.
        average, name, compression, op, prescale_factor, postscale_factor, process_set: as in `allreduce`.

    The gradient is the same operation on the incoming gradients.

    Raises:
        ValueError: there is no tensor; else as in `allreduce`.
        HorovodInternalError: the ranks disagree about the operation, or a rank is lost.
    """
    operation = reduce_op(average, op)
    compression = checked_compressor(compression, _ALLREDUCE)
    compressed, contexts = _compress(tensors, _ALLREDUCE, compression)
    reduced = _allreduce(compressed, name, operation, prescale_factor, postscale_factor, process_set)
    return _decompress(reduced, contexts, compression)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """Join all ranks' tensors along the first dimension, as `allgather` does: all of the list, or none.

    Args:
        tensors: each [n, *shape], of any types; at least one, and as many on all ranks.
        name, process_set: as in `allreduce`.

    The gradients are as in `allgather`.

    Raises:
        IndexError: a tensor has no dimension to join along.
        ValueError: there is no tensor; else as in `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension, or a rank is lost.
    """
    members = check_group(tensors, _ALLGATHER)
    if _need_gradients(members, _ALLGATHER):
        joined: tuple[torch.Tensor, ...] = HorovodGroupedAllgather.apply(name, process_set, *members)
        return joined
    gathered = make_allgather(members, _ALLGATHER, name, process_set).run()
    make_gradient_name(_ALLGATHER, name, process_set)
    return tuple(tensor for tensor, _ in gathered)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces tensors over all ranks and gives each rank its rows, as `reducescatter` does: of all tensors, or none.

    Args:
        tensors: each [n, *shape], of any types; at least one, and as many on all ranks.
        name, compression, op, process_set, prescale_factor, postscale_factor: as in `reducescatter`.

    The gradients are as in `reducescatter`.

    Raises:
        ValueError: there is no tensor, or one without rows; else as in `allreduce`.
        HorovodInternalError: `op` is another one, the ranks disagree about the operation, or a rank is lost.
    """
    operation = reduce_op(None, op)
    compression = checked_compressor(compression, _REDUCESCATTER)
    compressed, contexts = _compress(tensors, _REDUCESCATTER, compression)
    arguments = (name, operation, process_set, prescale_factor, postscale_factor)
    if _need_gradients(compressed, _REDUCESCATTER):
        reduced = list(HorovodGroupedReducescatter.apply(*arguments, *compressed))
    else:
        factors = (prescale_factor, postscale_factor)
        reduced = make_reducescatter(compressed, _REDUCESCATTER, name, operation, *factors, process_set).run()
        make_gradient_name(_REDUCESCATTER, name, process_set)
    return _decompress(reduced, contexts, compression)


def _allreduce(
    tensors: list[torch.Tensor],
    name: str | None,
    operation: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    if _need_gradients(tensors, _ALLREDUCE):
        arguments = (None, name, operation, prescale, postscale, process_set)
        return list(HorovodGroupedAllreduce.apply(*arguments, *tensors))
    reduced = make_allreduce(tensors, _ALLREDUCE, name, operation, prescale, postscale, process_set).run()
    make_gradient_name(_ALLREDUCE, name, process_set)
    return reduced


class HorovodGroupedAllreduce(torch.autograd.Function):
    """`grouped_allreduce` without compression, as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        operation = reduce_op(average, op)
        members = check_group(tensors, _ALLREDUCE)
        ctx.arguments = arguments = (operation, prescale_factor, postscale_factor, process_set)
        reduced = make_allreduce(members, _ALLREDUCE, name, *arguments).run()
        ctx.gradient_name = make_gradient_name(_ALLREDUCE, name, process_set)
        return _mark_outputs(ctx, reduced)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Apply the same operation to the gradients."""
        check_has_gradient(ctx.arguments[0], _ALLREDUCE)
        reduced = _allreduce(_select_floating(ctx, gradients), ctx.gradient_name, *ctx.arguments)
        return (*[None] * 6, *_spread_results(ctx, reduced))


class HorovodGroupedAllgather(torch.autograd.Function):
    """`grouped_allgather` as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        members = check_group(tensors, _ALLGATHER)
        gathered = make_allgather(members, _ALLGATHER, name, process_set).run()
        ctx.gradient_name = make_gradient_name(_ALLGATHER, name, process_set)
        rank = context.engine(process_set).rank
        ctx.process_set = process_set
        ctx.shares = [(sum(rows[:rank]), rows[rank]) for joined, rows in gathered if joined.is_floating_point()]
        return _mark_outputs(ctx, [joined for joined, _ in gathered])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return this rank's rows of the averages."""
        name, process_set, shares = ctx.gradient_name, ctx.process_set, ctx.shares

        def take_own_rows(*gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
            averaged = _allreduce(list(gradients), name, Average, 1.0, 1.0, process_set)
            return tuple(tensor.narrow(0, *share) for tensor, share in zip(averaged, shares, strict=True))

        def join_again(*again: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return grouped_allgather(again, name, process_set)

        derived = apply_derivative(take_own_rows, join_again, *_select_floating(ctx, gradients))
        return (None, None, *_spread_results(ctx, derived))


class HorovodGroupedReducescatter(torch.autograd.Function):
    """`grouped_reducescatter` without compression, as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        operation, factors = reduce_op(None, op), (prescale_factor, postscale_factor)
        members = check_group(tensors, _REDUCESCATTER)
        reduced = make_reducescatter(members, _REDUCESCATTER, name, operation, *factors, process_set).run()
        ctx.gradient_name = make_gradient_name(_REDUCESCATTER, name, process_set)
        ctx.process_set = process_set
        ctx.scale = compute_scatter_scale(operation, process_set, *factors)
        return _mark_outputs(ctx, reduced)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Join all ranks' gradients."""
        scaled = [gradient * ctx.scale for gradient in _select_floating(ctx, gradients)]
        joined = grouped_allgather(scaled, ctx.gradient_name, ctx.process_set)
        return (*[None] * 5, *_spread_results(ctx, joined))


def _need_gradients(tensors: Sequence[object], kind: str) -> bool:
    return any([needs_gradient(tensor, kind) for tensor in tensors])  # noqa: C419  all of them are checked


def _mark_outputs(ctx: Any, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Note which outputs have a gradient: on all ranks the same ones, also those that a rank does not need."""
    ctx.floating = [output.is_floating_point() for output in outputs]
    ctx.mark_non_differentiable(*[output for output in outputs if not output.is_floating_point()])
    return tuple(outputs)


def _select_floating(ctx: Any, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [gradient for gradient, floating in zip(gradients, ctx.floating, strict=True) if floating]


def _spread_results(ctx: Any, results: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return [number of tensors] the results in the positions of the tensors that have a gradient."""
    remaining = iter(results)
    return [next(remaining) if floating else None for floating in ctx.floating]


def _compress(tensors: object, kind: str, compression: Any) -> tuple[list[torch.Tensor], list[Any]]:
    pairs = [compression.compress(check_tensor(tensor, kind)) for tensor in check_group(tensors, kind)]
    return [compressed for compressed, _ in pairs], [ctx for _, ctx in pairs]


def _decompress(tensors: Sequence[torch.Tensor], contexts: Sequence[Any], compression: Any) -> list[torch.Tensor]:
    return [compression.decompress(tensor, ctx) for tensor, ctx in zip(tensors, contexts, strict=True)]
