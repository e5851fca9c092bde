"""`DataLoader`, `BatchedDataLoader` and `InMemBatchedDataLoader`: petastorm's loaders for PyTorch, over this reader.

Batches are dicts of tensors in the columns' own types, of exactly `batch_size` rows but for the last one, and run on
from one epoch into the next. Unlike petastorm's, all shards have the same number of rows (to one row) and the same
number of batches, so that no rank waits for another at the end. If all columns are numbers of one length, each epoch
mixes all rows of the shard in a new order, not row groups in a fixed one. Such rows are kept in files without names on
the host's disk (`spool`), others are read from their row groups in each epoch.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy
import torch
from torch.utils.data import default_collate

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.batches import find_texts
from spark_estimator.extensions.petastorm.codecs import TENSOR_DTYPES
from spark_estimator.extensions.petastorm.pages import count_rows, slice_page
from spark_estimator.extensions.petastorm.reader import Reader

# Types are looked up as objects: computing a type's name takes as long as the rest of a column of a batch.
_TENSOR_DTYPES = {numpy.dtype(stored): numpy.dtype(larger) for stored, larger in TENSOR_DTYPES.items()}
# Types of objects that become numbers.
_NUMBER_KINDS = ({Decimal}, {datetime.date})
_SAME_DTYPES = frozenset(map(numpy.dtype, ("f2", "f4", "f8", "u1", "i1", "i2", "i4", "i8")))


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Return [rows] of dicts, sequences, arrays or scalars as PyTorch's `default_collate` does; decimals and texts stay
    lists.
    """
    first = batch[0]
    if isinstance(first, (Decimal, str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        return {name: decimal_friendly_collate([row[name] for row in batch]) for name in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(values) for values in zip(*batch, strict=True)]
    return default_collate(list(batch))


class _Loader:
    """The base of `DataLoader` and `BatchedDataLoader`."""

    #: Texts and bytes are given as lists.
    _takes_texts = False

    def __init__(self, reader: Reader, batch_size: int, shuffling_queue_capacity: int, by_row: bool = False) -> None:
        batch_size = check_size("batch_size", batch_size)
        if not isinstance(reader, Reader):
            raise TypeError(f"a loader takes a reader of make_reader or make_batch_reader; got {reader!r}.")
        self.reader = reader
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self._by_row = by_row
        if not by_row:
            _check_texts(reader, self._takes_texts)
        self._batches = reader.batches(batch_size, shuffling_queue_capacity, by_row=by_row)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "_yield_batches" in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides _yield_batches, which this package's loaders do not call: override "
                "__iter__, or change the columns in a TransformSpec."
            )

    def __len__(self) -> int:
        """Return the number of batches of one iteration, the same on all shards."""
        return len(self._batches)

    def __bool__(self) -> bool:
        """Return True, as petastorm's loaders do, also if the number of batches is not known."""
        return True

    def _read_columns(self) -> Iterator[dict[str, Any]]:
        for batch in self._batches:
            if self.reader.stopped:
                raise RuntimeError(
                    "the reader was stopped, or the loader's with block has ended: it gives no more rows."
                )
            if {array.dtype for array in batch.values()} <= _SAME_DTYPES:
                yield batch
            else:
                yield {name: self._convert_column(array, name) for name, array in batch.items()}
        self.reader.last_row_consumed = True

    def _convert_column(self, array: Array, name: str) -> Array | list[Any]:
        if array.dtype.kind not in "OSU" or array.ndim > 1 or not self._takes_texts:
            return to_torch_numbers(array, name)
        values: list[Any] = array.tolist()
        kinds = set(map(type, values))
        if kinds <= {str, bytes} or (self._by_row and kinds not in _NUMBER_KINDS):
            return values
        return to_torch_numbers(array, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.release()
        self.reader.stop()


class DataLoader(_Loader):
    """Batches of what a reader reads: dicts by the columns' names, of tensors; of texts and bytes, of lists.

    It may be iterated again, which reads all epochs once more, in new orders. Tensors are copies. It is a context
    manager, too, at whose end the rows are released.

    Args:
        reader: of `make_reader` or `make_batch_reader`.
        batch_size: rows of each batch; the last one may have fewer.
        collate_fn: makes the batch of a list of dicts, one for each row; arrays of a column may differ in length, and
            texts may be null. The default makes tensors of whole columns, which takes a small part of the time.
        shuffling_queue_capacity: if row groups are read in each epoch, each batch is drawn from this number of rows.

    Raises:
        DataError: a column cannot be read as tensors.
        TypeError, ValueError: another reader, or `batch_size` is below 1.
    """

    _takes_texts = True

    def __init__(
        self,
        reader: Reader,
        batch_size: int = 1,
        collate_fn: Callable[[list[dict[str, Any]]], Any] = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity, collate_fn is not decimal_friendly_collate)
        self.collate_fn = collate_fn

    def __iter__(self) -> Iterator[Any]:
        for batch in self._read_columns():
            if not self._by_row:
                yield {name: v if isinstance(v, list) else torch.from_numpy(v) for name, v in batch.items()}
                continue
            rows = zip(*batch.values(), strict=True)
            yield self.collate_fn([dict(zip(batch, row, strict=True)) for row in rows])


class BatchedDataLoader(_Loader):
    """As `DataLoader`, with a function that makes each tensor.

    Args:
        reader, batch_size, shuffling_queue_capacity: as in `DataLoader`.
        transform_fn: makes a tensor of an array [batch, ...]; ``functools.partial(torch.as_tensor, device="cuda")``.
    """

    def __init__(
        self,
        reader: Reader,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self.transform_fn = transform_fn or torch.from_numpy

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._read_columns():
            yield {name: self.transform_fn(array) for name, array in batch.items()}


class InMemBatchedDataLoader:
    """Batches of a reader's first rows, which are kept in memory; the reader is stopped when they have been read.

    Args:
        reader: of `make_reader` or `make_batch_reader`.
        batch_size: rows of each batch; the last one of an epoch may have fewer.
        transform_fn: as in `BatchedDataLoader`; called for each row group that is read.
        num_epochs: how often the rows are read in one iteration.
        seed: determines the orders.
        rows_capacity: the most rows that are kept; the others are not read.
        shuffle: each epoch has a new order.

    Raises:
        DataError: a column cannot be read as tensors, or there are no rows.
    """

    def __init__(
        self,
        reader: Reader,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        num_epochs: int = 1,
        seed: int = 0,
        rows_capacity: int = 1024,
        shuffle: bool = False,
    ) -> None:
        self._batch_size = check_size("batch_size", batch_size)
        self._num_epochs = check_size("num_epochs", num_epochs)
        rows_capacity = check_size("rows_capacity", rows_capacity)
        self._seed = seed
        self._shuffle = shuffle
        self._is_used = False
        make = transform_fn or torch.from_numpy
        parts: list[dict[str, Any]] = []
        count = 0
        for page in reader.pages():
            rows = slice_page(page, 0, rows_capacity - count)
            parts.append({name: make(to_torch_numbers(array, name)) for name, array in rows.items()})
            count += count_rows(rows)
            if count >= rows_capacity:
                break
        reader.stop()
        reader.join()
        if not parts:
            raise DataError("the reader gave no rows to keep in memory.")
        self._rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self._count = count

    def __bool__(self) -> bool:
        """Return True."""
        return True

    def __len__(self) -> int:
        """Return the number of batches of all epochs."""
        return self._num_epochs * -(-self._count // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._is_used:
            raise RuntimeError("an InMemBatchedDataLoader is iterated once: give it num_epochs for more.")
        self._is_used = True
        return self._generate_batches()

    def _generate_batches(self) -> Iterator[dict[str, Any]]:
        for epoch in range(self._num_epochs):
            order = torch.arange(self._count)
            if self._shuffle:
                order = torch.randperm(self._count, generator=torch.Generator().manual_seed(self._seed + epoch))
            for numbers in order.split(self._batch_size):
                yield {name: rows[numbers.to(rows.device)] for name, rows in self._rows.items()}

    def __enter__(self) -> InMemBatchedDataLoader:
        return self

    def __exit__(self, *error: object) -> None:
        return


def check_size(name: str, value: Any) -> int:
    """Return a number of rows, 1 or more; petastorm takes 25.0, too. Another value is a TypeError or ValueError."""
    try:
        number = operator.index(int(value) if isinstance(value, float) and value.is_integer() else value)
    except (TypeError, ValueError):  # a tensor of several numbers, for one
        raise TypeError(f"{name} must be a whole number; got {value!r}.") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1; got {value}.")
    return number


def to_torch_numbers(array: Array, name: str) -> Array:
    """Return a column in a type that tensors have: truth values as uint8, seconds or days since 1970, ...

    Raises:
        DataError: it holds texts, bytes, null or other objects; the text has its name.
    """
    if array.dtype in _SAME_DTYPES:
        return array
    if array.dtype == bool:
        return array.view(numpy.uint8)
    if array.dtype.kind == "M":
        _check_no_null(numpy.isnat(array), name)
        days = array.dtype == "datetime64[D]"
        return array.astype(numpy.int64) if days else array.astype("datetime64[us]").astype(numpy.int64) / 1e6
    if array.dtype.kind in "OSU":
        return _convert_objects(array, name)
    dtype = _TENSOR_DTYPES.get(array.dtype)
    return array if dtype is None else array.astype(dtype)


def _convert_objects(array: Array, name: str) -> Array:
    if array.dtype == object and array.ndim == 1:
        _check_no_null(numpy.fromiter((item is None for item in array), bool, len(array)), name)
        if all(isinstance(item, Decimal) for item in array):
            return array.astype(numpy.float64)
        if all(type(item) is datetime.date for item in array):
            return array.astype("datetime64[D]").astype(numpy.int64)
    raise _make_error(name, f"{type(array.flat[0]).__name__} values")


def _make_error(name: str, values: str) -> DataError:
    return DataError(
        f"column {name!r} holds {values}, which PyTorch tensors can't hold: make numbers of them in a TransformSpec, "
        "or leave the column out (schema_fields, or removed_fields of the TransformSpec). DataLoader has lists of "
        "texts and bytes, and gives rows of any values to a collate_fn."
    )


def _check_texts(reader: Reader, takes_texts: bool) -> None:
    """Raise DataError for the first column of texts, or of arrays of them, that a loader does not take."""
    fields = reader.plan.schema.fields
    # What a transform's function returns is not known before.
    for name in find_texts(reader.plan) if reader.plan.transform is None else []:
        if fields[name].shape or not takes_texts:
            text = "texts" if fields[name].numpy_dtype is numpy.str_ else "bytes"
            raise _make_error(name, f"arrays of {text}" if fields[name].shape else text)


def _check_no_null(mask: Array, name: str) -> None:
    if mask.any():
        raise DataError(
            f"column {name!r} holds null in {int(mask.sum())} of {len(mask)} rows, and tensors have none: fill or drop "
            "such rows, in a TransformSpec or before."
        )
