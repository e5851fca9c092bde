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
    device_of,
    device_of_task,
    host_array,
    moved,
    on_device,
    predicting,
    wait_for,
)
from spark_estimator.estimators.torch.losses import outputs_of
from spark_estimator.estimators.torch.trainer import tensor_of
from spark_estimator.torch.sending import prepare_to_send


class TorchPredictor(Predictor):
    """A PyTorch model, serialized for Spark's workers."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        encoder: RowEncoder,
        widths: Sequence[int],
        batch_size: int,
        **options: Any,
    ) -> TorchPredictor:
        """Return a predictor with a copy of the model as it is now.

        Args:
            options: the attributes `device` and `precision`.
        """
        prepare_to_send(model)
        return cls(dumped(model), encoder, tuple(widths), batch_size, **options)

    def loaded(self) -> nn.Module:
        """See `Predictor.loaded`."""
        model: nn.Module = opened(self.source())
        return model.eval()

    def placed(self, model: Any) -> nn.Module:
        """See `Predictor.placed`."""
        return moved(model, device_of_task(self.device))

    def called(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """See `Predictor.called`. The inputs go where the model is."""
        device = device_of(model)
        with predicting(device, self.precision, len(matrices[0])):
            tensors = [
                on_device(tensor_of(matrix, field), device) for matrix, field in zip(matrices, self.inputs, strict=True)
            ]
            return [host_array(output) for output in outputs_of(model, tensors)]

    def finish(self, model: Any) -> None:
        """See `Predictor.finish`."""
        wait_for(device_of(model))


def dumped(value: Any) -> bytes:
    """Return the bytes of any object with tensors, for `load_object`. Equal objects have equal bytes, unlike those
    of pickle.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def opened(source: Any) -> Any:
    """Return what `dump_object` has made bytes of.

    Args:
        source: a file in memory; or a path, whose numbers are mapped: processes of a host share the memory.
    """
    return torch.load(source, map_location="cpu", weights_only=False, mmap=isinstance(source, str))  # from the driver
