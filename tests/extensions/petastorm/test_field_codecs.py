"""Petastorm's codecs as declarations: Spark types, and the decoding of single values."""

from __future__ import annotations

import io
import zipfile
from decimal import Decimal
from typing import Any

import numpy
import pytest

from spark_estimator.extensions.petastorm.field_codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from spark_estimator.extensions.petastorm.unischema import UnischemaField

types = pytest.importorskip("pyspark.sql.types")


def stored(array: Any, *, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    if compressed:
        numpy.savez_compressed(buffer, arr=array)
    else:
        numpy.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("array", [numpy.arange(6).reshape(2, 3), numpy.zeros((0, 4), numpy.float32), numpy.int8(3)])
@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec()])
def test_arrays_come_back(codec: DataframeColumnCodec, array: Any) -> None:
    field = UnischemaField("x", numpy.float32, (None,), codec)
    result = codec.decode(field, stored(array, compressed=isinstance(codec, CompressedNdarrayCodec)))
    assert result.dtype == array.dtype and numpy.array_equal(result, array) and result.shape == array.shape


@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec()])
@pytest.mark.parametrize("cut", [0, 1, 20])
def test_truncated_arrays_are_errors(codec: DataframeColumnCodec, cut: int) -> None:
    whole = stored(numpy.arange(6), compressed=isinstance(codec, CompressedNdarrayCodec))
    with pytest.raises((ValueError, EOFError, OSError, zipfile.BadZipFile)):
        codec.decode(UnischemaField("x", numpy.int64, (6,), codec), whole[:cut])


def test_each_array_codec_refuses_the_form_of_the_other() -> None:
    field = UnischemaField("x", numpy.int64, (6,))
    with pytest.raises(ValueError, match=r"it is no \.npy file"):
        NdarrayCodec().decode(field, stored(numpy.arange(6), compressed=True))
    with pytest.raises((ValueError, TypeError, AttributeError)):
        CompressedNdarrayCodec().decode(field, stored(numpy.arange(6), compressed=False))


def test_no_code_runs_from_an_array() -> None:
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.array([print], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        NdarrayCodec().decode(UnischemaField("x", numpy.object_, (1,)), buffer.getvalue())


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (numpy.int8, 7, numpy.int8(7)),
        (numpy.float32, "0.5", numpy.float32(0.5)),
        (numpy.str_, "text", numpy.str_("text")),
        (numpy.bool_, True, numpy.bool_(True)),
        (Decimal, "1.20", Decimal("1.20")),
    ],
)
def test_scalars_have_the_field_s_type(dtype: Any, value: Any, expected: Any) -> None:
    result = ScalarCodec(types.StringType()).decode(UnischemaField("x", dtype), value)
    assert result == expected and type(result) is type(expected)


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="abc"):
        ScalarCodec(types.IntegerType()).decode(UnischemaField("x", numpy.int32), "abc")


def test_types_in_spark_and_texts() -> None:
    image = CompressedImageCodec("jpeg", quality=90)
    assert (image.image_codec, image.quality) == ("jpeg", 90)
    for codec in (NdarrayCodec(), CompressedNdarrayCodec(), image):
        assert codec.spark_dtype() == types.BinaryType()
    assert ScalarCodec(types.LongType()).spark_dtype() == types.LongType()
    assert [repr(codec) for codec in (NdarrayCodec(), CompressedImageCodec(), ScalarCodec(types.LongType()))] == [
        *("NdarrayCodec()", "CompressedImageCodec('png')", "ScalarCodec(LongType())")
    ]


@pytest.mark.parametrize("codec", ["gif", "", "PNG"])
def test_images_of_other_kinds_are_refused(codec: str) -> None:
    with pytest.raises(ValueError, match=f"image_codec must be 'png' or 'jpeg'; got '{codec}'"):
        CompressedImageCodec(codec)


@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedImageCodec(), ScalarCodec(types.LongType())])
def test_nothing_is_encoded(codec: DataframeColumnCodec) -> None:
    with pytest.raises(NotImplementedError, match="are read here, and not written"):
        codec.encode(UnischemaField("x", numpy.int32), 1)
