"""Whether a DataFrame is just Parquet files, which ranks can read by themselves, to the row and to the bit.

Nothing is guessed: the plan has to be a read of Parquet files below nothing but choices of whole columns. Filters,
renamed or computed columns, joins, limits, views, caches, partition columns, formats on top of Parquet (Delta,
Iceberg), all that is not known, goes through Spark. On Spark Connect the client knows only what it has asked for
itself, so that one path, read without options and a schema, is all that is seen through.

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

from spark_estimator.data.columns import Readable, readable
from spark_estimator.data.numbers import is_exact
from spark_estimator.data.parquet import DataFile, DataFiles, local_form, store_for
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
# With either, Spark leaves out files that it cannot read, or that are gone, and tells nobody.
_LEAVING_OUT = ("ignoreCorruptFiles", "ignoreMissingFiles")
_PARTITION = re.compile(r"/[^/=]+=[^/]*/")


class ThroughSpark(Exception):
    """The rows of a DataFrame have to come through Spark; the text says why."""


def just_files(frame: DataFrame, columns: Sequence[Readable], tasks: int) -> DataFiles:
    """The files that hold just the rows of the DataFrame.

    Args:
        columns: that are wanted.
        tasks: in how many the footers are read.

    Raises:
        ThroughSpark: it is not known to be just files, or they cannot be read without Spark.
    """
    strange = [one for one in columns if not is_exact(one.kind)]
    if strange:
        raise ThroughSpark(f"column {strange[0].name!r} is of type {strange[0].kind}, which Spark converts")
    top = frame.schema.names
    nested = [one.name for one in columns if one.name not in top]
    if nested:
        raise ThroughSpark(f"{nested[0]!r} is a field of a struct")
    spark = frame.sparkSession
    if _setting(spark, "spark.sql.parquet.fieldId.read.enabled") == "true":
        raise ThroughSpark("columns of Parquet files are matched by their ids (spark.sql.parquet.fieldId.read.enabled)")
    try:
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            options: dict[str, str] = {}  # a read with any is refused there
            encoded = _of_connect(frame)
        else:
            encoded, options = _of_classic(frame)
    except ThroughSpark:
        raise
    except Exception as error:  # a plan that is not open to Python, or another version's
        raise ThroughSpark(f"its plan cannot be looked at ({type(error).__name__})") from error
    for name in _LEAVING_OUT:
        said = options.get(name.lower(), _setting(spark, f"spark.sql.files.{name}"))
        if said is not None and said.strip().lower() == "true":
            raise ThroughSpark(f"{name} is on, and only Spark knows which files it then leaves out")
    if len(encoded) > _MOST_FILES:
        raise ThroughSpark(f"it has {len(encoded)} files")
    # As URIs they are encoded; the order is not to depend on a listing.
    uris = sorted(encoded)
    partition = next((one for one in uris if _PARTITION.search(unquote(one))), None)
    if partition is not None:
        raise ThroughSpark(f"its files lie in folders by the values of a column ({unquote(partition)})")
    local = re.fullmatch(r"local(\[.*\])?", _setting(spark, "spark.master") or "") is not None
    if not local and any(one.startswith(("file:", "/")) for one in uris):
        raise ThroughSpark("its files are on the disk of one machine, and executors on several")
    files = _footers(spark, [local_form(unquote(one)) for one in uris], tasks)
    for file in files.files:
        for column in columns:
            found = file.kinds.get(column.name, "not there")
            if found != column.kind:
                raise ThroughSpark(f"column {column.name!r} is {column.kind} there, and {found} in {file.path}")
    return files


def files_of(frame: DataFrame, columns: Sequence[str] | None = None) -> DataFiles:
    """The Parquet files that hold just the rows of the DataFrame, for `make_torch_dataloader`. It travels to ranks.

    Args:
        columns: that are wanted; None: all.

    Raises:
        DataError: it is not known to be just files; the text says why, and what to do.
    """
    names = frame.schema.names if columns is None else columns
    try:
        return just_files(frame, [readable(frame.schema, name) for name in names], tasks=2)
    except ThroughSpark as reason:
        raise DataError(
            f"the rows of this DataFrame cannot be read from files: {reason}. Write it, df.write.parquet(path), and "
            "give make_torch_dataloader the path."
        ) from reason


def _of_classic(frame: DataFrame) -> tuple[list[str], dict[str, str]]:
    """URIs of the files, and those of the read's options that `_LEAVING_OUT` names, in small letters."""
    # With what is cached in its place: rows that are in memory already are not read from files.
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
    found = [str(one) for one in relation.location().inputFiles()]
    if len(set(found)) < len(found):
        raise ThroughSpark("it reads a file twice")
    # Spark takes options whatever their case.
    options = {name.lower(): relation.options().get(name.lower()) for name in _LEAVING_OUT}
    return found, {name: str(said.get()) for name, said in options.items() if said.isDefined()}


def _of_connect(frame: Any) -> list[str]:
    """URIs of the files."""
    from pyspark.sql.connect import expressions
    from pyspark.sql.connect import plan as plans

    plan: Any = frame._plan
    for _ in range(_MOST_NODES):
        if type(plan) is plans.DataSource:
            break
        if type(plan) is not plans.Project:
            raise ThroughSpark(f"its plan has a {type(plan).__name__}")
        for column in plan._columns:
            said: Any = column._expr
            if type(said) is not expressions.ColumnReference or said._is_metadata_column:
                raise ThroughSpark("one of its columns is computed or renamed")
            if said._unparsed_identifier not in frame.schema.names or not said._unparsed_identifier.isidentifier():
                raise ThroughSpark(f"its column {said._unparsed_identifier!r} may be a field of a struct")
        plan = plan._child
    else:
        raise ThroughSpark("its plan is very long")
    if plan._format != "parquet" or plan._schema or plan._options or plan._predicates or plan._is_streaming:
        raise ThroughSpark("it is not read as plain Parquet, or with options")
    paths = plan._paths or []
    if len(paths) != 1 or re.search(r"[*?\[\]{}]", paths[0]):
        raise ThroughSpark("it reads several paths")
    return [str(one) for one in frame.inputFiles()]


@dataclass(frozen=True)
class _FooterReader:
    """Reads footers in a Spark task. It holds paths only, and travels by pickle."""

    paths: tuple[str, ...]
    tasks: int

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        lines = []
        for batch in batches:
            for task in batch.column(0).to_pylist():
                lines += [_told(self.paths[number], number) for number in range(task, len(self.paths), self.tasks)]
        yield pyarrow.RecordBatch.from_pydict({"told": pyarrow.array(lines, pyarrow.string())})


def _told(path: str, number: int) -> str:
    try:
        file = DataFile.at(path, store_for(path))
    except Exception as error:  # whatever it is, Spark reads these files, and we do not
        failure = str(error) if isinstance(error, DataError) else f"{path}: {type(error).__name__}: {error}"
        return json.dumps({"number": number, "failure": failure[:500]})
    return json.dumps({"number": number, "size": file.size, "groups": file.groups, "kinds": dict(file.kinds)})


def _footers(spark: SparkSession, paths: list[str], tasks: int) -> DataFiles:
    """What executors find in the files.

    Raises:
        ThroughSpark: they cannot read them.
    """
    if not paths:
        raise ThroughSpark("it has no files")
    tasks = max(1, min(tasks, len(paths)))
    job = spark.range(0, tasks, 1, tasks).mapInArrow(_FooterReader(tuple(paths), tasks), "told string")
    told = sorted((json.loads(row[0]) for row in job.collect()), key=lambda one: int(one["number"]))
    if [one["number"] for one in told] != list(range(len(paths))):
        raise ThroughSpark(f"of {len(paths)} footers, {len(told)} came back")
    failed = next((one for one in told if "failure" in one), None)
    if failed is not None:
        raise ThroughSpark(f"without Spark, executors cannot read its files: {failed['failure']}")
    files = tuple(
        DataFile(path, one["size"], tuple(one["groups"]), one["kinds"]) for path, one in zip(paths, told, strict=True)
    )
    return DataFiles(files, store_for(paths[0]))


def _setting(spark: SparkSession, name: str) -> str | None:
    try:
        return spark.conf.get(name, None)
    except Exception:  # some platforms forbid reading some settings
        return None
