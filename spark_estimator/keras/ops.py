"""Collectives on single values: numbers, lists, numpy arrays, tensors of Keras' backend.

On Keras' TensorFlow backend they give tensors, as Horovod's do, and become nodes of a function that is being traced.
On other backends they work outside of compiled code, and give arrays for what is no tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy

from spark_estimator.collectives import arrays
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Adasum, Average, Max, Min, Product, Sum, reduce_op
from spark_estimator.keras.compression import Compression, checked_compression

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "grouped_allreduce",
    "reducescatter",
]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a value of each rank to one, on every rank. All ranks of the set call it.

    Args:
        value: a number, a list of numbers, a numpy array or a backend's tensor; the same shape and type on all ranks.
        name: matches the ranks' calls; None: a rank's n-th call without a name matches the others' n-th.
        average: deprecated; the older form of `op`: True is Average, False is Sum.
        prescale_factor, postscale_factor: factors before and after the reduction.
        op: ``hvd.Average`` (which None is), Sum, Min, Max, Product or Adasum.
        compression: how it is sent.
        process_set: whose ranks take part.

    Returns:
        On TensorFlow a tensor: of float32 and int32 for Python's numbers, as ``tf.constant`` makes of them. On other
        backends a tensor for a tensor, a number of numpy's for a number, else an array.

    Raises:
        ValueError: an argument cannot be used. Nothing was sent.
        MismatchError: the ranks' values differ in shape or type.
    """
    operation = reduce_op(average, op)
    if _is_on_tensorflow():
        return _run_in_tensorflow(
            "allreduce",
            value,
            name=name,
            op=operation,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=checked_compression(compression),
            process_set=process_set,
        )

    def reduce_array(array: Any) -> Any:
        return arrays.allreduce(
            array, operation, name, prescale=prescale_factor, postscale=postscale_factor, process_set=process_set
        )

    if compression is Compression.none or not _is_tensor(value):
        return _run_on_array(value, reduce_array)
    compressor = checked_compression(compression)
    sent, ctx = compressor.compress(value)
    return compressor.decompress(_run_on_array(sent, reduce_array), ctx)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Join all ranks' values along the first dimension, in rank order. All ranks of the set call it.

    Args:
        value: at least one dimension, all but the first alike on all ranks; the rest as for `allreduce`.
    """
    if _is_on_tensorflow():
        return _run_in_tensorflow("allgather", value, name=name, process_set=process_set)
    return _run_on_array(value, functools.partial(arrays.allgather, name=name, process_set=process_set))


def broadcast(
    value: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's value, on every rank. All ranks of the set call it.

    Args:
        value: the same shape and type on all ranks; the root's counts.
        root_rank: whose; its number in the job. The rest as for `allreduce`.
    """
    if _is_on_tensorflow():
        return _run_in_tensorflow("broadcast", value, root_rank=root_rank, name=name, process_set=process_set)
    return _run_on_array(
        value, functools.partial(arrays.broadcast, root_rank=root_rank, name=name, process_set=process_set)
    )


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduce all ranks' values to one, of which each rank gets its rows. All ranks of the set call it.

    Args:
        value: at least one dimension; lower ranks get one row more where they cannot be shared equally.
        op: Average or Sum. The rest as for `allreduce`.
    """
    operation = reduce_op(None, op)
    if _is_on_tensorflow():
        return _run_in_tensorflow("reducescatter", value, name=name, op=operation, process_set=process_set)
    return _run_on_array(value, lambda array: arrays.reducescatter(array, operation, name, process_set=process_set))


def grouped_allreduce(
    values: Sequence[Any], name: str | None = None, op: int | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Reduce several values in one request, as `allreduce` does: all of them, or none."""
    operation = reduce_op(None, op)
    if _is_on_tensorflow():
        result: list[Any] = _run_in_tensorflow(
            "grouped_allreduce", list(values), name=name, op=operation, process_set=process_set
        )
        return result
    sent = [_to_array(value) for value in values]
    received = arrays.grouped_allreduce(sent, operation, name, process_set=process_set)
    return [_convert_like(value, array) for value, array in zip(values, received, strict=True)]


def _is_on_tensorflow() -> bool:
    from spark_estimator.keras.importing import backend

    return backend() == "tensorflow"


def _run_in_tensorflow(collective: str, value: Any, **arguments: Any) -> Any:
    """Call the TensorFlow binding's collective; its result, which Keras' session computes in a graph of Keras 2."""
    from spark_estimator.keras.backends import load_backend

    return load_backend("tensorflow").run_collective(collective, value, **arguments)


def _is_tensor(value: Any) -> bool:
    """Return whether it is a tensor or a variable of Keras' backend."""
    if isinstance(value, (int, float, complex, list, tuple, numpy.ndarray, numpy.generic)):
        return False
    from spark_estimator.keras.importing import keras

    return bool(keras.ops.is_tensor(value)) or isinstance(value, keras.Variable)


def _to_array(value: Any) -> Any:
    if not _is_tensor(value):
        return numpy.asarray(value)
    from spark_estimator.keras.importing import keras

    return keras.ops.convert_to_numpy(value)


def _convert_like(value: Any, array: Any) -> Any:
    if _is_tensor(value):
        from spark_estimator.keras.importing import keras

        return keras.ops.convert_to_tensor(array, dtype=keras.backend.standardize_dtype(value.dtype))
    return array if array.ndim else array[()]


def _run_on_array(value: Any, collective: Any) -> Any:
    return _convert_like(value, collective(_to_array(value)))
