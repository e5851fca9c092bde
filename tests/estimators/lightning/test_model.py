"""The `TorchModel` of Lightning: predictions for single rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")


from spark_estimator.data.fields import Field
from spark_estimator.lightning import TorchModel

FIELD = Field(("x",), ("c0",), (2,), "float32", (2,))


def model_of(net: nn.Module, outputs: list[int]) -> TorchModel:
    return TorchModel(
        model=net,
        inputs=[FIELD],
        outputs=outputs,
        label_types=["float"] * len(outputs),
        feature_columns=["renamed"],
        label_columns=[f"y{number}" for number in range(len(outputs))],
    )


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.sum(1)


def test_a_row_has_an_array_or_one_for_each_output() -> None:
    single = model_of(nn.Identity(), [2])
    assert single.get_prediction_fn()(single.getModel(), {"renamed": [1.0, 2.0]}).tolist() == [1.0, 2.0]
    two = model_of(Two(), [2, 1])
    both = two.get_prediction_fn()(two.getModel(), {"renamed": [1.0, 2.0]})
    assert [output.tolist() for output in both] == [[1.0, 2.0], [3.0]]
