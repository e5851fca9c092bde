"""Arguments of petastorm's readers: which columns are meant, what has no effect here, and what is refused."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spark_estimator.collectives import context
from spark_estimator.collectives.other_launchers.launchers import warn_about_all_rows
from spark_estimator.data.columns import did_you_mean
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import DatasetFiles
from spark_estimator.extensions.petastorm.predicates import PredicateBase
from spark_estimator.extensions.petastorm.transform import TransformSpec
from spark_estimator.extensions.petastorm.unischema import Unischema, UnischemaField

#: Arguments on the internals of petastorm's readers; they have no counterpart here.
_WITHOUT_EFFECT = {
    *("results_queue_size", "pyarrow_serialize", "shard_seed", "hdfs_driver", "zmq_copy_buffers"),
    *("cache_type", "cache_location", "cache_size_limit", "cache_row_size_estimate", "cache_extra_settings"),
    "convert_early_to_numpy",
}
#: Arguments that change which rows or values are read, and what to do instead.
_REFUSED = {
    "rowgroup_selector": "petastorm's indexes of row groups are not read here; use a predicate or filters",
    "filesystem": "give a URL, and storage_options",
    "ngram": "make windows of rows where the data set is written",
}
_warned: set[str] = set()
_log = logging.getLogger(__name__)


class ReaderArguments(NamedTuple):
    """Arguments that all readers share, as in `make_batch_reader`."""

    reader_pool_type: str = "thread"
    workers_count: int | None = None
    seed: int | None = None
    shuffle_rows: bool = False
    shuffle_row_groups: bool = True
    shuffle_row_drop_partitions: int = 1
    predicate: PredicateBase | None = None
    num_epochs: int | None = 1
    cur_shard: int | None = None
    shard_count: int | None = None
    transform_spec: TransformSpec | None = None
    filters: Sequence[Any] | None = None

    def check(self) -> None:
        """Raise ValueError for a shard number out of range, fewer than one epoch or part, or no TransformSpec."""
        shard, shards = self.cur_shard, self.shard_count
        if (shard is None) != (shards is None):
            raise ValueError(f"cur_shard={shard!r} and shard_count={shards!r}: give both or neither.")
        if shards is not None and shard is not None and not 0 <= shard < shards:
            raise ValueError(f"cur_shard={shard}: shards are numbered from 0, and shard_count is {shards}.")
        if self.num_epochs is not None and self.num_epochs < 1:
            raise ValueError(f"num_epochs must be at least 1, or None for no end; got {self.num_epochs}.")
        if self.shuffle_row_drop_partitions < 1:
            raise ValueError(f"shuffle_row_drop_partitions must be at least 1; got {self.shuffle_row_drop_partitions}.")
        if self.transform_spec is not None and not hasattr(self.transform_spec, "edit_fields"):
            raise ValueError(
                f"transform_spec must be an object of petastorm.transform.TransformSpec; got {self.transform_spec!r}."
            )


def choose_fields(files: DatasetFiles, schema_fields: Sequence[Any] | None, origin: str) -> Unischema:
    """Return the schema of the columns that petastorm's `schema_fields` mean.

    Columns of types that have no numpy array (structs, maps, arrays of arrays) are left out with a warning, as
    petastorm does; where one is named it is a DataError.
    """
    fields, omitted = files.read_fields()
    names = choose_columns([*(field.name for field in fields), *omitted], schema_fields)
    for name in names:
        if name not in omitted:
            continue
        if schema_fields is not None and any(name == getattr(field, "name", field) for field in schema_fields):
            raise DataError(f"column {name!r} has type {omitted[name]}, which has no numpy array: flatten it first.")
        warnings.warn(
            f"{origin}: column {name!r} has type {omitted[name]}, which has no numpy array, and is left out.",
            stacklevel=4,
        )
    by_name = {field.name: field for field in fields}
    return Unischema("inferred_schema", [by_name[name] for name in names if name in by_name])


def choose_columns(columns: Sequence[str], schema_fields: Sequence[Any] | None) -> list[str]:
    """Return those of the columns that petastorm's `schema_fields` mean.

    Args:
        schema_fields: names, regular expressions that match whole names, or fields of a Unischema; None: all.

    Raises:
        DataError: one of them matches no column.
        ValueError: there are none, or one of them is no name, field or regular expression.
    """
    if schema_fields is None:
        return list(columns)
    if isinstance(schema_fields, str) or not isinstance(schema_fields, Iterable):
        raise ValueError(f"schema_fields must be a list of names, patterns or fields; got {schema_fields!r}.")
    if not (schema_fields := list(schema_fields)):
        raise ValueError("schema_fields is an empty list: name at least one column, or leave it out to read all.")
    matched: set[str] = set()
    for field in schema_fields:
        if not isinstance(field, (str, UnischemaField)) and not hasattr(field, "name"):
            raise ValueError(f"schema_fields must be a list of names, patterns or fields; it has {field!r}.")
        name = field if isinstance(field, str) else str(field.name)
        matching = _find_matches(name, columns) if isinstance(field, str) else [name] if name in columns else []
        if not matching:
            raise DataError(
                f"schema_fields: {field!r} is no column of {', '.join(map(repr, columns))}."
                + did_you_mean(name, columns)
            )
        matched.update(matching)
    return [name for name in columns if name in matched]


def _find_matches(pattern: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of this name, and those whose whole names match it as a regular expression."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        if pattern in columns:
            return [pattern]
        raise ValueError(
            f"schema_fields: {pattern!r} is no column of {', '.join(map(repr, columns))}, and no regular expression: "
            f"{error}."
        ) from error
    return [name for name in columns if name == pattern or expression.fullmatch(name)]


def check_others(call: str, others: Mapping[str, Any]) -> None:
    """Raise for arguments that would change rows or values; a warning lists those without effect, once for each.

    Raises:
        TypeError, ValueError: as in `make_reader`.
    """
    for name, value in others.items():
        if name in _REFUSED and value is not None:
            raise ValueError(f"{call}: {name} is not supported; {_REFUSED[name]}.")
        if name not in _WITHOUT_EFFECT and name not in _REFUSED:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    warn_without_effect(name for name, value in others.items() if value is not None and name in _WITHOUT_EFFECT)


def warn_without_effect(names: Iterable[str]) -> None:
    """Warn of arguments that have no effect here, once for each."""
    new = sorted(set(names) - _warned)
    _warned.update(new)
    if new:
        warnings.warn(
            f"{', '.join(new)}: petastorm's, and without effect here: nothing is cached, and row groups are read in "
            "threads of this process.",
            stacklevel=5,
        )


def compare_with_job(shard: int, shards: int) -> None:
    """Warn if a rank does not read the shard of its rank, or if one of several processes reads all rows."""
    if not context.is_initialized():
        if shards == 1:
            warn_about_all_rows("A petastorm reader without cur_shard and shard_count")
        return
    rank, size = context.rank(), context.size()
    if size > 1 and (shard, shards) != (rank, size):
        _log.warning(
            f"rank {rank} of {size} reads shard {shard} of {shards}: for a different share on each rank set "
            "cur_shard=hvd.rank(), shard_count=hvd.size()"
        )
