"""The source of a training's rows: Spark's tasks, or files that the ranks read without Spark.

On the driver `choose_source` chooses one and logs which. On a rank `read_rank_rows` is the same call for
both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_estimator.collectives import context
from spark_estimator.data.materialize import materialize, write_copy
from spark_estimator.data.parquet import DataFiles, FileRows
from spark_estimator.data.rank.spool import Spool, receive
from spark_estimator.data.row_encoder import find_dtypes
from spark_estimator.data.scan import ThroughSpark, find_just_files
from spark_estimator.data.spark_rows import feed_columns, feed_raw_columns
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import Columns
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.launch.spark.row_writer import Rows, open_worker_end
from spark_estimator.log import get_logger
from spark_estimator.store import FilesystemStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = get_logger(__name__)


@dataclass(frozen=True)
class RowSource:
    """The source of the ranks' rows: exactly one of `rows` and `source` is set.

    Attributes:
        rows: sent by Spark's tasks.
        source: files that the ranks read.
        held_source: files with the rows for validation; None: those are among the others, or there are none.
    """

    rows: Rows | None = None
    source: FileRows | None = None
    held_source: FileRows | None = None
    copied: bool = False  # `source` was written for this training alone

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Remove a copy at the end of the block, in which the training runs."""
        try:
            yield
        finally:
            if self.copied and self.source is not None and self.source.files.store is not None:
                with contextlib.suppress(Exception):  # each kind of store has its own errors
                    self.source.files.store.remove(self.source.files.files[0].path.rpartition("/")[0])


def choose_source(
    frame: DataFrame,
    columns: Columns,
    *,
    read_files: bool,
    store: FilesystemStore | None,
    size: int | Callable[[SparkSession], int],
    limited: bool = False,
    recovers: bool = False,
    spare_store: Any = None,
) -> RowSource:
    """Return the source of a DataFrame's rows: files if it only reads files, or is materialized; else Spark's tasks.

    Args:
        read_files: False: never read a DataFrame's own files.
        store: where to materialize the rows, or to find materialized ones; None: they are not materialized.
        size: the number of ranks, or a function that chooses it.
        limited: ranks may not keep all rows, and so need files.
        recovers: a process that replaces a lost one needs files; without them, all ranks start again.
        spare_store: if `limited` or `recovers`, the store for rows that Spark's tasks would otherwise send.

    Raises:
        DataError: the rows could not be written to the store.
        ValueError: `limited`, but the DataFrame is not only files, and there is no store.
    """
    if store is not None:
        return RowSource(source=FileRows(materialize(frame, columns.read, store), columns.reading))
    ranks = size(frame.sparkSession) if callable(size) else size
    try:
        if not read_files:
            raise ThroughSpark("read_files is False")
        files = find_just_files(frame, columns.read, ranks)
    except ThroughSpark as reason:
        if limited and isinstance(spare_store, FilesystemStore):
            _log.info("the rows are written to the store, because of cache_bytes: %s", reason)
            return RowSource(source=FileRows(materialize(frame, columns.read, spare_store), columns.reading))
        if limited:
            raise ValueError(
                f"with cache_bytes the ranks read rows from files in each epoch, and this DataFrame has none: {reason}."
                " Set store=Store.create('/path'), where fit writes them once, or fit spark.read.parquet(path)."
            ) from reason
        if recovers and isinstance(spare_store, FilesystemStore):
            try:
                files = write_copy(frame, columns.read, spare_store, ranks)
                _log.info("the rows are copied to the store until the end of the training, because of max_restarts")
                return RowSource(source=FileRows(files, columns.reading), copied=True)
            except DataError as error:
                _log.warning(
                    "a lost rank will restart all ranks, as their rows cannot be copied to the store: %s", error
                )
        _log.info("rows reach the ranks through Spark's tasks: %s", reason)
        return RowSource(rows=_make_spark_rows(frame, columns))
    _log.info("the ranks read the DataFrame's %d Parquet files (%d rows) directly", len(files.files), files.rows)
    return RowSource(source=FileRows(files, columns.reading))


def make_files_source(files: DataFiles, validation: DataFiles | None, columns: Columns) -> RowSource:
    """Return data that was prepared in a store.

    Args:
        validation: files with the rows for validation; None: there are none.

    Raises:
        DataError: the files for validation have other columns.
    """
    if validation is not None:
        validation.check([column.name for column in columns.read], like=files)
    return RowSource(
        source=FileRows(files, columns.reading),
        held_source=None if validation is None else FileRows(validation, columns.held_reading),
    )


def read_rank_rows(spec: TrainSpec) -> tuple[Spool, Spool]:
    """Return a rank's rows, before `balance` evens out the ranks.

    Returns:
        The rows to train on, and those for validation that a column marks or that are in separate files.

    Raises:
        DataError: a row, or a file, cannot be used.
    """
    if spec.source is None:
        with open_worker_end() as supervisor:
            return receive(spec.spooled, supervisor)
    rank, size = context.rank(), context.size()
    rows, marked = spec.source.read(rank, size)
    if spec.held_source is not None:
        marked, _ = spec.held_source.read(rank, size)
    return rows, marked


def _make_spark_rows(frame: DataFrame, columns: Columns) -> Rows:
    encoder = columns.encoder
    if encoder.transformation is not None:
        selected, feed = feed_raw_columns(columns.reading, columns.read)
        return Rows(frame.select(*selected), feed)
    selected, feed = feed_columns(encoder, columns.fed, find_dtypes(encoder.fields), columns.marker)
    rows = frame.select(*selected)
    # Rows are spread by their values: a stage that is retried sends each rank the same rows, without a sort.
    return Rows(rows, feed, tuple(rows.columns))
