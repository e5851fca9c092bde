"""Batches of one shard of files as numpy arrays, for loaders: from rows that were decoded once, or from row groups.

Columns of numbers of one length are read into the host's *spool* once, and each epoch gathers its batches from there,
in a new order. If there are other columns (texts, bytes, nulls, arrays of different lengths), the row groups are read
in each epoch, as a reader does. A transform is called in both cases, again in each epoch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterator

import numpy

from spark_estimator.data.fields import Array, Field, find_widths
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.rank.joined import Joined
from spark_estimator.data.rank.prefetch import Ahead
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.pages import Page, count_rows, join_pages, make_object_array, slice_page
from spark_estimator.extensions.petastorm.plan import ReadPlan

# A transform is called for at most this number of bytes, or rows, at a time, but for a batch at least.
_CALL_BYTES = 2 << 20
_CALL_ROWS = 1 << 15
# Each call is long enough to be made ahead separately.
_AHEAD_BYTES = 1 << 20
_SAMPLE_ROWS = 100
_DTYPES = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    **dict.fromkeys(("bigint", "date"), "int64"),
    "boolean": "uint8",
    "float": "float32",
    **dict.fromkeys(("double", "timestamp", "timestamp_ntz"), "float64"),
}
_PLAIN = (
    *(numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8),
    *(numpy.float32, numpy.float64, numpy.bool_),
)
_log = logging.getLogger(__name__)


class BatchSource:
    """All epochs of a shard in batches of exactly `batch_size` rows, one batch running into the next epoch.

    The last batch may have fewer. It may be iterated again, which reads all epochs once more.
    """

    def __init__(self, plan: ReadPlan, batch_size: int) -> None:
        self._plan = plan
        self._batch_size = batch_size
        self._epoch = 0

    def __len__(self) -> int:
        """Return the number of batches of one iteration, the same on all shards.

        Raises:
            TypeError: there is no end, or a transform determines the number of rows.
        """
        plan = self._plan
        if plan.transform is not None and plan.batched:
            raise TypeError(
                "the number of rows is known after transform_spec's function has returned them: count steps."
            )
        if plan.num_epochs is None:
            raise TypeError("with num_epochs=None there is no end: count steps, len(converter) // batch_size for one.")
        return -(-plan.most_rows * plan.num_epochs // self._batch_size)

    def __iter__(self) -> Iterator[Page]:
        """Yield arrays [rows, ...] by the names of the columns; each may be written to."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the rows; another iteration reads them again."""

    def _equalize(self, batches: Iterator[Page]) -> Iterator[Page]:
        """Yield the batches, and one more of one row if the largest shard's odd row forms a separate batch.

        A transform that has changed the number of rows is left alone: how many batches other shards have is not known.
        """
        count = steps = 0
        last: Page = {}
        for batch in batches:
            count, steps, last = count + count_rows(batch), steps + 1, batch
            yield batch
        epochs = self._plan.num_epochs
        if epochs is None or not steps or count != self._plan.rows * epochs:
            return
        for _ in range(-(-self._plan.most_rows * epochs // self._batch_size) - steps):
            yield {name: array.copy() for name, array in slice_page(last, 0, 1).items()}


def make_batch_source(
    plan: ReadPlan, batch_size: int, capacity: int, numbers: bool, by_row: bool = False
) -> BatchSource:
    """Return a plan's rows in batches.

    Args:
        capacity: if rows are not mixed as a whole, each batch is drawn from this number of rows.
        numbers: dates, timestamps and decimals may become numbers.
        by_row: the batches are handed out row by row: arrays of a column may differ in length.

    Raises:
        DataError: a column cannot be read so; the text names it.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    for_torch = numbers and plan.transform is None
    texts = find_texts(plan)
    without_null = [name for name in plan.columns if not (by_row and name in texts)] if for_torch else []
    in_groups = RowGroupBatches(plan, batch_size, capacity, by_row, without_null)
    if not plan.files.rows or not (are_plain(plan) or (for_torch and not texts)):
        return in_groups
    if plan.transform is not None and not plan.batched:
        return in_groups
    try:
        result = ShardBatches(plan, batch_size, mixed=plan.shuffles or bool(capacity))
        if plan.transform is not None or by_row:
            result.read()
    except DataError as reason:
        if plan.transform is None and not by_row:
            raise
        _log.info("row groups are read in each epoch, as they do not fit one array: %s", reason)
        return in_groups
    return result


class ShardBatches(BatchSource):
    """Batches of rows that are decoded once.

    Args:
        mixed: each epoch has a new order; else rows are in the order of the files.
    """

    def __init__(self, plan: ReadPlan, batch_size: int, mixed: bool) -> None:
        super().__init__(plan, batch_size)
        self._mixed = mixed
        self._joined = Joined.from_fields(make_tensor_fields(plan))
        self._truths = [name for name, field in plan.schema.fields.items() if field.numpy_dtype is numpy.bool_]
        self._matrices: tuple[Array, ...] | None = None
        self._call_batches = 1
        self._ahead = Ahead()

    def __iter__(self) -> Iterator[Page]:
        plan, matrices = self._plan, self.read()

        def gather(numbers: Array) -> Page:
            page = dict(zip(plan.columns, self._joined.gather(matrices, numbers), strict=True))
            for name in self._truths:
                page[name] = page[name].view(bool)
            return page

        size, row_bytes = self._batch_size, sum(field.row_bytes for field in self._joined.fields)
        transformer = plan.transformer
        if transformer is None:
            yield from self._ahead.make_items(gather, self._generate_row_numbers(), row_bytes * size)
            return

        def transform(numbers: Array) -> Page:
            arrays = gather(numbers)
            matrices = {name: array for name, array in arrays.items() if array.ndim > 1}
            return transformer.transform_page(arrays, matrices, f"shard {plan.shard} of {plan.shards}")

        most_batches = max(1, min(_CALL_ROWS, _CALL_BYTES // row_bytes) // size)
        pages = self._ahead.make_items(transform, self._generate_calls(most_batches), _AHEAD_BYTES)
        yield from self._equalize(rebatch((page for page in pages if count_rows(page)), size))

    def _generate_row_numbers(self) -> Iterator[Array]:
        """Yield the rows of each batch, by their numbers in the shard."""
        count = 0
        for page in rebatch(({"row": order} for order in self._generate_orders()), self._batch_size):
            yield page["row"]
            count += 1
        # The largest shard has one more row, which may have formed a separate batch.
        for _ in range(count, 0 if self._plan.num_epochs is None else len(self)):
            yield numpy.zeros(1, numpy.int64)

    def _generate_calls(self, most_batches: int) -> Iterator[Array]:
        """Yield the row numbers of each call of the transform: of one batch, then twice as many up to the most."""
        for order in self._generate_orders():
            start = 0
            while start < len(order):
                stop = start + self._call_batches * self._batch_size
                yield order[start:stop]
                start, self._call_batches = stop, min(2 * self._call_batches, most_batches)

    def release(self) -> None:
        self._matrices = None

    def read(self) -> tuple[Array, ...]:
        """Return the rows of the shard; DataError if a value cannot be used."""
        if self._matrices is None:
            plan = self._plan
            rows = FileRows(plan.files, RowEncoder(plan.columns).with_fields(self._joined.stored))
            self._matrices = rows.read(plan.shard, plan.shards)[0].matrices
        return self._matrices

    def _generate_orders(self) -> Iterator[Array]:
        """Yield [rows] of the shard's rows, by their numbers in it, for each epoch."""
        plan = self._plan
        numbers = numpy.arange(plan.rows)
        for _ in itertools.islice(itertools.count(), plan.num_epochs):
            self._epoch += 1
            if self._mixed:
                yield self._ahead.draw_order(numbers, (plan.seed, plan.shard), self._epoch - 1)
            else:
                yield numbers


class RowGroupBatches(BatchSource):
    """Batches of row groups that are read in each epoch.

    Args:
        capacity: each batch is drawn from this number of rows; 0: rows are in the order of the reader.
        by_row: arrays of a column may differ in length: they are objects.
        without_null: columns in which null is an error.
    """

    def __init__(
        self, plan: ReadPlan, batch_size: int, capacity: int, by_row: bool, without_null: Collection[str]
    ) -> None:
        super().__init__(plan, batch_size)
        self._capacity = capacity
        self._by_row = by_row
        self._without_null = without_null

    def __iter__(self) -> Iterator[Page]:
        plan = self._plan
        first, self._epoch = self._epoch, self._epoch + (plan.num_epochs or 1)
        pages = plan.read_pages(first, self._by_row, self._without_null)
        if self._by_row:
            pages = map(_split_rows, pages)
        yield from self._equalize(rebatch(pages, self._batch_size, self._capacity, plan.seed))


def _split_rows(page: Page) -> Page:
    """Return a page whose columns of arrays are objects: those of another page may have another length."""
    return {name: make_object_array(list(array)) if array.ndim > 1 else array for name, array in page.items()}


def are_plain(plan: ReadPlan) -> bool:
    """Return whether all columns that are read hold numbers that the spool keeps in their own types."""
    return all(
        field.numpy_dtype in _PLAIN and len(field.shape) <= 1 and name not in plan.files.coded
        for name, field in plan.schema.fields.items()
    )


def find_texts(plan: ReadPlan) -> list[str]:
    """Return the columns that are read of texts or bytes, or of arrays of them."""
    return [name for name, field in plan.schema.fields.items() if field.numpy_dtype in (numpy.str_, numpy.bytes_)]


def make_tensor_fields(plan: ReadPlan) -> list[Field]:
    """Return a tensor for each column, of the column's own type and shape. Looks at the first rows.

    Raises:
        DataError: a column cannot be read as tensors; the text names it.
    """
    columns, kinds = plan.columns, plan.files.kinds
    dtypes = [_choose_dtype(plan, name, kinds[name]) for name in columns]
    first = FileRows(plan.files, RowEncoder(columns)).read_first_rows(dtypes, _SAMPLE_ROWS)
    arrow_names = [f"c{number}" for number in range(len(columns))]
    fields = []
    for name, dtype, column, width in zip(columns, dtypes, arrow_names, find_widths(first, arrow_names), strict=True):
        if width is None:
            raise DataError(
                f"column {name!r} holds arrays of different lengths, or nulls: pad or cut them in a TransformSpec, or "
                "in the collate_fn of a DataLoader."
            )
        coded = plan.files.coded.get(name)
        shape = coded.shape if coded else (width,) if kinds[name][:5] in ("array", "vecto") else ()
        fields.append(Field((name,), (column,), (width,), dtype, shape))
    return fields


def _choose_dtype(plan: ReadPlan, name: str, kind: str) -> str:
    if name in plan.files.coded:
        return plan.files.coded[name].dtype
    element = kind.removeprefix("array<").removesuffix(">")
    if element in ("float", "double", "vector") or element.startswith("decimal"):
        return plan.precision or _DTYPES.get(element, "float64")
    if element not in _DTYPES:
        raise DataError(
            f"column {name!r} has type {kind}, which has no tensor type: make numbers of it in a TransformSpec, or "
            "leave it out."
        )
    return "uint8" if plan.schema.fields[name].numpy_dtype is numpy.uint8 else _DTYPES[element]


def rebatch(source: Iterator[Page], batch_size: int, capacity: int = 0, seed: int = 0) -> Iterator[Page]:
    """Yield pages cut into batches of exactly `batch_size` rows; the last one may have fewer.

    Args:
        capacity: each batch is drawn from at least this number of rows, while that many remain; 0: rows keep
            their order.
        seed: determines what is drawn.
    """
    mixed = source if not capacity else _mix(source, batch_size, capacity, numpy.random.default_rng([seed, 1]))
    pending: list[Page] = []
    count = 0
    for page in mixed:
        rows, start = count_rows(page), 0
        if pending:
            start = min(rows, batch_size - count)
            pending.append(slice_page(page, 0, start))
            count += start
            if count < batch_size:
                continue
            yield join_pages(pending)
            pending, count = [], 0
        while rows - start >= batch_size:
            yield page if rows == batch_size else slice_page(page, start, start + batch_size)
            start += batch_size
        if start < rows:
            pending, count = [slice_page(page, start, rows)], rows - start
    if pending:
        yield join_pages(pending)


def _mix(source: Iterator[Page], batch_size: int, capacity: int, chance: numpy.random.Generator) -> Iterator[Page]:
    """Yield pages whose rows are drawn from at least `capacity` rows, while that many remain."""
    pending: list[Page] = []
    count = 0
    # Rows are mixed when half the capacity has been read, so that each is moved three times and not for each page.
    enough = batch_size + capacity + capacity // 2
    for page in itertools.chain(source, [None]):
        if page is not None:
            pending.append(page)
            count += count_rows(page)
            if count < enough:
                continue
        elif not count:
            return
        whole = join_pages(pending)
        order = chance.permutation(count)
        whole = {name: array[order] for name, array in whole.items()}
        stop = count - capacity if page is not None else count
        yield slice_page(whole, 0, stop)
        pending, count = [slice_page(whole, stop, count)], count - stop
