"""Predicts with a PyTorch model: what Spark's Python workers run for `TorchModel.transform`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import cloudpickle
import torch
from torch import nn

from spark_estimator.data.fields import Array
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.inference.predictor import Predictor
from spark_estimator.estimators.torch.device import (
    choose_device,
    get_device,
    move_model,
    move_tensor,
    to_host_array,
    use_inference_mode,
    wait_for,
)
from spark_estimator.estimators.torch.losses import call_model
from spark_estimator.estimators.torch.trainer import to_tensor
from spark_estimator.torch.sending import prepare_to_send


class TorchPredictor(Predictor):
    """A PyTorch model, serialized for Spark's workers."""

    @classmethod
    def of(
        cls, model: nn.Module, encoder: RowEncoder, widths: Sequence[int], batch_size: int, **options: Any
    ) -> TorchPredictor:
        """Return a predictor with a copy of the model as it is now.

        Args:
            options: the attributes `device` and `precision`.
        """
        prepare_to_send(model)
        return cls(dump_object(model), encoder, tuple(widths), batch_size, **options)

    def load(self) -> nn.Module:
        """See `Predictor.load`."""
        model: nn.Module = load_object(self.open_payload())
        return model.eval()

    def move_to_device(self, model: Any) -> nn.Module:
        """See `Predictor.move_to_device`."""
        return move_model(model, choose_device(self.device))

    def call(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """See `Predictor.call`. The inputs go where the model is."""
        device = get_device(model)
        with use_inference_mode(device, self.precision, len(matrices[0])):
            tensors = [
                move_tensor(to_tensor(matrix, field), device)
                for matrix, field in zip(matrices, self.inputs, strict=True)
            ]
            return [to_host_array(output) for output in call_model(model, tensors)]

    def finish(self, model: Any) -> None:
        """See `Predictor.finish`."""
        wait_for(get_device(model))


def dump_object(value: Any) -> bytes:
    """Return the bytes of any object with tensors, for `load_object`. Equal objects have equal bytes, unlike those
    of pickle.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def load_object(source: Any) -> Any:
    """Return what `dump_object` has made bytes of.

    Args:
        source: a file in memory; or a path, whose numbers are mapped: processes of a host share the memory.
    """
    return torch.load(source, map_location="cpu", weights_only=False, mmap=isinstance(source, str))  # from the driver
