"""The files of Keras' checkpoints: NumPy arrays and JSON, which are read without running code."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy

_HEADER = "told"  # the name of the entry in files, which earlier versions wrote, too
_ARRAY = "__array__"


class KerasForm:
    """See `checkpoint.CheckpointFormat`: an ``.npz`` file with the arrays, and JSON with the position of each."""

    def to_stream(self, content: dict[str, Any]) -> io.BytesIO:
        """See `checkpoint.CheckpointFormat.to_stream`."""
        arrays: dict[str, Any] = {}
        header = json.dumps(_extract_arrays(content, arrays)).encode()
        stream = io.BytesIO()
        arrays[_HEADER] = numpy.frombuffer(header, numpy.uint8)
        numpy.savez(stream, **arrays)
        stream.seek(0, io.SEEK_END)
        return stream

    def unpack(self, content: bytes) -> dict[str, Any]:
        """See `checkpoint.CheckpointFormat.unpack`."""
        with numpy.load(io.BytesIO(content), allow_pickle=False) as file:
            result: dict[str, Any] = _insert_arrays(json.loads(file[_HEADER].tobytes()), file)
        return result

    def describe_error(self, error: Exception) -> str:
        """See `checkpoint.CheckpointFormat.describe_error`."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _extract_arrays(content: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(content, numpy.ndarray):
        name = f"a{len(arrays)}"
        # as bytes: NumPy's files know no bfloat16
        arrays[name] = numpy.frombuffer(content.tobytes(), numpy.uint8)
        return {_ARRAY: name, "dtype": content.dtype.name, "shape": list(content.shape)}
    if isinstance(content, dict):
        return {str(name): _extract_arrays(value, arrays) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_extract_arrays(value, arrays) for value in content]
    return content.item() if isinstance(content, numpy.generic) else content


def _insert_arrays(content: Any, file: Any) -> Any:
    if isinstance(content, dict):
        if _ARRAY in content:
            values = numpy.frombuffer(file[content[_ARRAY]].tobytes(), _to_dtype(content["dtype"]))
            return values.reshape(content["shape"]).copy()
        return {name: _insert_arrays(value, file) for name, value in content.items()}
    return [_insert_arrays(value, file) for value in content] if isinstance(content, list) else content


def _to_dtype(name: str) -> Any:
    try:
        return numpy.dtype(name)
    except TypeError:
        import ml_dtypes  # a dependency of Keras

        return numpy.dtype(getattr(ml_dtypes, name))
