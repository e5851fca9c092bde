"""Trained PyTorch models without a training, for tests of what they predict and of their folders."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn

from spark_estimator import TorchModel
from spark_estimator.data.fields import Field
from tests.estimators.conftest import line_rows, linear

FEATURES = Field(("features",), ("c0",), (3,), "float32", (3,))
OUTPUTS = [[2.0, -1.0, 0.5], [0.0, 3.0, 0.0], [-4.0, -4.0, 1.0]]


class Own(nn.Module):
    """A class that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Draws(nn.Module):
    """Multiplies with numbers of Python's and NumPy's generators, in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (0.9 + 0.1 * random.random() + 0.1 * numpy.random.random()) if self.training else x


def model_of(net: nn.Module, outputs: int = 1, kind: str = "float", **parameters: Any) -> TorchModel:
    params = {"feature_columns": ["features"], "label_columns": ["y"], "run_id": "run", **parameters}
    return TorchModel(model=net.eval(), inputs=[FEATURES], outputs=[outputs], label_types=[kind], **params)


def expected(net: nn.Module) -> numpy.ndarray[Any, Any]:
    with torch.no_grad():
        return net(torch.from_numpy(line_rows()[0])).numpy()


def classifier_of(kind: str, width: int, output_kind: str | None, **parameters: Any) -> TorchModel:
    field = Field(("x",), ("c0",), (width,), "float32", (width,))
    return TorchModel(
        model=nn.Identity(),
        inputs=[field],
        outputs=[width],
        label_types=[kind],
        output_kinds=[output_kind],
        feature_columns=["x"],
        label_columns=["label"],
        **parameters,
    )
