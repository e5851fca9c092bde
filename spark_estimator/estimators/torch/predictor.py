"""Predicts with a PyTorch model: what Spark's Python workers run for `TorchModel.transform`."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import torch
from torch import nn

from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Array, Field
from spark_estimator.estimators.inference.predictor import Predictor
from spark_estimator.estimators.torch.losses import outputs_of
from spark_estimator.estimators.torch.training import tensor_of


class TorchPredictor(Predictor):
    """A PyTorch model, serialized for Spark's workers."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Sequence[Field],
        widths: Sequence[int],
        batch_size: int,
        decoders: Mapping[str, Decoder] | None = None,
    ) -> TorchPredictor:
        """A predictor with a copy of the model as it is now."""
        return cls(cloudpickle.dumps(model), tuple(inputs), tuple(widths), batch_size, decoders or {})

    def loaded(self) -> nn.Module:
        """See `Predictor.loaded`."""
        model: nn.Module = pickle.loads(self.payload)  # noqa: S301  # from the driver
        return model.eval()

    def called(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """See `Predictor.called`."""
        with torch.inference_mode():
            tensors = [tensor_of(matrix, field) for matrix, field in zip(matrices, self.inputs, strict=True)]
            return [
                output.to(torch.float64 if output.dtype in (torch.float64, torch.int64) else torch.float32)
                .cpu()
                .numpy()
                for output in outputs_of(model, tensors)
            ]
