"""Puts a PyTorch model and its batches on the device that a task predicts on."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import nn

from spark_estimator.data.fields import Array
from spark_estimator.errors import DeviceError
from spark_estimator.estimators.inference.devices import TaskGpu, choose_gpu, describe_task, set_variables
from spark_estimator.log import get_logger

_log = get_logger(__name__)
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# CUDA's and cuBLAS' texts for a device without free memory; PyTorch has a class for the first of them only.
_FULL = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def choose_device(choice: str) -> torch.device:
    """Return the device to predict on in this process.

    Args:
        choice: ``inference_device``: "auto", "cpu" or "cuda".

    Raises:
        DeviceError: "cuda", and PyTorch sees no GPU here, or not the one that Spark gave the task.
    """
    gpu = choose_gpu(choice)
    if gpu is None:
        return torch.device("cpu")
    if not torch.cuda.is_initialized():
        set_variables(gpu, os.environ)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = gpu.find_index(os.environ.get("CUDA_VISIBLE_DEVICES"), count, _get_uuid)
    if index is not None:
        return torch.device("cuda", index)
    problem = _describe_problem(gpu, count)
    if choice == "cuda" or count:
        raise DeviceError(problem)
    _warn(problem)
    return torch.device("cpu")


@functools.cache
def _warn(problem: str) -> None:
    """Warn once of a task's problem, not with each batch."""
    _log.warning("%s It predicts on the CPU.", problem)


def _get_uuid(index: int) -> str:
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))


def _describe_problem(gpu: TaskGpu, count: int) -> str:
    task = describe_task()
    if not count:
        version = torch.version.cuda
        built = f"PyTorch {torch.__version__} was built {f'for CUDA {version}' if version else 'without CUDA'}"
        return (
            f"{task} is to predict on a GPU, and PyTorch sees none: {built}. Run `python -m spark_estimator doctor` "
            "there, or set inference_device='cpu'."
        )
    return (
        f"{task} has the GPU {gpu.address} by Spark, which is none of the {count} GPUs that PyTorch sees "
        f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}). A Python worker sees one part of a GPU "
        "(MIG) for its whole life: set spark.python.worker.reuse=false for these. Else let the discovery script print "
        "the numbers or UUIDs of the GPUs that the executor sees, or set inference_device='cpu'."
    )


def get_device(model: nn.Module) -> torch.device:
    """Return the device of a model's numbers: the CPU for a model that has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def move_model(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model, moved to the device. The memory of the GPU that it leaves is free for other tasks.

    Raises:
        DeviceError: the GPU has not enough memory.
    """
    left = get_device(model)
    if left == device:
        return model
    with name_memory_errors(device, "put the model there"):
        model = model.to(device)
    if left.type == "cuda":
        with torch.cuda.device(left):
            torch.cuda.empty_cache()
    return model


def move_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor in host memory on the device; the copy may still run, and later work of the stream waits for
    it.
    """
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_host_array(output: torch.Tensor) -> Array:
    """Return an output as an array of float32, or of float64 if float32 would lose something.

    On a GPU, the array has its values after `wait_for` only.
    """
    output = output.to(torch.float64 if output.dtype in (torch.float64, torch.int64) else torch.float32)
    if output.device.type != "cpu":
        output = torch.empty(output.shape, dtype=output.dtype, pin_memory=True).copy_(output, non_blocking=True)
    array: Array = numpy.asarray(output.numpy())
    return array


def wait_for(device: torch.device) -> None:
    """Wait until the copies from a device have ended."""
    if device.type != "cpu":
        torch.cuda.current_stream(device).synchronize()


@contextlib.contextmanager
def use_inference_mode(device: torch.device, precision: str | None, rows: int) -> Iterator[None]:
    """Call a model, inside the context, without gradients, and in mixed precision on request.

    Args:
        precision: "bf16", "fp16", or None.
        rows: at most, in a call; for messages.

    Raises:
        DeviceError: the GPU has no memory left.
    """
    dtype = _TYPES.get(precision or "")
    cast: Any = contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    # Pinned memory belongs to the current device's context, which takes memory there.
    current: Any = contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device)
    with name_memory_errors(device, f"call the model with {rows} rows"), current, torch.inference_mode(), cast:
        yield


@contextlib.contextmanager
def name_memory_errors(device: torch.device, work: str) -> Iterator[None]:
    """Replace PyTorch's error of a full GPU.

    Args:
        work: what the task was about to do.

    Raises:
        DeviceError: the GPU has no memory left.
    """
    try:
        yield
    except RuntimeError as error:
        if device.type == "cpu" or not any(text in str(error) for text in _FULL):
            raise
        raise DeviceError(
            f"{describe_task()} could not {work}: {device}{_describe_usage(device)} has not enough memory. Tasks that "
            "share a GPU each keep a model there: give fewer tasks a GPU (a larger spark.task.resource.gpu.amount), "
            "set a smaller batch_size (setBatchSize) or inference_precision='bf16', or predict on the CPU "
            f"(setInferenceDevice('cpu')). PyTorch: {error}"
        ) from error


def _describe_usage(device: torch.device) -> str:
    try:
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
    except RuntimeError:
        return ""
    name = torch.cuda.get_device_name(device)
    return (
        f" ({name}, {free / 2**20:.0f} of {total / 2**20:.0f} MiB free, {reserved / 2**20:.0f} MiB held by this task)"
    )
