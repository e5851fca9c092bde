"""Columns of petastorm's codecs as arrays: images, and values that do not fit the schema."""

from __future__ import annotations

import io
import shutil
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
from spark_estimator.extensions.petastorm.codecs import Coded
from spark_estimator.extensions.petastorm.dataset import DatasetFiles
from spark_estimator.extensions.petastorm.schema import SchemaField

WRITTEN = Path(__file__).parent / "petastorm_written"


def npz(array: Any) -> bytes:
    buffer = io.BytesIO()
    numpy.savez_compressed(buffer, arr=array)
    return buffer.getvalue()


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
