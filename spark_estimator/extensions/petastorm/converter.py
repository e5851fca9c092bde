"""``make_spark_converter``: a DataFrame whose rows ranks read with the API of petastorm's converter."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_estimator.data.columns import make_raw
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.scan import ThroughSpark, find_just_files
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm import cache
from spark_estimator.extensions.petastorm.arguments import (
    ReaderArguments,
    check_others,
    choose_fields,
    warn_without_effect,
)
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, find_dataset
from spark_estimator.extensions.petastorm.reader import Reader, build_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PRECISIONS = (None, "float32", "float64")
_COMPRESSIONS = ("uncompressed", "bzip2", "gzip", "lz4", "snappy", "deflate")
# Scalars, and arrays of them, in Spark's words.
_READABLE = re.compile(
    r"(array<)?((tiny|small|big)?int|float|double|boolean|date|binary|(decimal|timestamp|string|(var)?char)[^<]*)>?"
)
_log = logging.getLogger(__name__)


def make_spark_converter(
    df: DataFrame | str,
    parquet_row_group_size_bytes: int | None = None,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    read_files: bool = True,
) -> SparkDatasetConverter:
    """Make a converter of a DataFrame, from which functions on ranks can read batches.

    Args:
        df: with columns of numbers, texts, bytes, dates, and arrays of them, or vectors; others are left out with
            a warning. Or the path of a folder of Parquet files, which are read as they are.
        parquet_row_group_size_bytes, compression_codec: petastorm's, and without effect here.
        dtype: "float32" or "float64" for fractions and vectors; None leaves them as they are.
        read_files: a DataFrame that is just Parquet files is read from these. False: it is written, as any other.

    Returns:
        The converter. It is pickled to the ranks, as part of the function that is passed to `HorovodRunner`.

    Raises:
        DataError: no column can be read as tensors, there are no rows, or no folder was named to write in.
        ValueError: another `dtype`.
    """
    if dtype not in _PRECISIONS:
        raise ValueError(f"dtype must be 'float32', 'float64' or None; got {dtype!r}.")
    if compression_codec is not None and compression_codec.lower() not in _COMPRESSIONS:
        raise ValueError(f"compression_codec must be one of {', '.join(_COMPRESSIONS)}; got {compression_codec!r}.")
    ignored = {"parquet_row_group_size_bytes": parquet_row_group_size_bytes, "compression_codec": compression_codec}
    warn_without_effect(name for name, value in ignored.items() if value is not None)
    if isinstance(df, str):
        return SparkDatasetConverter(find_dataset(df))
    names = _find_readable(df)
    if read_files:
        try:
            files = find_just_files(df, [make_raw(df.schema, name) for name in names], tasks=2)
            if not all(file.is_plain for file in files.files):
                raise ThroughSpark("a table's log lists which rows and columns of its files count")
            _log.info("the converter reads the DataFrame's %d Parquet files themselves", len(files.files))
            return SparkDatasetConverter(files, names, dtype)
        except ThroughSpark as reason:
            _log.info("the converter writes the DataFrame's rows: %s", reason)
    files, folder = cache.write_frame(df, names, dtype)
    return SparkDatasetConverter(files, names, dtype, folder)


@dataclass(frozen=True)
class SparkDatasetConverter:
    """A DataFrame's rows as Parquet files, for functions on ranks. Made by `make_spark_converter`.

    Attributes:
        files: that hold the rows.
        columns: that are read; None: all of the files.
        precision: "float32" or "float64" for fractions; None: as they are in the files.
        written: the folder that was written for it; None: the files were there.
    """

    files: DataFiles
    columns: Sequence[str] | None = None
    precision: str | None = None
    written: str | None = None

    #: The setting of the Spark session that names the folder, or URL, below which DataFrames are written.
    PARENT_CACHE_DIR_URL_CONF = cache.PARENT_CACHE_DIR_URL_CONF

    @property
    def dataset_size(self) -> int:
        """Return the number of rows."""
        return self.files.rows

    def __len__(self) -> int:
        return self.files.rows

    @property
    def file_urls(self) -> list[str]:
        """Return the URLs of the Parquet files."""
        return [_to_url(file.path) for file in self.files.files]

    @property
    def cache_dir_url(self) -> str:
        """Return the URL of the folder that the (first) file is in."""
        return _to_url(self.files.files[0].path.rpartition("/")[0])

    def make_torch_dataloader(
        self,
        batch_size: int = 32,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> AbstractContextManager[Any]:
        """Return a context manager that returns a loader of batches: dicts of tensors by the columns' names.

        Args:
            batch_size: rows of each batch; the last one may have fewer.
            num_epochs: all rows are read so often, one batch running into the next epoch; None: again and again.
            workers_count: threads that read ahead, where row groups are read in each epoch.
            shuffling_queue_capacity: as in `DataLoader`.
            data_loader_fn: makes the loader: a class of `petastorm.pytorch`, or a function of a reader,
                ``batch_size`` and ``shuffling_queue_capacity``; None: `DataLoader`.
            petastorm_reader_kwargs: as in `make_batch_reader`: cur_shard, shard_count, transform_spec, predicate,
                schema_fields, seed and others.

        Raises:
            DataError: a column cannot be read as tensors.
            TypeError, ValueError: as in `make_batch_reader`.
        """
        arguments = {"num_epochs": num_epochs, "workers_count": workers_count, **petastorm_reader_kwargs}
        sizes = {"batch_size": batch_size, "shuffling_queue_capacity": shuffling_queue_capacity}
        from spark_estimator.extensions.petastorm.loader import BatchedDataLoader, DataLoader

        made = self._make_reader("make_torch_dataloader", arguments)
        make: Callable[..., Any] = data_loader_fn or DataLoader
        loader = make(made, **sizes)
        return loader if type(loader) in (DataLoader, BatchedDataLoader) else _open_loader(loader, made)

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> AbstractContextManager[Any]:
        """Return a context manager that returns a tf.data.Dataset of batches: named tuples with a tensor for each
        column.

        Args:
            batch_size: rows of each batch; the last one may have fewer. None: 32.
            prefetch: batches that TensorFlow makes ahead; None: as it sees fit.
            num_epochs, workers_count, shuffling_queue_capacity, petastorm_reader_kwargs: as in
                `make_torch_dataloader`.

        Raises:
            DataError: a column has a type that TensorFlow has no tensors of; where the block begins.
            TypeError, ValueError: as in `make_batch_reader`.
        """
        size = 32 if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        arguments = {"num_epochs": num_epochs, "workers_count": workers_count, **petastorm_reader_kwargs}
        made = self._make_reader("make_tf_dataset", arguments)
        # TensorFlow takes seconds to load: wrong arguments are refused before.
        from spark_estimator.extensions.petastorm.tf_datasets import open_tf_dataset

        return open_tf_dataset(made, size, prefetch, shuffling_queue_capacity or 0)

    def _make_reader(self, call: str, arguments: Mapping[str, Any]) -> Reader:
        others = dict(arguments)
        shared = ReaderArguments(**{name: others.pop(name) for name in ReaderArguments._fields if name in others})
        others.pop("storage_options", None)  # the files know them
        wanted_fields = others.pop("schema_fields", None)
        check_others(call, others)
        files = DatasetFiles.from_files(self.files)
        if wanted_fields is None and self.columns is not None:
            wanted_fields = [re.escape(name) for name in self.columns]
        schema = choose_fields(files, wanted_fields, self.cache_dir_url)
        return build_reader(files, schema, shared, batched=True, precision=self.precision)

    def delete(self) -> None:
        """Remove the files that were written for the converter; files that existed before stay."""
        if self.written is None:
            _log.info("nothing to delete: %s holds the DataFrame's own files", self.cache_dir_url)
            return
        self.files.store.remove(self.written)


def _find_readable(frame: DataFrame) -> list[str]:
    """Return the columns that readers can read (DataError if there are none); a warning names the others."""
    names = []
    for column in frame.schema.fields:
        kind = column.dataType.simpleString()
        if type(column.dataType).__name__ == "VectorUDT" or _READABLE.fullmatch(kind):
            names.append(column.name)
            continue
        warnings.warn(
            f"column {column.name!r} has type {kind}, which has no numpy array, and is left out of the converter.",
            stacklevel=3,
        )
    if not names:
        raise DataError("the DataFrame has no column that a converter can read: no numbers, texts, bytes or arrays.")
    return names


@contextmanager
def _open_loader(loader: Any, reader: Reader) -> Iterator[Any]:
    """Yield a loader of the user's own; at the end its reader is stopped."""
    try:
        yield loader
    finally:
        reader.stop()
        reader.join()


def _to_url(path: str) -> str:
    return path if "://" in path else f"file://{path}"
