"""The collectives on a list of tensors that return a handle, or work in place: all of the list is done, or nothing.

A group is agreed on and carried as one: as fast as one tensor of that size, and a rank cannot have a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.torch.collectives.collective import check_group, make_allgather, make_allreduce, make_reducescatter
from spark_estimator.torch.collectives.reductions import Average, reduce_op


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces tensors over all ranks into new ones; see `grouped_allreduce`. Returns one handle, of a tuple."""
    kind, operation = "grouped_allreduce", reduce_op(average, op)
    members = check_group(tensors, kind)
    return make_allreduce(members, kind, name, operation, prescale_factor, postscale_factor, process_set).submit(tuple)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces tensors over all ranks in place; see `grouped_allreduce`. Returns one handle, of a tuple of them."""
    kind, operation = "grouped_allreduce", reduce_op(average, op)
    factors = (prescale_factor, postscale_factor)
    return make_allreduce(
        check_group(tensors, kind), kind, name, operation, *factors, process_set, in_place=True
    ).submit(tuple)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduces tensors over all ranks in place and returns them; see `grouped_allreduce`. Not differentiable."""
    kind, operation = "grouped_allreduce", reduce_op(average, op)
    factors = (prescale_factor, postscale_factor)
    return tuple(
        make_allreduce(check_group(tensors, kind), kind, name, operation, *factors, process_set, in_place=True).run()
    )


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Join all ranks' tensors along the first dimension; see `grouped_allgather`. Return one handle, of a tuple."""
    kind = "grouped_allgather"
    request = make_allgather(check_group(tensors, kind), kind, name, process_set)
    return request.submit(lambda gathered: tuple(joined for joined, _ in gathered))


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces tensors and gives each rank its rows; see `grouped_reducescatter`. Returns one handle, of a tuple."""
    kind, operation = "grouped_reducescatter", reduce_op(None, op)
    factors = (prescale_factor, postscale_factor)
    return make_reducescatter(check_group(tensors, kind), kind, name, operation, *factors, process_set).submit(tuple)
