"""Has a rank without a GPU run what ``check.py`` has ranks with GPUs run: PyTorch does on the CPU what CUDA would do.

The engine's way is the one of ``tests.torch.pretended_gpus``: real, over fakes of CUDA and NCCL. In PyTorch nothing is
late, nothing is captured and streams have no effect, so this shows that the checks' own logic is right, and that the
engine returns the expected results; what only a GPU can show it cannot.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from spark_estimator.torch.collectives import device
from spark_estimator.torch.optimizer import bucket as gradient_bucket
from tests import fake_gpus
from tests.torch import pretended_gpus

_captures: list[object] = []
_real_current_stream = device.current_stream


class Stream:
    """One of the fake CUDA's."""

    def __init__(self, address: int | None = None) -> None:
        self.cuda_stream = fake_gpus.new_stream() if address is None else address

    def wait_stream(self, other: Stream) -> None:
        """No work of PyTorch is ever in flight."""


class Graph:
    """What is captured has run already."""

    def replay(self) -> None:
        """See above."""


class _OnCpu(TorchFunctionMode):
    """Tensors "on the GPU" are those on the CPU, except the results of ``cpu()`` or plain ``torch.ones``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].clone()
        if func is torch.Tensor.pin_memory or func is torch.Tensor.record_stream:
            return args[0]
        if func == vars(torch._C.TensorBase)["is_cuda"].__get__:
            return not hasattr(args[0], "is_on_host")
        on_gpu = kwargs.get("device") == "cuda"
        if on_gpu:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        if func is torch.Tensor.cpu or (func is torch.ones and not on_gpu):
            result = result.clone() if result is args[0] else result
            result.is_on_host = True
        return result


@functools.cache
def pretend(number: int) -> None:
    """From now on this process has a GPU of that number, which PyTorch uses."""
    pretended_gpus.pretend(number)
    cuda_device = device.find_cuda_device
    for module in (device, gradient_bucket):
        if hasattr(module, "current_stream"):
            vars(module)["current_stream"] = _real_current_stream  # which refuses a stream that is captured
    vars(device)["find_cuda_device"] = lambda of: device.NO_DEVICE if hasattr(of, "is_on_host") else cuda_device(of)
    vars(device)["_describe_device"] = lambda of: "cpu" if hasattr(of, "is_on_host") else f"cuda:{number}"
    replaced = {
        "Stream": Stream, "stream": _stream, "current_stream": lambda: Stream(pretended_gpus.current()),
        "synchronize": lambda: None, "_sleep": lambda _: None, "set_device": lambda _: None, "CUDAGraph": Graph,
        "graph": _graph, "is_current_stream_capturing": lambda: bool(_captures),
    }  # fmt: skip
    vars(torch.cuda).update(replaced)
    autocast, scaler = torch.autocast, torch.amp.GradScaler
    vars(torch)["autocast"] = lambda _, dtype: autocast("cpu", dtype=torch.bfloat16)
    vars(torch.amp)["GradScaler"] = lambda _, **options: scaler("cpu", **options)
    vars(importlib.import_module("torch.optim.adam"))["_get_capturable_supported_devices"] = lambda *_, **__: ["cpu"]
    _OnCpu().__enter__()


@contextlib.contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    before = pretended_gpus.current()
    pretended_gpus.make_current(stream.cuda_stream)
    try:
        yield
    finally:
        pretended_gpus.make_current(before)


@contextlib.contextmanager
def _graph(graph: object) -> Iterator[None]:
    _captures.append(graph)
    try:
        yield
    finally:
        _captures.pop()
