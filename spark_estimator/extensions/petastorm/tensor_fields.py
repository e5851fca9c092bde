"""Which columns of a reader are numbers of one length, and as which arrays the spool keeps them."""

from __future__ import annotations

import numpy

from spark_estimator.data.fields import Field, find_widths
from spark_estimator.data.numbers import make_file_readable
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.plan import ReadPlan

_SAMPLE_ROWS = 100
_DTYPES = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "boolean": "uint8",
    "date": "int64",
    "float": "float32",
    "double": "float64",
    "timestamp": "float64",
    "timestamp_ntz": "float64",
}
_PLAIN = (
    *(numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8),
    *(numpy.float32, numpy.float64, numpy.bool_),
)


def are_plain(plan: ReadPlan) -> bool:
    """Return whether all columns that are read hold numbers that the spool keeps in their own types."""
    return all(
        field.numpy_dtype in _PLAIN and len(field.shape) <= 1 and name not in plan.files.coded
        for name, field in plan.schema.fields.items()
    )


def find_texts(plan: ReadPlan) -> list[str]:
    """Return the columns that are read of texts or bytes, or of arrays of them."""
    return [name for name, field in plan.schema.fields.items() if field.numpy_dtype in (numpy.str_, numpy.bytes_)]


def make_tensor_fields(plan: ReadPlan) -> list[Field]:
    """Return a tensor for each column, of the column's own type and shape. Looks at the first rows.

    Raises:
        DataError: a column cannot be read as tensors; the text names it.
    """
    columns = plan.columns
    dtypes = [_choose_dtype(plan, name) for name in columns]
    first = FileRows(plan.files, RowEncoder(columns)).read_first_rows(dtypes, _SAMPLE_ROWS)
    arrow_names = [f"c{number}" for number in range(len(columns))]
    fields = []
    for name, dtype, column, width in zip(columns, dtypes, arrow_names, find_widths(first, arrow_names), strict=True):
        if width is None:
            raise DataError(
                f"column {name!r} holds arrays of different lengths, or nulls: pad or cut them in a TransformSpec, or "
                "in the collate_fn of a DataLoader."
            )
        kind = plan.files.kinds[name]
        coded = plan.files.coded.get(name)
        shape = coded.shape if coded else (width,) if kind[:5] in ("array", "vecto") else ()
        fields.append(Field((name,), (column,), (width,), dtype, shape))
    return fields


def _choose_dtype(plan: ReadPlan, name: str) -> str:
    if name in plan.files.coded:
        return plan.files.coded[name].dtype
    kind = make_file_readable(plan.files.kinds, name).kind
    element = kind[len("array<") : -1] if kind.startswith("array<") else kind
    if element in ("float", "double", "vector") or element.startswith("decimal"):
        return plan.precision or _DTYPES.get(element, "float64")
    if plan.schema.fields[name].numpy_dtype is numpy.uint8:
        return "uint8"
    return _DTYPES[element]
