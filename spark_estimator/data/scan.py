"""Decides whether a DataFrame is just Parquet files, which ranks can read without Spark, to the row and to the bit.

Nothing is guessed: the plan has to be a read of Parquet files, or of a version of a Delta table, below nothing but
choices of whole columns. Filters, renamed or computed columns, joins, limits, views, caches, partition columns of bare
files, other formats (Iceberg), everything unknown is read through Spark. On Spark Connect the client knows only what it
has asked for itself, so that one path, read without a schema and options (but for a Delta table's version), is all that
is seen through: a name of the catalog may be that of a view, or of a table of which a user may see some rows only.

Whether executors reach the files, and with which types, a small Spark job finds out, which reads their footers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow

from spark_estimator.data.columns import Readable, make_readable
from spark_estimator.data.numbers import is_exact
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.parquet_file import DataFile, open_store, to_local_form
from spark_estimator.data.quoting import quote
from spark_estimator.data.tables import delta
from spark_estimator.errors import DataError
from spark_estimator.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = get_logger(__name__)
_SQL = "org.apache.spark.sql."
_RELATION = f"{_SQL}execution.datasources.LogicalRelation"
_FILES = f"{_SQL}execution.datasources.HadoopFsRelation"
_PARQUET = f"{_SQL}execution.datasources.parquet.ParquetFileFormat"
# Of Delta itself, and of Databricks.
_DELTA = re.compile(r"(org\.apache\.spark\.sql\.delta|com\.databricks\.sql\.transaction\.tahoe)\.")
_PROJECT = f"{_SQL}catalyst.plans.logical.Project"
_ALIAS = f"{_SQL}catalyst.plans.logical.SubqueryAlias"
_COLUMN = f"{_SQL}catalyst.expressions.AttributeReference"
# Listing more of them takes the driver longer than Spark takes to read them.
_MOST_FILES = 5000
_MOST_NODES = 100
# With either, Spark leaves out files that it cannot read, or that are missing, and does not report it.
_LEAVING_OUT = ("ignoreCorruptFiles", "ignoreMissingFiles")
_TIME_TRAVEL = ("versionasof", "timestampasof")
_PARTITION = re.compile(r"/[^/=]+=[^/]*/")


class ThroughSpark(Exception):
    """The rows of a DataFrame have to be read through Spark; the text has the reason."""


@dataclass(frozen=True)
class _Scan:
    """What a plan reads: `files`, or one version of a Delta table.

    Attributes:
        files: as URIs, encoded.
        table: the URI of the table's folder; "": it is none.
        version: of the table.
        options: of the read, those that `_LEAVING_OUT` names, in small letters.
    """

    files: Sequence[str] = ()
    table: str = ""
    version: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


def find_just_files(frame: DataFrame, columns: Sequence[Readable], tasks: int) -> DataFiles:
    """Return the files that hold just the rows of the DataFrame.

    Args:
        columns: that are wanted.
        tasks: in how many the footers are read.

    Raises:
        ThroughSpark: it is not known to be just files, or they cannot be read without Spark.
    """
    converted = [column for column in columns if not is_exact(column.kind)]
    if converted:
        raise ThroughSpark(f"column {converted[0].name!r} is of type {converted[0].kind}, which Spark converts")
    top = set(frame.schema.names)
    nested = [column.name for column in columns if column.name not in top]
    if nested:
        raise ThroughSpark(f"{nested[0]!r} is a field of a struct")
    spark = frame.sparkSession
    try:
        is_connect = type(frame).__module__.startswith("pyspark.sql.connect")
        scan = _scan_connect(frame) if is_connect else _scan_classic(frame)
    except ThroughSpark:
        raise
    except Exception as error:  # a plan that is not open to Python, or another version's
        raise ThroughSpark(f"can't inspect the query plan ({type(error).__name__})") from error
    for name in _LEAVING_OUT:
        value = scan.options.get(name.lower(), _get_setting(spark, f"spark.sql.files.{name}"))
        if value is not None and value.strip().lower() == "true":
            raise ThroughSpark(f"{name} is on, and only Spark knows which files it then leaves out")
    local = re.fullmatch(r"local(\[.*\])?", _get_setting(spark, "spark.master") or "") is not None
    if not local and any(uri.startswith(("file:", "/")) for uri in scan.files or [scan.table]):
        raise ThroughSpark("its files are on the disk of one machine, and executors on several")
    if scan.table:
        files = _find_table_files(spark, scan, tasks)
    else:
        # Delta sets it by itself.
        if _get_setting(spark, "spark.sql.parquet.fieldId.read.enabled") == "true":
            raise ThroughSpark("columns of files are matched by their ids (spark.sql.parquet.fieldId.read.enabled)")
        # The order is not to depend on a listing.
        uris = sorted(scan.files)
        partition = next((uri for uri in uris if _PARTITION.search(unquote(uri))), None)
        if partition is not None:
            raise ThroughSpark(f"its files are in folders by the values of a column ({unquote(partition)})")
        files = _read_footers(spark, [to_local_form(unquote(uri)) for uri in uris], tasks)
    for file in files.files:
        for column in columns:
            result = file.kinds.get(column.name, "not there")
            if result != column.kind:
                raise ThroughSpark(f"column {column.name!r} is {column.kind} there, and {result} in {file.path}")
    return files


def files_of(frame: DataFrame, columns: Sequence[str] | None = None) -> DataFiles:
    """Return the Parquet files that hold just the rows of the DataFrame, for `make_torch_dataloader`. It is sent to
    ranks.

    Args:
        columns: that are wanted; None: all.

    Raises:
        DataError: it is not known to be just files; the text has the reason, and what to do.
    """
    schema = frame.schema
    names = schema.names if columns is None else columns
    try:
        return find_just_files(frame, [make_readable(schema, name) for name in names], tasks=2)
    except ThroughSpark as reason:
        raise DataError(
            f"the rows of this DataFrame cannot be read from files: {reason}. Write it, df.write.parquet(path), and "
            "give make_torch_dataloader the path."
        ) from reason


def _scan_classic(frame: DataFrame) -> _Scan:
    # The plan with cached data: rows that are already in memory are not read from files.
    plan = frame._jdf.queryExecution().withCachedData()
    for _ in range(_MOST_NODES):
        kind = plan.getClass().getName()
        if kind == _RELATION:
            break
        if kind == _PROJECT:
            chosen = plan.projectList()
            for number in range(chosen.size()):
                if chosen.apply(number).getClass().getName() != _COLUMN:
                    raise ThroughSpark(f"its column {chosen.apply(number).name()!r} is computed or renamed")
        elif kind != _ALIAS:
            raise ThroughSpark(f"its plan has a {kind.rpartition('.')[2]}")
        plan = plan.children().apply(0)
    else:
        raise ThroughSpark("its plan is very long")
    relation = plan.relation()
    kind, file_format, location = (
        each.getClass().getName() for each in (relation, relation.fileFormat(), relation.location())
    )
    # Spark ignores the case of options.
    options = {name.lower(): relation.options().get(name.lower()) for name in _LEAVING_OUT}
    options = {name: str(value.get()) for name, value in options.items() if value.isDefined()}
    if plan.isStreaming():
        raise ThroughSpark("it is a stream")
    if _DELTA.match(file_format) and file_format.endswith(".DeltaParquetFileFormat"):
        index = relation.location()
        if not location.endswith(".TahoeLogFileIndex") or not index.partitionFilters().isEmpty():
            raise ThroughSpark(f"it reads a {location.rpartition('.')[2]} of a Delta table")
        return _Scan(table=index.path().toString(), version=index.getSnapshot().version(), options=options)
    if kind != _FILES:
        raise ThroughSpark(f"it reads a {kind.rpartition('.')[2]}")
    if file_format != _PARQUET:
        raise ThroughSpark(f"its format is {file_format.rpartition('.')[2]}")
    if not relation.partitionSchema().isEmpty():
        raise ThroughSpark("it is partitioned by a column")
    result = [str(uri) for uri in relation.location().inputFiles()]
    if len(set(result)) < len(result):
        raise ThroughSpark("it reads a file twice")
    return _Scan(result, options=options)


def _scan_connect(frame: Any) -> _Scan:
    from pyspark.sql.connect import expressions
    from pyspark.sql.connect import plan as plans

    plan: Any = frame._plan
    top = set(frame.schema.names)
    for _ in range(_MOST_NODES):
        if type(plan) is plans.DataSource:
            break
        if type(plan) is not plans.Project:
            raise ThroughSpark(f"its plan has a {type(plan).__name__}")
        for column in plan._columns:
            expression: Any = column._expr
            if type(expression) is not expressions.ColumnReference or expression._is_metadata_column:
                raise ThroughSpark("one of its columns is computed or renamed")
            name = expression._unparsed_identifier
            if name not in top or not name.isidentifier():
                raise ThroughSpark(f"its column {name!r} may be a field of a struct")
        plan = plan._child
    else:
        raise ThroughSpark("its plan is very long")
    options = {name.lower(): value for name, value in (plan._options or {}).items()}
    travel = {name: options.pop(name) for name in _TIME_TRAVEL if plan._format == "delta" and name in options}
    if plan._format not in ("parquet", "delta") or plan._schema or options or plan._predicates or plan._is_streaming:
        raise ThroughSpark("it is not read as plain Parquet or Delta, or with options")
    paths = plan._paths or []
    if len(paths) != 1 or re.search(r"[*?\[\]{}]", paths[0]):
        raise ThroughSpark("it reads several paths")
    if plan._format == "delta":
        return _find_version(frame.sparkSession, paths[0], travel)
    return _Scan([str(uri) for uri in frame.inputFiles()])


def _find_version(spark: Any, path: str, travel: Mapping[str, str]) -> _Scan:
    """Return the Delta table of a path, and its last version, or that which the read's options name."""
    from pyspark.sql.connect import functions

    table = f"delta.{quote(path)}"
    folder = str(spark.sql(f"DESCRIBE DETAIL {table}").first().location).rstrip("/")
    if not folder.endswith(re.sub("^[^/]*:/*", "/", path).rstrip("/")):
        raise ThroughSpark(f"it reads a part of the Delta table {folder}")
    if "versionasof" in travel:
        return _Scan(table=folder, version=int(travel["versionasof"]))
    history = spark.sql(f"DESCRIBE HISTORY {table}")
    if "timestampasof" in travel:
        history = history.where(history.timestamp <= functions.lit(travel["timestampasof"]).cast("timestamp"))
    return _Scan(table=folder, version=int(history.agg(functions.max("version")).first()[0]))


def _find_table_files(spark: SparkSession, scan: _Scan, tasks: int) -> DataFiles:
    """Return the files of a Delta table's version; executors read its log and the footers.

    Raises:
        ThroughSpark: they cannot, or the table has what is not read without Spark.
    """
    folder = to_local_form(scan.table)
    job = spark.range(0, 1, 1, 1).mapInArrow(_LogReader(folder, scan.version), "log binary, failure string")
    ((content, failure),) = job.collect()
    if failure:
        raise ThroughSpark(failure)
    log = pyarrow.ipc.open_stream(content).read_all()
    try:
        files = _read_footers(spark, delta.locate_files(folder, log), tasks)
        result = replace(files, files=delta.make_files(log, files.files))
    except DataError as error:
        raise ThroughSpark(error.args[0]) from error
    _log.info("the DataFrame is version %d of the Delta table %s", scan.version, folder)
    return result


@dataclass(frozen=True)
class _LogReader:
    """Reads a Delta table's log in a Spark task: only executors may have access to it. It is pickled."""

    folder: str
    version: int

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        list(batches)
        content, failure = None, None
        try:
            log = delta.read_log(self.folder, self.version)
            sink, options = pyarrow.BufferOutputStream(), pyarrow.ipc.IpcWriteOptions(compression="zstd")
            with pyarrow.ipc.new_stream(sink, log.schema, options=options) as stream:
                stream.write_table(log)
            content = sink.getvalue().to_pybytes()
        except Exception as error:  # on any error Spark reads the table
            failure = error.args[0] if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        arrays = [pyarrow.array([content], pyarrow.binary()), pyarrow.array([failure], pyarrow.string())]
        yield pyarrow.RecordBatch.from_arrays(arrays, names=["log", "failure"])


@dataclass(frozen=True)
class _FooterReader:
    """Reads footers in a Spark task. It holds paths only, and is pickled."""

    paths: tuple[str, ...]
    tasks: int

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        lines = []
        for batch in batches:
            for task in batch.column(0).to_pylist():
                lines += [_report(self.paths[number], number) for number in range(task, len(self.paths), self.tasks)]
        yield pyarrow.RecordBatch.from_pydict({"report": pyarrow.array(lines, pyarrow.string())})


def _report(path: str, number: int) -> str:
    try:
        file = DataFile.read(path, open_store(path))
    except Exception as error:  # on any error Spark reads these files
        failure = str(error) if isinstance(error, DataError) else f"{path}: {type(error).__name__}: {error}"
        return json.dumps({"number": number, "failure": failure[:500]})
    facts = {"size": file.size, "groups": file.groups, "kinds": dict(file.kinds), "ids": dict(file.ids)}
    return json.dumps({"number": number, **facts})


def _read_footers(spark: SparkSession, paths: list[str], tasks: int) -> DataFiles:
    """Return the files with their row groups, from footers that executors read.

    Raises:
        ThroughSpark: they cannot read them.
    """
    if not paths:
        raise ThroughSpark("it has no files")
    if len(paths) > _MOST_FILES:
        raise ThroughSpark(f"it has {len(paths)} files")
    tasks = max(1, min(tasks, len(paths)))
    job = spark.range(0, tasks, 1, tasks).mapInArrow(_FooterReader(tuple(paths), tasks), "report string")
    reports = sorted((json.loads(row[0]) for row in job.collect()), key=lambda report: int(report["number"]))
    if [report["number"] for report in reports] != list(range(len(paths))):
        raise ThroughSpark(f"of {len(paths)} footers, {len(reports)} came back")
    failed = next((report for report in reports if "failure" in report), None)
    if failed is not None:
        raise ThroughSpark(f"without Spark, executors cannot read its files: {failed['failure']}")
    files = tuple(
        DataFile(path, report["size"], tuple(report["groups"]), report["kinds"], ids=report["ids"])
        for path, report in zip(paths, reports, strict=True)
    )
    return DataFiles(files, open_store(paths[0]))


def _get_setting(spark: SparkSession, name: str) -> str | None:
    try:
        return spark.conf.get(name, None)
    except Exception:  # some platforms forbid reading some settings
        return None
