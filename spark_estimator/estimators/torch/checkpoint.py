"""The files of PyTorch's trainings: checkpoints (`checkpoint`) and the trained numbers, read without running code."""

from __future__ import annotations

import io
from typing import Any

import torch

from spark_estimator.checkpoint.restricted import load_restricted
from spark_estimator.estimators.torch.reading import why


class TorchForm:
    """See `checkpoint.CheckpointFormat`."""

    def stream(self, content: dict[str, Any]) -> io.BytesIO:
        """See `checkpoint.CheckpointFormat.to_stream`."""
        return _stream(content)

    def unpacked(self, content: bytes) -> dict[str, Any]:
        """See `checkpoint.CheckpointFormat.unpack`."""
        result: dict[str, Any] = load_restricted(io.BytesIO(content), map_location="cpu")
        return result

    def why(self, error: Exception) -> str:
        """See `checkpoint.CheckpointFormat.describe_error`."""
        return why(error)


def packed(content: Any) -> bytes:
    """Return tensors and plain values as bytes that ``torch.load(..., weights_only=True)`` reads."""
    return _stream(content).getvalue()


def _stream(content: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(_on_cpu(content), stream)
    return stream


def _on_cpu(content: Any) -> Any:
    if isinstance(content, torch.Tensor):
        return content.detach().cpu()
    if isinstance(content, dict):
        return {name: _on_cpu(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(_on_cpu(value) for value in content)
    return content
