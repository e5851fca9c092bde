"""`make_reader` and `make_batch_reader` with petastorm's arguments: which rows of which files are read, how often."""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from spark_estimator.data.materialize import MANIFEST, find_data_set
from spark_estimator.data.parquet_file import open_store, to_local_form
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.arguments import (
    ReaderArguments,
    check_others,
    choose_columns,
    choose_fields,
    compare_with_job,
)
from spark_estimator.extensions.petastorm.batches import BatchSource, make_batch_source
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, find_dataset
from spark_estimator.extensions.petastorm.pages import Page
from spark_estimator.extensions.petastorm.plan import ReadPlan
from spark_estimator.extensions.petastorm.predicates import PredicateBase
from spark_estimator.extensions.petastorm.schema import parse_fields, read_pickled_schema
from spark_estimator.extensions.petastorm.selection import select_rows
from spark_estimator.extensions.petastorm.transform import TransformSpec, transform_schema
from spark_estimator.extensions.petastorm.unischema import Unischema


class Reader:
    """Reads rows, as petastorm's Reader does. Made by `make_reader` and `make_batch_reader`; an iterator.

    It gives named tuples with the columns' names: of `make_reader` one row each, of `make_batch_reader` the rows of a
    row group, as numpy arrays [rows, ...]. After the last epoch it ends; `reset` starts again. A context manager, too.

    Attributes:
        plan: which rows are read, and how.
        schema, transformed_schema: the `Unischema` of what it gives: after the transform, where there is one.
        columns: the names of the columns that it gives.
        rows: those of this shard, in one epoch, before the transform.
        num_epochs: how often all rows are read; None: again and again.
        seed: of the epochs' orders; None: rows are in the order of the files.
        is_batched_reader, batched_output: it gives many rows at a time.
        last_row_consumed: all epochs have been read.
        stopped: `stop` was called.
    """

    ngram = None

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.schema: Unischema = plan.result_schema
        self.transformed_schema = self.schema
        self.columns = tuple(self.schema.fields)
        self.rows = plan.rows
        self.num_epochs = plan.num_epochs
        self.seed = plan.seed if plan.shuffles else None
        self.is_batched_reader = self.batched_output = plan.batched
        self.last_row_consumed = False
        self.stopped = False
        self._epoch = 0
        self._items: Iterator[Any] | None = None

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Return the number of threads that read ahead; petastorm reports on its queues here."""
        return {"threads": self.plan.threads}

    def batches(self, batch_size: int, capacity: int = 0, numbers: bool = True, by_row: bool = False) -> BatchSource:
        """Return the shard's rows in batches of numpy arrays, for loaders; arguments as of `make_batch_source`."""
        return make_batch_source(self.plan, batch_size, capacity, numbers, by_row)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        """Return the next row, or rows; RuntimeError after `stop`, DataError if it can't be read or transformed."""
        if self.stopped:
            raise RuntimeError("the reader was stopped, or its with block has ended: it gives no more rows.")
        if self.last_row_consumed:
            raise StopIteration
        if self._items is None:
            self._items = self._generate_items()
        try:
            return next(self._items)
        except StopIteration:
            self.last_row_consumed = True
            raise

    next = __next__

    def _generate_items(self) -> Iterator[Any]:
        row_type = self.schema.row_type()
        if self.plan.batched:
            for page in self.plan.read_pages(self._epoch, by_row=False):
                yield row_type(*(page[name] for name in self.schema.fields))
        else:
            for rows in self.plan.read_rows(self._epoch):
                yield from map(row_type._make, rows)
        self._epoch += self.plan.num_epochs or 0

    def pages(self) -> Iterator[Page]:
        """Yield all epochs' row groups as dicts of arrays; for loaders that keep them."""
        return self.plan.read_pages(self._epoch, by_row=False)

    def reset(self) -> None:
        """Start again from the first row, in the orders of further epochs; NotImplementedError while rows are left."""
        if self.stopped:
            return
        if not self.last_row_consumed:
            raise NotImplementedError("a reader is reset when all its rows have been read: make another reader.")
        self.last_row_consumed = False
        self._items = None

    def stop(self) -> None:
        """End the reading; further rows are an error."""
        self.stopped = True
        items, self._items = self._items, None
        if items is not None:
            # A thread of TensorFlow may be inside; it ends at its next row.
            with contextlib.suppress(ValueError):
                items.close()  # type: ignore[attr-defined]  # a generator

    def join(self) -> None:
        """Do nothing: `stop` has waited for the threads. Petastorm has this method."""

    def cleanup_cache(self) -> None:
        """Do nothing: there is no cache. Petastorm has this method."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, (self.plan,)


def make_batch_reader(
    dataset_url_or_urls: str | Sequence[str],
    schema_fields: Sequence[Any] | None = None,
    reader_pool_type: str = "thread",
    workers_count: int | None = 10,
    results_queue_size: int | None = None,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    *,
    trust: bool = False,
    transform_spec: TransformSpec | None = None,
    filters: Sequence[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Reader:
    """Read Parquet files, the rows of a row group at a time.

    Args:
        dataset_url_or_urls: a folder, or files. Folders ``name=value`` below make columns.
        schema_fields: columns: names, regular expressions that match whole names, or fields of a Unischema; None: all.
        reader_pool_type: "dummy" reads when rows are asked for; "thread" and "process" read ahead in threads.
        workers_count: the most threads; there is at most one for each core.
        seed: determines the orders; None: a random seed does.
        shuffle_rows: rows of a row group have a new order in each epoch.
        shuffle_row_groups: row groups do.
        shuffle_row_drop_partitions: the number of parts in which each row group is read.
        predicate: selects rows; of `petastorm.predicates`.
        num_epochs: all rows are read so often; None: again and again.
        cur_shard, shard_count: the selected rows are cut into `shard_count` equal shares, and share `cur_shard` is
            read: ``hvd.rank()`` and ``hvd.size()``. Without them it is all rows.
        trust: the pickled Unischema of a data set that petastorm wrote may be opened, to decode its columns; no
            code that it names is run. False: they remain bytes.
        transform_spec: what is done to the rows of each row group, as a pandas.DataFrame.
        filters: PyArrow's: rows that they leave out are not read.
        storage_options: for fsspec.
        results_queue_size, rowgroup_selector, others: the other arguments of petastorm's readers. Those that
            configure how petastorm works have no effect; a warning lists them once.

    Raises:
        DataError: files or columns that cannot be read; the text names them.
        TypeError: an argument that petastorm does not know.
        ValueError: an argument that is not supported, or a shard number out of range.
    """
    return _make("make_batch_reader", dataset_url_or_urls, "" if trust else "as bytes", locals())


def make_reader(
    dataset_url: str | Sequence[str],
    schema_fields: Sequence[Any] | None = None,
    reader_pool_type: str = "thread",
    workers_count: int | None = 10,
    pyarrow_serialize: bool | None = None,
    results_queue_size: int | None = None,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    *,
    trust: bool = False,
    transform_spec: TransformSpec | None = None,
    filters: Sequence[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Reader:
    """Read a data set one row at a time; also one that petastorm wrote with a Unischema. As `make_batch_reader`,
    but:

    Args:
        trust: the data set's pickled Unischema may be opened. Columns of arrays and images need it; no code that
            it names is run, and petastorm need not be installed.
        transform_spec: its function takes and returns a dict of one row.

    Raises:
        DataError: files or columns that cannot be read, and columns of arrays without `trust`; the text names them.
        TypeError, ValueError: as `make_batch_reader`.
    """
    return _make("make_reader", dataset_url, "" if trust else "refused", locals())


def _make(call: str, url: Any, untrusted: str, arguments: Mapping[str, Any]) -> Reader:
    """Make the reader of a call with these arguments; `untrusted` as of `_find_files`."""
    unused = ("pyarrow_serialize", "results_queue_size", "rowgroup_selector")
    check_others(call, {**arguments["others"], **{name: arguments[name] for name in unused if name in arguments}})
    schema_fields = arguments["schema_fields"]
    files, origin = _find_files(url, arguments["storage_options"], schema_fields, untrusted)
    schema = choose_fields(files, schema_fields, origin)
    shared = ReaderArguments(*(arguments[name] for name in ReaderArguments._fields))
    return build_reader(files, schema, shared, batched=call == "make_batch_reader")


def _find_files(
    url: Any, storage_options: Mapping[str, Any] | None, schema_fields: Any, untrusted: str
) -> tuple[DatasetFiles, str]:
    """Return the files, and what to call them in messages.

    Args:
        untrusted: what becomes of columns that petastorm's codecs made binary; empty: they are decoded.
    """
    paths = list(url) if isinstance(url, Iterable) and not isinstance(url, str) else [url]
    if not all(isinstance(path, str) for path in paths):
        raise ValueError(f"a data set's URL must be a str, or a list of them; got {url!r}.")
    if len(paths) != 1:
        return find_dataset(paths, storage_options), f"{len(paths)} paths"
    path = to_local_form(paths[0])
    store = open_store(path, storage_options)
    folder = store.get_full_path(path)
    if store.exists(f"{folder}/{MANIFEST}"):
        files = DatasetFiles.from_files(find_data_set(store, folder))
    else:
        files = find_dataset(paths, storage_options)
    kinds = files.kinds
    binary = [name for name in choose_columns(list(kinds), schema_fields) if kinds[name] == "binary"]
    pickled = read_pickled_schema(store, folder) if binary else None
    if pickled is None:
        return files, paths[0]
    if untrusted:
        text = (
            f"{folder}: petastorm's codecs made binary columns of {', '.join(map(repr, binary))}, and how is in a "
            "pickle beside the data, which is opened only where you trust the data set: trust=True. Or leave these "
            "columns out: schema_fields."
        )
        if untrusted == "refused":
            raise DataError(text)
        warnings.warn(f"{text} Their values come as bytes.", stacklevel=4)
        return files, paths[0]
    schema = parse_fields(pickled, folder)
    decodable = [schema[name] for name in binary if name in schema and schema[name].codec != "scalar"]
    return files.add_coded(decodable), paths[0]


def build_reader(
    files: DatasetFiles, schema: Unischema, wanted: ReaderArguments, *, batched: bool, precision: str | None = None
) -> Reader:
    """Check the arguments that all readers share, and return the reader of `schema`, in a precision as of `ReadPlan`.

    Raises:
        DataError: the files' columns differ, or there are fewer rows than shards.
        ValueError: as `ReaderArguments.check`.
    """
    wanted.check()
    threads = _choose_threads(wanted.reader_pool_type, wanted.workers_count)
    shard, shards = wanted.cur_shard or 0, wanted.shard_count or 1
    compare_with_job(shard, shards)
    if precision is not None:
        schema = _cast_schema(schema, numpy.dtype(precision).type)
    spec = wanted.transform_spec
    result_schema = schema if spec is None else transform_schema(schema, spec)
    if not result_schema.fields:
        raise DataError(
            "no column is left to read: "
            + ("transform_spec removes all." if schema.fields else "the files have none of a type that numpy has.")
        )
    if spec is not None and spec.func is None:
        schema, spec = _drop_fields(schema, result_schema), None
    files.check(list(schema.fields))
    files = select_rows(files, wanted.predicate, wanted.filters, by_row=not batched)
    if files.rows < shards and (wanted.shard_count is not None or not (wanted.predicate or wanted.filters)):
        raise DataError(f"{files.rows} rows cannot be shared out among {shards} shards: each reads one at least.")
    if not files.rows:
        warnings.warn("the predicate or the filters leave no row, so that the reader gives none.", stacklevel=4)
    return Reader(
        ReadPlan(
            files=files,
            schema=schema,
            result_schema=result_schema,
            precision=precision,
            shard=shard,
            shards=shards,
            num_epochs=wanted.num_epochs,
            seed=secrets.randbits(63) if wanted.seed is None else wanted.seed,
            shuffle_rows=wanted.shuffle_rows,
            shuffle_row_groups=wanted.shuffle_row_groups,
            parts=wanted.shuffle_row_drop_partitions,
            batched=batched,
            transform=spec,
            threads=threads,
        )
    )


def _drop_fields(schema: Unischema, result: Unischema) -> Unischema:
    """Return the columns that remain if a TransformSpec has no function."""
    lacking = [name for name in result.fields if name not in schema.fields]
    if lacking:
        raise DataError(
            f"edit_fields names {lacking[0]!r}, which is no column, and TransformSpec has no func to make it."
        )
    return Unischema(result._name, [schema.fields[name] for name in result.fields])


def _cast_schema(schema: Unischema, dtype: type[Any]) -> Unischema:
    fractions = (numpy.float32, numpy.float64)
    fields = schema.fields.values()
    return Unischema(schema._name, [f._replace(numpy_dtype=dtype) if f.numpy_dtype in fractions else f for f in fields])


def _choose_threads(pool: str, workers_count: int | None) -> int:
    """Return the threads for petastorm's arguments: at most one for each core, as more would hold more row groups."""
    if pool not in ("thread", "process", "dummy"):
        raise ValueError(f"reader_pool_type must be 'thread', 'process' or 'dummy'; got {pool!r}.")
    if workers_count is not None and workers_count < 1:
        raise ValueError(f"workers_count must be at least 1; got {workers_count}.")
    return 0 if pool == "dummy" else min(workers_count or 10, os.cpu_count() or 1)
