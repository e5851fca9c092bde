"""Where the rows of a training come from: through Spark's tasks, or from files that the ranks read by themselves.

On the driver `row_source_of` chooses one and logs which. On a rank `own_rows` is the same call for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_estimator.collectives import context
from spark_estimator.data.columns import packed, selected
from spark_estimator.data.fields import Field
from spark_estimator.data.materialize import materialized
from spark_estimator.data.parquet import DataFiles, FileRows
from spark_estimator.data.preparation import Preparation, dtypes_of
from spark_estimator.data.rank.spool import Spool, SpoolFeed, receive
from spark_estimator.data.scan import ThroughSpark, just_files
from spark_estimator.env import Settings
from spark_estimator.estimators.rows.sampling import Columns
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.launch.spark.row_writer import Rows, worker_end
from spark_estimator.log import logger
from spark_estimator.store import FilesystemStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logger(__name__)


@dataclass(frozen=True)
class RowSource:
    """Rows for the ranks: either of the two is there.

    Attributes:
        rows: that Spark brings; None: it brings none.
        source: files that the ranks read; None: they read none.
        held_source: the same, of rows for validation that lie apart.
    """

    rows: Rows | None = None
    source: FileRows | None = None
    held_source: FileRows | None = None


def row_source_of(
    frame: DataFrame,
    columns: Columns,
    fields: Sequence[Field],
    *,
    directly: bool,
    store: FilesystemStore | None,
    size: int | Callable[[SparkSession], int],
) -> RowSource:
    """Files, where the DataFrame is nothing else, or shall be written; Spark's tasks, where there is any doubt.

    Args:
        store: where the rows are written, or have been; None: they are not.
        directly: False: always Spark's tasks.
        size: the number of ranks, or what chooses it.
    """
    folder = Settings.read().spool_folder or None
    if store is not None:
        files = materialized(frame, columns.read, store)
        return RowSource(source=_from_files(files, columns, folder))
    try:
        if not directly:
            raise ThroughSpark("read_files=False says so")
        tasks = size(frame.sparkSession) if callable(size) else size
        files = just_files(frame, columns.read, tasks)
    except ThroughSpark as reason:
        _log.info("rows reach the ranks through Spark's tasks: %s", reason)
        return RowSource(rows=_through_spark(frame, columns, fields, folder))
    _log.info("the ranks read the DataFrame's %d Parquet files (%d rows) by themselves", len(files.files), files.rows)
    return RowSource(source=_from_files(files, columns, folder))


def row_source_from(files: DataFiles, held: DataFiles | None, columns: Columns) -> RowSource:
    """Data that was prepared in a store.

    Args:
        held: rows for validation that lie apart; None: there are none.
    """
    folder = Settings.read().spool_folder or None
    apart = None
    if held is not None:
        held.check([one.name for one in columns.read])
        apart = _from_files(held, columns, folder)
    return RowSource(source=_from_files(files, columns, folder), held_source=apart)


def own_rows(spec: TrainSpec) -> tuple[Spool, Spool]:
    """On a rank: the rows that it begins with, to be made as many as the others' by `balanced`.

    Returns:
        Those to train on, and those that a column has marked for validation, or that lie apart.

    Raises:
        DataError: there was something wrong with them.
    """
    if spec.source is None:
        with worker_end() as supervisor:
            return receive(spec.fields, supervisor)
    rank, size = context.rank(), context.size()
    rows, marked = spec.source.read(spec.fields, rank, size)
    if spec.held_source is not None:
        marked, _ = spec.held_source.read(spec.fields, rank, size)
    return rows, marked


def _through_spark(frame: DataFrame, columns: Columns, fields: Sequence[Field], folder: str | None) -> Rows:
    own, marker = columns.preparation, columns.marker
    mark = "marker" if marker else None
    if own.transformation is not None:
        given = frame.select(*(one.stored for one in columns.read))
        return Rows(given, SpoolFeed(tuple(fields), mark, folder, own))
    rows = selected(
        frame,
        columns.fed,
        dtypes_of(fields),
        own.nulls,
        *([marker.marks.alias("marker")] if marker else []),
    )
    # Spark has cast, renamed and looked after nulls; what is left is to decode.
    names = tuple(f"c{number}" for number in range(len(columns.fed)))
    decoders = {
        name: own.decoders[one.name] for name, one in zip(names, columns.fed, strict=True) if one.name in own.decoders
    }
    if decoders:
        return _spread(rows, SpoolFeed(tuple(fields), mark, folder, Preparation(names, mark, decoders=decoders)))
    rows, together = packed(rows, fields)
    return _spread(rows, SpoolFeed(together, mark, folder))


def _spread(frame: DataFrame, feed: SpoolFeed) -> Rows:
    """By the rows' values: when a stage is run anew, each rank gets the same rows again, and none has to be sorted."""
    return Rows(frame, feed, tuple(frame.columns))


def _from_files(files: DataFiles, columns: Columns, folder: str | None) -> FileRows:
    return FileRows(files, columns.preparation, folder)
