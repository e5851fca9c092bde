"""`make_petastorm_dataset` and `tf_tensors`: a reader's rows as a tf.data.Dataset, or as tensors of a graph.

Types that TensorFlow has no tensors of are converted as petastorm does: timestamps and dates to nanoseconds since 1970
(int64), decimals to texts without trailing zeros, uint16 to int32 and uint32 to int64. Null is refused.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy
import tensorflow as tf

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.reader import Reader
from spark_estimator.extensions.petastorm.unischema import Unischema, UnischemaField

_CONVERTED = {numpy.uint16: tf.int32, numpy.uint32: tf.int64, Decimal: tf.string, numpy.datetime64: tf.int64}


def make_petastorm_dataset(reader: Reader) -> tf.data.Dataset:
    """Return a tf.data.Dataset of named tuples with a tensor for each column: one row each, of a reader of batches
    many.

    It reads on where the reader is, and, when all its epochs have been read, starts the reader again with a
    warning.

    Raises:
        DataError: a column has a type that TensorFlow has no tensors of, or null; the latter where the row is read.
    """
    if not isinstance(reader, Reader):
        raise TypeError(f"make_petastorm_dataset takes a reader of this package; got {reader!r}.")

    def read_rows() -> Iterator[tuple[Any, ...]]:
        if reader.last_row_consumed:
            warnings.warn(
                "the dataset reads all epochs of the reader again: num_epochs of the reader, or cache() of the "
                "dataset, takes less time.",
                stacklevel=2,
            )
            reader.reset()
        fields = list(reader.schema.fields.values())
        for row in reader:
            yield tuple(_to_tf_value(value, field) for value, field in zip(row, fields, strict=True))

    return _make_dataset(read_rows, reader.schema, _make_signature(reader.schema, reader.is_batched_reader))


@contextmanager
def open_tf_dataset(reader: Reader, batch_size: int, prefetch: int | None, capacity: int) -> Iterator[tf.data.Dataset]:
    """Yield a tf.data.Dataset of a reader's batches; at the end the rows are released.

    Args:
        prefetch: batches that TensorFlow makes ahead; None: as it sees fit.
        capacity: of the shuffling queue.
    """
    signature = _make_signature(reader.schema, many=True)
    batches = reader.batches(batch_size, capacity, numbers=False)

    def read_rows() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            if reader.stopped:
                raise RuntimeError("the with block of make_tf_dataset has ended: its dataset gives no more rows.")
            yield tuple(_to_tf_value(batch[name], field) for name, field in reader.schema.fields.items())

    try:
        dataset = _make_dataset(read_rows, reader.schema, signature)
        yield dataset.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
    finally:
        reader.stop()
        batches.release()


def tf_tensors(reader: Reader, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> Any:
    """Return a named tuple of a graph's tensors that read the next row, or rows, in each run of a session.

    For programs of TensorFlow 1. The end of the rows is a `tf.errors.OutOfRangeError`.

    Args:
        shuffling_queue_capacity, min_after_dequeue: of a queue that mixes rows, for a reader of rows; its threads
            are started by ``tf.compat.v1.train.start_queue_runners``.

    Raises:
        RuntimeError: TensorFlow runs eagerly, and there is no graph.
        ValueError: a shuffling queue for a reader of batches.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "tf_tensors makes tensors of a graph, and TensorFlow runs eagerly: use make_petastorm_dataset(reader), or "
            "call it within tf.Graph().as_default() and run the tensors in a tf.compat.v1.Session."
        )
    many = reader.is_batched_reader
    if many and shuffling_queue_capacity:
        raise ValueError("shuffling_queue_capacity is for readers of rows; shuffle_rows mixes those of row groups.")
    fields = list(reader.schema.fields.values())

    def read() -> list[Any]:
        return [_to_tf_value(value, field) for value, field in zip(next(reader), fields, strict=True)]

    v1 = tf.compat.v1
    types = [_to_tf_type(field) for field in fields]
    tensors = v1.py_func(read, [], types)
    if shuffling_queue_capacity:
        queue = v1.RandomShuffleQueue(shuffling_queue_capacity, min_after_dequeue, types)
        v1.train.add_queue_runner(v1.train.QueueRunner(queue, [queue.enqueue(tensors)]))
        tensors = queue.dequeue()
    tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    for tensor, field in zip(tensors, fields, strict=True):
        tensor.set_shape(_make_shape(field, many))
    return reader.schema.row_type()(*tensors)


def _make_dataset(
    rows: Callable[[], Iterator[tuple[Any, ...]]], schema: Unischema, signature: tuple[Any, ...]
) -> tf.data.Dataset:
    row_type = schema.row_type()
    return tf.data.Dataset.from_generator(rows, output_signature=signature).map(lambda *values: row_type(*values))


def _make_signature(schema: Unischema, many: bool) -> tuple[Any, ...]:
    return tuple(tf.TensorSpec(_make_shape(field, many), _to_tf_type(field)) for field in schema.fields.values())


def _make_shape(field: UnischemaField, many: bool) -> list[int | None]:
    return [None, *field.shape] if many else list(field.shape)


def _to_tf_type(field: UnischemaField) -> Any:
    if field.numpy_dtype in _CONVERTED:
        return _CONVERTED[field.numpy_dtype]
    try:
        dtype = numpy.dtype(field.numpy_dtype)
        return tf.string if dtype.kind in "SU" else tf.as_dtype(dtype)
    except TypeError as error:
        raise DataError(
            f"column {field.name!r} is declared as {field.numpy_dtype!r}, which is no type of TensorFlow."
        ) from error


def _to_tf_value(value: Any, field: UnischemaField) -> Any:
    """Return a row's value, or those of many rows, as TensorFlow takes it; DataError for null."""
    array: Array = numpy.asarray(value)
    tf_type = _to_tf_type(field)
    if array.dtype == object:
        items = array.reshape(-1).tolist()
        if any(item is None for item in items):
            raise _make_null_error(field)
        if all(isinstance(item, Decimal) for item in items):
            return _make_texts([str(item.normalize()) for item in items], array)
        if all(type(item) is datetime.date for item in items):
            return array.astype("datetime64[ns]").astype(numpy.int64)
        return _make_texts(items, array) if tf_type == tf.string else array.astype(tf_type.as_numpy_dtype)
    if array.dtype.kind == "M":
        if numpy.isnat(array).any():
            raise _make_null_error(field)
        return array.astype("datetime64[ns]").astype(numpy.int64)
    if array.dtype.kind in "SU":
        return array.astype(object)
    if tf_type.is_integer and array.dtype.kind == "f" and numpy.isnan(array).any():
        raise _make_null_error(field)
    return array.astype(tf_type.as_numpy_dtype, copy=False)


def _make_texts(items: Sequence[Any], like: Array) -> Array:
    result: Array = numpy.empty(len(items), object)
    result[:] = items
    shaped: Array = result.reshape(like.shape)
    return shaped


def _make_null_error(field: UnischemaField) -> DataError:
    return DataError(
        f"column {field.name!r} holds null, and TensorFlow's tensors have none: fill or drop such rows, in a "
        "TransformSpec or before; or leave them out with a predicate."
    )
