"""GPUs for machines without one: the fakes of the native tests, and their device memory as numpy arrays.

The fake CUDA's device memory is host memory and its streams are threads, so that numpy can read data "on the GPU", and
code that does not wait for a stream is a visible race. The fake NCCL's ranks are processes that connect through a file.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from ctypes import c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy

NATIVE = Path(__file__).parents[1] / "native"
_FAKES = NATIVE / "tests/fakes"
#: What an output holds before anything has been written to it.
POISON = 0xA5


def build_fakes(folder: Path) -> dict[str, str]:
    """Compiles the fakes into a folder that has none; their paths, as the settings' variables for ranks name them."""
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-pthread", "-O1"]
    command += ["-w"]
    command += [f"-I{each}" for each in (NATIVE, NATIVE / "include", _FAKES)]
    cudart, nccl = (folder / f"libfake_{name}.so" for name in ("cudart", "nccl"))
    sources = {
        cudart: [_FAKES / "fake_cudart.cc"],
        nccl: [_FAKES / "fake_nccl.cc", _FAKES / "fake_nccl_kernel.cc", NATIVE / "base/kernels/halves.cc", cudart],
        folder / "libcuda.so.1": [_FAKES / "fake_cuda_driver.cc", cudart],
    }
    for target, parts in sources.items():
        if not target.exists():
            subprocess.run([*command, *parts, "-o", target, f"-Wl,-rpath,{folder}"], check=True, timeout=240)
    return {
        "SPARK_ESTIMATOR_CUDA_LIBRARY": str(cudart),
        "SPARK_ESTIMATOR_NCCL_LIBRARY": str(nccl),
        # The driver has no variable: there is one on a machine.
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")])),
    }


@functools.cache
def cuda() -> ctypes.CDLL:
    """This process's fake CUDA; the engine opens the same one."""
    library = ctypes.CDLL(os.environ["SPARK_ESTIMATOR_CUDA_LIBRARY"])
    library.fake_cuda_stream_create.restype = c_void_p
    library.fake_cuda_delay.argtypes = [c_void_p, c_int]
    library.fake_cuda_capture.argtypes = [c_void_p, c_int]
    library.cudaMalloc.argtypes = [ctypes.POINTER(c_void_p), c_size_t]
    library.cudaFree.argtypes = [c_void_p]
    library.cudaMemcpyAsync.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_void_p]
    library.cudaEventCreateWithFlags.argtypes = [ctypes.POINTER(c_void_p), ctypes.c_uint]
    library.cudaEventRecord.argtypes = [c_void_p, c_void_p]
    library.cudaEventSynchronize.argtypes = [c_void_p]
    library.cudaEventDestroy.argtypes = [c_void_p]
    return library


def nccl() -> ctypes.CDLL:
    """This process's fake NCCL."""
    return ctypes.CDLL(os.environ["SPARK_ESTIMATOR_NCCL_LIBRARY"])


def new_stream() -> int:
    """A stream of the device that `use` has chosen."""
    return int(cuda().fake_cuda_stream_create())


def device_of(rank: int) -> int:
    """The device of a rank where each takes the next one: fewer devices than ranks are shared."""
    count = c_int()
    assert cuda().cudaGetDeviceCount(ctypes.byref(count)) == 0
    return rank % count.value


def use(device: int) -> None:
    """Chooses the device of this thread."""
    assert cuda().cudaSetDevice(device) == 0


def synchronize(stream: int) -> None:
    """Returns when a stream has finished its work. Checks that this thread has no pending error."""
    event = c_void_p()
    assert cuda().cudaGetLastError() == 0
    assert cuda().cudaEventCreateWithFlags(ctypes.byref(event), 0) == 0
    assert cuda().cudaEventRecord(event, stream) == 0
    assert cuda().cudaEventSynchronize(event) == 0
    assert cuda().cudaEventDestroy(event) == 0


class Memory:
    """Device memory, poisoned; freed when nothing refers to it.

    Attributes:
        address: of the first byte.
        array: a view of it; a stream may write there at any time until it is synchronized.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        count = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
        address = c_void_p()
        assert cuda().cudaMalloc(ctypes.byref(address), max(1, count)) == 0
        self.address = int(address.value or 0)
        raw = numpy.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(self.address))
        raw[:] = POISON
        self.array = raw.view(dtype).reshape(shape)

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            cuda().cudaFree(self.address)


def on_gpu(values: Any) -> Memory:
    """Device memory with the elements of an array."""
    memory = Memory(values.shape, values.dtype)
    memory.array[...] = values
    return memory


def copy(to: Memory, of: Memory, stream: int) -> None:
    """Enqueues a copy of device memory."""
    assert cuda().cudaMemcpyAsync(to.address, of.address, of.array.nbytes, 4, stream) == 0
