"""Predictions on stand-ins for GPUs: which device, how batches are copied, errors."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import numpy
import pytest
import torch
from torch import nn

from spark_estimator.errors import DeviceError
from spark_estimator.estimators.torch.device import choose_device, get_device
from spark_estimator.estimators.torch.predictor import TorchPredictor
from tests.estimators.specs import ENCODER
from tests.estimators.torch.stand_in_cuda import Record, spark_task, stand_in

ROWS = numpy.arange(60, dtype=numpy.float32).reshape(20, 3)


@pytest.fixture
def gpus() -> Iterator[Record]:
    with stand_in(2) as record:
        yield record


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()


def predictor(device: str = "auto", precision: str | None = None, batch_size: int = 8) -> TorchPredictor:
    made = TorchPredictor.of(network(), ENCODER, (2,), batch_size, device=device, precision=precision)
    sent: TorchPredictor = pickle.loads(pickle.dumps(made))
    return sent


def on_cpu() -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]:
    [outputs] = predictor("cpu").predict_matrices([ROWS])
    return outputs


def test_batches_are_pinned_and_copied_while_the_host_goes_on(gpus: Record) -> None:
    expected = on_cpu()
    assert not gpus.copies
    with spark_task("1"):
        [outputs] = predictor().predict_matrices([ROWS])
    assert numpy.array_equal(outputs, expected)
    to_gpu = [copy for copy in gpus.copies if copy[:2] == ("cpu", "cuda:1")][-3:]
    assert to_gpu == [("cpu", "cuda:1", True, True)] * 3, "three batches, from pinned memory"
    back = [copy for copy in gpus.copies if copy[1] == "cpu"]
    assert back == [("cuda:1", "cpu", True, True)] * 3
    assert gpus.calls.count("synchronize") == 1, "once for all batches"
    assert gpus.calls.count("device cuda:1") == 3


def test_a_model_is_loaded_once_and_follows_the_task(gpus: Record) -> None:
    expected, sent = on_cpu(), pickle.dumps(predictor())
    with spark_task("0"):
        model = pickle.loads(sent).get_model()
        assert get_device(model) == torch.device("cuda", 0)
        assert pickle.loads(sent).get_model() is model
    with spark_task("1"):
        of_task = pickle.loads(sent)
        assert of_task.get_model() is model and get_device(model) == torch.device("cuda", 1)
        assert "empty_cache" in gpus.calls, "the first GPU's memory is free again"
        assert numpy.array_equal(of_task.predict_matrices([ROWS])[0], expected)
    with spark_task():
        of_task = pickle.loads(sent)
        assert of_task.get_model() is model and get_device(model) == torch.device("cpu")
        assert numpy.array_equal(of_task.predict_matrices([ROWS])[0], expected)


def test_without_spark_only_cuda_uses_a_gpu(gpus: Record) -> None:
    assert get_device(predictor("auto").get_model()) == get_device(predictor("cpu").get_model()) == torch.device("cpu")
    assert get_device(predictor("cuda").get_model()) == torch.device("cuda", 0)
    with spark_task("1"):
        assert get_device(predictor("cpu").get_model()) == torch.device("cpu")
    with spark_task(partition=3):
        assert get_device(predictor("cuda").get_model()) == torch.device("cuda", 1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_mixed_precision_on_request(precision: str, on_gpu: bool) -> None:
    expected = on_cpu()

    def outputs() -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]:
        with spark_task("0"):
            return predictor("auto" if on_gpu else "cpu", precision).predict_matrices([ROWS])[0]

    if on_gpu:
        with stand_in():
            got = outputs()
    else:
        got = outputs()
    assert got.dtype == numpy.float32
    assert not numpy.array_equal(got, expected) and numpy.allclose(got, expected, rtol=0.05, atol=0.05)


def test_a_full_gpu_is_named_with_the_remedy(gpus: Record) -> None:
    gpus.full = True
    with (
        spark_task("1", partition=4),
        pytest.raises(DeviceError, match=r"task 7 of stage 5 \(partition 4\) on host .* put the model there: cuda:1"),
    ):
        predictor().get_model()
    gpus.full = False
    with spark_task("1"):
        known = predictor()
        known.get_model()
        gpus.full = True
        with pytest.raises(DeviceError) as caught:
            known.predict_matrices([ROWS])
    text = str(caught.value)
    assert (
        "could not call the model with 8 rows: cuda:1 (Stand-in, 1 of 1024 MiB free, 5 MiB held by this task)" in text
    )
    for remedy in (
        "spark.task.resource.gpu.amount",
        "setBatchSize",
        "inference_precision",
        "setInferenceDevice('cpu')",
    ):
        assert remedy in text
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_of_a_gpu_stay_what_they_are(gpus: Record) -> None:
    class Mixes(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + torch.ones(2)

    wrong = TorchPredictor.of(Mixes(3, 2), ENCODER, (2,), 8, device="auto")
    with spark_task("0"), pytest.raises(RuntimeError, match="to be on the same device") as caught:
        wrong.predict_matrices([ROWS])
    assert not isinstance(caught.value, DeviceError)


def test_a_gpu_that_pytorch_does_not_see(gpus: Record, caplog: pytest.LogCaptureFixture) -> None:
    with spark_task("3"), pytest.raises(DeviceError, match="the GPU 3 by Spark, which is none of the 2 GPUs"):
        choose_device("auto")


def test_no_gpu_is_an_error_if_one_is_required(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with spark_task("0"), caplog.at_level(logging.WARNING, "spark_estimator"):
        assert choose_device("auto") == torch.device("cpu")
        assert "is to predict on a GPU, and PyTorch sees none" in caplog.text and "on the CPU" in caplog.text
        with pytest.raises(DeviceError, match=r"PyTorch sees none: PyTorch .* was built"):
            choose_device("cuda")


def test_a_user_s_function_gets_its_values_from_a_gpu(gpus: Record) -> None:
    from tests.estimators.torch_models import model_of

    net = nn.Linear(3, 1)
    model = model_of(net)
    function = model.get_prediction_fn()
    row = {"features": [1.0, 2.0, 3.0]}
    expected = function(net, row)
    assert numpy.array_equal(function(net.to("cuda:1"), row), expected)
