"""The collectives that reduce: allreduce and reducescatter, of one tensor or of several as one; differentiable.

Names, order of arguments and defaults are Horovod's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Adasum, Average, Sum, check_adasum, describe_call, reduce_op
from spark_estimator.errors import HorovodInternalError
from spark_estimator.tensorflow import works
from spark_estimator.tensorflow.compression import Compression, checked_compressor
from spark_estimator.tensorflow.differentiable import run
from spark_estimator.tensorflow.failures import to_tensorflow_error
from spark_estimator.tensorflow.gathering import run_allgather
from spark_estimator.tensorflow.nodes import Naming, check_group, check_tensor
from spark_estimator.tensorflow.questions import ask_size
from spark_estimator.tensorflow.works import GraphCollective


class TensorReduction(NamedTuple):
    """How tensors are reduced.

    Attributes:
        op: the reduction.
        prescale, postscale: factors before and after it.
        process_set: whose ranks take part.
        residues: see ``works.GraphCollective``.
    """

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: ProcessSet = global_process_set
    residues: str = ""


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks into a new one of the same shape and type, with the same bits everywhere.

    Args:
        tensor: of the same shape and type on all ranks: a tensor, a variable, an array; or a ``tf.IndexedSlices``,
            whose number of slices may differ: its values and indices are gathered. The average of whole numbers has
            values of float64, of those of 8 and 16 bits float32.
        average: deprecated; True is ``op=Average``, False ``op=Sum``.
        device_dense, device_sparse: accepted for Horovod's signature; collectives run in host memory.
        compression: what to send in place of the tensor; see `Compression`.
        op: `Average` (when None), `Sum`, `Min`, `Max`, `Product` or `Adasum`, which needs a floating-point type and a
            power of two of ranks. Averages of integers are truncated. Slices: `Average` or `Sum`.
        prescale_factor: multiplied before the reduction; integers are truncated after it. Not for slices.
        postscale_factor: multiplied after the reduction; integers are truncated after it. Not for slices.
        name: matches the ranks' calls; None: calls match by their order, in a graph by the order in which they were
            added. In a name scope of a graph the scope's name is its prefix.
        process_set: whose ranks take part; by default all.
        ignore_name_scope: True: `name` is the whole name.

    The gradient is the same operation on the incoming gradient; there is none of Min, Max and Product.

    Raises:
        ValueError: `average` and `op` are both set, the tensor cannot be sent or reduced so, or this rank is not in the
            set. Nothing was sent.
        HorovodInternalError: eagerly: the ranks disagree about the operation, or a rank is lost. It is also one of
            TensorFlow's errors, and in a graph only that: ``FailedPreconditionError`` where the ranks disagree, else
            ``UnknownError``; see `failures`.
    """
    operation = reduce_op(average, op)
    compression = checked_compressor(compression, "allreduce")
    how = TensorReduction(operation, prescale_factor, postscale_factor, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, name, how, ignore_name_scope)
    compressed, ctx = compression.compress(check_tensor(tensor, "allreduce"))
    [reduced] = run_allreduce([compressed], "allreduce", name, how, ignore_name_scope)
    return compression.decompress(reduced, ctx)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces tensors over all ranks as one: all of them are reduced, or none.

    Args:
        tensors: of any shapes and types; as many on all ranks. An empty list is returned as it is. ``tf.IndexedSlices``
            are sent separately.
        average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor, process_set: as in
            `allreduce`.
        ignore_name_scope, name: as in `allreduce`.

    Returns:
        A list of as many tensors.

    Raises:
        As `allreduce` does.
    """
    kind, operation = "grouped_allreduce", reduce_op(average, op)
    if _is_empty(tensors):
        return tensors  # type: ignore[return-value]
    compression = checked_compressor(compression, kind)
    how = TensorReduction(operation, prescale_factor, postscale_factor, process_set)
    members = check_group(tensors, kind)
    results: list[Any] = [None] * len(members)
    dense: list[tuple[int, Any, Any]] = []
    for number, member in enumerate(members):
        if isinstance(member, tf.IndexedSlices):
            of_slices = None if name is None else f"{name}.{number}"
            results[number] = _allreduce_slices(member, of_slices, how, ignore_name_scope)
        else:
            dense.append((number, *compression.compress(check_tensor(member, kind))))
    if dense:
        reduced = run_allreduce([tensor for _, tensor, _ in dense], kind, name, how, ignore_name_scope)
        for (number, _, ctx), result in zip(dense, reduced, strict=True):
            results[number] = compression.decompress(result, ctx)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks and gives each rank its share of the rows, the first of them to rank 0.

    Args:
        tensor: [n, *shape], the same on all ranks. Where n is not a multiple of size, the lower ranks get a row more.
        op: `Average` or `Sum`.
        device_dense, compression, name, process_set, ignore_name_scope, prescale_factor, postscale_factor: as in
            `allreduce`.

    The gradient is all ranks' gradients joined; of a Sum, size times that.

    Raises:
        ValueError: the tensor has no rows; else as in `allreduce`.
        HorovodInternalError: `op` is another one; else as in `allreduce`.
    """
    kind = "reducescatter"
    compression = checked_compressor(compression, kind)
    compressed, ctx = compression.compress(check_tensor(tensor, kind, rows=True))
    how = TensorReduction(reduce_op(None, op), prescale_factor, postscale_factor, process_set)
    [reduced] = _run_reducescatter([compressed], kind, name, how, ignore_name_scope)
    return compression.decompress(reduced, ctx)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce and scatter several tensors as one, as `reducescatter` does: all of them, or none. Returns a list."""
    kind = "grouped_reducescatter"
    if _is_empty(tensors):
        return tensors  # type: ignore[return-value]
    compression = checked_compressor(compression, kind)
    pairs = [compression.compress(check_tensor(tensor, kind, rows=True)) for tensor in check_group(tensors, kind)]
    how = TensorReduction(reduce_op(None, op), prescale_factor, postscale_factor, process_set)
    reduced = _run_reducescatter([tensor for tensor, _ in pairs], kind, name, how, ignore_name_scope)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(reduced, pairs, strict=True)]


def _is_empty(tensors: object) -> bool:
    """Return whether it is a group without members, which Horovod returns unchanged. All ranks have the same group."""
    return isinstance(tensors, (list, tuple)) and not tensors


def run_allreduce(
    tensors: Sequence[Any], kind: str, name: str | None, how: TensorReduction, ignore_name_scope: bool = False
) -> list[Any]:
    """Reduce tensors that can be sent, as one; `kind`: of the user's call. The rest is as in `allreduce`."""
    if how.op is Adasum and context.is_initialized():
        check_adasum(how.op, context.engine(how.process_set).size, kind)

    return run(_make_collective(works.ALLREDUCE, how), Naming(kind, name, ignore_name_scope), tensors)


def _run_reducescatter(
    tensors: Sequence[Any], kind: str, name: str | None, how: TensorReduction, ignore_name_scope: bool
) -> list[Any]:
    if how.op not in (Average, Sum):
        message = (
            f"{describe_call(kind)}: op=hvd.{how.op.name.title()} is not supported. Use hvd.Average or hvd.Sum, or "
            "slice this rank's rows from an allreduce."
        )
        raise to_tensorflow_error(HorovodInternalError(message), tf.errors.AbortedError)

    return run(_make_collective(works.REDUCESCATTER, how), Naming(kind, name, ignore_name_scope), tensors)


def _make_collective(op: str, how: TensorReduction) -> GraphCollective:
    factors = float(how.prescale), float(how.postscale)
    return GraphCollective(op, how.process_set, how.op, *factors, residues=how.residues)


def _allreduce_slices(tensor: Any, name: str | None, how: TensorReduction, ignore_name_scope: bool) -> Any:
    kind = "sparse_allreduce"
    if how.op not in (Average, Sum):
        raise NotImplementedError(
            f"{describe_call(kind)}: op=hvd.{how.op.name.title()} is not supported for tf.IndexedSlices. Use "
            "hvd.Average or hvd.Sum, or convert them with tf.convert_to_tensor()."
        )
    if how.prescale != 1.0 or how.postscale != 1.0:
        raise NotImplementedError(
            f"{describe_call(kind)}: prescale_factor and postscale_factor are not supported for tf.IndexedSlices: "
            "multiply their values, or convert them with tf.convert_to_tensor()."
        )
    components = [check_tensor(tensor.values, kind, rows=True), check_tensor(tensor.indices, kind, rows=True)]
    if how.op is Average and components[0].dtype == tf.bool:
        raise ValueError(f"{describe_call(kind)}: bool tensors cannot be averaged: use hvd.Sum, or tf.cast().")
    values, indices = run_allgather(components, kind, name, how.process_set, ignore_name_scope)
    if how.op is Average:
        # As Horovod: of whole numbers TensorFlow makes float64, of those of 8 and 16 bits float32.
        values = values / ask_size(how.process_set, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=tensor.dense_shape)
