"""The files of PyTorch's trainings: checkpoints (`checkpoint`) and the trained numbers, read without running code."""

from __future__ import annotations

import io
from typing import Any

import torch

from spark_estimator.checkpoint.restricted import load_restricted
from spark_estimator.estimators.torch.reading import describe_error


class TorchForm:
    """See `checkpoint.CheckpointFormat`."""

    def to_stream(self, content: dict[str, Any]) -> io.BytesIO:
        """See `checkpoint.CheckpointFormat.to_stream`."""
        return _to_stream(content)

    def unpack(self, content: bytes) -> dict[str, Any]:
        """See `checkpoint.CheckpointFormat.unpack`."""
        result: dict[str, Any] = load_restricted(io.BytesIO(content), map_location="cpu")
        return result

    def describe_error(self, error: Exception) -> str:
        """See `checkpoint.CheckpointFormat.describe_error`."""
        return describe_error(error)


def pack(content: Any) -> bytes:
    """Return tensors and plain values as bytes that ``torch.load(..., weights_only=True)`` reads."""
    return _to_stream(content).getvalue()


def _to_stream(content: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(_move_to_cpu(content), stream)
    return stream


def _move_to_cpu(content: Any) -> Any:
    if isinstance(content, torch.Tensor):
        return content.detach().cpu()
    if isinstance(content, dict):
        return {name: _move_to_cpu(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(_move_to_cpu(value) for value in content)
    return content
