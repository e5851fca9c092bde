"""Decides whether a DataFrame is just Parquet files, which ranks can read without Spark, to the row and to the bit.

Nothing is guessed: the plan has to be a read of Parquet files below nothing but choices of whole columns. Filters,
renamed or computed columns, joins, limits, views, caches, partition columns, formats on top of Parquet (Delta,
Iceberg), everything unknown is read through Spark. On Spark Connect the client knows only what it has asked for itself,
so that one path, read without options and a schema, is all that is seen through.

Whether executors reach the files, and with which types, a small Spark job finds out, which reads their footers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow

from spark_estimator.data.columns import Readable, make_readable
from spark_estimator.data.numbers import is_exact
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.parquet_file import DataFile, open_store, to_local_form
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SQL = "org.apache.spark.sql."
_RELATION = f"{_SQL}execution.datasources.LogicalRelation"
_FILES = f"{_SQL}execution.datasources.HadoopFsRelation"
_PARQUET = f"{_SQL}execution.datasources.parquet.ParquetFileFormat"
_PROJECT = f"{_SQL}catalyst.plans.logical.Project"
_ALIAS = f"{_SQL}catalyst.plans.logical.SubqueryAlias"
_COLUMN = f"{_SQL}catalyst.expressions.AttributeReference"
# Listing more of them takes the driver longer than Spark takes to read them.
_MOST_FILES = 5000
_MOST_NODES = 100
# With either, Spark leaves out files that it cannot read, or that are missing, and does not report it.
_LEAVING_OUT = ("ignoreCorruptFiles", "ignoreMissingFiles")
_PARTITION = re.compile(r"/[^/=]+=[^/]*/")


class ThroughSpark(Exception):
    """The rows of a DataFrame have to be read through Spark; the text has the reason."""


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
    if _get_setting(spark, "spark.sql.parquet.fieldId.read.enabled") == "true":
        raise ThroughSpark("columns of Parquet files are matched by their ids (spark.sql.parquet.fieldId.read.enabled)")
    try:
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            options: dict[str, str] = {}  # a read with any is refused there
            encoded = _scan_connect(frame)
        else:
            encoded, options = _scan_classic(frame)
    except ThroughSpark:
        raise
    except Exception as error:  # a plan that is not open to Python, or another version's
        raise ThroughSpark(f"can't inspect the query plan ({type(error).__name__})") from error
    for name in _LEAVING_OUT:
        value = options.get(name.lower(), _get_setting(spark, f"spark.sql.files.{name}"))
        if value is not None and value.strip().lower() == "true":
            raise ThroughSpark(f"{name} is on, and only Spark knows which files it then leaves out")
    if len(encoded) > _MOST_FILES:
        raise ThroughSpark(f"it has {len(encoded)} files")
    # As URIs they are encoded; the order is not to depend on a listing.
    uris = sorted(encoded)
    partition = next((uri for uri in uris if _PARTITION.search(unquote(uri))), None)
    if partition is not None:
        raise ThroughSpark(f"its files are in folders by the values of a column ({unquote(partition)})")
    local = re.fullmatch(r"local(\[.*\])?", _get_setting(spark, "spark.master") or "") is not None
    if not local and any(uri.startswith(("file:", "/")) for uri in uris):
        raise ThroughSpark("its files are on the disk of one machine, and executors on several")
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


def _scan_classic(frame: DataFrame) -> tuple[list[str], dict[str, str]]:
    """Return URIs of the files, and those of the read's options that `_LEAVING_OUT` names, in small letters."""
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
    if plan.isStreaming() or relation.getClass().getName() != _FILES:
        raise ThroughSpark(f"it reads a {relation.getClass().getName().rpartition('.')[2]}")
    if relation.fileFormat().getClass().getName() != _PARQUET:
        raise ThroughSpark(f"its format is {relation.fileFormat().getClass().getName().rpartition('.')[2]}")
    if not relation.partitionSchema().isEmpty():
        raise ThroughSpark("it is partitioned by a column")
    result = [str(uri) for uri in relation.location().inputFiles()]
    if len(set(result)) < len(result):
        raise ThroughSpark("it reads a file twice")
    # Spark ignores the case of options.
    options = {name.lower(): relation.options().get(name.lower()) for name in _LEAVING_OUT}
    return result, {name: str(value.get()) for name, value in options.items() if value.isDefined()}


def _scan_connect(frame: Any) -> list[str]:
    """Return URIs of the files."""
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
    if plan._format != "parquet" or plan._schema or plan._options or plan._predicates or plan._is_streaming:
        raise ThroughSpark("it is not read as plain Parquet, or with options")
    paths = plan._paths or []
    if len(paths) != 1 or re.search(r"[*?\[\]{}]", paths[0]):
        raise ThroughSpark("it reads several paths")
    return [str(uri) for uri in frame.inputFiles()]


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
    return json.dumps({"number": number, "size": file.size, "groups": file.groups, "kinds": dict(file.kinds)})


def _read_footers(spark: SparkSession, paths: list[str], tasks: int) -> DataFiles:
    """Return the files with their row groups, from footers that executors read.

    Raises:
        ThroughSpark: they cannot read them.
    """
    if not paths:
        raise ThroughSpark("it has no files")
    tasks = max(1, min(tasks, len(paths)))
    job = spark.range(0, tasks, 1, tasks).mapInArrow(_FooterReader(tuple(paths), tasks), "report string")
    reports = sorted((json.loads(row[0]) for row in job.collect()), key=lambda report: int(report["number"]))
    if [report["number"] for report in reports] != list(range(len(paths))):
        raise ThroughSpark(f"of {len(paths)} footers, {len(reports)} came back")
    failed = next((report for report in reports if "failure" in report), None)
    if failed is not None:
        raise ThroughSpark(f"without Spark, executors cannot read its files: {failed['failure']}")
    files = tuple(
        DataFile(path, report["size"], tuple(report["groups"]), report["kinds"])
        for path, report in zip(paths, reports, strict=True)
    )
    return DataFiles(files, open_store(paths[0]))


def _get_setting(spark: SparkSession, name: str) -> str | None:
    try:
        return spark.conf.get(name, None)
    except Exception:  # some platforms forbid reading some settings
        return None
