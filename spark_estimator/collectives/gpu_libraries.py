"""Finds the CUDA runtime and NCCL that the engine opens, and reports their versions; imports no framework.

Searched in this order: the path that the user sets, the libraries that this process has already loaded (PyTorch's own,
once it is imported), and the wheels that PyTorch with CUDA depends on. Never by a name that the linker would search in
LD_LIBRARY_PATH: NCCL gets the tensors and the addresses of all ranks.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from ctypes import byref, c_int32
from pathlib import Path
from typing import NamedTuple

from spark_estimator import _native
from spark_estimator.env import Settings, find_gpu_hiding
from spark_estimator.errors import NativeLibraryError

#: Paths in the namespace package ``nvidia``, whose wheels have this layout: CUDA 13's, then CUDA 12's.
_CUDA_IN_WHEELS = ("cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12")
_NCCL_IN_WHEELS = ("nccl/lib/libnccl.so.2",)
#: What there is on a machine with NVIDIA's driver: on Linux, in a container, on Windows' Linux.
_TRACES_OF_A_DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")


class GpuLibraries(NamedTuple):
    """Paths of the two libraries; "" of one that was not found."""

    cuda: str
    nccl: str


class CudaFacts(NamedTuple):
    """The state of the CUDA runtime.

    Attributes:
        runtime, driver: versions, as 12090 for 12.9; 0: not found. The driver's is the newest CUDA that it serves.
        devices: that this process sees.
        trouble: why it cannot be used; "" where it can.
    """

    runtime: int
    driver: int
    devices: int
    trouble: str


class NcclFacts(NamedTuple):
    """The state of NCCL.

    Attributes:
        version: as 22703 for 2.27.3; 0: not found.
        trouble: why it cannot be used; "" where it can.
    """

    version: int
    trouble: str


def find_gpu_libraries(settings: Settings, maps: Path = Path("/proc/self/maps")) -> GpuLibraries:
    """Return the libraries to open. `settings`: may name them; `maps`: what this process has loaded."""
    loaded = _list_loaded(maps)
    return GpuLibraries(
        settings.cuda_library or _find_first(r"libcudart\.so\.\d+", loaded, _CUDA_IN_WHEELS),
        settings.nccl_library or _find_first(r"libnccl\.so\.\d+", loaded, _NCCL_IN_WHEELS),
    )


def find_libraries_for_engine(settings: Settings) -> GpuLibraries:
    """Call `find_gpu_libraries`, for the user's own paths only where there is no driver, or no GPU is wanted."""
    if settings.gpu_operations != "copy" and any(map(os.path.exists, _TRACES_OF_A_DRIVER)):
        return find_gpu_libraries(settings)
    return GpuLibraries(settings.cuda_library, settings.nccl_library)


def probe_cuda(path: str) -> CudaFacts:
    """Ask the CUDA runtime at `path`; its troubles are among the facts. Raises NativeLibraryError: no engine."""
    runtime, driver, devices = c_int32(), c_int32(), c_int32()
    library = _native.library()
    status = library.se_cuda_probe(path.encode(), byref(runtime), byref(driver), byref(devices))
    return CudaFacts(runtime.value, driver.value, devices.value, _describe_status(status))


def probe_nccl(path: str) -> NcclFacts:
    """Open NCCL at `path` and asks it; the rest as for `probe_cuda`."""
    version = c_int32()
    status = _native.library().se_nccl_probe(path.encode(), byref(version))
    return NcclFacts(version.value, _describe_status(status))


def find_unreachable_peers(path: str, devices: int) -> list[tuple[int, int]]:
    """Return the pairs of GPUs without direct access to each other's memory. Raises NativeLibraryError."""
    reaches = c_int32()
    return [
        (device, peer)
        for device, peer in itertools.combinations(range(devices), 2)
        if _native.library().se_cuda_peer_access(path.encode(), device, peer, byref(reaches)) or not reaches.value
    ]


@functools.cache
def find_nccl_version() -> int:
    """Return the version of the NCCL that would send GPU tensors, as 22703 for 2.27.3; 0: none. Never raises.

    Nothing is asked of the driver, so that a process that forks afterwards may use CUDA in its children.
    """
    settings = _read_settings()
    if settings is None or settings.gpu_operations in ("copy", "staged") or not _may_have_gpus(settings):
        return 0
    try:
        return probe_nccl(find_gpu_libraries(settings).nccl).version
    except NativeLibraryError:
        return 0


@functools.cache
def can_open_cuda() -> bool:
    """Return whether there is a CUDA runtime that this process could load. Never raises."""
    settings = _read_settings()
    if settings is None or settings.gpu_operations == "copy":
        return False
    path = find_gpu_libraries(settings).cuda
    if path:
        with suppress(OSError):
            return hasattr(ctypes.CDLL(path), "cudaRuntimeGetVersion")
    return False


def _read_settings() -> Settings | None:
    """Return the settings of the environment; None if they are invalid, which `init` reports."""
    try:
        return Settings.read()
    except ValueError:
        return None


def _may_have_gpus(settings: Settings) -> bool:
    """Return whether this process may find GPUs, as far as can be seen without the driver."""
    if find_gpu_hiding():
        return False
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "version", None), "cuda", "") is None:  # it is loaded, and made for CPUs or other GPUs
        return bool(settings.cuda_library)
    return bool(settings.cuda_library) or any(map(os.path.exists, _TRACES_OF_A_DRIVER))


def format_cuda_version(version: int) -> str:
    """Return CUDA's version code as text: "12.9" for 12090."""
    return f"{version // 1000}.{version % 1000 // 10}"


def format_nccl_version(version: int) -> str:
    """Return NCCL's version code as text: "2.27.3" for 22703."""
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


#: What NCCL leaves to the host's algorithms.
_NOT_BY_NCCL = "Adasum, int16, averages and factors of integers"


def describe_gpu_paths(operations: str, nccl: NcclFacts) -> str:
    """Describe how GPU tensors are sent in jobs of each kind, unless ``operations`` is ``copy``."""
    staged = "through pinned host memory"
    by_nccl = f"by NCCL {format_nccl_version(nccl.version)} (but {_NOT_BY_NCCL}: {staged})"
    return {
        "nccl": by_nccl if nccl.version else "by NCCL, which is not there: a job with GPU tensors fails",
        "staged": f"all {staged}",
    }.get(operations) or (
        f"one rank: on its GPU; ranks with a GPU each: {by_nccl if nccl.version else staged}; ranks that share a GPU: "
        f"{staged}"
    )


def _describe_status(status: int) -> str:
    return "" if status == _native.Status.OK else _native.get_last_error()


def _list_loaded(maps: Path) -> list[str]:
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:  # not on Linux, or not allowed
        return []
    return [line.split(maxsplit=5)[-1] for line in lines if ".so" in line]


def _find_first(name: str, loaded: Iterable[str], in_wheels: Iterable[str]) -> str:
    for path in loaded:
        if re.fullmatch(name, Path(path).name):
            return path
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((str(file) for below in in_wheels for folder in folders if (file := Path(folder, below)).exists()), "")
