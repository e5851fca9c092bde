"""``horovod.spark.common.util``: a DataFrame as Parquet files in a store, and their metadata.

Packages with their own training loops write their rows with `prepare_data`. This package's estimators don't need it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.quoting import quoted
from spark_estimator.log import logger
from spark_estimator.observe.driver_log import announce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The DataFrame's id, the folders for training and validation, and the argument `validation`.
Key = tuple[int, str, str, Any]
#: Rows for training, rows for validation, the columns' metadata, bytes of a row.
Properties = tuple[int, int, dict[str, dict[str, Any]], float]

_log = logger(__name__)


class TrainingDataCache:
    """Which data sets this process has written, by number, and which of them are in use.

    Attributes:
        lock: held while a data set is written.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._reset()

    def create_key(self, df: DataFrame, store: Any, validation: Any) -> Key:
        """The key of a data set: the same DataFrame object, folders and validation."""
        return hash(df), store.get_train_data_path(), store.get_val_data_path(), validation

    @contextlib.contextmanager
    def use_key(self, key: Key) -> Iterator[None]:
        """Inside of it, the data set's files are not overwritten."""
        self._in_use[key] += 1
        try:
            yield
        finally:
            self._in_use[key] -= 1

    def next_dataset_index(self, key: Key) -> int:
        """The lowest number whose data set is not in use; it becomes the key's."""
        index = 0
        while self._in_use[self._keys.get(index)] > 0:
            index += 1
        self._keys[index] = key
        self._indexes[key] = index
        return index

    def get_dataset(self, key: Key) -> int:
        """The number of a data set. Raises KeyError."""
        return self._indexes[key]

    def get_dataset_properties(self, dataset_idx: int) -> Properties:
        """See the function of that name."""
        return self._properties[dataset_idx]

    def set_dataset_properties(self, dataset_idx: int, props: Properties) -> None:
        """Notes what `get_dataset_properties` returns."""
        self._properties[dataset_idx] = props

    def is_cached(self, key: Key, store: Any) -> bool:
        """Whether the key's data set is in use and its files are there."""
        index = self._indexes.get(key)
        if index is None or self._in_use[key] <= 0 or self._keys.get(index) != key:
            return False
        validation_is_there = not key[3] or store.is_parquet_dataset(store.get_val_data_path(index))
        return bool(store.is_parquet_dataset(store.get_train_data_path(index)) and validation_is_there)

    def clear(self) -> None:
        """Forgets all data sets; their files stay."""
        with self.lock:
            self._reset()

    def _reset(self) -> None:
        self._in_use: Counter[Any] = Counter()
        self._indexes: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._properties: dict[int, Properties] = {}


_cache = TrainingDataCache()


@contextlib.contextmanager
def prepare_data(
    num_processes: int,
    store: Any,
    df: DataFrame,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None,
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> Iterator[int]:
    """Writes columns of a DataFrame as Parquet files into a store, for as long as the context lasts.

    The files are in ``store.get_train_data_path(index)`` and ``store.get_val_data_path(index)``. They stay there
    afterwards, until another data set takes their number. A DataFrame that is in use in another context isn't written
    again.

    Args:
        num_processes, partitions_per_process: their product is the number of files.
        store: with folders that Spark can write.
        label_columns: at least one.
        feature_columns: None: all other columns.
        validation: a share of the rows from 0 to below 1, chosen at random; or a column: rows where it is true, or
            greater than 0.
        sample_weight_col: also written.
        compress_sparse: no effect: vectors are written as arrays of doubles.
        verbose: 1: log where the files are and how many rows they have.

    Yields:
        The number of the data set.

    Raises:
        ValueError: an argument is out of range, a column is missing, or there are no rows.
    """
    check_validation(validation, df)
    for name, value in (("num_proc", num_processes), ("partitions_per_process", partitions_per_process)):
        if value <= 0:
            raise ValueError(f"{name}={value} must be greater than 0.")
    if not label_columns:
        raise ValueError("label_columns is required.")
    labels = list(label_columns)
    features = [name for name in df.columns if name not in labels] if feature_columns is None else list(feature_columns)
    for kind, names in (("label", labels), ("feature", features)):
        for name in names:
            if name not in df.columns:
                raise ValueError(
                    f"{kind} column {name!r} doesn't exist in the DataFrame.{did_you_mean(name, df.columns)}"
                )
    if compress_sparse:
        _log.warning("compress_sparse has no effect: vectors are written as arrays of doubles.")
    columns = features + labels + ([sample_weight_col] if sample_weight_col else [])
    files = num_processes * partitions_per_process
    key = _cache.create_key(df, store, validation)
    with _cache.use_key(key):
        with _cache.lock:
            if _cache.is_cached(key, store):
                index = _cache.get_dataset(key)
            else:
                index = _cache.next_dataset_index(key)
                _write(df, columns, validation, store, index, files, num_processes)
                properties = get_simple_meta_from_parquet(store, labels, features, sample_weight_col, index)
                if validation and not properties[1]:
                    raise ValueError(f"validation={validation!r} leaves no rows for validation.")
                _cache.set_dataset_properties(index, properties)
        if verbose:
            train_rows, val_rows, _, _ = _cache.get_dataset_properties(index)
            announce(
                f"data set {index}: train_data_path={store.get_train_data_path(index)}, train_rows={train_rows}, "
                f"val_data_path={store.get_val_data_path(index)}, val_rows={val_rows}"
            )
        yield index


def get_dataset_properties(dataset_idx: int) -> Properties:
    """The metadata of a data set that `prepare_data` has written: as `get_simple_meta_from_parquet`. KeyError."""
    return _cache.get_dataset_properties(dataset_idx)


def clear_training_cache() -> None:
    """Forgets the data sets that `prepare_data` has written; the next call writes again."""
    _cache.clear()


def get_simple_meta_from_parquet(
    store: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str],
    sample_weight_col: str | None,
    dataset_idx: int | None = None,
) -> Properties:
    """The metadata in the Parquet files of a data set.

    Returns:
        Rows for training, rows for validation, metadata by column, and the mean number of bytes of a row. Of a column
        the metadata has ``spark_data_type`` (a class; DenseVector for arrays), ``shape`` and ``max_size`` (None),
        ``intermediate_format`` ("nochange") and ``is_sparse_vector_only`` (False).

    Raises:
        ValueError: there is no data for training, or a column is missing.
    """
    train_path, val_path = store.get_train_data_path(dataset_idx), store.get_val_data_path(dataset_idx)
    if not store.exists(train_path):
        raise ValueError(f"{train_path} doesn't exist in the store: write the training data there first.")
    train = store.get_parquet_dataset(train_path)
    rows, size = _counted(train)
    if not rows:
        raise ValueError(f"{train_path}: the training data has no rows.")
    val_rows = 0
    if store.exists(val_path):
        val_rows, _ = _counted(store.get_parquet_dataset(val_path))
    metadata = {}
    for name in [*feature_columns, *label_columns, *([sample_weight_col] if sample_weight_col else [])]:
        if name not in train.schema.names:
            raise ValueError(f"{train_path} has no column {name!r}.{did_you_mean(name, train.schema.names)}")
        metadata[name] = {
            "spark_data_type": _spark_type(train.schema.field(name).type),
            "is_sparse_vector_only": False,
            "shape": None,
            "intermediate_format": "nochange",
            "max_size": None,
        }
    return rows, val_rows, metadata, size / rows


def check_validation(validation: Any, df: DataFrame | None = None) -> None:
    """Checks the argument `validation` of estimators and of `prepare_data`.

    Raises:
        ValueError: it is neither a share from 0 to below 1, nor a column of `df`.
    """
    if not validation:
        return
    if isinstance(validation, float):
        if not 0 <= validation < 1:
            raise ValueError(f"validation={validation} must be at least 0 and less than 1.")
    elif isinstance(validation, str):
        if df is not None and validation not in df.columns:
            raise ValueError(
                f"validation column {validation!r} doesn't exist in the DataFrame."
                + did_you_mean(validation, df.columns)
            )
    else:
        raise ValueError(f"validation must be a float or a column name; got {validation!r}.")


def _write(
    df: DataFrame, columns: Sequence[str], validation: Any, store: Any, index: int, files: int, processes: int
) -> None:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions
    from pyspark.sql.types import BooleanType

    kinds = {field.name: field.dataType for field in df.schema.fields}
    names = list(dict.fromkeys([*columns, *([validation] if isinstance(validation, str) else [])]))
    chosen = df.select(
        *(
            vector_to_array(functions.col(quoted(name))).alias(name)
            if isinstance(kinds[name], VectorUDT)
            else functions.col(quoted(name))
            for name in names
        )
    )
    held, share = None, 0.0
    if isinstance(validation, str):
        column = functions.col(quoted(validation))
        marked = column if isinstance(kinds[validation], BooleanType) else column > 0
        unmarked = ~column if isinstance(kinds[validation], BooleanType) else column == 0
        [[share]] = chosen.agg(functions.coalesce(functions.avg(marked.cast("double")), functions.lit(0.0))).collect()
        chosen, held = chosen.filter(unmarked).drop(validation), chosen.filter(marked).drop(validation)
    elif validation:
        share = validation
        chosen, held = chosen.randomSplit([1 - share, share])
    for rows, path, part in (
        (chosen, store.get_train_data_path(index), 1 - share),
        (held, store.get_val_data_path(index), share),
    ):
        if rows is not None:
            rows.coalesce(max(int(files * part), processes)).write.mode("overwrite").parquet(_for_spark(path))


def _for_spark(path: str) -> str:
    """A store's path as Spark takes it: without a scheme, Spark would look in its default file system."""
    return path if "://" in path else f"file://{path}"


def _counted(dataset: Any) -> tuple[int, int]:
    """Rows and bytes."""
    rows = size = 0
    for fragment in dataset.fragments:
        metadata = fragment.metadata
        rows += metadata.num_rows
        size += sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return rows, size


def _spark_type(kind: Any) -> type:
    import pyarrow
    from pyspark.ml.linalg import DenseVector
    from pyspark.sql.pandas.types import from_arrow_type

    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return DenseVector
    return type(from_arrow_type(kind))
