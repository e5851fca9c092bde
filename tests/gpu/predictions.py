"""Predictions of trained models on real GPUs, as Spark's tasks make them, that ``check.py`` tries against the CPU."""

from __future__ import annotations

import importlib.util

import numpy
import torch
from torch import nn

from spark_estimator.data.fields import Field
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DeviceError
from tests.gpu.in_rank import Task

WIDTH = 50
ENCODER = RowEncoder(("c0",), (Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,)),))
ROWS = 10_000


class Full(nn.Linear):
    """Asks for more memory than there is."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + torch.empty(1 << 45, device=input.device)[:1]


def network() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(WIDTH, 400), nn.BatchNorm1d(400), nn.GELU(), nn.Linear(400, 3)).eval()


def rows() -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]:
    return numpy.random.default_rng(1).standard_normal((ROWS, WIDTH), numpy.float32)


def as_on_the_cpu() -> None:
    """On each GPU of this process, one after the other, with a remainder in the last batch."""
    from spark_estimator.estimators.torch.device import get_device
    from spark_estimator.estimators.torch.predictor import TorchPredictor
    from tests.estimators.torch.stand_in_cuda import spark_task

    known = TorchPredictor.of(network(), ENCODER, (3,), 768, device="auto")
    [expected] = known.predict_matrices([rows()])
    for index in range(torch.cuda.device_count()):
        with spark_task(str(index)):
            [outputs] = known.predict_matrices([rows()])
            assert get_device(known.get_model()) == torch.device("cuda", index)
        assert numpy.allclose(outputs, expected, rtol=1e-3, atol=1e-4), numpy.abs(outputs - expected).max()


def mixed_precision() -> None:
    """As with full precision, but for the last digits."""
    from spark_estimator.estimators.torch.predictor import TorchPredictor
    from tests.estimators.torch.stand_in_cuda import spark_task

    [expected] = TorchPredictor.of(network(), ENCODER, (3,), 768).predict_matrices([rows()])
    for precision in ("bf16", "fp16"):
        with spark_task("0"):
            known = TorchPredictor.of(network(), ENCODER, (3,), 768, device="auto", precision=precision)
            [outputs] = known.predict_matrices([rows()])
        assert not numpy.array_equal(outputs, expected), precision
        assert numpy.allclose(outputs, expected, rtol=0.05, atol=0.05), (precision, numpy.abs(outputs - expected).max())


def a_full_gpu() -> None:
    """The error names the task, the GPU and the remedy, and the next task predicts."""
    from spark_estimator.estimators.torch.predictor import TorchPredictor
    from tests.estimators.torch.stand_in_cuda import spark_task

    full = TorchPredictor.of(Full(WIDTH, 3), ENCODER, (3,), 768, device="auto")
    with spark_task("0", partition=4):
        try:
            full.predict_matrices([rows()])
        except DeviceError as error:
            text = str(error)
        else:
            raise AssertionError("2^45 numbers were allocated")
    for part in ("(partition 4)", "cuda:0", "MiB free", "spark.task.resource.gpu.amount"):
        assert part in text, text
    as_on_the_cpu()


PREDICTIONS: dict[str, Task] = (
    {
        "predictions as on the CPU": as_on_the_cpu,
        "predictions in mixed precision": mixed_precision,
        "predictions on a full GPU": a_full_gpu,
    }
    if importlib.util.find_spec("pyspark")
    else {}
)
