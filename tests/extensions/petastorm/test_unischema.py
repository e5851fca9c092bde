"""`Unischema` and its fields, as petastorm's programs declare them."""

from __future__ import annotations

import pickle
from decimal import Decimal

import numpy
import pyarrow
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from spark_estimator.extensions.petastorm.unischema import (
    Unischema,
    UnischemaField,
    dict_to_spark_row,
    insert_explicit_nulls,
    to_unischema_field,
)


def test_a_schema_and_its_views() -> None:
    schema = Unischema(
        "Hello", [UnischemaField(name, numpy.int32, (), None, False) for name in ("id", "image_1", "image_2")]
    )
    assert schema.id is schema.fields["id"] and list(schema.fields) == ["id", "image_1", "image_2"]
    assert list(schema.create_schema_view(["image.*", schema.id]).fields) == ["id", "image_1", "image_2"]
    row = schema.make_namedtuple(id=1, image_1=2, image_2=3)
    assert (type(row).__name__, row) == ("Hello_view", (1, 2, 3))
    assert type(row) is schema.row_type()
    assert "UnischemaField('image_1', int32, (), None, False)" in str(schema)
    assert list(pickle.loads(pickle.dumps(schema)).fields) == list(schema.fields)
    with pytest.raises(ValueError, match=r"no field 'ids' .*Did you mean 'id'"):
        schema.create_schema_view([UnischemaField("ids", numpy.int32)])
    with pytest.raises(ValueError, match="it has 3"):
        schema.create_schema_view([3])  # type: ignore[list-item]
    with pytest.raises(AttributeError, match="no column and no attribute 'label'"):
        _ = schema.label
    with pytest.warns(UserWarning, match="the column 'fields' is no attribute"):
        Unischema("s", [UnischemaField("fields", numpy.int32)])


def test_fields_are_equal_whatever_their_codecs() -> None:
    coded, plain = (UnischemaField("x", numpy.int32, (2,), codec) for codec in (NdarrayCodec(), None))
    assert coded == plain and hash(coded) == hash(plain) and coded != plain._replace(nullable=True)


def test_types_of_arrow() -> None:
    def dtype(kind: pyarrow.DataType) -> object:
        made = to_unischema_field(pyarrow.field("x", kind))
        return made and (made.numpy_dtype, made.shape)

    assert dtype(pyarrow.decimal128(5, 2)) == (Decimal, ())
    assert dtype(pyarrow.list_(pyarrow.string())) == (numpy.str_, (None,))
    assert dtype(pyarrow.timestamp("us")) == (numpy.datetime64, ())
    assert dtype(pyarrow.struct([("a", pyarrow.int8())])) is dtype(pyarrow.list_(pyarrow.list_(pyarrow.int8()))) is None


def test_rows_are_not_written() -> None:
    schema = Unischema("s", [UnischemaField("x", numpy.int32), UnischemaField("y", numpy.int32, nullable=True)])
    with pytest.raises(NotImplementedError, match=r"df\.write\.parquet\(\), and decode them in a TransformSpec"):
        dict_to_spark_row(schema, {"x": 1})
    with pytest.raises(NotImplementedError, match="are read here, and not written"):
        NdarrayCodec().encode(schema.x, numpy.ones(2))
    row = {"x": 1}
    insert_explicit_nulls(schema, row)
    assert row == {"x": 1, "y": None}
    with pytest.raises(DataError, match="the row has no value for 'x'"):
        insert_explicit_nulls(schema, {})
    with pytest.raises(ValueError, match="image_codec must be 'png' or 'jpeg'"):
        CompressedImageCodec("gif")


def test_spark_s_schema() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    fields = [
        UnischemaField("id", numpy.int64, (), ScalarCodec(types.IntegerType()), False),
        UnischemaField("image", numpy.uint8, (2, 3, 3), CompressedImageCodec("png"), True),
        UnischemaField("x", numpy.float32, (), None, False),
    ]
    assert Unischema("s", fields).as_spark_schema().simpleString() == "struct<id:int,image:binary,x:float>"
    assert ScalarCodec(types.IntegerType()).decode(fields[0], "7") == numpy.int64(7)
    with pytest.raises(ValueError, match=r"field 'v' .* has no codec, and no Spark type"):
        Unischema("s", [UnischemaField("v", numpy.float32, (3,))]).as_spark_schema()
