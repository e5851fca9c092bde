"""Which device a Spark task predicts on: the GPU that Spark gave it, another one on request, or the CPU."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

from spark_estimator.launch.job.gpus import ORDER, VISIBLE, name_gpus

#: Of the parameter ``inference_device``.
DEVICES = ("auto", "cpu", "cuda")
_MIG = "MIG-"


@dataclass(frozen=True)
class TaskGpu:
    """The GPU of one task.

    Attributes:
        address: as Spark names it: a number of the GPUs that the executor sees, or a UUID; empty: Spark gave it none.
        partition: the task's; 0 outside of Spark.
    """

    address: str
    partition: int

    def find_index(self, visible: str | None, count: int, uuid_of: Callable[[int], str]) -> int | None:
        """Return the number of the GPU among the devices of this process; None: it is not one of them.

        A task without an address takes the devices in turn, by its partition.

        Args:
            visible: CUDA_VISIBLE_DEVICES of this process.
            count: of its devices.
            uuid_of: the UUID of a device, by its number.
        """
        if not self.address:
            return self.partition % count if count else None
        (name,) = name_gpus([self.address], visible)
        listed = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
        if name in listed:
            index = listed.index(name)
        elif name.isdecimal():
            index = count if listed else int(name)
        else:
            index = next((device for device in range(count) if name in _list_names(uuid_of(device))), count)
        return index if index < count else None


def _list_names(uuid: str) -> Sequence[str]:
    return (uuid, f"GPU-{uuid}")


def choose_gpu(choice: str) -> TaskGpu | None:
    """Return the GPU to predict on in this process; None: the CPU.

    Args:
        choice: one of `DEVICES`.
    """
    from pyspark import TaskContext

    if choice == "cpu":
        return None
    context = TaskContext.get()
    gpus = (context.resources() or {}).get("gpu") if context is not None else None
    partition = 0 if context is None else context.partitionId() or 0
    if gpus is not None and gpus.addresses:
        return TaskGpu(gpus.addresses[0], partition)
    return TaskGpu("", partition) if choice == "cuda" else None


def set_variables(gpu: TaskGpu, environ: MutableMapping[str, str]) -> None:
    """Make CUDA, which has not started in this process yet, number GPUs as Spark does.

    Spark finds GPUs in the order of nvidia-smi; CUDA's own order is another. CUDA shows a process one part of a
    GPU (MIG) at a time, the one that is named.
    """
    if gpu.address.startswith(_MIG):
        environ[VISIBLE] = gpu.address
    elif gpu.address.isdecimal():
        environ.setdefault(ORDER, "PCI_BUS_ID")


def describe_task() -> str:
    """Return the task and the host of this process, for messages: ``task 3 of stage 5 (partition 2) on host h``."""
    from pyspark import TaskContext

    context = TaskContext.get()
    host = f"on host {socket.gethostname()}"
    if context is None:
        return f"process {os.getpid()} {host}"
    return f"task {context.taskAttemptId()} of stage {context.stageId()} (partition {context.partitionId()}) {host}"
