"""Where the engine processes the tensors of a collective: in host memory, or on their CUDA device.

The engine takes CUDA tensors as they are, on one device of each rank. Tensors of other devices (MPS, XPU, AMD's under
CUDA's name), those of a second CUDA device, and all of them under ``HOROVOD_GPU_OPERATIONS=copy`` are copied to host
memory by PyTorch and back.

Streams. A collective runs after all work that its device's current stream has when it is submitted. Later work of the
stream that is current when the caller waits runs after the collective. Both may be on any thread, no CPU waits, and the
user does nothing. PyTorch's allocator does not know the engine's stream. It frees the memory of a tensor on the stream
that the tensor was made on, and that stream's next tensor may reuse it at once. So the engine's handle keeps all
tensors until a stream waits for it (see ``collectives.handle``). If that is the stream on which they were submitted,
its order protects them, as it does in any other operation. If it is another one, ``record_stream`` reports it to the
allocator: the memory is reused only when that stream, and so the engine, has finished.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.call import Gpu
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.reductions import describe_call
from spark_estimator.log import get_logger

_log = get_logger(__name__)

HOST = torch.device("cpu")
#: What `find_cuda_device` gives for a tensor in host memory, as ``Tensor.get_device()`` does.
NO_DEVICE = -1


class TensorLocation(NamedTuple):
    """The place where tensors are processed.

    Attributes:
        device: that of their wire forms.
        number: the same for the engine; `NO_DEVICE`: host memory.
        torch_number: what ``get_device()`` of a tensor gives that is there.
    """

    device: torch.device
    number: int
    torch_number: int

    @property
    def on_gpu(self) -> bool:
        """Return whether it is no host memory."""
        return self.number != NO_DEVICE

    @property
    def engines_device(self) -> int | None:
        """Return the device's number as a plan takes it."""
        return self.number if self.on_gpu else None

    def make_gpu(self, kind: str) -> Gpu | None:
        """Return the GPU, with its current stream, for a request; None: host memory. Raises as `current_stream`."""
        return Gpu(self.number, current_stream(self.number, kind)) if self.on_gpu else None


IN_HOST_MEMORY = TensorLocation(HOST, NO_DEVICE, NO_DEVICE)


def find_location(tensors: Sequence[object], kind: str, process_set: ProcessSet | None) -> TensorLocation:
    """Return the place where the tensors of one request are processed, of those arguments that are tensors.

    Raises ValueError: some are on a CUDA device from which they would be sent, and others are not on it.
    """
    numbers = [find_cuda_device(tensor) for tensor in tensors]
    if all(number == NO_DEVICE for number in numbers) or context.settings().gpu_operations == "copy":
        return IN_HOST_MEMORY
    other = next((at for at, number in enumerate(numbers) if number != numbers[0]), None)
    if other is not None:
        raise ValueError(
            f"{describe_call(kind)}: tensor 0 of the group is on {_describe_device(tensors[0])} and tensor {other} on "
            f"{_describe_device(tensors[other])}: the tensors of a group are sent together, from one device. Move them "
            "to one device, or use one call per device."
        )
    return find_common_location(tensors, process_set)


def find_common_location(tensors: Sequence[object], process_set: ProcessSet | None) -> TensorLocation:
    """Find the place as `find_location`; tensors of several devices are worked on in host memory."""
    numbers = {find_cuda_device(tensor) for tensor in tensors}
    if len(numbers) != 1 or NO_DEVICE in numbers or context.settings().gpu_operations == "copy":
        return IN_HOST_MEMORY
    [number] = numbers
    first = tensors[0]
    assert isinstance(first, torch.Tensor)
    if not _is_used(context.engine(process_set), number):
        return IN_HOST_MEMORY
    return TensorLocation(first.device, number, first.get_device())


def find_cuda_device(tensor: object) -> int:
    """Return the number of a tensor's CUDA device; `NO_DEVICE` where it is on another kind of device."""
    return tensor.get_device() if isinstance(tensor, torch.Tensor) and tensor.is_cuda and not _IS_ROCM else NO_DEVICE


_IS_ROCM = torch.version.hip is not None


def current_stream(device: int, kind: str) -> int:
    """Return the address of a CUDA device's current stream of this thread. Raises ValueError: a graph captures it."""
    if torch.cuda.is_current_stream_capturing():
        raise ValueError(
            f"{describe_call(kind)}: the current stream is being captured into a CUDA graph, and a CUDA graph cannot "
            "contain a collective: its replay could not wait for other ranks. Call the collective outside "
            "torch.cuda.graph(...), or capture the work before and after it as two graphs."
        )
    return raw_stream(device)


def raw_stream(device: int) -> int:
    """Return the same address, without any check."""
    # torch.cuda.current_stream(device).cuda_stream, without a Python object for it: asked for with every request.
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def wait_for_streams(device: int, streams: Iterable[int]) -> None:
    """Has a CUDA device's current stream wait for what some others of its streams hold by now."""
    current = torch.cuda.current_stream(device)
    for stream in streams:
        # PyTorch takes the address 0, which its default stream has, for none at all, and makes a stream.
        other = torch.cuda.ExternalStream(stream, device=device) if stream else torch.cuda.default_stream(device)
        current.wait_stream(other)


def await_outputs(handle: Handle | None, gpu: Gpu | None, tensors: Iterable[torch.Tensor], kind: str) -> None:
    """Wait for a collective, after which its outputs may be read: by the stream of the GPU that is current now.

    Raises as ``Handle.wait`` does, and as `current_stream`.

    Args:
        handle: not of an op that makes its result itself; None: it has been waited for.
        gpu: with which it was submitted.
        tensors: that it read and wrote.
        kind: of the operation, for messages.
    """
    if handle is None:
        return
    if gpu is None:
        handle.wait()
        return
    stream = current_stream(gpu.device, kind)
    handle.await_on(stream)
    _note_use(tensors, gpu, stream)


def collect_rows(
    handle: Handle,
    location: TensorLocation,
    gpu: Gpu | None,
    sent: Sequence[torch.Tensor],
    kind: str,
    forms: Sequence[tuple[torch.dtype, tuple[int, ...]]] | None = None,
) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """Wait for an allgather or alltoall and return, for each tensor, all ranks' rows and the number of each rank.

    Raises as `await_outputs` does.

    Args:
        handle, gpu: as there.
        location: where the tensors are worked on; the results are there, too.
        sent: the tensors of this rank.
        kind: of the operation, for messages.
        forms: element type of each, and the shape of one row; None: those of `sent`.
    """
    forms = [(tensor.dtype, tuple(tensor.shape[1:])) for tensor in sent] if forms is None else forms
    results = []
    if gpu is None:
        for number, (dtype, row_shape) in enumerate(forms):
            data, rows = handle.gathered(number)
            shape = (sum(rows), *row_shape)
            # The memory that the engine filled becomes the tensor's memory and lives as long as it does.
            joined = torch.frombuffer(data, dtype=dtype).view(shape) if math.prod(shape) else None
            results.append((torch.empty(shape, dtype=dtype) if joined is None else joined, rows))
        return results
    stream = current_stream(gpu.device, kind)
    for number, (dtype, row_shape) in enumerate(forms):
        rows = handle.rows(number)
        results.append((torch.empty((sum(rows), *row_shape), dtype=dtype, device=location.device), rows))
    handle.collect([joined.data_ptr() for joined, _ in results], stream)
    _note_use(sent, gpu, stream)
    return results


def _note_use(tensors: Iterable[torch.Tensor], gpu: Gpu, stream: int) -> None:
    """Record with the allocator that tensors are used on another stream than the one of their submission."""
    if stream != gpu.stream:
        current = torch.cuda.current_stream(gpu.device)
        for tensor in tensors:
            tensor.record_stream(current)


def _is_used(engine: Engine, number: int) -> bool:
    """Return whether a CUDA device is the one from which this rank sends tensors in the engine's group."""
    if engine.gpu.claim(number):
        return True
    if (engine.gpu.device, number) not in _warned_of:
        _warned_of.add((engine.gpu.device, number))
        _log.warning(
            "tensors on cuda:%d are copied through host memory: this rank already sends from cuda:%d, and a rank "
            "sends from one GPU only. To send from cuda:%d, call torch.cuda.set_device(hvd.local_rank() %% "
            "torch.cuda.device_count()) before the first collective.",
            number, engine.gpu.device, number,
        )  # fmt: skip
    return False


_warned_of: set[tuple[int | None, int]] = set()


def _describe_device(tensor: object) -> str:
    return str(tensor.device) if isinstance(tensor, torch.Tensor) else "no device"


@functools.cache
def warn_about_int8() -> None:
    """Log once that there is no kernel for int8 on a GPU."""
    _log.warning(
        "compression=hvd.Compression.int8: gradients on GPUs are sent in their own type, since int8 works only in host "
        "memory. Use hvd.Compression.bf16 to send fewer bytes."
    )
