"""Finds the shapes and types of a user's decoders from the first rows; all other rows must then match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow

from spark_estimator.data.columns import Readable
from spark_estimator.data.row_encoder import RowEncoder


def fit_decoders(
    rows: pyarrow.RecordBatch, fed: Sequence[Readable], encoder: RowEncoder
) -> tuple[pyarrow.RecordBatch, RowEncoder, list[Readable]]:
    """Decode the first rows, and look up their categories.

    Args:
        rows: with the columns `fed`, as ``c0``, ``c1`` and so on; nulls are handled already.

    Returns:
        The rows; the encoder, whose decoders know the shapes; and the columns, with what the decoders make of them.
    """
    if not (encoder.decoders or encoder.categories) or not rows.num_rows:
        return rows, encoder, list(fed)
    remaining = replace(encoder.by_position(), nulls="error", marker=None)
    known, columns = remaining.apply(rows, source=f"the first {rows.num_rows} rows")
    result = []
    for name, column in zip(remaining.columns, fed, strict=True):
        decoder = known.decoders.get(name)
        if decoder is not None:
            dtype = "int64" if decoder.dtype == "int64" else "float32"
            kept = "uint8" if decoder.dtype == "uint8" else ""
            column = replace(column, is_array=bool(decoder.shape), dtype=dtype, shape=decoder.shape, kept=kept)
            column = replace(column, decoded=f"{decoder.shape}{decoder.dtype}" if decoder.dtype else "")
        result.append(column)
    fitted = {decoder.name: decoder for decoder in known.decoders.values()}
    batch = pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch, replace(encoder, decoders=fitted), result
