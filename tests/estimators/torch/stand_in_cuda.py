"""A stand-in for CUDA: PyTorch without CUDA has tensors "on" ``cuda:0``, ``cuda:1``, whose numbers are in host memory.

Such a tensor reports its device, and an operation that mixes devices is an error, as on GPUs. Copies that PyTorch may
run later (``non_blocking=True``, into or out of pinned memory) do run later: those to the host at the next
synchronization of their stream. What the arithmetic of a GPU rounds otherwise it does not show.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

_ATEN = torch.ops.aten
# Their bindings to Python switch to the device, which PyTorch without CUDA cannot do.
_WITH_A_GUARD = {
    getattr(torch.Tensor, name)
    for name in ("__getitem__", "__setitem__", "__int__", "__bool__", "__index__", "__invert__", "tolist")
}


@dataclass
class Record:
    """What was done on the GPUs.

    Attributes:
        pinned: addresses of pinned memory.
        late: copies to the host that have not run.
        copies: (from, to, whether host memory was pinned, whether the host continued) of each copy.
        calls: names of other functions of torch.cuda.
        full: no memory is left on any GPU.
    """

    pinned: set[int] = field(default_factory=set)
    late: list[Callable[[], Any]] = field(default_factory=list)
    copies: list[tuple[str, str, bool, bool]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    full: bool = False


class OnGpu(torch.Tensor):
    """A tensor of a GPU that is not there."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, device: torch.device) -> OnGpu:
        with torch.inference_mode(False):  # a view of a tensor from outside of inference_mode is none of its tensors
            made: OnGpu = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, numbers.size(), strides=numbers.stride(), dtype=numbers.dtype, device=device
            )
        made.numbers = numbers
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnGpu({self.numbers!r}, {self.device})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _WITH_A_GUARD:
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})
        device = next(item.device for item in tree_flatten(args)[0] if isinstance(item, OnGpu))
        return _wrapped(func(*_unwrapped(args), **(kwargs or {})), device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


_record = Record()


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is _ATEN.is_pinned.default:
        return args[0].data_ptr() in _record.pinned
    if func in (_ATEN._pin_memory.default, _ATEN.pin_memory.default):
        return _pinned(args[0].clone())
    if func.overloadpacket is _ATEN.to:  # under inference_mode it comes whole
        with _Mode():
            return func.decompose(*args, **kwargs)
    if kwargs.pop("pin_memory", False):
        return _pinned(func(*args, **kwargs))
    if func is _ATEN._to_copy.default and kwargs.get("device") is not None:
        return _copied(args[0], kwargs)
    if func is _ATEN.copy_.default and isinstance(args[1], OnGpu) and not isinstance(args[0], OnGpu):
        return _to_host(args[0], args[1], bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking")))
    return _computed(func, args, kwargs)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    _record.pinned.add(tensor.data_ptr())
    return tensor


def _copied(source: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    device, late = torch.device(kwargs.pop("device")), bool(kwargs.pop("non_blocking", False))
    numbers = source.numbers if isinstance(source, OnGpu) else source
    pinned = numbers.data_ptr() in _record.pinned
    _record.copies.append((str(source.device), str(device), pinned, late))
    copy = _ATEN._to_copy.default(numbers, **kwargs)
    if device.type == "cpu":
        return copy
    if _record.full:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return OnGpu(copy, torch.device("cuda", device.index or 0))


def _to_host(target: torch.Tensor, source: OnGpu, late: bool) -> torch.Tensor:
    pinned = target.data_ptr() in _record.pinned
    _record.copies.append((str(source.device), "cpu", pinned, late))
    if not (late and pinned):
        return target.copy_(source.numbers)
    target.fill_(-12345)
    numbers, inference = source.numbers.clone(), torch.is_inference_mode_enabled()

    def copy() -> None:
        with torch.inference_mode(inference):
            target.copy_(numbers)

    _record.late.append(copy)
    return target


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
    gpus = {item.device for item in tensors if isinstance(item, OnGpu)}
    if not gpus and not (kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"):
        return func(*args, **kwargs)
    others = {item.device for item in tensors if not isinstance(item, OnGpu) and item.dim()}
    if len(gpus | others) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {sorted(map(str, gpus | others))}"
        )
    [device] = gpus or {torch.device(kwargs["device"])}
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    args, kwargs = _unwrapped((args, kwargs))
    try:
        result = func(*args, **kwargs)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise torch.OutOfMemoryError(f"CUDA out of memory. {error}") from None
    return _wrapped(result, device)


def _unwrapped(values: Any) -> Any:
    return tree_map(lambda item: item.numbers if isinstance(item, OnGpu) else item, values)


def _wrapped(result: Any, device: torch.device) -> Any:
    return tree_map(lambda item: OnGpu(item, device) if isinstance(item, torch.Tensor) else item, result)


class _Stream:
    def synchronize(self) -> None:
        """Runs the late copies."""
        _record.calls.append("synchronize")
        while _record.late:
            _record.late.pop(0)()


@contextlib.contextmanager
def _device(device: torch.device) -> Iterator[None]:
    _record.calls.append(f"device {device}")
    yield


@contextlib.contextmanager
def stand_in(count: int = 2) -> Iterator[Record]:
    """Has this process see GPUs until the end of the block. Yields what happens on them."""
    _record.__init__()  # type: ignore[misc]
    replaced = {
        "_lazy_init": lambda: None, "is_available": lambda: True, "is_initialized": lambda: False,
        "device_count": lambda: count, "current_stream": lambda _: _Stream(), "device": _device,
        "empty_cache": lambda: _record.calls.append("empty_cache"), "is_bf16_supported": lambda **_: True,
        "mem_get_info": lambda _: (1 << 20, 1 << 30), "memory_reserved": lambda _: 5 << 20,
        "get_device_name": lambda _: "Stand-in",
    }  # fmt: skip
    before = {name: vars(torch.cuda)[name] for name in replaced}
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    vars(torch.cuda).update(replaced)
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") makes a copy of one on the CPU
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter's memory cannot become an OnGpu
    try:
        with _Mode():
            yield _record
    finally:
        vars(torch.cuda).update(before)
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)


@functools.cache
def stand_in_until_the_end(count: int) -> contextlib.AbstractContextManager[Record]:
    """As `stand_in`, for a process that runs tasks of Spark's. Returns what has to be kept."""
    entered = stand_in(count)
    entered.__enter__()
    return entered


@contextlib.contextmanager
def spark_task(*addresses: str, partition: int = 0) -> Iterator[None]:
    """This process runs a Spark task, to which Spark gave these GPUs."""
    from pyspark import TaskContext
    from pyspark.resource import ResourceInformation

    resources = {"gpu": ResourceInformation("gpu", list(addresses))} if addresses else {}
    task: Any = TaskContext
    task._setTaskContext(None)
    task._setTaskContext(task(stageId=5, partitionId=partition, taskAttemptId=7, resources=resources))
    try:
        yield
    finally:
        task._setTaskContext(None)
