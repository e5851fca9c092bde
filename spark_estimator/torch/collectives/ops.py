"""The collectives on one tensor that return a handle, or work in place; those without a tensor, too.

Ranks' operations are matched by name; those without a name by their order, so that unnamed operations of one kind must
be called in the same order by all ranks. A tensor must not be written, and the result of an operation in place must not
be read, before `synchronize` has returned. Names, order of arguments and defaults are Horovod's.

Arguments and errors are as described in `differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.errors import MismatchError
from spark_estimator.torch.collectives.collective import (
    make_allgather,
    make_allreduce,
    make_alltoall,
    make_broadcast,
    make_reducescatter,
    only,
)
from spark_estimator.torch.collectives.memory import check_tensor, describe_call
from spark_estimator.torch.collectives.pending import synchronize
from spark_estimator.torch.collectives.reductions import Average, Sum, reduce_op


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces a tensor over all ranks into a new one; see `allreduce` for the arguments. Returns a handle."""
    operation = reduce_op(average, op)
    factors = (prescale_factor, postscale_factor)
    return make_allreduce([tensor], "allreduce", name, operation, *factors, process_set).submit(only)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces a tensor over all ranks in place; see `allreduce` for the arguments. Returns a handle."""
    operation = reduce_op(average, op)
    factors = (prescale_factor, postscale_factor)
    return make_allreduce([tensor], "allreduce", name, operation, *factors, process_set, in_place=True).submit(only)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks in place and returns it; see `allreduce`. Not differentiable."""
    operation = reduce_op(average, op)
    factors = (prescale_factor, postscale_factor)
    return make_allreduce([tensor], "allreduce", name, operation, *factors, process_set, in_place=True).run()[0]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sum or average sparse tensors over all ranks. They are sent as they are, in one allgather; nothing is made dense.

    Args:
        tensor: a COO tensor of the same shape, type and number of sparse dimensions on all ranks. How many entries
            it has may differ.
        name: as in `allreduce`.
        op: `Average` or `Sum`.
        process_set: as in `allreduce`.

    Returns:
        A function that waits and returns the result, uncoalesced: entries of several ranks at one place are to be
        added. It may be called once.

    Raises:
        ValueError: the tensor is not in COO layout, or `op` is another one.
    """
    kind, operation = "sparse_allreduce_async", reduce_op(None, op)
    if operation not in (Average, Sum):
        raise ValueError(f"{describe_call(kind)}: op={op!r} is neither hvd.Average nor hvd.Sum; use tensor.to_dense().")
    if check_tensor(tensor, kind).layout is not torch.sparse_coo:
        raise ValueError(
            f"{describe_call(kind)}: a COO tensor is needed, not one of layout {tensor.layout}; use allreduce."
        )
    if operation is Average and tensor.dtype is torch.bool:
        raise ValueError(f"{describe_call(kind)}: an average of bool tensors has no meaning; use op=hvd.Sum.")
    ranks = context.engine(process_set).ranks
    values = tensor._values().detach()
    tensors = [tensor._indices().t(), values, torch.tensor([tensor.shape], device=values.device)]

    def sum_gathered(gathered: Sequence[tuple[torch.Tensor, object]]) -> torch.Tensor:
        (indices, _), (entries, _), (shapes, _) = gathered
        for rank, shape in zip(ranks, shapes.tolist(), strict=True):
            if shape != shapes[0].tolist():
                raise MismatchError(
                    f"sparse_allreduce {name!r}: rank {ranks[0]} has a tensor of shape {shapes[0].tolist()}, rank "
                    f"{rank} one of shape {shape}."
                )
        if operation is Sum:
            return _make_sparse(indices.t(), entries, tensor.shape)
        if entries.is_floating_point():
            return _make_sparse(indices.t(), entries / len(ranks), tensor.shape)
        # The average of whole numbers is truncated once, when all ranks' are added.
        total = _make_sparse(indices.t(), entries, tensor.shape).coalesce()
        averages = total.values().div(len(ranks), rounding_mode="trunc")
        return _make_sparse(total.indices(), averages, tensor.shape)

    handle = make_allgather(tensors, "sparse_allreduce", name, process_set).submit(sum_gathered)

    def fetch_result() -> torch.Tensor:
        received: torch.Tensor = synchronize(handle)
        return received

    return fetch_result


def _make_sparse(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Make a sparse tensor from the parts of sparse tensors, so that nothing need be checked."""
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Join all ranks' tensors along their first dimension, in rank order; see `allgather`. Return a handle."""
    return make_allgather([tensor], "allgather", name, process_set).submit(lambda gathered: gathered[0][0])


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copy the root's tensor into a new one on every rank; see `broadcast`. Return a handle."""
    return make_broadcast(tensor, root_rank, "broadcast", name, process_set).submit()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copy the root's tensor into every rank's tensor; see `broadcast`. Return a handle."""
    return make_broadcast(tensor, root_rank, "broadcast", name, process_set, in_place=True).submit()


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Copy the root's tensor into every rank's and return that; see `broadcast`. Not differentiable."""
    return make_broadcast(tensor, root_rank, "broadcast", name, process_set, in_place=True).run()


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Send some rows of a tensor to each rank; see `alltoall`. Return a handle, of a pair also without `splits`."""
    return make_alltoall(tensor, splits, "alltoall", name, process_set).submit()


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces a tensor over all ranks and gives each its share of the rows; see `reducescatter`. Returns a handle."""
    operation = reduce_op(None, op)
    factors = (prescale_factor, postscale_factor)
    return make_reducescatter([tensor], "reducescatter", name, operation, *factors, process_set).submit(only)


def join(device: int = -1) -> int:
    """Report the end of this rank's data: it takes part with zeros in the others' allreduces until all have joined.

    Args:
        device: ignored; Horovod has it.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: a rank is lost.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set is in it. Raise HorovodInternalError when one is lost."""
    collectives.barrier(process_set)
