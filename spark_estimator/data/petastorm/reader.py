"""`make_reader` and `make_batch_reader` with petastorm's arguments: which rows of which files are read, how often."""

from __future__ import annotations

import math
import re
import secrets
import warnings
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from spark_estimator.collectives import context
from spark_estimator.collectives.foreign.launchers import warn_of_all_rows
from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.fields import Field, widths_of
from spark_estimator.data.materialize import MANIFEST, prepared
from spark_estimator.data.numbers import readable_in
from spark_estimator.data.parquet import DataFiles, FileRows, files_at, local_form, store_for
from spark_estimator.data.petastorm.batches import ShardBatches
from spark_estimator.data.petastorm.codecs import DecodedFiles
from spark_estimator.data.petastorm.schema import fields_of, pickled_schema
from spark_estimator.data.preparation import Preparation
from spark_estimator.data.rank.shares import share
from spark_estimator.env import Settings
from spark_estimator.errors import DataError
from spark_estimator.log import logger

_SAMPLE_ROWS = 100
# Iteration of a reader gathers this number of rows at a time.
_BATCH_ROWS = 1000
_DTYPES = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "boolean": "uint8",
    "date": "int64",
    "float": "float32",
    "double": "float64",
    "timestamp": "float64",
    "timestamp_ntz": "float64",
}
#: Arguments of petastorm's readers that say how it works; there is nothing of the kind here.
_WITHOUT_EFFECT = {
    "reader_pool_type",
    "workers_count",
    "results_queue_size",
    "pyarrow_serialize",
    "shuffle_row_drop_partitions",
    "shard_seed",
    "cache_type",
    "cache_location",
    "cache_size_limit",
    "cache_row_size_estimate",
    "cache_extra_settings",
    "hdfs_driver",
    "zmq_copy_buffers",
    "convert_early_to_numpy",
}
#: Arguments that change which rows or values come, and what to do instead.
_REFUSED = {
    "predicate": "filter the DataFrame before it is converted or written",
    "filters": "filter the DataFrame before it is converted or written",
    "rowgroup_selector": "filter the DataFrame before it is converted or written",
    "transform_spec": "transform the DataFrame before it is converted, or each batch in the loop that reads it",
    "filesystem": "give a URL, and storage_options",
    "ngram": "make windows of rows where the data set is written",
}
_warned: set[str] = set()
_log = logger(__name__)


@dataclass(frozen=True)
class Reader:
    """Which rows are read, how often and in which order. Made by `make_reader`; for `DataLoader`.

    Iterated, it gives tuples with the columns' names, in the types that `DataLoader` has, too: a row of numpy values
    each, of `make_batch_reader` a thousand rows of numpy arrays [rows, ...]. Iterated again, it gives all rows again.

    Attributes:
        files: that hold them.
        columns: that are read.
        precision: "float32" or "float64" for fractions; None: as they are in the files.
        shard, shards: one of so many equal parts of the rows.
        num_epochs: all rows are read so often; None: again and again.
        seed: determines the orders of the epochs; None: rows come in the order of the files.
        batched: iterated, it gives many rows at a time.
    """

    files: DataFiles
    columns: tuple[str, ...]
    precision: str | None = None
    shard: int = 0
    shards: int = 1
    num_epochs: int | None = 1
    seed: int | None = 0
    batched: bool = False

    @property
    def rows(self) -> int:
        """Of this shard, in one epoch."""
        return share(self.files.rows, self.shards, self.shard)

    def fields(self) -> list[Field]:
        """A tensor for each column, of the column's own type and shape. Looks at the first rows.

        Raises:
            DataError: a column cannot be read as tensors; the text names it.
        """
        dtypes = [self._dtype(name) for name in self.columns]
        first = FileRows(self.files, Preparation(self.columns)).first_rows(dtypes, _SAMPLE_ROWS)
        arrow_names = [f"c{number}" for number in range(len(self.columns))]
        coded = self.files.coded if isinstance(self.files, DecodedFiles) else {}
        fields = []
        for name, dtype, column, width in zip(
            self.columns, dtypes, arrow_names, widths_of(first, arrow_names), strict=True
        ):
            if width is None:
                raise DataError(f"column {name!r} holds arrays of different lengths, or nulls: pad or cut them.")
            kind = self.files.kinds[name]
            shape = coded[name].shape if name in coded else (width,) if kind[:5] in ("array", "vecto") else ()
            fields.append(Field((name,), (column,), (width,), dtype, shape))
        return fields

    def batches(self, batch_size: int) -> ShardBatches:
        """The shard's rows in batches of numpy arrays.

        Raises:
            DataError: a column cannot be read as tensors; the text names it.
        """
        rows = FileRows(self.files, Preparation(self.columns), Settings.read().spool_folder or None)
        return ShardBatches(
            rows, self.fields(), self.shard, self.shards, self.num_epochs, self.seed, batch_size=batch_size
        )

    def __iter__(self) -> Iterator[Any]:
        kind = namedtuple("Row", self.columns, rename=True)  # type: ignore[misc]  # columns are known at run time
        left = math.inf if self.num_epochs is None else self.rows * self.num_epochs
        for batch in self.batches(_BATCH_ROWS):
            arrays = [batch[name] for name in self.columns]
            if left <= 0:
                return  # a batch with a row once more, which makes all shards have the same number of batches
            left -= len(arrays[0])
            if self.batched:
                yield kind(*arrays)
            else:
                yield from (kind(*(array[number] for array in arrays)) for number in range(len(arrays[0])))

    def stop(self) -> None:
        """As petastorm has it; nothing runs here that could be stopped."""

    def join(self) -> None:
        """As petastorm has it."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def _dtype(self, name: str) -> str:
        if isinstance(self.files, DecodedFiles) and name in self.files.coded:
            return self.files.coded[name].dtype
        kind = readable_in(self.files.kinds, name).kind
        element = kind[len("array<") : -1] if kind.startswith("array<") else kind
        if element in ("float", "double", "vector") or element.startswith("decimal"):
            return self.precision or _DTYPES.get(element, "float64")
        return _DTYPES[element]


def make_reader(
    dataset_url: str | Sequence[str],
    schema_fields: Sequence[Any] | None = None,
    *,
    trust: bool = False,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    seed: int | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Reader:
    """Reads a data set of Parquet files, also one that petastorm wrote with a Unischema.

    Args:
        dataset_url: a folder, or files.
        schema_fields: columns: names, regular expressions that match whole names, or fields of a Unischema; None: all.
        trust: the data set's pickled Unischema may be opened. Columns of arrays and images need it; no code that it
            names is run, and petastorm need not be installed.
        shuffle_rows, shuffle_row_groups: with either, each epoch has all rows of the shard in an order of its own;
            with neither, rows come in the order of the files.
        seed: determines the orders; None: a random seed does.
        num_epochs: all rows are read so often; None: again and again.
        cur_shard, shard_count: the rows are cut into so many equal shares, and this one is read: ``hvd.rank()`` and
            ``hvd.size()``. Without them it is all rows.
        storage_options: for fsspec.
        others: the other arguments of petastorm's readers. Those that configure how petastorm works have no effect;
            a warning lists them once.

    Raises:
        DataError: files or columns that cannot be read; the text names them.
        TypeError: an argument that petastorm does not know.
        ValueError: an argument that would change which rows or values are read, or a shard number out of range.
    """
    check_others("make_reader", others)
    paths = [dataset_url] if isinstance(dataset_url, str) else list(dataset_url)
    store = store_for(local_form(paths[0]), storage_options) if paths else None
    folder = store.get_full_path(local_form(paths[0])) if store and len(paths) == 1 else ""
    files: DataFiles
    if store and folder and store.exists(f"{folder}/{MANIFEST}"):
        files = prepared(store, folder)
    else:
        files = files_at(paths, storage_options=storage_options)
    columns = chosen(list(files.kinds), schema_fields)
    pickled = pickled_schema(store, folder) if store and folder else None
    binary = [name for name in columns if files.kinds[name] == "binary"]
    if pickled is not None and binary:
        if not trust:
            raise DataError(
                f"{folder}: petastorm's codecs made binary columns of {', '.join(map(repr, binary))}, and how is in a "
                "pickle beside the data, which is opened only where you trust the data set: trust=True. Or leave these "
                "columns out: schema_fields."
            )
        schema = fields_of(pickled, folder)
        decodable = [schema[name] for name in binary if name in schema and schema[name].codec != "scalar"]
        files = DecodedFiles.of(files, decodable)
    return reader_of(files, columns, None, cur_shard, shard_count, num_epochs, seed, shuffle_rows or shuffle_row_groups)


def make_batch_reader(
    dataset_url_or_urls: str | Sequence[str], schema_fields: Sequence[Any] | None = None, **arguments: Any
) -> Reader:
    """As `make_reader`, which reads any Parquet files here; petastorm has a reader of its own for those that it has not
    written."""
    return replace(make_reader(dataset_url_or_urls, schema_fields, **arguments), batched=True)


def reader_of(
    files: DataFiles,
    columns: Sequence[str],
    precision: str | None,
    cur_shard: int | None,
    shard_count: int | None,
    num_epochs: int | None,
    seed: int | None,
    shuffle: bool,
) -> Reader:
    """Checks the arguments that all ways to a reader share.

    Raises:
        DataError: the files' columns differ, or there are fewer rows than shards.
        ValueError: the shard number is out of range, or the number of epochs is below 1.
    """
    if (cur_shard is None) != (shard_count is None):
        raise ValueError(f"cur_shard={cur_shard!r} and shard_count={shard_count!r}: give both or neither.")
    if shard_count is not None and cur_shard is not None and not 0 <= cur_shard < shard_count:
        raise ValueError(f"cur_shard={cur_shard}: shards are numbered from 0, and shard_count is {shard_count}.")
    if num_epochs is not None and num_epochs < 1:
        raise ValueError(f"num_epochs is at least 1, or None for no end; it was {num_epochs}.")
    shard, shards = (0, 1) if cur_shard is None or shard_count is None else (cur_shard, shard_count)
    _compare_with_job(shard, shards)
    files.check(columns)
    if files.rows < shards:
        raise DataError(f"{files.rows} rows cannot be shared out among {shards} shards: each reads one at least.")
    order = None if not shuffle else secrets.randbits(63) if seed is None else seed
    return Reader(files, tuple(columns), precision, shard, shards, num_epochs, order)


def chosen(columns: Sequence[str], schema_fields: Sequence[Any] | None) -> list[str]:
    """The columns that petastorm's `schema_fields` mean.

    Args:
        columns: all that there are.
        schema_fields: as in `make_reader`.

    Raises:
        DataError: one of them matches no column.
    """
    if schema_fields is None:
        return list(columns)
    wanted: set[str] = set()
    for field in schema_fields:
        pattern = field if isinstance(field, str) else re.escape(str(field.name))
        matching = [name for name in columns if name == field or re.fullmatch(pattern, name)]
        if not matching:
            raise DataError(
                f"schema_fields: {field!r} is no column of {', '.join(map(repr, columns))}."
                + did_you_mean(str(getattr(field, "name", field)), columns)
            )
        wanted.update(matching)
    return [name for name in columns if name in wanted]


def check_others(call: str, others: Mapping[str, Any]) -> None:
    """Refuses arguments that would change rows or values; a warning lists those without effect, once for each.

    Raises:
        TypeError, ValueError: as in `make_reader`.
    """
    for name, value in others.items():
        if name in _REFUSED and value is not None:
            raise ValueError(
                f"{call}: {name} is not supported; {_REFUSED[name]}. Or set reader='petastorm' for a converter."
            )
        if name not in _WITHOUT_EFFECT and name not in _REFUSED:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    without_effect(name for name, value in others.items() if value is not None and name in _WITHOUT_EFFECT)


def without_effect(names: Iterable[str]) -> None:
    """Warns of arguments that have no effect here, once for each."""
    new = sorted(set(names) - _warned)
    _warned.update(new)
    if new:
        warnings.warn(
            f"{', '.join(new)}: petastorm's, and without effect here: rows are read into a file of the host once, and "
            "batches are gathered from it.",
            stacklevel=4,
        )


def _compare_with_job(shard: int, shards: int) -> None:
    if not context.is_initialized():
        if shards == 1:
            warn_of_all_rows("A petastorm reader without cur_shard and shard_count")
        return
    rank, size = context.rank(), context.size()
    if size > 1 and (shard, shards) != (rank, size):
        _log.warning(
            "rank %d of %d reads shard %d of %d: for a different share on each rank set cur_shard=hvd.rank(), "
            "shard_count=hvd.size()",
            rank,
            size,
            shard,
            shards,
        )
