"""Petastorm's codecs as declarations: which Spark type a field of a `Unischema` is stored in, and how it is decoded.

Data sets are read by the codecs that their own schema names (`codecs`); nothing is encoded here.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy

from spark_estimator.extensions.petastorm.codecs import make_decoder
from spark_estimator.extensions.petastorm.unischema import WRITING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


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
    """Images as PNG or JPEG.

    Args:
        image_codec: "png", "jpeg" or "jpg".
        quality: of JPEG, 0 to 100.
    """

    kind = "image"

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        if image_codec not in ("png", "jpeg", "jpg"):
            raise ValueError(f"image_codec must be 'png' or 'jpeg'; got {image_codec!r}.")
        self.image_codec = image_codec
        self.quality = quality

    def __repr__(self) -> str:
        return f"CompressedImageCodec({self.image_codec!r})"


class ScalarCodec(DataframeColumnCodec):
    """Numbers and strings as a Spark type.

    Args:
        spark_type: an object of `pyspark.sql.types`.
    """

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
