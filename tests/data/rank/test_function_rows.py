"""A rank's rows whose batches a function makes."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow

from spark_estimator.data.fields import Field
from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.rank.function_rows import FunctionRows
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.transformation import Transformation


def test_batches_have_the_fields_in_the_order_of_the_rows() -> None:
    def function(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": [row["n"], row["n"] + 1], "y": row["n"]}

    batch = pyarrow.RecordBatch.from_pydict({"n": pyarrow.array([0, 10, 20, 30, 40])})
    fields = (Field(("x",), ("c0",), (2,), "float32", (2,)), Field(("y",), ("c1",), (1,), "int64"))
    then = RowEncoder(("x", "y"), fields, transformation=Transformation(function), transformation_columns=("n",))
    then, _ = then.apply(batch)
    kept = KeptRows.of({"n": pyarrow.int64()}, 64, then)
    (content,) = kept.encode(batch)
    rows = RankRows(([content],), numpy.array([4, 0, 1]), (3,))
    made = FunctionRows(rows, kept)
    assert (made.total, made.make_plan(2).steps) == (3, 2)
    first, second = made.read_batches(2)
    assert first.matrices[0].tolist() == [[40.0, 41.0], [0.0, 1.0]] and first.matrices[1].tolist() == [[40], [0]]
    assert second.matrices[1].tolist() == [[10]] and second.rows == 1
