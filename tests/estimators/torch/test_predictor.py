"""A PyTorch model that predicts on arrays."""

from __future__ import annotations

import pickle

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError
from spark_estimator.estimators.torch.predictor import TorchPredictor
from tests.estimators.specs import ENCODER

ROWS = numpy.arange(15, dtype=numpy.float32).reshape(5, 3)


def test_batches_are_put_together_with_the_model_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9)).train()
    with torch.no_grad():
        right = net[0](torch.from_numpy(ROWS)).numpy()
    predictor = pickle.loads(pickle.dumps(TorchPredictor.of(net, ENCODER, (2,), batch_size=2)))
    nn.init.zeros_(net[0].weight)  # type: ignore[arg-type]
    (outputs,) = predictor.predict_matrices([ROWS])
    assert numpy.allclose(outputs, right), "the copy is not changed, and drops nothing"
    assert [values.shape for values in predictor.predict_matrices([ROWS[:0]])] == [(0, 2)]


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("float64", "float64"), ("int64", "float64"), ("bfloat16", "float32"), ("float32", "float32")]
)
def test_outputs_lose_no_digits(dtype: str, wanted: str) -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(getattr(torch, dtype))

    (outputs,) = TorchPredictor.of(Cast(), ENCODER, (3,), 5).predict_matrices([ROWS])
    assert outputs.dtype == wanted and numpy.array_equal(outputs, ROWS)


def test_other_outputs_than_in_training() -> None:
    with pytest.raises(DataError, match="the model returned 1 tensors; 2 were expected"):
        TorchPredictor.of(nn.Linear(3, 2), ENCODER, (2, 2), 5).predict_matrices([ROWS])
    with pytest.raises(DataError, match=r"the model returned \[8, 2\] for 8 rows; 7 values a row were expected"):
        TorchPredictor.of(nn.Linear(3, 2), ENCODER, (7,), 5).predict_matrices([ROWS])
