"""Finds the shapes and types of a user's decoders from the first rows; all other rows must then match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow

from spark_estimator.data.columns import Readable
from spark_estimator.data.preparation import Preparation


def decoded(
    rows: pyarrow.RecordBatch, fed: Sequence[Readable], preparation: Preparation, names: Sequence[str]
) -> tuple[pyarrow.RecordBatch, Preparation, list[Readable]]:
    """With what the decoders make of the first rows' bytes.

    Args:
        names: [columns] of the rows.
    """
    decoders = {
        name: preparation.decoders[column.name]
        for name, column in zip(names, fed, strict=True)
        if column.name in preparation.decoders
    }
    if not decoders or not rows.num_rows:
        return rows, preparation, list(fed)
    known, columns = Preparation(tuple(names), decoders=decoders).passed(rows, source=f"the first {rows.num_rows} rows")
    result = []
    for name, column in zip(names, fed, strict=True):
        decoder = known.decoders.get(name)
        if decoder is not None:
            dtype = "int64" if decoder.dtype == "int64" else "float32"
            kept = "uint8" if decoder.dtype == "uint8" else ""
            column = replace(column, is_array=bool(decoder.shape), dtype=dtype, shape=decoder.shape, kept=kept)
        result.append(column)
    shown = {decoder.name: decoder for decoder in known.decoders.values()}
    batch = pyarrow.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))
    return batch, replace(preparation, decoders=shown), result
