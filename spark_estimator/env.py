"""Every environment variable that the package reads, in one frozen dataclass: read once, by ``init()``."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_estimator.log import LEVELS

MIB = 1 << 20
MOST_CACHED = 8192  # what the engine takes for its cache_capacity
COMPRESSIONS = ("none", "fp16", "bf16")
MALLOCS = ("keep", "system")
GPU_OPERATIONS = ("auto", "nccl", "shared", "staged", "copy")
RENDEZVOUS_FD_VARIABLE = "SPARK_ESTIMATOR_RENDEZVOUS_FD"
JOB_VARIABLE = "SPARK_ESTIMATOR_JOB"
FEED_FD_VARIABLE = "SPARK_ESTIMATOR_FEED_FD"
WORKER_CHOICES_VARIABLE = "SPARK_ESTIMATOR_WORKER_CHOICES"
ATTEMPT_VARIABLE = "SPARK_ESTIMATOR_ATTEMPT"
PROCESS_VARIABLE = "SPARK_ESTIMATOR_PROCESS"
PROGRESS_FD_VARIABLE = "SPARK_ESTIMATOR_PROGRESS_FD"
IGNORE_LAUNCHER_VARIABLE = "SPARK_ESTIMATOR_IGNORE_LAUNCHER"


class _Ranks(Protocol):
    """The six numbers of a topology; ``collectives.rendezvous.Topology`` has them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("1 or 0")
    return words[text.lower()]


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("a whole number, 0 or more") from None
    if not 0 <= value < 1 << 62:
        raise ValueError("a whole number, 0 or more")
    return value


def _positive_count(text: str) -> int:
    value = _count(text)
    if not 0 < value < 1 << 31:
        raise ValueError("a whole number, 1 or more")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("seconds, 0 or more") from None
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("seconds, 0 or more")
    return value


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError("seconds, more than 0")
    return value


def _cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(_count(part.strip()) for part in text.split(","))
    except ValueError:
        raise ValueError("core numbers with commas between them, one for each local rank") from None


def _capacity(text: str) -> int:
    return min(_count(text), MOST_CACHED)


def _level(text: str) -> str:
    level = {"warn": "warning", "critical": "fatal"}.get(text.lower(), text.lower())
    if level not in LEVELS:
        raise ValueError("one of " + ", ".join(LEVELS))
    return level


def _compression(text: str) -> str:
    if text.lower() not in COMPRESSIONS:
        raise ValueError("one of " + ", ".join(COMPRESSIONS))
    return text.lower()


def _folder(text: str) -> str:
    if not text.startswith("/") or text.startswith("//"):
        raise ValueError("a folder by its path, as in /Volumes/catalog/schema/volume/logs; no URL such as dbfs:/")
    return text


def _file(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError("a file by its whole path")
    return text


def _malloc(text: str) -> str:
    if text.lower() not in MALLOCS:
        raise ValueError("one of " + ", ".join(MALLOCS))
    return text.lower()


def _gpu_operations(text: str) -> str:
    if text.lower() == "mpi":  # Horovod was built so, which its images go on saying
        return "auto"
    if text.lower() not in GPU_OPERATIONS:
        raise ValueError("one of " + ", ".join(GPU_OPERATIONS))
    return text.lower()


def _variable(name: str, default: Any, parse: Callable[[str], Any], *, unit: str, effect: str) -> Any:
    metadata = {"variable": name, "parse": parse, "unit": unit, "effect": effect}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The settings of one process. Each field's metadata holds its variable, unit and effect; see `describe`."""

    fusion_threshold_bytes: int = _variable(
        "HOROVOD_FUSION_THRESHOLD", 128 * MIB, _count, unit="bytes",
        effect="small allreduces run as one up to this size; 0: never; rank 0's value holds for all",
    )  # fmt: skip
    bucket_bytes: int = _variable(
        "SPARK_ESTIMATOR_BUCKET_BYTES", 25 * MIB, _count, unit="bytes",
        effect="DistributedOptimizer hands gradients over in buckets of about this size",
    )  # fmt: skip
    compression: str = _variable(
        "SPARK_ESTIMATOR_COMPRESSION", "none", _compression, unit="type",
        effect="in which DistributedOptimizer's gradients travel where its compression= is not given: none (their "
        "own), fp16, bf16; the same on all ranks",
    )  # fmt: skip
    cache_capacity: int = _variable(
        "HOROVOD_CACHE_CAPACITY", 1024, _capacity, unit="names",
        effect="names, and forms of calls without one, whose agreement is remembered, so that they skip negotiation; "
        "0: none; at most 8192; rank 0's value holds for all",
    )  # fmt: skip
    stall_warning_seconds: float = _variable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS", 10.0, _seconds, unit="seconds",
        effect="an op that some ranks have not submitted for so long is told on stderr; 0: never",
    )  # fmt: skip
    stall_check_disabled: bool = _variable(
        "HOROVOD_STALL_CHECK_DISABLE", False, _boolean, unit="1 or 0",
        effect="1: as HOROVOD_STALL_CHECK_TIME_SECONDS=0",
    )  # fmt: skip
    stall_shutdown_seconds: float = _variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0, _seconds, unit="seconds",
        effect="an op that some ranks have not submitted for so long fails on all; 0: never",
    )  # fmt: skip
    start_timeout_seconds: float = _variable(
        "HOROVOD_START_TIMEOUT", 30.0, _positive_seconds, unit="seconds",
        effect="how long init() waits for the other ranks, and a launcher for the hosts that it reaches by ssh",
    )  # fmt: skip
    spark_start_timeout_seconds: float = _variable(
        "HOROVOD_SPARK_START_TIMEOUT", 600.0, _positive_seconds, unit="seconds",
        effect="how long spark.run() waits until all ranks have begun; as its start_timeout",
    )  # fmt: skip
    gloo_timeout_seconds: float | None = _variable(
        "HOROVOD_GLOO_TIMEOUT_SECONDS", None, _positive_seconds, unit="seconds",
        effect="as HOROVOD_START_TIMEOUT, where that is not set",
    )  # fmt: skip
    heartbeat_seconds: float = _variable(
        "SPARK_ESTIMATOR_HEARTBEAT_SECONDS", 1.0, _seconds, unit="seconds",
        effect="between two signs of life; 0: none are sent, and nobody is taken for frozen",
    )  # fmt: skip
    silence_seconds: float = _variable(
        "SPARK_ESTIMATOR_SILENCE_SECONDS", 6.0, _positive_seconds, unit="seconds",
        effect="a rank that gave no sign of life for so long is lost",
    )  # fmt: skip
    log_level: str = _variable(
        "HOROVOD_LOG_LEVEL", "warning", _level, unit="level",
        effect="what the package itself says on stderr: " + ", ".join(LEVELS),
    )  # fmt: skip
    log_hide_time: bool = _variable(
        "HOROVOD_LOG_HIDE_TIME", False, _boolean, unit="1 or 0",
        effect="1: what it says does not begin with the time",
    )  # fmt: skip
    shared_memory: bool = _variable(
        "SPARK_ESTIMATOR_SHARED_MEMORY", True, _boolean, unit="1 or 0",
        effect="0: ranks of one host talk by TCP as well",
    )  # fmt: skip
    spin_microseconds: int | None = _variable(
        "SPARK_ESTIMATOR_SPIN_MICROSECONDS", None, _count, unit="microseconds",
        effect="busy waiting before sleeping in shared memory, at most; -: as long as it pays",
    )  # fmt: skip
    overlap: bool | None = _variable(
        "SPARK_ESTIMATOR_OVERLAP", None, _boolean, unit="1 or 0",
        effect="1: gradients travel while backward computes; 0: at its end, in the thread that waits for them",
    )  # fmt: skip
    hierarchical_allreduce: bool | None = _variable(
        "HOROVOD_HIERARCHICAL_ALLREDUCE", None, _boolean, unit="1 or 0",
        effect="1: inside hosts first, then across, where it can be; 0: never; -: by size; rank 0's holds for all",
    )  # fmt: skip
    thread_affinity: tuple[int, ...] | None = _variable(
        "HOROVOD_THREAD_AFFINITY", None, _cores, unit="cores",
        effect="the core that the engine's thread is bound to, one for each local rank: 0,2,4",
    )  # fmt: skip
    dynamic_process_sets: bool = _variable(
        "HOROVOD_DYNAMIC_PROCESS_SETS", False, _boolean, unit="1 or 0",
        effect="1: process sets may be added and removed after init(); as init(process_sets='dynamic')",
    )  # fmt: skip
    timeline: str = _variable(
        "HOROVOD_TIMELINE", "", str, unit="path",
        effect="Chrome trace of every op, a file for each rank; DYNAMIC: none before start_timeline()",
    )  # fmt: skip
    timeline_mark_cycles: bool = _variable(
        "HOROVOD_TIMELINE_MARK_CYCLES", False, _boolean, unit="1 or 0",
        effect="1: the trace marks when the engine's thread woke",
    )  # fmt: skip
    autotune: bool = _variable(
        "HOROVOD_AUTOTUNE", False, _boolean, unit="1 or 0",
        effect="1: thresholds are tried out while the job runs, until the best are known; rank 0's value holds for all",
    )  # fmt: skip
    autotune_log: str = _variable(
        "HOROVOD_AUTOTUNE_LOG", "", str, unit="path",
        effect="CSV file in which rank 0 notes what was tried",
    )  # fmt: skip
    autotune_warmup_samples: int = _variable(
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", 3, _count, unit="samples",
        effect="measured before the first that counts",
    )  # fmt: skip
    autotune_steps_per_sample: int = _variable(
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", 10, _positive_count, unit="steps",
        effect="that one sample takes",
    )  # fmt: skip
    autotune_max_samples: int = _variable(
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", 20, _positive_count, unit="samples",
        effect="after which the best so far is kept",
    )  # fmt: skip
    worker_threads: int | None = _variable(
        "SPARK_ESTIMATOR_WORKER_THREADS", None, _count, unit="threads",
        effect="of numeric libraries in a worker, where OMP_NUM_THREADS and its like are not set; -: its share of the "
        "cores; 0: as the libraries choose",
    )  # fmt: skip
    worker_malloc: str = _variable(
        "SPARK_ESTIMATOR_WORKER_MALLOC", "keep", _malloc, unit="kind",
        effect="keep: a worker's glibc keeps freed memory for the next step, on huge pages where it can; system: it is "
        "left as it is",
    )  # fmt: skip
    gpu_operations: str = _variable(
        "HOROVOD_GPU_OPERATIONS", "auto", _gpu_operations, unit="kind",
        effect="how PyTorch's CUDA tensors travel: nccl: by NCCL, a GPU for each rank; shared: by kernels of ours on "
        "the one GPU that all ranks share; staged: through pinned host memory; auto: what is fastest of these; copy: "
        "PyTorch copies them to host memory and back; the same on all ranks (MPI, as Horovod's images have it: auto)",
    )  # fmt: skip
    cuda_library: str = _variable(
        "SPARK_ESTIMATOR_CUDA_LIBRARY", "", _file, unit="path",
        effect="of the CUDA runtime (libcudart.so); by default PyTorch's own, else the system's",
    )  # fmt: skip
    nccl_library: str = _variable(
        "SPARK_ESTIMATOR_NCCL_LIBRARY", "", _file, unit="path",
        effect="of NCCL (libnccl.so); by default PyTorch's own, else the system's",
    )  # fmt: skip
    nvrtc_library: str = _variable(
        "SPARK_ESTIMATOR_NVRTC_LIBRARY", "", _file, unit="path",
        effect="of CUDA's runtime compiler (libnvrtc.so), for ranks that share a GPU; by default PyTorch's own, else "
        "the system's",
    )  # fmt: skip
    driver_channel: bool = _variable(
        "SPARK_ESTIMATOR_DRIVER_CHANNEL", True, _boolean, unit="1 or 0",
        effect="0: workers open no connection to the driver; their lines come through SPARK_ESTIMATOR_LOG_DIR, else "
        "the last of them when the job ends",
    )  # fmt: skip
    log_folder: str = _variable(
        "SPARK_ESTIMATOR_LOG_DIR", "", _folder, unit="folder",
        effect="which driver and executors see under one path: where these cannot connect to the driver, ranks' lines "
        "go there, a file a rank, and the driver shows them while they come; -: the last of them when the job ends",
    )  # fmt: skip
    status_line: bool = _variable(
        "SPARK_ESTIMATOR_STATUS_LINE", True, _boolean, unit="1 or 0",
        effect="0: launchers show no status line while a job runs; they do so only on a terminal or in a notebook",
    )  # fmt: skip
    spool_folder: str = _variable(
        "SPARK_ESTIMATOR_SPOOL_FOLDER", "", str, unit="folder",
        effect="where the rows of an estimator's DataFrame lie while it trains, on each executor; by default in "
        "Spark's local folder (SPARK_LOCAL_DIRS), else in the system's for temporary files",
    )  # fmt: skip
    ssh_command: str = _variable(
        "SPARK_ESTIMATOR_SSH_COMMAND", "ssh", str, unit="command",
        effect="with which launchers reach other hosts, and its first options: ssh -F my_config",
    )  # fmt: skip
    remote_python: str = _variable(
        "SPARK_ESTIMATOR_REMOTE_PYTHON", "", str, unit="path",
        effect="the Python on hosts that are reached by ssh; -: the path that it has on the launcher's",
    )  # fmt: skip
    rendezvous_fd: int | None = _variable(
        RENDEZVOUS_FD_VARIABLE, None, _count, unit="descriptor",
        effect="set by the launcher for a command: where its rank and its peers are written",
    )  # fmt: skip
    attempt: int = _variable(
        ATTEMPT_VARIABLE, 1, _positive_count, unit="attempts",
        effect="set by launchers for the ranks: 1, and one more each time that max_restarts had the job started anew",
    )  # fmt: skip
    launched_size: int | None = _variable(
        "HOROVOD_SIZE", None, _count, unit="ranks",
        effect="set by launchers for scripts; init() warns when it differs from the size of the job, and raises an "
        "error when it is more than 1 and no launcher of spark_estimator started the process",
    )  # fmt: skip
    ignore_launcher: bool = _variable(
        IGNORE_LAUNCHER_VARIABLE, False, _boolean, unit="1 or 0",
        effect="1: init() makes a job of one in a process that mpirun, srun, torchrun or another launcher started as "
        "one of several; 0: init() raises an error there",
    )  # fmt: skip
    elastic: bool = _variable(
        "HOROVOD_ELASTIC", False, _boolean, unit="1 or 0",
        effect="set by the launcher of an elastic job, which may come to have more ranks than now",
    )  # fmt: skip
    elastic_timeout_seconds: float = _variable(
        "HOROVOD_ELASTIC_TIMEOUT", 600.0, _positive_seconds, unit="seconds",
        effect="how long the launcher of an elastic job waits for the ranks of a new round; as --elastic-timeout",
    )  # fmt: skip
    launched_local_size: int | None = _variable(
        "HOROVOD_LOCAL_SIZE", None, _positive_count, unit="ranks",
        effect="set by launchers for scripts; for so many ranks of a host `env` shows what is decided",
    )  # fmt: skip

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings that `environ` (default: the process's environment) asks for. An empty value counts as unset.

        Raises:
            ValueError: a value cannot be used; the text names the variable, the value and what is expected.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environ.get(field.metadata["variable"], "").strip()
            if not text:
                continue
            try:
                values[field.name] = field.metadata["parse"](text)
            except ValueError as error:
                raise ValueError(f"{field.metadata['variable']}={text!r}: expected {error}.") from None
        if values.get("stall_check_disabled"):
            values["stall_warning_seconds"] = 0.0
        if "gloo_timeout_seconds" in values:
            values.setdefault("start_timeout_seconds", values["gloo_timeout_seconds"])
        settings = cls(**values)
        if settings.silence_seconds <= 2 * settings.heartbeat_seconds:
            raise ValueError(
                f"SPARK_ESTIMATOR_SILENCE_SECONDS={settings.silence_seconds:g} must be more than twice "
                f"SPARK_ESTIMATOR_HEARTBEAT_SECONDS={settings.heartbeat_seconds:g}: one late sign of life is no death."
            )
        return settings

    def describe(self, decided: Mapping[str, Decision] | None = None, environ: Mapping[str, str] | None = None) -> str:
        """A table of all variables, one a line: name, what is in force, why, default, unit, effect.

        Below it those of Horovod's that were set and have no effect here, and those that nothing reads.

        Args:
            decided: by field, what the process decides itself where the environment says nothing.
            environ: where the settings were read from; default: the process's environment.
        """
        environ = os.environ if environ is None else environ
        rows = [("variable", "in force", "from", "default", "unit", "effect")]
        for field in dataclasses.fields(self):
            variable = field.metadata["variable"]
            value, default = getattr(self, field.name), field.default
            in_force, why = _printed(value), "default"
            if environ.get(variable, "").strip():
                why = "environment"
            elif value != default:
                why = "another variable"
            elif decided and field.name in decided:
                decision = decided[field.name]
                in_force, why = "auto" if decision.value < 0 else str(decision.value), decision.why
            rows.append((variable, in_force, why, _printed(default), field.metadata["unit"], field.metadata["effect"]))
        lines = aligned(rows)
        known = {field.metadata["variable"] for field in dataclasses.fields(self)}
        lines += ["", "Known from Horovod, without effect here:"]
        lines += aligned([(name, environ.get(name, "").strip() or "-", why) for name, why in WITHOUT_EFFECT.items()])
        unknown = sorted(
            name
            for name in environ
            if name.startswith(("HOROVOD_", "SPARK_ESTIMATOR_"))
            and name not in known | WITHOUT_EFFECT.keys() | SET_FOR_SCRIPTS | SET_FOR_WORKERS
        )
        if unknown:
            lines += ["", "Set here, and read by nothing (misspelt?): " + ", ".join(unknown)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Decision:
    """What a process decides for itself where its environment does not say.

    Attributes:
        value: what is in force, in the engine's terms; -1: the engine decides from moment to moment.
        why: on what grounds, for people.
    """

    value: int
    why: str


#: Variables of Horovod that change nothing here, with the reason.
WITHOUT_EFFECT = {
    "HOROVOD_CYCLE_TIME": "nothing waits for a cycle: each request wakes the engine",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is agreed on as one, and what else runs with it changes no number",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "an allgather's algorithm is chosen by size and hosts",
    "HOROVOD_TORUS_ALLREDUCE": "HOROVOD_HIERARCHICAL_ALLREDUCE is the one way by hosts",
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "the search compares medians and has no model of the noise",
    "HOROVOD_NUM_NCCL_STREAMS": "GPU tensors travel on one stream of the engine's own",
    **dict.fromkeys(
        (f"HOROVOD_GPU_{op}" for op in ("ALLREDUCE", "ALLGATHER", "ALLTOALL", "BROADCAST", "REDUCESCATTER")),
        "what Horovod was built with; HOROVOD_GPU_OPERATIONS is for all ops",
    ),
    "HOROVOD_BATCH_D2D_MEMCOPIES": "tensors of a group travel from where they lie, so that nothing is copied together",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "it is always so: the CPU waits for no GPU, streams wait for one another",
    "HOROVOD_DISABLE_NVTX_RANGES": "there are no NVTX ranges",
    "HOROVOD_ENABLE_XLA_OPS": "there are no XLA ops",
    "HOROVOD_MPI_THREADS_DISABLE": "there is no MPI",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum needs no MPI here and has no chunks",
    "HOROVOD_CCL_CACHE": "there is no oneCCL",
    "HOROVOD_CCL_BGT_AFFINITY": "there is no oneCCL; see HOROVOD_THREAD_AFFINITY",
    "HOROVOD_GLOO_IFACE": "a rank listens at the address that its launcher chose",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "ranks learn of one another from their launcher",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "ranks learn of one another from their launcher",
}

#: Variables that launchers set for scripts to read.
SET_FOR_SCRIPTS = frozenset(
    {
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_HOSTNAME",
        "HOROVOD_CONTROLLER",
        "HOROVOD_CPU_OPERATIONS",
    }
)

#: Variables in which launchers note something for themselves.
SET_FOR_WORKERS = frozenset(
    {JOB_VARIABLE, PROCESS_VARIABLE, FEED_FD_VARIABLE, WORKER_CHOICES_VARIABLE, PROGRESS_FD_VARIABLE}
)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns, the last of which may be as long as it likes."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([cell.ljust(width) for cell, width in zip(cells, widths, strict=True)] + [last])
        for *cells, last in rows
    ]


def _printed(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def hides_all_gpus() -> str:
    """What in this process's environment hides all GPUs from CUDA, as ``CUDA_VISIBLE_DEVICES=''``; "": nothing does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"CUDA_VISIBLE_DEVICES={visible!r}" if visible is not None and visible.strip() in ("", "-1") else ""


def horovod_variables(topology: _Ranks, hostname: str) -> dict[str, str]:
    """What Horovod's launcher would have set for a rank, for the scripts that read it.

    Args:
        topology: the rank's place in the job.
        hostname: the name of the rank's host.
    """
    return {
        "HOROVOD_RANK": str(topology.rank),
        "HOROVOD_SIZE": str(topology.size),
        "HOROVOD_LOCAL_RANK": str(topology.local_rank),
        "HOROVOD_LOCAL_SIZE": str(topology.local_size),
        "HOROVOD_CROSS_RANK": str(topology.cross_rank),
        "HOROVOD_CROSS_SIZE": str(topology.cross_size),
        "HOROVOD_HOSTNAME": hostname,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def become_another_rank(topology: _Ranks, hostname: str) -> None:
    """Has this process's environment say what an elastic job's next round has made of it; as `horovod_variables`."""
    os.environ.update(horovod_variables(topology, hostname))
