"""Sessions with dynamic allocation: how ranks start there, and how many can run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.spark_settings import BARRIER
from spark_estimator.launch.spark.configuration import (
    GPUS_PER_EXECUTOR,
    Configuration,
    get_executor_cores,
    get_gpus_per_rank,
)

ENABLED = "spark.dynamicAllocation.enabled"
_MOST = "spark.dynamicAllocation.maxExecutors"
_LEAST = "spark.dynamicAllocation.minExecutors"
_RATIO = "spark.dynamicAllocation.executorAllocationRatio"
_CORES = "spark.cores.max"
# These cluster managers start executors of one core where the session sets no other number.
_ONE_CORE = ("yarn", "k8s")


@dataclass(frozen=True)
class Ceiling:
    """The most slots that a session can ever have at the same time.

    Attributes:
        count: the number of slots.
        arithmetic: for people: ``2 executors (spark.dynamicAllocation.maxExecutors) x 1 slot``.
        remedy: what to do for more, without a full stop.
    """

    count: int
    arithmetic: str
    remedy: str


def has_dynamic_allocation(conf: Configuration) -> bool:
    """Return whether Spark starts and ends executors on demand."""
    return conf.is_true(ENABLED) and not conf.is_local


def grows_on_demand(conf: Configuration) -> bool:
    """Return whether more executors may come once tasks wait for them, so that the slots of now are no limit."""
    return not conf.is_local and (has_dynamic_allocation(conf) or _read_barrier_setting(conf) is False)


def uses_barrier(conf: Configuration) -> bool:
    """Return whether a job's ranks start in a barrier stage; else each starts when it has a slot, and waits for all.

    Raises PreflightError: Spark would refuse the barrier stage that the session asks for, or the setting is invalid.
    """
    setting = _read_barrier_setting(conf)
    if setting and has_dynamic_allocation(conf):
        raise PreflightError(
            f"{BARRIER} is true, but {ENABLED} is true, too, and Spark starts no barrier stage then. Unset one of them."
        )
    return not has_dynamic_allocation(conf) if setting is None else setting


def find_ceiling(conf: Configuration, size: int) -> Ceiling | None:
    """Find the setting that keeps a session from ever having `size` slots at once; None: no setting shows that."""
    slots = _count_slots_per_executor(conf)
    if not slots:
        return None
    each = f"{slots} {'slot' if slots == 1 else 'slots'} each"
    executors = math.ceil(size / slots)
    ceilings = []
    most = conf.get_number(_MOST)
    if most is not None and has_dynamic_allocation(conf):
        remedy = f"Start the session with {_MOST}={executors} or more"
        ceilings.append(Ceiling(int(most) * slots, f"{most:.0f} executors ({_MOST}) with {each}", remedy))
    cores, cores_each = conf.get_number(_CORES), get_executor_cores(conf)
    if cores is not None and cores_each and conf.master.startswith("spark://"):
        count = int(cores) // cores_each
        text = f"{count} executors of {cores_each} cores ({_CORES}={cores:.0f}) with {each}"
        ceilings.append(Ceiling(count * slots, text, f"Start the session with {_CORES}={executors * cores_each}"))
    ratio = conf.get_number(_RATIO)
    if ratio is not None and has_dynamic_allocation(conf):
        count = max(math.ceil(size * ratio / slots), int(conf.get_number(_LEAST) or 0))
        text = f"{count} executors with {each}, as {_RATIO} is {ratio:g}"
        ceilings.append(Ceiling(count * slots, text, f"Start the session with {_RATIO}=1"))
    lowest = min(ceilings, key=lambda limit: limit.count, default=None)
    return lowest if lowest is not None and lowest.count < size else None


def _read_barrier_setting(conf: Configuration) -> bool | None:
    value = conf.get(BARRIER)
    if value is None:
        return None
    if value.strip().lower() not in ("true", "false"):
        raise PreflightError(f"{BARRIER}={value!r}: expected true or false.")
    return value.strip().lower() == "true"


def _count_slots_per_executor(conf: Configuration) -> int | None:
    """Return how many ranks one executor can run; None if the settings do not define it."""
    cores = get_executor_cores(conf) or (1 if conf.master.startswith(_ONE_CORE) else None)
    if cores is None:
        return None
    slots = cores // int(conf.get_number("spark.task.cpus") or 1)
    gpus, gpus_per_rank = conf.get_number(GPUS_PER_EXECUTOR), get_gpus_per_rank(conf)
    return min(slots, int(gpus / gpus_per_rank)) if gpus and gpus_per_rank else slots
