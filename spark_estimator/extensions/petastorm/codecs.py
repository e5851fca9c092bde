"""Petastorm's codecs: as declarations in a `Unischema`, and as decoders of .npy and .npz bytes, PNG and JPEG images.

Data sets are read by the codecs that their own schema names; nothing is encoded here.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from spark_estimator.data.fields import Array
from spark_estimator.data.parquet import DataFiles
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.pages import fits_shape
from spark_estimator.extensions.petastorm.schema import SchemaField
from spark_estimator.extensions.petastorm.unischema import WRITING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

#: Types that tensors lack become the next larger type that exists, as in petastorm.
TENSOR_DTYPES = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "bool": "uint8"}
#: Spark's word for arrays of numbers, by the kind of numpy's type.
KINDS = {"f": "array<float>", "i": "array<bigint>", "u": "array<bigint>", "b": "array<boolean>"}


class DataframeColumnCodec:
    """The base of all codecs."""

    kind = ""

    def encode(self, unischema_field: Any, value: Any) -> Any:
        """Raise NotImplementedError: data sets with a Unischema are not written here."""
        raise NotImplementedError(WRITING)

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return the array that a stored value holds."""
        return make_decoder(self.kind, unischema_field.name)(value)

    def spark_dtype(self) -> DataType:
        """Return the Spark type of the stored column: binary."""
        from pyspark.sql.types import BinaryType

        return BinaryType()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NdarrayCodec(DataframeColumnCodec):
    """Arrays as the bytes of ``.npy`` files."""

    kind = "npy"


class CompressedNdarrayCodec(DataframeColumnCodec):
    """Arrays as the bytes of ``.npz`` files."""

    kind = "npz"


class CompressedImageCodec(DataframeColumnCodec):
    """Images as PNG ("png") or JPEG ("jpeg" or "jpg", of a quality from 0 to 100)."""

    kind = "image"

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        if image_codec not in ("png", "jpeg", "jpg"):
            raise ValueError(f"image_codec must be 'png' or 'jpeg'; got {image_codec!r}.")
        self.image_codec = image_codec
        self.quality = quality

    def __repr__(self) -> str:
        return f"CompressedImageCodec({self.image_codec!r})"


class ScalarCodec(DataframeColumnCodec):
    """Numbers and strings as a Spark type, an object of `pyspark.sql.types`."""

    kind = "scalar"

    def __init__(self, spark_type: DataType) -> None:
        self._spark_type = spark_type

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return the value in the field's numpy type."""
        dtype = unischema_field.numpy_dtype
        return Decimal(value) if dtype is Decimal else numpy.dtype(dtype).type(value)

    def spark_dtype(self) -> DataType:
        """Return the Spark type of the stored column."""
        return self._spark_type

    def __repr__(self) -> str:
        return f"ScalarCodec({self._spark_type})"


@dataclass(frozen=True)
class Coded:
    """A column whose values have to be decoded: its name and codec (as in `SchemaField`), the type of the numbers as it
    was written, in numpy's words, and the shape of one row.
    """

    name: str
    codec: str
    stored: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Return the type of the tensor."""
        return TENSOR_DTYPES.get(self.stored, self.stored)

    def decode(self, array: pyarrow.Array, row: int) -> pyarrow.Array:
        """Return the values of a batch as lists of one length; arrays are laid flat.

        Args:
            row: the number of the batch's first row, for messages.

        Raises:
            DataError: a value is null, cannot be decoded, or is of another shape or type than the first row's.
        """
        decode = make_decoder(self.codec, self.name)
        whole = numpy.empty((len(array), *self.shape), self.stored)
        for number, value in enumerate(array):
            result = _decode_value(decode, self.name, value.as_py(), row + number)
            if result.shape != self.shape or result.dtype != whole.dtype:
                raise DataError(
                    f"column {self.name!r} holds an array of {result.dtype} and shape {list(result.shape)} in row "
                    f"{row + number} of this share, and {self.stored} {list(self.shape)} in the first. All rows need "
                    "one shape: pad or cut them where they are written."
                )
            whole[number] = result
        flat = pyarrow.array(whole.reshape(-1).astype(self.dtype, copy=False))
        return pyarrow.FixedSizeListArray.from_arrays(flat, math.prod(self.shape))


def inspect_first(files: DataFiles, declared: SchemaField) -> Coded:
    """Find out the shape of a column's arrays from the first row; DataError if it cannot be decoded or is another."""
    first = next((batch for batch in files.read_batches([declared.name], 0, 1, 1) if batch.num_rows), None)
    if first is None:
        raise DataError("there are no rows.")
    result = _decode_value(make_decoder(declared.codec, declared.name), declared.name, first.column(0)[0].as_py(), 0)
    fits = fits_shape(result.shape, declared.shape)
    if result.dtype.name != declared.dtype or not fits or not result.size or result.dtype.kind not in KINDS:
        raise DataError(
            f"column {declared.name!r} is {declared.dtype} of shape {list(declared.shape)} by petastorm's schema, and "
            f"its first row {result.dtype} of shape {list(result.shape)}."
        )
    return Coded(declared.name, declared.codec, result.dtype.name, result.shape)


def _decode_value(decode: Callable[[bytes], Array], column: str, value: bytes | None, row: int) -> Array:
    if value is None:
        raise DataError(f"column {column!r} holds null in row {row} of this share: drop such rows.")
    try:
        return decode(value)
    except Exception as error:  # a decoder may raise any error for other bytes
        raise DataError(f"column {column!r}, row {row} of this share, cannot be decoded: {error}.") from error


def make_decoder(codec: str, column: str) -> Callable[[bytes], Array]:
    """Return the decoder of a value: "npy", "npz" or "image", as in `SchemaField`."""
    return _make_image_decoder(column) if codec == "image" else lambda value: _decode_numpy(value, codec)


def _decode_numpy(value: bytes, codec: str) -> Array:
    loaded = numpy.load(io.BytesIO(value), allow_pickle=False)
    if codec == "npz":
        with loaded as archive:
            loaded = archive["arr"]
    if not isinstance(loaded, numpy.ndarray):
        raise ValueError("it is no .npy file")
    return loaded


def _make_image_decoder(column: str) -> Callable[[bytes], Array]:
    """Return a decoder by Pillow, or by OpenCV, whichever is installed; DataError if neither is."""
    try:
        from PIL import Image
    except ImportError:
        return _make_opencv_decoder(column)

    def decode_by_pillow(value: bytes) -> Array:
        with Image.open(io.BytesIO(value), formats=("PNG", "JPEG")) as image:
            return numpy.asarray(image)

    return decode_by_pillow


def _make_opencv_decoder(column: str) -> Callable[[bytes], Array]:
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"column {column!r} holds PNG or JPEG images, and nothing here reads them: pip install pillow (or "
            "opencv-python-headless) where the ranks run."
        ) from error

    def decode_by_opencv(value: bytes) -> Array:
        result: Array | None = cv2.imdecode(numpy.frombuffer(value, numpy.uint8), cv2.IMREAD_UNCHANGED)
        if result is None:
            raise ValueError("it is no image")
        # OpenCV has blue first.
        return result[:, :, ::-1] if result.ndim == 3 and result.shape[2] == 3 else result

    return decode_by_opencv
