"""What a model knows of its columns."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql import types

from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Field
from spark_estimator.estimators.metadata import ModelMetadata, get_label_type, make_column_facts


def test_metadata_is_a_dict_that_keeps_its_fields() -> None:
    field = Field(("x",), ("c0",), (2,), "float32", (2,))
    metadata = ModelMetadata({"x": {"shape": 2}}, [field], [1], ["float"], ["logit"])
    copied = pickle.loads(pickle.dumps(metadata))
    assert copied == {"x": {"shape": 2}} and type(copied) is ModelMetadata
    assert (copied.inputs, copied.outputs, copied.label_types, copied.output_kinds) == (
        (field,),
        (1,),
        ("float",),
        ("logit",),
    )
    assert ModelMetadata({}, [], [], ["a", "b"]).output_kinds == (None, None)


def test_columns_have_horovods_facts() -> None:
    columns = [Readable("v", True, "float32", None, "vector"), Readable("n", False, "int64", None, "bigint")]
    facts = make_column_facts(columns, {"v": 3})
    assert facts["v"]["spark_data_type"] is DenseVector and facts["v"]["shape"] == 3
    assert facts["n"]["spark_data_type"] is types.LongType and facts["n"]["shape"] == 1
    assert facts["n"]["intermediate_format"] == "nochange"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.IntegerType, "int"),
        (types.FloatType(), "float"),
        (DenseVector, "vector"),
        (VectorUDT(), "vector"),
        (None, "double"),
        (types.ArrayType, "double"),
    ],
)
def test_types_of_labels(kind: Any, text: str) -> None:
    assert get_label_type({"spark_data_type": kind}) == text
