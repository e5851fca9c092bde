"""Columns that petastorm's codecs made binary, as arrays of numbers: .npy and .npz bytes, PNG and JPEG images."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
import pyarrow

from spark_estimator.data.fields import Array
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.petastorm.schema import SchemaField
from spark_estimator.errors import DataError

# What tensors have no type for goes into the next larger one that there is, as in petastorm.
_TENSOR_DTYPES = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "bool": "uint8"}
_KINDS = {"f": "array<float>", "i": "array<bigint>", "u": "array<bigint>", "b": "array<boolean>"}


@dataclass(frozen=True)
class Coded:
    """A column whose values have to be decoded.

    Attributes:
        name: of the column.
        codec: as in `SchemaField`.
        stored: the type of the numbers, in numpy's words, as it was written.
        shape: of one row.
    """

    name: str
    codec: str
    stored: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Of the tensor."""
        return _TENSOR_DTYPES.get(self.stored, self.stored)

    def decoded(self, array: pyarrow.Array, row: int) -> pyarrow.Array:
        """The values of a batch as lists of one length; arrays are laid flat.

        Args:
            row: the number of the batch's first row, for messages.

        Raises:
            DataError: a value is null, cannot be decoded, or is of another shape or type than the first.
        """
        decode = _decoder(self.codec, self.name)
        whole = numpy.empty((len(array), *self.shape), self.stored)
        for number, value in enumerate(array):
            found = _one(decode, self.name, value.as_py(), row + number)
            if found.shape != self.shape or found.dtype != whole.dtype:
                raise DataError(
                    f"column {self.name!r} holds an array of {found.dtype} and shape {list(found.shape)} in row "
                    f"{row + number} of this share, and {self.stored} {list(self.shape)} in the first. All rows need "
                    "one shape: pad or cut them where they are written."
                )
            whole[number] = found
        flat = pyarrow.array(whole.reshape(-1).astype(self.dtype, copy=False))
        return pyarrow.FixedSizeListArray.from_arrays(flat, math.prod(self.shape))


@dataclass(frozen=True)
class DecodedFiles(DataFiles):
    """Files of which some columns are decoded on the way.

    Attributes:
        coded: these columns, by name.
    """

    coded: Mapping[str, Coded] = field(default_factory=dict)

    @classmethod
    def of(cls, files: DataFiles, fields: Sequence[SchemaField]) -> DecodedFiles:
        """Finds out the shapes of columns from the first row.

        Raises:
            DataError: one of them cannot be decoded, or there are no rows.
        """
        coded = {one.name: _looked_at(files, one) for one in fields}
        return cls(files.files, files.store, files.said_kinds, coded)

    @property
    def kinds(self) -> Mapping[str, str]:
        return {
            **super().kinds,
            **{name: _KINDS[numpy.dtype(one.stored).kind] for name, one in self.coded.items()},
        }

    def batches(self, columns: Sequence[str], rank: int, size: int, batch_rows: int) -> Iterator[pyarrow.RecordBatch]:
        row = 0
        for batch in super().batches(columns, rank, size, batch_rows):
            arrays = [
                self.coded[name].decoded(array, row) if name in self.coded else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=batch.schema.names)
            row += batch.num_rows


def _looked_at(files: DataFiles, said: SchemaField) -> Coded:
    first = next((one for one in files.batches([said.name], 0, 1, 1) if one.num_rows), None)
    if first is None:
        raise DataError("there are no rows.")
    found = _one(_decoder(said.codec, said.name), said.name, first.column(0)[0].as_py(), 0)
    fits = len(found.shape) == len(said.shape) and all(
        want in (None, has) for want, has in zip(said.shape, found.shape, strict=True)
    )
    if found.dtype.name != said.dtype or not fits or not found.size or found.dtype.kind not in _KINDS:
        raise DataError(
            f"column {said.name!r} is {said.dtype} of shape {list(said.shape)} by petastorm's schema, and its first "
            f"row {found.dtype} of shape {list(found.shape)}."
        )
    return Coded(said.name, said.codec, found.dtype.name, found.shape)


def _one(decode: Callable[[bytes], Array], column: str, value: bytes | None, row: int) -> Array:
    if value is None:
        raise DataError(f"column {column!r} holds null in row {row} of this share: drop such rows.")
    try:
        return decode(value)
    except Exception as error:  # a decoder fails in any way on bytes that are something else
        raise DataError(f"column {column!r}, row {row} of this share, cannot be decoded: {error}.") from error


def _decoder(codec: str, column: str) -> Callable[[bytes], Array]:
    return {"npy": _npy, "npz": _npz}.get(codec) or _image_decoder(column)


def _npy(value: bytes) -> Array:
    found = numpy.load(io.BytesIO(value), allow_pickle=False)
    if not isinstance(found, numpy.ndarray):
        raise ValueError("it is no .npy file")
    return found


def _npz(value: bytes) -> Array:
    with numpy.load(io.BytesIO(value), allow_pickle=False) as archive:
        found: Array = archive["arr"]
    return found


def _image_decoder(column: str) -> Callable[[bytes], Array]:
    """By Pillow, or by OpenCV: whichever is installed.

    Raises:
        DataError: neither is.
    """
    try:
        from PIL import Image
    except ImportError:
        return _opencv_decoder(column)

    def by_pillow(value: bytes) -> Array:
        with Image.open(io.BytesIO(value), formats=("PNG", "JPEG")) as image:
            return numpy.asarray(image)

    return by_pillow


def _opencv_decoder(column: str) -> Callable[[bytes], Array]:
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"column {column!r} holds PNG or JPEG images, and nothing here reads them: pip install pillow (or "
            "opencv-python-headless) where the ranks run."
        ) from error

    def by_opencv(value: bytes) -> Array:
        found: Array | None = cv2.imdecode(numpy.frombuffer(value, numpy.uint8), cv2.IMREAD_UNCHANGED)
        if found is None:
            raise ValueError("it is no image")
        # OpenCV has blue first.
        return found[:, :, ::-1] if found.ndim == 3 and found.shape[2] == 3 else found

    return by_opencv
