"""Petastorm's codecs: columns as arrays, values that do not fit the schema, and codecs as declarations."""

from __future__ import annotations

import io
import shutil
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.parquet import find_files
from spark_estimator.data.petastorm import DataLoader, make_reader
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.codecs import (
    Coded,
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from spark_estimator.extensions.petastorm.dataset import DatasetFiles
from spark_estimator.extensions.petastorm.schema import SchemaField
from spark_estimator.extensions.petastorm.unischema import UnischemaField

types = pytest.importorskip("pyspark.sql.types")

WRITTEN = Path(__file__).parent / "petastorm_written"


def stored(array: Any, *, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    if compressed:
        numpy.savez_compressed(buffer, arr=array)
    else:
        numpy.save(buffer, array)
    return buffer.getvalue()


def npz(array: Any) -> bytes:
    return stored(array, compressed=True)


def test_images_are_decoded_or_the_error_says_what_to_install() -> None:
    try:
        (batch,) = DataLoader(make_reader(str(WRITTEN), ["id", "image"], trust=True), 10)
    except DataError as error:
        assert "column 'image' holds PNG or JPEG images, and nothing here reads them: pip install pillow" in str(error)
        return
    assert batch["image"].dtype == torch.uint8
    for n, image in zip(batch["id"], batch["image"], strict=True):
        assert torch.equal(image.int(), torch.arange(36).reshape(3, 4, 3) + n)


def test_values_that_do_not_fit_the_schema(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN, tmp_path / "set")
    part = tmp_path / "set" / "part-00001.parquet"
    table = pyarrow.parquet.read_table(part)

    def with_second(value: bytes | None) -> str:
        values = table.column("matrix").to_pylist()
        values[1] = value
        changed = table.set_column(2, pyarrow.field("matrix", pyarrow.binary()), [values])
        pyarrow.parquet.write_table(changed, part)
        with pytest.raises(DataError) as refused:
            list(DataLoader(make_reader(str(tmp_path / "set"), ["matrix"], trust=True, shuffle_row_groups=False), 4))
        return str(refused.value)

    def npy(array: Any) -> bytes:
        numpy.save(tmp_path / "one.npy", array, allow_pickle=True)
        return (tmp_path / "one.npy").read_bytes()

    assert "column 'matrix' holds null in row 6" in with_second(None)
    assert "float32 and shape [3, 2] in row 6 of this share, and float32 [2, 3] in the first" in with_second(
        npy(numpy.zeros((3, 2), numpy.float32))
    )
    assert "row 6 of this share, cannot be decoded" in with_second(b"no array")
    assert "cannot be decoded: Object arrays cannot be loaded" in with_second(npy(numpy.array([print], object)))


def test_arrays_come_flat_in_a_type_that_tensors_have() -> None:
    coded = Coded("x", "npz", "uint16", (2, 2))
    assert coded.dtype == "int32"
    array = pyarrow.array([npz(numpy.full((2, 2), value, numpy.uint16)) for value in (1, 65535)])
    lists = coded.decode(array, 0)
    assert lists.type == pyarrow.list_(pyarrow.int32(), 4) and lists.to_pylist() == [[1] * 4, [65535] * 4]
    with pytest.raises(
        DataError, match=r"'x' holds an array of int64 and shape \[3\] in row 7 of this share, and uint16"
    ):
        coded.decode(pyarrow.array([npz(numpy.arange(3))]), 7)


@pytest.mark.parametrize(
    ("dtype", "shape", "codec", "words"),
    [
        ("float32", (2, None), "npz", None),
        ("float32", (2, 4), "npz", r"is float32 of shape \[2, 4\] by petastorm's schema, and its first row float32 of"),
        ("float32", (None,), "npz", "and its first row float32 of shape"),
        ("int64", (2, 3), "npz", "is int64 of shape"),
        ("float32", (2, 3), "npy", "row 0 of this share, cannot be decoded: it is no .npy file"),
    ],
)
def test_the_first_row_has_to_fit_the_schema(
    tmp_path: Path, dtype: str, shape: tuple[int | None, ...], codec: str, words: str | None
) -> None:
    table = pyarrow.table({"x": [npz(numpy.ones((2, 3), numpy.float32))], "n": [5]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    files, schema = DatasetFiles.from_files(find_files(str(tmp_path))), [SchemaField("x", dtype, shape, codec)]
    if words is not None:
        with pytest.raises(DataError, match=words):
            files.add_coded(schema)
        return
    decoded = files.add_coded(schema)
    assert decoded.kinds == {"x": "array<float>", "n": "bigint"} and decoded.coded["x"].shape == (2, 3)
    (batch,) = decoded.read_batches(["n", "x"], 0, 1, 10)
    assert batch.to_pydict() == {"n": [5], "x": [[1.0] * 6]}


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
