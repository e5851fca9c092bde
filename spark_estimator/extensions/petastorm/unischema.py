"""`Unischema` and `UnischemaField`: which columns a data set has, with their numpy types and shapes; as petastorm's.

Readers have one as `schema`. Programs declare them for data sets that petastorm wrote. Data sets are not written by
them here: `dict_to_spark_row` encodes rows for ``materialize_dataset``, which is not available.
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import pyarrow

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.fields import is_list
from spark_estimator.data.numbers import get_kind
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WIDTHS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SCALARS: Mapping[str, Any] = {
    **{name: getattr(numpy, name) for name in _WIDTHS},
    "halffloat": numpy.float16,
    "float": numpy.float32,
    "double": numpy.float64,
    "bool": numpy.bool_,
    "string": numpy.str_,
    "large_string": numpy.str_,
    "binary": numpy.bytes_,
    "large_binary": numpy.bytes_,
}

#: Why rows are not encoded, and what to do instead.
WRITING = (
    "data sets with a Unischema are read here, and not written: write plain columns (arrays as array<float>, images as "
    "binary) with df.write.parquet(), and decode them in a TransformSpec; or write with petastorm itself."
)


class UnischemaField(NamedTuple):
    """One column.

    Attributes:
        name: of the column.
        numpy_dtype: of its values: a class of numpy (``numpy.float32``, ``numpy.str_``) or `decimal.Decimal`.
        shape: of a row's value; () for a scalar. None is an extent that may differ between rows.
        codec: how the value is stored, one of `petastorm.codecs`; None: as a type of Parquet's own.
        nullable: a row may have None.
    """

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...] = ()
    codec: Any = None
    nullable: bool | None = False

    # Codecs have no order and no equality, so that they are left out.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and _make_key(self) == _make_key(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_make_key(self))


def _make_key(field: Sequence[Any]) -> tuple[Any, ...]:
    return (*field[:3], *field[4:])


class Unischema:
    """Named columns, in their order. Each is also an attribute by its name: ``schema.label``."""

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        self._name = name
        self._fields = OrderedDict((field.name, field) for field in fields)
        for field in self._fields.values():
            if hasattr(self, field.name):
                warnings.warn(
                    f"the column {field.name!r} is no attribute of the Unischema, which has another one of this name: "
                    f"use schema.fields[{field.name!r}].",
                    stacklevel=2,
                )
            else:
                setattr(self, field.name, field)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no column and no attribute {name!r}")

    @property
    def fields(self) -> OrderedDict[str, UnischemaField]:
        """Return the columns by their names."""
        return self._fields

    def create_schema_view(self, fields: Iterable[UnischemaField | str]) -> Unischema:
        """Return the schema of some columns.

        Args:
            fields: fields of this schema, or regular expressions that match whole names.

        Raises:
            ValueError: a field is none of this schema.
        """
        fields = list(fields)
        patterns = [field for field in fields if isinstance(field, str)]
        names: dict[str, UnischemaField] = {}
        for field in fields:
            if isinstance(field, str):
                continue
            if not isinstance(field, tuple):
                raise ValueError(f"fields has regular expressions and objects of UnischemaField; it has {field!r}.")
            if field.name not in self._fields:
                raise ValueError(
                    f"there is no field {field.name!r} in {self._name}." + did_you_mean(field.name, self._fields)
                )
            names[field.name] = self._fields[field.name]
        names.update((field.name, field) for field in match_unischema_fields(self, patterns))
        return Unischema(f"{self._name}_view", names.values())

    def make_namedtuple(self, **values: Any) -> Any:
        """Return a named tuple with a value for each column."""
        return self.row_type()(**values)

    def row_type(self) -> type[Any]:
        """Return the named tuple's class, the same one for the same name and columns."""
        return _make_row_type(f"{self._name}_view", tuple(self._fields))

    def as_spark_schema(self) -> StructType:
        """Return Spark's schema of a data set that petastorm writes with this Unischema; raises as `to_spark_type`."""
        from pyspark.sql.types import StructField, StructType

        return StructType(
            [StructField(field.name, to_spark_type(field), bool(field.nullable)) for field in self._fields.values()]
        )

    def __repr__(self) -> str:
        lines = "".join(
            f"  UnischemaField({field.name!r}, {getattr(field.numpy_dtype, '__name__', field.numpy_dtype)}, "
            f"{field.shape}, {field.codec}, {field.nullable}),\n"
            for field in self._fields.values()
        )
        return f"Unischema({self._name}, [\n{lines}])"


@lru_cache(maxsize=256)
def _make_row_type(name: str, fields: tuple[str, ...]) -> type[Any]:
    # Names of columns that are none of Python's get numbers.
    return namedtuple(re.sub(r"\W", "_", name), fields, rename=True)


def match_unischema_fields(schema: Unischema, field_regex: Iterable[str]) -> list[UnischemaField]:
    """Return the fields whose whole names match one of the regular expressions, in the schema's order."""
    patterns = [re.compile(pattern) for pattern in field_regex]
    return [field for name, field in schema.fields.items() if any(pattern.fullmatch(name) for pattern in patterns)]


def to_spark_type(field: UnischemaField) -> DataType:
    """Return the Spark type in which a field is stored; ValueError if it has no codec, and is no scalar of Spark's."""
    from pyspark.sql import types

    if field.codec is not None:
        kind: DataType = field.codec.spark_dtype()
        return kind
    types_by_numpy: dict[Any, DataType] = {
        numpy.int8: types.ByteType(),
        **dict.fromkeys((numpy.uint8, numpy.int16), types.ShortType()),
        **dict.fromkeys((numpy.uint16, numpy.int32), types.IntegerType()),
        numpy.int64: types.LongType(),
        numpy.float32: types.FloatType(),
        numpy.float64: types.DoubleType(),
        numpy.str_: types.StringType(),
        numpy.bytes_: types.BinaryType(),
        numpy.bool_: types.BooleanType(),
    }
    if field.shape != () or field.numpy_dtype not in types_by_numpy:
        raise ValueError(
            f"field {field.name!r} ({field.numpy_dtype}, shape {field.shape}) has no codec, and no Spark type of its "
            "own: give it a codec of petastorm.codecs."
        )
    return types_by_numpy[field.numpy_dtype]


def to_numpy_type(kind: pyarrow.DataType) -> Any:
    """Return the numpy type of a column's values (of those inside, for arrays) as a field has it; None: it has none."""
    if is_list(kind):
        inside = kind.value_type
        return None if is_list(inside) or pyarrow.types.is_struct(inside) else to_numpy_type(inside)
    if pyarrow.types.is_dictionary(kind):
        return to_numpy_type(kind.value_type)
    if pyarrow.types.is_struct(kind):
        return numpy.float64 if get_kind(kind) == "vector" else None
    if pyarrow.types.is_decimal(kind):
        return Decimal
    if pyarrow.types.is_date(kind) or pyarrow.types.is_timestamp(kind):
        return numpy.datetime64
    if pyarrow.types.is_fixed_size_binary(kind):
        return numpy.bytes_
    return _SCALARS.get(str(kind))


def to_unischema_field(column: pyarrow.Field) -> UnischemaField | None:
    """Return a column of a Parquet file as a field; None for those that petastorm, too, leaves out (structs, ...)."""
    dtype = to_numpy_type(column.type)
    if dtype is None:
        return None
    is_array = is_list(column.type) or pyarrow.types.is_struct(column.type)
    return UnischemaField(column.name, dtype, (None,) if is_array else (), None, column.nullable)


def dict_to_spark_row(unischema: Unischema, row_dict: Mapping[str, Any]) -> Any:
    """Raise NotImplementedError: encoding rows is for ``materialize_dataset``."""
    raise NotImplementedError(WRITING)


def insert_explicit_nulls(unischema: Unischema, row_dict: MutableMapping[str, Any]) -> None:
    """Add None for fields that a row lacks; DataError for one that is not nullable."""
    for name, field in unischema.fields.items():
        if name not in row_dict:
            if not field.nullable:
                raise DataError(f"the row has no value for {name!r}, which is not nullable.")
            row_dict[name] = None
