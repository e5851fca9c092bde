"""``make_spark_converter``: a DataFrame whose rows ranks read as petastorm's converter lets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_estimator.data.columns import Readable, readable
from spark_estimator.data.numbers import readable_in
from spark_estimator.data.parquet import DataFiles, files_at
from spark_estimator.data.petastorm import cache as petastorm_cache
from spark_estimator.data.petastorm import handover as petastorm_handover
from spark_estimator.data.petastorm.reader import (
    check_others,
    chosen,
    reader_of,
    without_effect,
)
from spark_estimator.data.scan import ThroughSpark, just_files
from spark_estimator.errors import DataError
from spark_estimator.log import logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Modules of the loaders that may be named, although our own always gathers the batches.
_LOADERS = ("petastorm.pytorch", "spark_estimator.data.petastorm.loader")
_PRECISIONS = (None, "float32", "float64")
_log = logger(__name__)


def make_spark_converter(
    df: DataFrame | str,
    parquet_row_group_size_bytes: int | None = None,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    read_files: bool = True,
) -> SparkDatasetConverter:
    """Makes of a DataFrame what functions on ranks can read batches from.

    Args:
        df: with columns of numbers, arrays, vectors, dates (see `data/columns.py`), and others that are not read; or
            the path of a folder of Parquet files, which are read as they are.
        parquet_row_group_size_bytes, compression_codec: petastorm's, and without effect here.
        dtype: "float32" or "float64" for fractions and vectors; None leaves them as they are.
        read_files: a DataFrame that is just Parquet files is read from these. False: it is written, as any other.

    Returns:
        The converter. It travels to ranks, in the function that `HorovodRunner` is given.

    Raises:
        DataError: no column can be read as tensors, there are no rows, or no folder was named to write in.
        ValueError: another `dtype`.
    """
    if dtype not in _PRECISIONS:
        raise ValueError(f"dtype is 'float32', 'float64' or None; it was {dtype!r}.")
    ignored = {
        "parquet_row_group_size_bytes": parquet_row_group_size_bytes,
        "compression_codec": compression_codec,
    }
    without_effect(name for name, value in ignored.items() if value is not None)
    if isinstance(df, str):
        files = files_at(df)
        kinds = files.kinds
        columns, unreadable = _sorted_out(list(kinds), lambda name: readable_in(kinds, name))
        return SparkDatasetConverter(files, [column.name for column in columns], None, unreadable)
    columns, unreadable = _sorted_out(df.schema.names, lambda name: readable(df.schema, name))
    names = [column.name for column in columns]
    if read_files:
        try:
            files = just_files(df, columns, tasks=2)
            _log.info("the converter reads the DataFrame's %d Parquet files themselves", len(files.files))
            return SparkDatasetConverter(files, names, dtype, unreadable)
        except ThroughSpark as reason:
            _log.info("the converter writes the DataFrame's rows: %s", reason)
    files, folder = petastorm_cache.written(df, columns, dtype)
    return SparkDatasetConverter(files, names, dtype, unreadable, folder)


@dataclass(frozen=True)
class SparkDatasetConverter:
    """A DataFrame's rows as Parquet files, for functions on ranks. Made by `make_spark_converter`.

    Attributes:
        files: that hold the rows.
        columns: that can be read as tensors.
        precision: "float32" or "float64" for fractions; None: as they are in the files.
        unreadable: of the other columns, by name, why they cannot be.
        written: the folder that was written for it; None: the files were there.
    """

    files: DataFiles
    columns: Sequence[str]
    precision: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    written: str | None = None

    #: The setting of the Spark session that names the folder, or URL, below which DataFrames are written.
    PARENT_CACHE_DIR_URL_CONF = petastorm_cache.PARENT_CACHE_DIR_URL_CONF

    @property
    def dataset_size(self) -> int:
        """Rows."""
        return self.files.rows

    def __len__(self) -> int:
        return self.files.rows

    @property
    def file_urls(self) -> list[str]:
        """URLs of the Parquet files."""
        return [_url(file.path) for file in self.files.files]

    @property
    def cache_dir_url(self) -> str:
        """URL of the folder that the (first) file is in."""
        return _url(self.files.files[0].path.rpartition("/")[0])

    def make_torch_dataloader(
        self,
        batch_size: int = 32,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        *,
        reader: str = "native",
        **petastorm_reader_kwargs: Any,
    ) -> AbstractContextManager[Any]:
        """A context manager that gives a loader; that gives batches, dicts of tensors by the columns' names.

        Args:
            batch_size: rows of each batch; the last one may have fewer.
            num_epochs: all rows are read so often, one batch running into the next epoch; None: again and again.
            workers_count, shuffling_queue_capacity: petastorm's, and without effect here.
            data_loader_fn: for petastorm's reader; one of petastorm's own loaders is accepted and has no effect.
            cur_shard, shard_count: one of so many equal parts of the rows, ``hvd.rank()`` and ``hvd.size()``; without
                them it is all rows.
            reader: "native"; or "petastorm", in an environment in which that works: it reads the files.
            petastorm_reader_kwargs: as in `make_reader`: schema_fields, seed, shuffle_row_groups and others.

        Raises:
            DataError: a column cannot be read as tensors.
            PythonEnvironmentError: petastorm does not work with the versions that are installed here.
            TypeError, ValueError: as in `make_reader`.
        """
        if reader not in ("native", "petastorm"):
            raise ValueError(f"reader is 'native' or 'petastorm'; it was {reader!r}.")
        others = dict(petastorm_reader_kwargs)
        columns = self._chosen(others.pop("schema_fields", None))
        if reader == "petastorm":
            arguments = {
                "num_epochs": num_epochs,
                "workers_count": workers_count,
                "cur_shard": cur_shard,
                "shard_count": shard_count,
                # Petastorm gives columns that are named in any order.
                "schema_fields": None if columns == list(self.files.kinds) else [re.escape(name) for name in columns],
                **others,
            }
            return petastorm_handover.loader(
                self.file_urls,
                self._as_in_files(columns),
                batch_size,
                shuffling_queue_capacity,
                data_loader_fn,
                arguments,
            )
        shuffles = [
            bool(others.pop(name, default)) for name, default in (("shuffle_rows", False), ("shuffle_row_groups", True))
        ]
        seed = others.pop("seed", None)
        others.pop("storage_options", None)  # the files know them
        check_others("make_torch_dataloader", {**others, "workers_count": workers_count})
        if data_loader_fn is not None:
            if getattr(data_loader_fn, "__module__", None) not in _LOADERS:
                raise ValueError(
                    "data_loader_fn needs petastorm's reader: set reader='petastorm', or do what it does to each "
                    "batch in the loop."
                )
            without_effect(["data_loader_fn"])
        if shuffling_queue_capacity:
            without_effect(["shuffling_queue_capacity"])
        result = reader_of(
            self.files,
            columns,
            self.precision,
            cur_shard,
            shard_count,
            num_epochs,
            seed,
            any(shuffles) or shuffling_queue_capacity > 0,
        )
        from spark_estimator.data.petastorm.loader import DataLoader

        return DataLoader(result, batch_size)

    def make_tf_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """Is not there."""
        raise NotImplementedError(
            "make_tf_dataset is not there: tf.data.Dataset.from_generator makes one of the batches of "
            "make_torch_dataloader."
        )

    def delete(self) -> None:
        """Removes the files that were written for the converter; those that were there before stay."""
        if self.written is None:
            _log.info("nothing to delete: %s holds the DataFrame's own files", self.cache_dir_url)
            return
        self.files.store.remove(self.written)

    def _chosen(self, schema_fields: Sequence[Any] | None) -> list[str]:
        if schema_fields is None:
            if self.unreadable:
                raise DataError(
                    f"{next(iter(self.unreadable.values()))} Here: drop it from the DataFrame, or name the others, "
                    f"schema_fields=[{', '.join(map(repr, self.columns))}]."
                )
            return list(self.columns)
        wanted = chosen([*self.columns, *self.unreadable], schema_fields)
        for name in wanted:
            if name in self.unreadable:
                raise DataError(self.unreadable[name])
        return wanted

    def _as_in_files(self, names: Sequence[str]) -> bool:
        """Whether the files hold the columns in the types of the tensors."""
        kinds = [self.files.kinds[name].removeprefix("array<").rstrip(">") for name in names]
        other = {None: "", "float32": "double", "float64": "float"}[self.precision]
        return self.written is not None or not any(kind in (other, "vector") for kind in kinds)


def _sorted_out(names: Sequence[str], look_at: Callable[[str], Readable]) -> tuple[list[Readable], dict[str, str]]:
    """Columns that can be read, and of the others why not.

    Raises:
        DataError: none can be.
    """
    columns: list[Readable] = []
    unreadable: dict[str, str] = {}
    for name in names:
        try:
            columns.append(look_at(name))
        except DataError as reason:
            unreadable[name] = str(reason)
    if not columns:
        raise DataError(" ".join(unreadable.values()) or "the DataFrame has no columns.")
    return columns, unreadable


def _url(path: str) -> str:
    return path if "://" in path else f"file://{path}"
