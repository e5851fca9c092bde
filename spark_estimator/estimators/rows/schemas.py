"""How a column of a DataFrame, of Parquet files, or of a transformation's result is read. No rows are needed for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_estimator.data.categories import CategoryEncoder
from spark_estimator.data.columns import Readable, make_category, make_raw, make_readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.numbers import get_column_kind, make_file_category, make_file_readable
from spark_estimator.data.transformation import Transformation

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Schema(ABC):
    """Columns, by name.

    Attributes:
        names: of all columns.
    """

    names: Sequence[str]

    @abstractmethod
    def get_column(self, name: str) -> Readable:
        """Return how a column is read.

        Raises:
            DataError: the column is missing, or its type cannot be trained on.
        """


class RawSchema(Schema):
    """Columns that a transformation can be applied to.

    Attributes:
        decoders, categories: of its columns, by name.
    """

    def __init__(self, decoders: Mapping[str, Decoder], categories: Mapping[str, CategoryEncoder]) -> None:
        self.decoders = decoders
        self.categories = categories

    @abstractmethod
    def get_raw_column(self, name: str) -> Readable:
        """Return a column as it is, for a transformation."""


class FrameSchema(RawSchema):
    """The columns of a DataFrame."""

    def __init__(
        self, kinds: StructType, decoders: Mapping[str, Decoder], categories: Mapping[str, CategoryEncoder]
    ) -> None:
        super().__init__(decoders, categories)
        self.names = kinds.names
        self._kinds = kinds

    def get_column(self, name: str) -> Readable:
        """See `Schema.get_column`."""
        if name in self.categories:
            return make_category(self._kinds, name, self.categories[name])
        return make_readable(self._kinds, name, name in self.decoders)

    def get_raw_column(self, name: str) -> Readable:
        """See `RawSchema.get_raw_column`; times without a zone are instants, by the session's zone."""
        column = make_raw(self._kinds, name)
        if column.expression is None or column.time != "timestamp_ntz":
            return column
        return replace(column, expression=column.expression.cast(column.kind.replace("_ntz", "")))


class FileSchema(RawSchema):
    """The columns of Parquet files."""

    def __init__(
        self, kinds: Mapping[str, str], decoders: Mapping[str, Decoder], categories: Mapping[str, CategoryEncoder]
    ) -> None:
        super().__init__(decoders, categories)
        self.names = list(kinds)
        self._kinds = kinds

    def get_column(self, name: str) -> Readable:
        """See `Schema.get_column`."""
        if name in self.categories:
            return make_file_category(self._kinds, name, self.categories[name])
        return make_file_readable(self._kinds, name, name in self.decoders)

    def get_raw_column(self, name: str) -> Readable:
        """See `RawSchema.get_raw_column`."""
        return Readable(name, False, "", None, get_column_kind(self._kinds, name))


class TransformedSchema(Schema):
    """The columns that a transformation has returned.

    Args:
        names: of them.
        transformation: has been called.
        kinds: the Spark types of its arguments that are categories, or that it has not changed, by name.
    """

    def __init__(self, names: Sequence[str], transformation: Transformation, kinds: Mapping[str, str]) -> None:
        self.names = names
        self._shown = transformation.shown
        self._kinds = kinds

    def get_column(self, name: str) -> Readable:
        """See `Schema.get_column`."""
        column = make_file_readable({name: shown.words for name, shown in self._shown.items()}, name)
        shown = self._shown[name]
        return replace(
            column,
            kind=self._kinds.get(name, column.kind),  # the function gets ids and instants; `transform` reads others
            dtype="float32" if shown.is_bytes else column.dtype,
            shape=shown.shape,
            kept="uint8" if shown.is_bytes else "",
        )
