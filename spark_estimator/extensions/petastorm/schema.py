"""The schema that petastorm keeps beside a data set, opened without petastorm and without running code that it names.

``_common_metadata`` holds a pickled Unischema: the codecs by which numpy arrays and images became binary columns. A
pickle can name any function, and petastorm's own reader accepts ``builtins.eval``. Here one table lists every name that
may occur and maps it to a class of this module that does nothing; any other is refused. Even so, the pickle is opened
only where the user trusts the data set.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.parquet

from spark_estimator.data.parquet_file import name_errors
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore

METADATA = "_common_metadata"
_KEY = b"dataset-toolkit.unischema.v1"
# Packages of the time before petastorm had its name, whose data sets petastorm still reads.
_PACKAGES = ("petastorm", "av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
_CODECS = {
    "ScalarCodec": "scalar",
    "NdarrayCodec": "npy",
    "CompressedNdarrayCodec": "npz",
    "CompressedImageCodec": "image",
}
_NUMPY = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{name: name for name in ("float16", "float32", "float64", "datetime64")},
    **dict.fromkeys(("bool_", "bool", "bool8"), "bool"),
    **dict.fromkeys(("str_", "string_", "unicode_", "bytes_"), "str"),
}


class SchemaField(NamedTuple):
    """One column as the Unischema has it.

    Attributes:
        name: of the column.
        dtype: of its values, in numpy's words; "str" and "decimal" are no numbers.
        shape: of one row; None is a length that may differ.
        codec: "scalar", "npy", "npz" or "image".
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    codec: str


class _Stub:
    """Replaces a class that the pickle names: it keeps its arguments, and does nothing."""

    kind = ""
    args: tuple[Any, ...]
    state: Any

    # Not __init__, which most pickles do not call.
    def __new__(cls, *args: Any) -> _Stub:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dtype(_Stub):
    """A type of numbers, by its name in `args`."""


def _make_stub(kind: str) -> type[_Stub]:
    return type(f"_Stub_{kind}", (_Stub,), {"kind": kind, "__module__": __name__})


_FIELD = _make_stub("field")
_SCHEMA = _make_stub("schema")


def _restore_tuple(name: str, fields: Sequence[str], values: Sequence[Any]) -> _Stub:
    """Make a named tuple that older versions of PySpark have pickled."""
    by_name = dict(zip(fields, values, strict=True))
    return _FIELD(*(by_name.get(item) for item in ("name", "numpy_dtype", "shape", "codec", "nullable")))


def _reconstruct(kind: Any, base: Any, state: Any) -> _Stub:
    """Make an object of pickle's protocols 0 and 1."""
    if not (isinstance(kind, type) and issubclass(kind, _Stub)):
        raise pickle.UnpicklingError(f"an object of {kind!r}")
    return kind()


def _make_table() -> dict[tuple[str, str], Any]:
    """Return all names that a pickled Unischema may contain, and the replacement of each."""
    table: dict[tuple[str, str], Any] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("collections", "UnischemaField"): _FIELD,
        ("pyspark.serializers", "_restore"): _restore_tuple,
        ("decimal", "Decimal"): _Dtype("decimal"),
        ("builtins", "object"): object,
        ("__builtin__", "object"): object,
        ("copyreg", "_reconstructor"): _reconstruct,
        ("copy_reg", "_reconstructor"): _reconstruct,
        ("numpy", "dtype"): _Dtype,
    }
    for package in _PACKAGES:
        table[f"{package}.unischema", "Unischema"] = _SCHEMA
        table[f"{package}.unischema", "UnischemaField"] = _FIELD
        for name, kind in _CODECS.items():
            table[f"{package}.codecs", name] = _make_stub(kind)
    for name, kind in _NUMPY.items():
        table["numpy", name] = _Dtype(kind)
    return table


class _Unpickler(pickle.Unpickler):
    """Knows the names of `_make_table`, and types of Spark, of which nothing is kept."""

    _names = _make_table()
    _spark_type = _make_stub("spark type")

    def find_class(self, module: str, name: str) -> Any:
        if module == "pyspark.sql.types" and name.isidentifier():
            return self._spark_type
        if (module, name) not in self._names:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no schema of petastorm needs")
        return self._names[module, name]


def read_pickled_schema(store: FilesystemStore, folder: str) -> bytes | None:
    """Return the pickled Unischema of a data set, unopened; None: petastorm has written none there."""
    path = f"{folder.rstrip('/')}/{METADATA}"
    if not store.exists(path):
        return None
    with name_errors(path), store.open(path) as file:
        metadata = pyarrow.parquet.read_schema(file).metadata or {}
    result: bytes | None = metadata.get(_KEY)
    return result


def parse_fields(pickled: bytes, origin: str) -> dict[str, SchemaField]:
    """Return the columns of a pickled Unischema, by name. No code that the pickle names is run.

    Raises:
        DataError: it is not a Unischema, or it names something that a Unischema does not need; the text has `origin`.
    """
    try:
        # The unpickler knows a fixed list of names, which all lead to objects that do nothing.
        schema = _Unpickler(io.BytesIO(pickled)).load()
        if not isinstance(schema, _SCHEMA):
            raise pickle.UnpicklingError(f"it holds a {type(schema).__name__}")
        result = [_parse_field(item) for item in schema.state["_fields"].values()]
    except DataError as error:
        raise DataError(f"{origin}: {error}") from error
    except Exception as error:  # an unpickler may raise any error for bytes that are not a pickle
        raise DataError(f"{origin}: petastorm's schema is not one that can be opened: {error}.") from error
    return {item.name: item for item in result}


def _parse_field(stub: Any) -> SchemaField:
    name, dtype, shape, codec = stub.args[:4]
    if codec is None:
        kind = "scalar"
    elif isinstance(codec, _Stub) and codec.kind in _CODECS.values():
        kind = codec.kind
    else:
        raise DataError(f"column {name!r} has a codec that is not petastorm's own.")
    words = dtype.args[0] if isinstance(dtype, _Dtype) else None
    if not isinstance(words, str):
        raise DataError(f"column {name!r} has the type {dtype!r}, which is none of numpy's.")
    sizes = tuple(shape or ())
    if not all(size is None or (isinstance(size, int) and size >= 0) for size in sizes):
        raise DataError(f"column {name!r} has the shape {shape!r}.")
    dtype_name = words if words in ("decimal", "str") else numpy.dtype(words).name
    return SchemaField(str(name), dtype_name, sizes, kind)
