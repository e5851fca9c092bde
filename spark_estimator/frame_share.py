"""``run(function, data=df)``: what a function on a rank gets for a DataFrame, an equal share of its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_estimator.data.columns import Readable, cast_columns, make_readable
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.joined import Joined
from spark_estimator.data.rank.spool import receive
from spark_estimator.data.row_encoder import RowEncoder, find_dtypes
from spark_estimator.data.scan import files_of
from spark_estimator.data.spark_rows import feed_columns
from spark_estimator.errors import DataError
from spark_estimator.launch.spark.row_writer import Rows, open_worker_end

if TYPE_CHECKING:
    from spark_estimator.data.parquet import DataFiles
    from spark_estimator.data.rank.rank_rows import RankRows
    from spark_estimator.data.torch_loader import TorchLoader

_ARGUMENT = "data"


@dataclass
class FrameShare:
    """The rows of a DataFrame that one rank reads: as many as any other rank, or one less.

    Attributes:
        columns: their names.
    """

    columns: tuple[str, ...]
    _fields: tuple[Field, ...] = ()
    _files: DataFiles | None = None
    _rows: RankRows | None = field(default=None, compare=False)

    def loader(
        self,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        cache_bytes: int | None = None,
        buffer_bytes: int | None = None,
    ) -> TorchLoader:
        """Return batches of tensors, as of ``make_torch_dataloader``.

        All ranks call it, after ``init()`` or instead of it.

        Args:
            batch_size: the most rows of a batch; batches of an epoch differ by one row.
            columns: batches are dicts with these, a tensor each; None, with `feature_cols` as well: all columns.
            feature_cols: batches are tuples (features, label, ...): the features side by side in one matrix, ...
            label_cols: ... and a tensor for each of these.
            shuffle: the rows are read in another order in each epoch.
            seed: names the orders.
            cache_bytes, buffer_bytes: as of ``make_torch_dataloader``; for a DataFrame that is just Parquet files.

        Raises:
            DataError: a row cannot be used, or there is none; the text names it.
            ValueError: the arguments contradict each other, or name a column that is not there.
        """
        from spark_estimator.collectives import context
        from spark_estimator.data.torch_loader import check_request, make_loader, make_torch_dataloader

        check_request(batch_size, columns, feature_cols, label_cols)
        names = [*(self.columns if feature_cols is None and columns is None else columns or feature_cols or ())]
        missing = next((name for name in (*names, *(label_cols or ())) if name not in self.columns), None)
        if missing is not None:
            raise ValueError(f"there is no column {missing!r}: the DataFrame has {', '.join(self.columns)}.")
        context.init()
        if self._files is not None:
            return make_torch_dataloader(
                self._files,
                batch_size,
                columns=names if feature_cols is None else None,
                feature_cols=feature_cols,
                label_cols=label_cols,
                shuffle=shuffle,
                seed=seed,
                cache_bytes=cache_bytes,
                buffer_bytes=buffer_bytes,
            )
        if cache_bytes is not None or buffer_bytes is not None:
            raise DataError(
                "cache_bytes and buffer_bytes limit rows that ranks read from files, and Spark's tasks send the rows "
                "of this DataFrame: write it with df.write.parquet(path), and pass spark.read.parquet(path)."
            )
        joined = Joined.from_fields(self._fields)
        if self._rows is None:
            from spark_estimator.data.rank.rank_rows import balance

            with open_worker_end() as supervisor:
                spool, _ = receive(joined.stored, supervisor)
            self._rows = balance(spool, "a loader")
        return make_loader(
            self._rows, joined, self.columns, names, label_cols, batch_size, seed if shuffle else None, feature_cols
        )


def share_frame(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], caller: str, *, on_spark: bool
) -> tuple[dict[str, Any], Rows | None]:
    """Return the keyword arguments for the ranks: with a `FrameShare` instead of a DataFrame that is named ``data``.

    Args:
        caller: the user's call, for messages.
        on_spark: Spark's tasks can send rows to the ranks; else they have to read files.

    Returns:
        The arguments, and the rows that the job's tasks hand over; None: there are none.

    Raises:
        TypeError: the function does not take ``data`` beside the other arguments.
        DataError: the DataFrame cannot be read; the text names the column.
    """
    frame: Any = kwargs.get(_ARGUMENT)
    if not hasattr(frame, "sparkSession"):
        return dict(kwargs), None
    _check_function(function, args, caller)
    if frame.isStreaming:
        raise DataError(f"{caller}: data is a streaming DataFrame, which has no last row; pass one that ends.")
    schema = frame.schema
    columns = [make_readable(schema, name) for name in schema.names]
    if not columns:
        raise DataError(f"{caller}: the DataFrame of data has no columns.")
    try:
        share = FrameShare(tuple(schema.names), _files=files_of(frame))
        return {**kwargs, _ARGUMENT: share}, None
    except DataError as reason:
        if not on_spark:
            raise DataError(
                f"{caller} starts processes without Spark, which can only read files, and {reason} Or run on Spark."
            ) from None
    fields = _make_fields(frame, columns, caller)
    encoder = RowEncoder(tuple(schema.names), Joined.from_fields(fields).stored)
    selected, feed = feed_columns(encoder, columns, find_dtypes(fields))
    rows = frame.select(*selected)
    return {**kwargs, _ARGUMENT: FrameShare(tuple(schema.names), fields)}, Rows(rows, feed, tuple(rows.columns))


def _check_function(function: Callable[..., Any], args: Sequence[Any], caller: str) -> None:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind_partial(*args, **{_ARGUMENT: None})
    except TypeError as error:
        raise TypeError(
            f"{caller}: data is a DataFrame, and the ranks get their rows as the keyword argument 'data', but {name}() "
            f"can't be called so ({error}): def {name}(data, ...), with the other arguments by name."
        ) from None
    except ValueError:  # a C function without a signature
        return


def _make_fields(frame: Any, columns: Sequence[Readable], caller: str) -> tuple[Field, ...]:
    """Make one field for each column; the first row shows how long arrays are."""
    dtypes = [column.dtype for column in columns]
    first = frame.select(*cast_columns(columns, dtypes, "error")).limit(1).collect()
    if not first:
        raise DataError(f"{caller}: the DataFrame of data has no rows.")
    fields = []
    for number, (column, dtype) in enumerate(zip(columns, dtypes, strict=True)):
        if column.is_array and first[0][number] is None:
            raise DataError(
                f"column {column.name!r} holds null. Fill or drop such rows (functions.coalesce, df.dropna)."
            )
        width = len(first[0][number]) if column.is_array else 1
        shape = (width,) if column.is_array else ()
        fields.append(Field((column.name,), (f"c{number}",), (width,), dtype, shape))
    return tuple(fields)
