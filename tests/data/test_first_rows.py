"""What the first rows show of decoders."""

from __future__ import annotations

import numpy
import pyarrow
import pytest

from spark_estimator.data.columns import Readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.first_rows import fit_decoders
from spark_estimator.data.row_encoder import RowEncoder

IMAGE = Readable("image", True, "float32", None, "binary")
N = Readable("n", False, "int64", None, "bigint")


@pytest.mark.parametrize(
    ("dtype", "shape", "column_dtype", "kept"),
    [("uint8", (2, 2), "float32", "uint8"), ("int64", (4,), "int64", ""), ("float64", (), "float32", "")],
)
def test_a_column_has_the_shape_and_type_of_its_decoder(
    dtype: str, shape: tuple[int, ...], column_dtype: str, kept: str
) -> None:
    decoder = Decoder("image", lambda content: numpy.full(shape, content[0], dtype))
    rows = pyarrow.RecordBatch.from_pydict({"c0": [b"a", b"b"], "c1": [1, 2]})
    batch, encoder, columns = fit_decoders(rows, [IMAGE, N], RowEncoder(("image", "n"), decoders={"image": decoder}))
    image, n = columns
    assert (image.shape, image.dtype, image.kept, image.is_array) == (shape, column_dtype, kept, bool(shape))
    assert numpy.dtype(image.decoded) == numpy.dtype((dtype, shape)) and not n.decoded
    assert n == N and batch.column("c1").to_pylist() == [1, 2]
    assert numpy.array(batch.column("c0").to_pylist()).reshape(2, *shape).max() == ord("b")
    assert (encoder.decoders["image"].shape, encoder.decoders["image"].dtype) == (shape, dtype)
    assert encoder.columns == ("image", "n"), "the names of the files, not those of the first rows"


def test_without_decoders_or_rows_nothing_changes() -> None:
    rows = pyarrow.RecordBatch.from_pydict({"c0": [1]})
    plain = RowEncoder(("n",))
    assert fit_decoders(rows, [N], plain) == (rows, plain, [N])
    waiting = RowEncoder(("image",), decoders={"image": Decoder("image", lambda content: 1 // 0)})
    none = pyarrow.RecordBatch.from_pydict({"c0": pyarrow.array([], pyarrow.binary())})
    assert fit_decoders(none, [IMAGE], waiting) == (none, waiting, [IMAGE])
