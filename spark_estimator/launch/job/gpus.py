"""Which GPUs each rank of a host sees: Spark's addresses become CUDA_VISIBLE_DEVICES. Pure, but for `find_task_gpus`.

Spark numbers the GPUs that an executor has discovered, and sets no variable. What follows from its numbers:

- Ranks of a host see the GPUs of all of them, so ordered that device `local_rank` is that rank's own:
  Horovod's ``torch.cuda.set_device(hvd.local_rank())`` works unchanged.
- Where ranks share a GPU (a fraction of one a task), or have a part of one (MIG, of which CUDA shows a
  process one at a time), each sees its own only, as ``cuda:0``.
- Executors of one host that give one number to two GPUs are containers that number their GPUs separately:
  each counts as a separate host.
- Two ranks that were each promised a whole GPU and got the same one are refused, by the GPU's UUID.
- On a cluster, a job that has asked for no GPU sees none: those that are there may be another job's.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
# It takes seconds when the driver has to be loaded first.
_NVIDIA_SMI_SECONDS = 20
_LISTED = re.compile(r"^GPU (\d+): .*\(UUID: ([\w-]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class TaskGpus:
    """The GPUs of one Spark task.

    Attributes:
        names: of those that Spark gave it, as CUDA knows them.
        uuids: of the same GPUs; '' where nvidia-smi does not report them.
        there: UUIDs of all GPUs that its executor has.
        visible: the executor's own CUDA_VISIBLE_DEVICES; None when it is not set.
    """

    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    there: tuple[str, ...] = ()
    visible: str | None = None

    def identify(self) -> list[tuple[str, str]]:
        """Return what identifies its GPUs: for each (its UUID, or its name if the UUID is unknown; its name)."""
        return [(uuid or name, name) for name, uuid in zip(self.names, self.uuids, strict=True)]


@dataclass(frozen=True)
class Pinning:
    """The GPU settings of one rank.

    Attributes:
        variables: for its environment.
        notice: for the person at the driver; '' for none.
    """

    variables: Mapping[str, str]
    notice: str = ""


def find_task_gpus(addresses: Sequence[str], environ: Mapping[str, str]) -> TaskGpus:
    """Find the GPUs of this process's task, by Spark's `addresses`. Calls ``nvidia-smi`` if it exists."""
    visible = environ.get(VISIBLE)
    names = name_gpus(addresses, visible)
    listed = parse_gpu_list(_run_nvidia_smi(environ.get("PATH")))
    uuids = tuple(name if not name.isdecimal() else listed.get(name, "") for name in names)
    return TaskGpus(names, uuids, tuple(listed.values()), visible)


def _run_nvidia_smi(path: str | None) -> str:
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def parse_gpu_list(text: str) -> dict[str, str]:
    """Parse ``nvidia-smi -L``: index -> UUID of each GPU. Parts of a GPU (MIG) have their own names."""
    return dict(_LISTED.findall(text))


def name_gpus(addresses: Sequence[str], visible: str | None) -> tuple[str, ...]:
    """Return the GPUs of one task under the names by which CUDA knows them.

    Args:
        addresses: as Spark names them: numbers of the GPUs that its executor sees, or UUIDs.
        visible: the executor's own CUDA_VISIBLE_DEVICES, if a cluster manager has set it: the list to count in.
    """
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    if all(address.isdecimal() and int(address) < len(names) for address in addresses):
        return tuple(names[int(address)] for address in addresses)
    return tuple(addresses)


def order_devices(gpus_by_local_rank: Sequence[Sequence[str]]) -> list[str]:
    """Return the devices that all ranks of one host see, ordered so that device `local_rank` is that rank's own.

    Args:
        gpus_by_local_rank: [local_size, number of GPUs of that rank] names.

    Returns:
        Each name once: the first GPU of each rank in local-rank order, then the second of each, and so on.
    """
    columns = itertools.zip_longest(*gpus_by_local_rank)
    return list(dict.fromkeys(gpu for column in columns for gpu in column if gpu is not None))


def divide_hosts(host_ids: Sequence[str], tasks: Sequence[TaskGpus]) -> list[str]:
    """Return [tasks] the host of each task, where each container that numbers its GPUs itself is a separate host."""
    meanings: dict[tuple[str, str], set[str]] = {}
    for host, task in zip(host_ids, tasks, strict=True):
        for name, uuid in zip(task.names, task.uuids, strict=True):
            if uuid:
                meanings.setdefault((host, name), set()).add(uuid)
    divided = {host for (host, _), uuids in meanings.items() if len(uuids) > 1}
    return [
        f"{host}/{hashlib.sha256(' '.join(sorted(task.there)).encode()).hexdigest()[:16]}" if host in divided else host
        for host, task in zip(host_ids, tasks, strict=True)
    ]


def find_shared_gpus(tasks: Sequence[TaskGpus]) -> dict[str, list[int]]:
    """Find the GPUs of a host that several tasks have: UUID (name where it is unknown) -> indices of the tasks."""
    owners: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        for gpu, _ in task.identify():
            owners.setdefault(gpu, []).append(index)
    return {gpu: indices for gpu, indices in owners.items() if len(indices) > 1}


def pin_gpus(tasks: Sequence[TaskGpus], local_rank: int, per_rank: float | None) -> Pinning:
    """Return the GPU settings of the rank `local_rank` of a host.

    Args:
        tasks: [local_size] of all ranks of that host.
        per_rank: GPUs that Spark was asked for, a rank; 0 for none; None if tasks get none and see all, as on
            this machine.

    Raises:
        ValueError: two ranks that are to have a whole GPU have the same one; the text names them and the remedy.
    """
    rank_gpus = tasks[local_rank]
    if not any(task.names for task in tasks):
        if per_rank == 0 and rank_gpus.there and rank_gpus.visible is None:
            return Pinning({VISIBLE: ""}, _describe_hidden_gpus(len(rank_gpus.there)))
        return Pinning({})
    shared = find_shared_gpus(tasks)
    notice = ""
    if shared:
        gpu, ranks = next(iter(shared.items()))
        sharing = f"local ranks {', '.join(map(str, ranks))} have the same GPU, {gpu}"
        is_identified = any(gpu == uuid for task in tasks for uuid in task.uuids)
        if is_identified and (per_rank or 0) >= 1:
            raise ValueError(
                f"{sharing}, though each was to have {per_rank:g} of its own: two executors of this host have "
                "discovered the same GPUs. Let each worker announce its own "
                "(spark.worker.resource.gpu.discoveryScript), run one worker a host, or share on purpose with "
                "spark.task.resource.gpu.amount=0.5 or the like."
            )
        notice = (
            f"{sharing}. Each sees its own GPUs only, the first as cuda:0: "
            "torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())"
        )
    parts = any(name.startswith("MIG-") for task in tasks for name in task.names)
    if parts and not shared and len(tasks) > 1:
        notice = "ranks have parts of GPUs (MIG), of which each sees its own only, as cuda:0"
    devices = list(rank_gpus.names) if shared or parts else order_devices([task.names for task in tasks])
    variables = {VISIBLE: ",".join(devices)}
    if all(name.isdecimal() for name in devices):
        variables[ORDER] = "PCI_BUS_ID"  # the order of nvidia-smi, by which GPUs are discovered; CUDA's own is another
    return Pinning(variables, notice)


def _describe_hidden_gpus(count: int) -> str:
    return (
        f"there {'is a GPU' if count == 1 else f'are {count} GPUs'} on this host, and this job does not see "
        f"{'it' if count == 1 else 'them'}, since it has asked Spark for none. Start the session with "
        "spark.executor.resource.gpu.amount and spark.task.resource.gpu.amount; or let all ranks of a host see all of "
        "its GPUs, by spark.executorEnv.CUDA_VISIBLE_DEVICES=0,1,..."
    )
