"""How many tasks a Spark session can run at the same time, and whether a job can run in it at all.

A *slot* is room for one task. Spark itself takes ten minutes to refuse such a job; this check takes seconds. It only
uses SQL and configuration, which classic sessions and Spark Connect both have.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from spark_estimator.errors import NotEnoughSlotsError, PreflightError
from spark_estimator.launch.job.spark_settings import GPUS_PER_RANK
from spark_estimator.launch.spark.configuration import (
    GPUS_PER_EXECUTOR,
    GPUS_PER_TASK,
    LOCAL_CLUSTER,
    Configuration,
    get_executor_cores,
    get_gpus_per_rank,
    needs_profile,
)
from spark_estimator.launch.spark.dynamic_allocation import Ceiling, find_ceiling, grows_on_demand, uses_barrier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Executors of a new session register one after the other: this time after the last one, no more are expected...
REGISTRATION = timedelta(seconds=4)
# ... but if there is none yet, the first may take longer.
FIRST_REGISTRATION = timedelta(seconds=30)
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Slots:
    """How many tasks can run at once, and how that number is computed.

    Attributes:
        count: None when it cannot be found out.
        arithmetic: for messages: ``2 cores / 1 per task (spark.task.cpus)``.
        by_gpus: GPUs, not cores, are the limit.
    """

    count: int | None
    arithmetic: str
    by_gpus: bool = False


def check_connect(spark: SparkSession) -> None:
    """Raise PreflightError for a session of Spark Connect before Spark 3.5, on one of its sides."""
    if is_connect(spark) and (not hasattr(spark, "addTag") or spark.version.startswith("3.4.")):
        raise make_old_connect_error(f" and a server of Spark {spark.version}")


def make_old_connect_error(server: str = "") -> PreflightError:
    """Make the error for such a session; `server`: words on the server, if its version is known."""
    client = sys.modules["pyspark"].__version__
    return PreflightError(
        f"this is a Spark Connect session with PySpark {client}{server}, and Spark Connect can't start ranks together "
        "before Spark 3.5. Use a classic session (SparkSession.builder.master(...)), or Spark 3.5 or later on both "
        "sides."
    )


def is_stopped(spark: SparkSession) -> bool:
    """Return whether a session, classic or Connect, has been stopped."""
    context = getattr(spark, "_sc", None)
    return getattr(spark, "is_stopped", False) or (context is not None and getattr(context, "_jsc", None) is None)


def check_session(spark: SparkSession, *, together: bool = True) -> None:
    """Refuse sessions that can run no job, or whose ranks can't start together. Raises PreflightError."""
    if is_stopped(spark):
        raise PreflightError("this Spark session has been stopped: use a new one.")
    check_connect(spark)
    conf = Configuration(spark)
    if together:
        uses_barrier(conf)
    gpus = conf.get_number(GPUS_PER_TASK)
    if conf.is_local and gpus:
        raise PreflightError(
            f"spark.task.resource.gpu.amount is {gpus:g}, but a session with master {conf.master!r} has no GPU "
            "resources: its tasks would wait forever. Unset it (ranks then see all GPUs of this host), or use "
            "HorovodRunner(np=-N), which needs no Spark."
        )


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def count_slots(spark: SparkSession) -> Slots:
    """Count how many tasks the session can run at the same time, as of now."""
    conf = Configuration(spark)
    cpus = int(conf.get_number("spark.task.cpus") or 1)
    gpus_per_rank = get_gpus_per_rank(conf)
    exact = None if conf.is_local or needs_profile(conf) else _ask_scheduler(spark)
    cores, note = _count_cores(spark, conf, exact is not None)
    if cores is None:
        return Slots(exact, note if exact is None else f"counted by Spark's scheduler, {cpus} cores per task")
    by_cores = cores // cpus
    text = f"{cores} core{'' if cores == 1 else 's'}{note} / {cpus} per task (spark.task.cpus)"
    if not gpus_per_rank:
        return Slots(by_cores if exact is None else exact, text)
    each = f"{gpus_per_rank:g} per {f'rank ({GPUS_PER_RANK})' if needs_profile(conf) else f'task ({GPUS_PER_TASK})'}"
    gpus, executors = conf.get_number(GPUS_PER_EXECUTOR), _count_executors(spark, conf, cores)
    if gpus is not None and executors:
        by_gpus = executors * int(gpus / gpus_per_rank)
        if by_gpus < by_cores:
            text = f"{executors} executors x {gpus:g} GPUs / {each}"
            return Slots(by_gpus if exact is None else exact, text, by_gpus=True)
    if exact is not None and exact < by_cores:
        return Slots(exact, f"GPUs of the executors / {each}", by_gpus=True)
    return Slots(by_cores, text)


def require_slots(spark: SparkSession, size: int, patience: timedelta = REGISTRATION, *, size_word: str = "") -> None:
    """Return when `size` ranks can run at the same time, or when that is unknown.

    Where executors come on demand, it is enough that the settings allow `size`.

    Args:
        patience: how long to wait for one more executor.
        size_word: the user's argument for the number of ranks; '' where the message shall not name one.

    Raises:
        NotEnoughSlotsError: they cannot run; the text has the arithmetic and the remedy.
    """
    conf = Configuration(spark)
    if grows_on_demand(conf):
        limit = find_slot_limit(spark, size)
        if limit is None:
            return
        fewer = 0 if find_ceiling(conf, limit.count) else limit.count
        raise NotEnoughSlotsError(
            f"{size} ranks need {size} slots at the same time, but this session can have at most {limit.count}: "
            f"{limit.arithmetic}. {limit.remedy}{_suggest_fewer(fewer, size_word)}."
        )
    if conf.is_local:
        patience = timedelta(0)
    slots = _poll(spark, lambda slots: slots.count is None or slots.count >= size, patience)
    if slots.count is None or slots.count >= size or _count_promised_slots(conf) >= size:
        return
    raise NotEnoughSlotsError(
        f"{size} ranks need {size} slots at the same time, but this session has {slots.count}: {slots.arithmetic}. "
        f"{_describe_remedy(conf, slots, size, is_connect(spark), size_word)}{_suggest_fewer(slots.count, size_word)}."
    )


def find_slot_limit(spark: SparkSession, size: int) -> Ceiling | None:
    """Return the reason why a session with dynamic allocation can't have `size` slots; None: no known limit."""
    limit = find_ceiling(Configuration(spark), size)
    # Executors that are there already need not be asked for.
    return None if limit is None or (count_slots(spark).count or 0) >= size else limit


def _suggest_fewer(count: int, size_word: str) -> str:
    """Return the other remedy: one rank per slot; '' if there is no slot."""
    if not count:
        return ""
    if size_word.startswith("-"):
        return f", or use {size_word} {count}"
    return f", or use {size_word}={count}" if size_word else f", or use {count} ranks"


def count_all_slots(spark: SparkSession) -> int:
    """Return as many ranks as the session has slots, once the number has stopped growing.

    Raises:
        NotEnoughSlotsError: there is none, or the number cannot be found out or changes.
    """
    _require_fixed_slots(spark)
    slots = _count_settled_slots(spark)
    if not slots.count:
        raise NotEnoughSlotsError(
            "the number of ranks defaults to the slots of the session, but this session shows none "
            f"({slots.arithmetic}). Set the number of ranks: np of HorovodRunner, num_proc of an estimator or of "
            "spark.run, for example 2."
        )
    return slots.count


def choose_default_size(spark: SparkSession) -> int:
    """Return the number of ranks that Horovod uses by default: ``spark.default.parallelism``, but no more than slots.

    Raises NotEnoughSlotsError: there is no slot, or the number cannot be found out or changes.
    """
    _require_fixed_slots(spark)
    asked_for = int(Configuration(spark).get_number("spark.default.parallelism") or 0)
    if asked_for < 1:
        return count_all_slots(spark)
    count = _count_settled_slots(spark).count
    return asked_for if count is None else min(asked_for, count_all_slots(spark))


def _require_fixed_slots(spark: SparkSession) -> None:
    if grows_on_demand(Configuration(spark)):
        raise NotEnoughSlotsError(
            "the number of ranks defaults to the slots of the session, but this session has no fixed number: its "
            "executors start when tasks wait for them (spark.dynamicAllocation.enabled). Set the number of ranks, for "
            "example to 2."
        )


def _count_settled_slots(spark: SparkSession) -> Slots:
    """Count the slots, once their number has stopped growing."""
    return _poll(spark, lambda _: False, timedelta(0) if Configuration(spark).is_local else timedelta(seconds=1))


def _poll(spark: SparkSession, enough: Callable[[Slots], bool], patience: timedelta) -> Slots:
    """Ask until there are enough, or until there have been no more for `patience`."""
    started = time.monotonic()
    grown_at, most = started, -1
    while True:
        slots = count_slots(spark)
        now = time.monotonic()
        if enough(slots):
            return slots
        if slots.count is None or slots.count > most:
            grown_at, most = now, slots.count or 0
        waits_for_first = slots.count == 0 and patience and now - started < FIRST_REGISTRATION.total_seconds()
        if now - grown_at >= patience.total_seconds() and not waits_for_first:
            return slots
        time.sleep(_POLL_SECONDS)


def _count_promised_slots(conf: Configuration) -> int:
    """Return the slots that the session will have once all executors that it asked for run; 0 if unknown."""
    cpus = int(conf.get_number("spark.task.cpus") or 1)
    if get_gpus_per_rank(conf):
        return 0
    if match := LOCAL_CLUSTER.fullmatch(conf.master):
        return int(match[1]) * (int(match[2]) // cpus)
    executors, cores = conf.get_number("spark.executor.instances"), get_executor_cores(conf)
    return int(executors) * (cores // cpus) if executors and cores else 0


def _count_cores(spark: SparkSession, conf: Configuration, is_classic: bool) -> tuple[int | None, str]:
    """Return the cores of all executors, and a word on where they are; None, and why, when that is unknown."""
    if match := re.fullmatch(r"local\[(\d+)(?:,\s*\d+)?\]", conf.master):
        return int(match[1]), f" (master {conf.master})"
    if conf.master == "local":
        return 1, " (master local)"
    if match := LOCAL_CLUSTER.fullmatch(conf.master):
        return int(match[1]) * int(match[2]), f" (master {conf.master})"
    if conf.get("spark.default.parallelism"):
        return None, "spark.default.parallelism is set, so the number of cores is unknown"
    splits = _count_default_splits(spark, conf)
    if splits is None:
        return None, "Spark doesn't report its number of cores"
    if splits == 2 and (is_classic or grows_on_demand(conf)):
        return None, "Spark reports 2 cores even if it has fewer"
    return splits, ""


def _count_default_splits(spark: SparkSession, conf: Configuration) -> int | None:
    """Return the number of parts of a range: Spark's default parallelism, which is the number of cores."""
    name = "spark.sql.leafNodeDefaultParallelism"
    override = conf.get(name)
    try:
        if override:
            spark.conf.unset(name)
        try:
            plan = str(spark.sql("EXPLAIN SELECT * FROM range(1000000)").collect()[0][0])
        finally:
            if override:
                spark.conf.set(name, override)
    except Exception:
        return None
    match = re.search(r"\bsplits=(?:Some\()?(\d+)", plan)
    return int(match[1]) if match else None


def _count_executors(spark: SparkSession, conf: Configuration, cores: int) -> int | None:
    """Return how many executors the session has; None when that cannot be found out."""
    cores_per_executor = get_executor_cores(conf)
    if cores_per_executor:
        return cores // cores_per_executor
    try:  # a classic session counts them, the driver among them
        return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
    except Exception:
        return None


def _ask_scheduler(spark: SparkSession) -> int | None:
    """Return the slots by a classic session's scheduler; None over Spark Connect, and if Java may not be called."""
    try:
        context = spark.sparkContext._jsc.sc()
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    except Exception:
        return None


def _describe_remedy(conf: Configuration, slots: Slots, size: int, remote: bool, size_word: str) -> str:
    """Describe the remedy to get `size` slots, without a full stop.

    Args:
        remote: who started the session has not set its master.
        size_word: as in `require_slots`; a flag of a command has remedies that are flags, too.
    """
    by_flags = size_word.startswith("-")
    if slots.by_gpus:
        name = GPUS_PER_RANK if needs_profile(conf) else GPUS_PER_TASK
        return f"Start the session with more executors that have GPUs, or let ranks share them with a smaller {name}"
    cpus = int(conf.get_number("spark.task.cpus") or 1)
    if conf.is_local or conf.master.startswith("local-cluster"):
        master = f"local[{size * cpus}]" if conf.is_local else f"local-cluster[{size},{cpus},1024]"
        if remote:
            return f'Start the Spark Connect server, which sets the master, with --master "{master}"'
        if by_flags:
            return f"Start the session with --master {master}"
        return f'Start the session with .master("{master}")'
    cores = get_executor_cores(conf)
    if cores and cores >= cpus:
        setting = f"{'--conf ' if by_flags else ''}spark.executor.instances={-(-size // (cores // cpus))}"
        return f"Start the session with {setting} (of {cores} core{'' if cores == 1 else 's'} each)"
    return f"Give the session {size * cpus} cores (more workers, spark.executor.instances, or a larger spark.cores.max)"
