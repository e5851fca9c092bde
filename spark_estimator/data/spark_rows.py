"""Selects the columns of a DataFrame that a `RowEncoder` encodes: on the ranks of a training, and for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_estimator.data.columns import Readable, make_category, make_raw, make_readable, pack_columns
from spark_estimator.data.quoting import number_columns
from spark_estimator.data.rank.spool import SpoolFeed
from spark_estimator.data.row_encoder import RowEncoder

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def feed_columns(
    encoder: RowEncoder, columns: Sequence[Readable], dtypes: Sequence[str], marker: Readable | None = None
) -> tuple[list[Column], SpoolFeed]:
    """Return what to select from a DataFrame, cast by Spark, and the feed that takes it.

    Args:
        encoder: of the rows.
        columns: of the encoder, in its order.
        dtypes: [columns] of their tensors.
        marker: the column that marks rows for validation; None: no row is.
    """
    kinds = [column.choose_type(dtype) for column, dtype in zip(columns, dtypes, strict=True)]
    arrays, packed = pack_columns([column.cast(dtype) for column, dtype in zip(columns, dtypes, strict=True)], kinds)
    selected = [*number_columns(arrays), *([marker.marks] if marker else [])]
    return selected, SpoolFeed(encoder.by_position(packed=packed))


def feed_raw_columns(encoder: RowEncoder, columns: Sequence[Readable]) -> tuple[list[Column], SpoolFeed]:
    """Return the columns of a DataFrame as they are, for a user's transformation, and the feed that takes them.

    Args:
        columns: that the encoder reads.
    """
    feed = SpoolFeed(encoder, tuple(column.name for column in columns))
    return number_columns(column.stored for column in columns), feed


def select_inputs(schema: StructType, encoder: RowEncoder) -> tuple[list[Column], RowEncoder]:
    """Return the arguments of a function that predicts, and the encoder that takes them.

    Args:
        schema: of the DataFrame to predict from.
        encoder: of a model; its fields name the DataFrame's columns.

    Raises:
        DataError: a column is missing, or its type does not fit.
    """
    from pyspark.sql import functions

    columns, kinds = [], []
    for field in encoder.fields:
        for name, column in zip(field.names, field.columns, strict=True):
            if column in encoder.categories:
                read = make_category(schema, name, encoder.categories[column])
            else:
                # Arrays that exist already are read as such.
                is_bytes = column in encoder.decoders and make_raw(schema, name).kind == "binary"
                read = make_readable(schema, name, is_bytes)
            columns.append(read.cast(field.dtype))
            kinds.append(read.choose_type(field.dtype))
    if not hasattr(functions, "arrow_udf"):  # pandas has a Series for each argument
        return columns, encoder
    # One argument for all numbers of a type: Spark also compares each argument with all others.
    arguments, packed = pack_columns(columns, kinds)
    return arguments, encoder.by_position(packed=packed)
