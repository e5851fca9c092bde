"""Collectives of pytrees in host memory, by the job's engine: all leaves in one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy
from numpy.typing import NDArray

from spark_estimator.collectives import arrays
from spark_estimator.collectives.arrays import ReduceOp, barrier
from spark_estimator.collectives.context import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from spark_estimator.extensions.jax import cluster as cluster  # also on a rank of mpirun, srun or torchrun

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

Tree = TypeVar("Tree")
Array = NDArray[Any]


def allreduce(tree: Tree, op: ReduceOp = Average, name: str | None = None) -> Tree:
    """Return all ranks' pytrees reduced to one, leaf by leaf, on every rank.

    Args:
        tree: arrays of JAX or NumPy, or numbers; on all ranks the same structure, shapes and types. A result is on its
            leaf's device; that of a leaf that is not JAX's is NumPy's.
        op: the reduction.
        name: matches the ranks' calls; None: a rank's n-th call without a name matches the others' n-th.

    Raises:
        ValueError: the engine can't reduce a leaf's type; the text names the leaf. Nothing was sent.
        MismatchError: the ranks' trees or ops differ.
        HorovodInternalError: the collective failed otherwise: a rank is lost.
    """

    def run(parts: list[Array]) -> list[Array]:
        return arrays.grouped_allreduce(parts, op, name)

    return _run("allreduce", tree, run, bytes_too=False)


def allgather(tree: Tree, name: str | None = None) -> Tree:
    """Return a pytree whose leaves are all ranks' leaves joined along their first dimension, in rank order.

    Args:
        tree: as in `allreduce`, of any type; the first dimensions may differ. A number counts as one row.
        name: as in `allreduce`.
    """

    def run(parts: list[Array]) -> list[Array]:
        return arrays.grouped_allgather(parts, name)

    rows: Tree = jax.tree_util.tree_map(_to_rows, tree)
    return _run("allgather", rows, run)


def broadcast(tree: Tree, root_rank: int = 0, name: str | None = None) -> Tree:
    """Return the root's pytree on every rank.

    Args:
        tree: as in `allreduce`, of any type; the values of the root count.
        root_rank: whose.
        name: as in `allreduce`.
    """

    def run(parts: list[Array]) -> list[Array]:
        names = [None if name is None else f"{name}.{number}" for number in range(len(parts))]
        return [arrays.broadcast(part, root_rank, each) for part, each in zip(parts, names, strict=True)]

    return _run("broadcast", tree, run)


def _run(kind: str, tree: Tree, run: Callable[[list[Array]], list[Array]], *, bytes_too: bool = True) -> Tree:
    """Return the tree of what `run` makes of the leaves in host memory; `bytes_too`: it only moves their bytes."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [jax.random.key_data(leaf) if bytes_too and _is_key(leaf) else leaf for _, leaf in paths]
    sources = [numpy.asarray(leaf) for leaf in leaves]
    parts = [_to_part(kind, path, source, bytes_too) for (path, _), source in zip(paths, sources, strict=True)]
    results = []
    for (_, original), leaf, source, got in zip(paths, leaves, sources, run(parts) if parts else [], strict=True):
        host = got if got.dtype == source.dtype else got.view(source.dtype)[..., 0]
        result = _place(leaf, host)
        results.append(
            jax.random.wrap_key_data(result, impl=jax.random.key_impl(original)) if _is_key(original) else result
        )
    return jax.tree_util.tree_unflatten(structure, results)  # type: ignore[no-any-return]


def _to_part(kind: str, path: Any, source: Array, bytes_too: bool) -> Array:
    """Return what the engine takes: an array, or its bytes where it lacks that type."""
    try:
        arrays.dtype_of(source)
    except ValueError as error:
        if bytes_too and not source.dtype.hasobject:
            return numpy.ascontiguousarray(source).reshape(*source.shape, 1).view(numpy.uint8)
        raise ValueError(f"{kind} on rank {rank()}: tree{jax.tree_util.keystr(path)}: {error}") from None
    return source


def _place(leaf: Any, host: Array) -> Any:
    """Return the result for a leaf: where the leaf is, or if it is on several devices and grew, where JAX likes."""
    if not isinstance(leaf, jax.Array):
        return host
    if host.shape == leaf.shape:
        return jax.device_put(host, leaf.sharding)
    devices = list(leaf.devices())
    return jax.device_put(host, devices[0] if len(devices) == 1 else None)


def _to_rows(leaf: Any) -> Any:
    array = leaf if isinstance(leaf, jax.Array) else numpy.asarray(leaf)
    return array if array.ndim else array[None]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
