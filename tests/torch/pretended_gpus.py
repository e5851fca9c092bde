"""Has the PyTorch binding treat CPU tensors as tensors on a GPU, so that its code for these runs without one.

The memory of such a tensor is "device memory" for the fake CUDA, and the engine, its requests and its streams are the
real ones. What PyTorch itself would do on a GPU is not tried: its operations run at once, and its allocator is the
CPU's. Reads of outputs without a wait are visible, as the fakes' streams are late.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from spark_estimator.collectives import ops
from spark_estimator.collectives.handle import Handle
from spark_estimator.torch.collectives import device
from spark_estimator.torch.optimizer import bucket as gradient_bucket
from tests import fake_gpus

_here = threading.local()
#: Calls that inform PyTorch's allocator and streams about other streams: (function, arguments).
noted: list[tuple[str, Any]] = []
_kept: dict[str, int] = {}


def current() -> int:
    """The stream that represents the current one of this thread."""
    stream: int = getattr(_here, "stream", 0) or _kept["first"]
    return stream


def make_current(stream: int) -> None:
    """For this thread; 0: the first again."""
    _here.stream = stream


@functools.cache
def pretend(number: int) -> None:
    """From now on CPU tensors of this process count as on GPU `number`."""
    fake_gpus.use(number)
    _kept["first"] = fake_gpus.new_stream()
    replaced: dict[str, Callable[..., Any]] = {
        "find_cuda_device": lambda tensor: number if isinstance(tensor, torch.Tensor) else device.NO_DEVICE,
        "raw_stream": lambda _: current(),
        "current_stream": lambda _number, _kind: current(),
        "wait_for_streams": lambda _, streams: noted.append(("wait_for_streams", set(streams))),
        "_note_use": lambda tensors, gpu, stream: noted.append(("_note_use", gpu.stream != stream)),
    }
    for name, function in replaced.items():
        setattr(device, name, function)
        if hasattr(gradient_bucket, name):
            setattr(gradient_bucket, name, function)

    # PyTorch's kernels would run after these on the stream; the CPU's reads have to wait.
    def then_wait(function: Callable[..., Any], stream_of: Callable[..., int | None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            stream = stream_of(*args, **kwargs)
            if stream is not None:
                fake_gpus.synchronize(stream)
            return result

        return run

    patched: Any = Handle
    patched.await_on = then_wait(Handle.await_on, lambda _, stream: stream)
    patched.collect = then_wait(Handle.collect, lambda _, outputs, stream: stream)
    ops.run = then_wait(ops.run, lambda *_, gpu=None, **__: None if gpu is None else gpu.stream)
