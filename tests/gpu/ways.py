"""The ways in which ranks of ``check.py`` get their GPUs, and the backends that send their tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from tests.gpu import building

ONE = "one rank"
SHARED = "two ranks on one GPU"
ONE_QUEUE = "two ranks on one GPU, one queue"
STAGED = "two ranks, a GPU each, staged"
COPIED = "two ranks, PyTorch's copies"
OWN = "two ranks, a GPU each"
MACHINES = "two ranks on one GPU, as two machines, by NCCL"
REFUSED = "two ranks on one GPU, NCCL demanded"


class Way(NamedTuple):
    """How ranks get their GPUs, and how tensors are sent then.

    Attributes:
        name: for the report.
        size: number of ranks.
        environ: of the ranks.
        own_gpus: each rank has its own.
        machines: each rank is on a separate machine, as far as the engine and NCCL see; see ``two_machines.c``.
        described: the engine's expected description; "": nothing is sent from a GPU.
        is_measured: whether there are figures of it.
    """

    name: str
    size: int
    environ: Mapping[str, str]
    own_gpus: bool = False
    machines: bool = False
    described: str = ""
    is_measured: bool = True


def one_gpu() -> dict[str, str]:
    """Variables of ranks that see the first GPU alone."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"}


def ways(gpus: int) -> list[Way]:
    """All that can be tried with this number of GPUs."""
    first_gpu = one_gpu()
    shared = "share one GPU"
    supported = [
        Way(ONE, 1, first_gpu, described="the only rank"),
        Way(SHARED, 2, first_gpu, described=shared),
        # What waits on one stream then holds up all others of its process.
        Way(ONE_QUEUE, 2, {**first_gpu, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}, described=shared, is_measured=False),
        Way(COPIED, 2, {**first_gpu, "HOROVOD_GPU_OPERATIONS": "copy"}),
    ]
    if gpus > 1:
        staged = {"HOROVOD_GPU_OPERATIONS": "staged"}
        supported += [
            Way(OWN, 2, {}, own_gpus=True, described="go through NCCL"),
            Way(STAGED, 2, staged, own_gpus=True, described="as was asked for", is_measured=False),
        ]
    else:
        # NCCL's ranks then connect by TCP, over the loopback device.
        preloaded = {"LD_PRELOAD": str(building.TWO_MACHINES), "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
        supported.append(Way(MACHINES, 2, {**first_gpu, **preloaded}, machines=True, described="go through NCCL"))
    return supported


def refused_way() -> Way:
    """Ranks with an impossible setting."""
    return Way(REFUSED, 2, {**one_gpu(), "HOROVOD_GPU_OPERATIONS": "nccl"}, is_measured=False)
