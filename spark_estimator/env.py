"""Every environment variable that the package reads, in one frozen dataclass: read once, by ``init()``."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_estimator.log import LEVELS

MIB = 1 << 20
MOST_CACHED = 8192  # the engine's limit for cache_capacity
MOST_CONNECTIONS = 8  # the engine's limit for data connections of two ranks
COMPRESSIONS = ("none", "fp16", "bf16")
MALLOCS = ("keep", "system")
ENCRYPTIONS = ("auto", "require", "off")  # the values of encryption.Policy
RING_ORDERS = ("rank", "measured")
GPU_OPERATIONS = ("auto", "nccl", "staged", "copy")
PREEMPTION_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGPWR")
RENDEZVOUS_FD_VARIABLE = "SPARK_ESTIMATOR_RENDEZVOUS_FD"
JOB_VARIABLE = "SPARK_ESTIMATOR_JOB"
FEED_FD_VARIABLE = "SPARK_ESTIMATOR_FEED_FD"
WORKER_CHOICES_VARIABLE = "SPARK_ESTIMATOR_WORKER_CHOICES"
ATTEMPT_VARIABLE = "SPARK_ESTIMATOR_ATTEMPT"
PROCESS_VARIABLE = "SPARK_ESTIMATOR_PROCESS"
PROGRESS_FD_VARIABLE = "SPARK_ESTIMATOR_PROGRESS_FD"
IGNORE_LAUNCHER_VARIABLE = "SPARK_ESTIMATOR_IGNORE_LAUNCHER"
JOB_KEY_VARIABLE = "SPARK_ESTIMATOR_JOB_KEY"
JOINED_VARIABLE = "SPARK_ESTIMATOR_JOINED"
MASTER_VARIABLE = "SPARK_ESTIMATOR_MASTER"
SPOOL_VARIABLE = "SPARK_ESTIMATOR_SPOOL_FOLDER"
CONNECTIONS_VARIABLE = "SPARK_ESTIMATOR_CONNECTIONS"
RING_ORDER_VARIABLE = "SPARK_ESTIMATOR_RING_ORDER"
SPARK_FILES_VARIABLE = "SPARK_ESTIMATOR_SPARK_FILES"
#: The value of `SPOOL_VARIABLE` for rows that touch no disk.
IN_MEMORY = "memory"


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


def _parse_bool(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("1 or 0")
    return words[text.lower()]


def _parse_count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("a whole number, 0 or more") from None
    if not 0 <= value < 1 << 62:
        raise ValueError("a whole number, 0 or more")
    return value


def _parse_positive_count(text: str) -> int:
    value = _parse_count(text)
    if not 0 < value < 1 << 31:
        raise ValueError("a whole number, 1 or more")
    return value


def _parse_connections(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= MOST_CONNECTIONS:
        raise ValueError(f"a whole number, 1 to {MOST_CONNECTIONS}")
    return value


def _parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("seconds, 0 or more") from None
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("seconds, 0 or more")
    return value


def _parse_positive_seconds(text: str) -> float:
    value = _parse_seconds(text)
    if value == 0:
        raise ValueError("seconds, more than 0")
    return value


def _parse_cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(_parse_count(part.strip()) for part in text.split(","))
    except ValueError:
        raise ValueError("comma-separated core numbers, one for each local rank") from None


def _parse_capacity(text: str) -> int:
    return min(_parse_count(text), MOST_CACHED)


def make_word_parser(words: Collection[str], aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Make a parser that accepts these words, and `aliases` (spelling to word) of them, in any case."""

    def parse(text: str) -> str:
        word = (aliases or {}).get(text.lower(), text.lower())
        if word not in words:
            raise ValueError("one of " + ", ".join(words))
        return word

    return parse


def _parse_folder(text: str) -> str:
    if not text.startswith("/") or text.startswith("//"):
        raise ValueError("an absolute path, such as /Volumes/catalog/schema/volume/logs, and not a URL such as dbfs:/")
    return text


def _parse_folders(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_file(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError("the absolute path of a file")
    return text


def _parse_signal(text: str) -> str:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if name not in PREEMPTION_SIGNALS:
        raise ValueError("one of " + ", ".join(PREEMPTION_SIGNALS))
    return name


def _parse_command(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"a command with its arguments ({error})") from None
    return text.strip()


def _make_field(name: str, default: Any, parse: Callable[[str], Any], *, unit: str, effect: str) -> Any:
    metadata = {"variable": name, "parse": parse, "unit": unit, "effect": effect}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The settings of one process. Each field's metadata holds its variable, unit and effect; see `describe`."""

    fusion_threshold_bytes: int = _make_field(
        "HOROVOD_FUSION_THRESHOLD", 128 * MIB, _parse_count, unit="bytes",
        effect="largest sum of small allreduces that run as one; 0: no fusion; rank 0's value applies to all ranks",
    )  # fmt: skip
    bucket_bytes: int = _make_field(
        "SPARK_ESTIMATOR_BUCKET_BYTES", 25 * MIB, _parse_count, unit="bytes",
        effect="approximate size of DistributedOptimizer's gradient buckets",
    )  # fmt: skip
    compression: str = _make_field(
        "SPARK_ESTIMATOR_COMPRESSION", "none", make_word_parser(COMPRESSIONS), unit="type",
        effect="type in which DistributedOptimizer sends gradients, unless compression= selects one: none (their own "
        "type), fp16, bf16; must be the same on all ranks",
    )  # fmt: skip
    cache_capacity: int = _make_field(
        "HOROVOD_CACHE_CAPACITY", 1024, _parse_capacity, unit="names",
        effect="operations that the response cache remembers, so that they skip negotiation; 0: no cache; at most "
        "8192; rank 0's value applies to all ranks",
    )  # fmt: skip
    stall_warning_seconds: float = _make_field(
        "HOROVOD_STALL_CHECK_TIME_SECONDS", 10.0, _parse_seconds, unit="seconds",
        effect="time before a stalled operation is reported on stderr; 0: never",
    )  # fmt: skip
    stall_check_disabled: bool = _make_field(
        "HOROVOD_STALL_CHECK_DISABLE", False, _parse_bool, unit="1 or 0",
        effect="1: same as HOROVOD_STALL_CHECK_TIME_SECONDS=0",
    )  # fmt: skip
    stall_shutdown_seconds: float = _make_field(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0, _parse_seconds, unit="seconds",
        effect="time before a stalled operation fails on the ranks that wait for it; 0: never",
    )  # fmt: skip
    start_timeout_seconds: float = _make_field(
        "HOROVOD_START_TIMEOUT", 30.0, _parse_positive_seconds, unit="seconds",
        effect="time that init() waits for the other ranks, and that a launcher waits for hosts reached by ssh",
    )  # fmt: skip
    spark_start_timeout_seconds: float = _make_field(
        "HOROVOD_SPARK_START_TIMEOUT", 600.0, _parse_positive_seconds, unit="seconds",
        effect="time that a job on Spark waits for all of its ranks to start, unless it has a start_timeout argument; "
        "a job on a DataFrame's rows, which Spark has to compute first, waits for ever if this is not set",
    )  # fmt: skip
    gloo_timeout_seconds: float | None = _make_field(
        "HOROVOD_GLOO_TIMEOUT_SECONDS", None, _parse_positive_seconds, unit="seconds",
        effect="used as HOROVOD_START_TIMEOUT when that is not set",
    )  # fmt: skip
    heartbeat_seconds: float = _make_field(
        "SPARK_ESTIMATOR_HEARTBEAT_SECONDS", 1.0, _parse_seconds, unit="seconds",
        effect="interval between heartbeats; 0: no heartbeats, and frozen ranks aren't detected",
    )  # fmt: skip
    silence_seconds: float = _make_field(
        "SPARK_ESTIMATOR_SILENCE_SECONDS", 6.0, _parse_positive_seconds, unit="seconds",
        effect="a rank without heartbeats for this time is lost; its supervisor in Spark, after ten times this time",
    )  # fmt: skip
    log_level: str = _make_field(
        "HOROVOD_LOG_LEVEL", "warning", make_word_parser(LEVELS, {"warn": "warning", "critical": "fatal"}),
        unit="level",
        effect="least severe messages of the package that are printed on stderr: " + ", ".join(LEVELS),
    )  # fmt: skip
    log_hide_time: bool = _make_field(
        "HOROVOD_LOG_HIDE_TIME", False, _parse_bool, unit="1 or 0",
        effect="1: log messages don't begin with the time",
    )  # fmt: skip
    encryption: str = _make_field(
        "SPARK_ESTIMATOR_ENCRYPTION", "auto", make_word_parser(ENCRYPTIONS), unit="policy",
        effect="auto: ranks encrypt their connections between hosts where Spark encrypts its own traffic; require: "
        "always; off: never. Read where a job is started",
    )  # fmt: skip
    shared_memory: bool = _make_field(
        "SPARK_ESTIMATOR_SHARED_MEMORY", True, _parse_bool, unit="1 or 0",
        effect="0: ranks on one host also use TCP",
    )  # fmt: skip
    mesh_ranks: int = _make_field(
        "SPARK_ESTIMATOR_MESH_RANKS", 16, _parse_positive_count, unit="ranks",
        effect="in a job or process set of up to this number of ranks each two connect in init(); in a larger one each "
        "rank connects with about 2 log2(ranks) others, and with further ones on first use. The same on all ranks",
    )  # fmt: skip
    connections: int = _make_field(
        CONNECTIONS_VARIABLE, 1, _parse_connections, unit="connections",
        effect="for data, between two ranks on different hosts, 1 to 8; several where the network limits what one "
        "carries, as some clouds do",
    )  # fmt: skip
    ring_order: str = _make_field(
        RING_ORDER_VARIABLE, "rank", make_word_parser(RING_ORDERS), unit="order",
        effect="of the hosts in rings: rank; or measured: with 4 to 64 hosts init() measures their links, in about "
        "0.3 s for each host, and rings avoid slow ones. The last bits of floating-point sums then depend on the "
        "measurement. Rank 0's value applies to all ranks",
    )  # fmt: skip
    spin_microseconds: int | None = _make_field(
        "SPARK_ESTIMATOR_SPIN_MICROSECONDS", None, _parse_count, unit="microseconds",
        effect="longest busy wait in shared memory before sleeping; -: chosen automatically",
    )  # fmt: skip
    overlap: bool | None = _make_field(
        "SPARK_ESTIMATOR_OVERLAP", None, _parse_bool, unit="1 or 0",
        effect="1: communication overlaps with the backward pass; 0: the waiting thread sends gradients at its end",
    )  # fmt: skip
    hierarchical_allreduce: bool | None = _make_field(
        "HOROVOD_HIERARCHICAL_ALLREDUCE", None, _parse_bool, unit="1 or 0",
        effect="1: reduce within each host first, then across hosts, where possible; 0: never; -: by size; rank 0's "
        "value applies to all ranks",
    )  # fmt: skip
    thread_affinity: tuple[int, ...] | None = _make_field(
        "HOROVOD_THREAD_AFFINITY", None, _parse_cores, unit="cores",
        effect="core that the engine's thread is bound to, one for each local rank: 0,2,4",
    )  # fmt: skip
    dynamic_process_sets: bool = _make_field(
        "HOROVOD_DYNAMIC_PROCESS_SETS", False, _parse_bool, unit="1 or 0",
        effect="1: process sets may be added and removed after init(); same as init(process_sets='dynamic')",
    )  # fmt: skip
    timeline: str = _make_field(
        "HOROVOD_TIMELINE", "", str, unit="path",
        effect="Chrome trace of every operation; when the job has ended, the driver has a single file; one per rank in "
        "an elastic job, or without a connection to the driver; DYNAMIC: starts with start_timeline()",
    )  # fmt: skip
    timeline_rank_files: bool = _make_field(
        "SPARK_ESTIMATOR_TIMELINE_RANK_FILES", False, _parse_bool, unit="1 or 0",
        effect="1: the ranks' own timelines are kept beside the merged one",
    )  # fmt: skip
    timeline_mark_cycles: bool = _make_field(
        "HOROVOD_TIMELINE_MARK_CYCLES", False, _parse_bool, unit="1 or 0",
        effect="1: the trace marks when the engine's thread wakes",
    )  # fmt: skip
    profile: str = _make_field(
        "SPARK_ESTIMATOR_PROFILE", "", str, unit="RANKS:FIRST-LAST",
        effect="PyTorch's profiler runs on these ranks for these steps: 0:10-13 or 0,3:10-13; the traces come to the "
        "driver; spark_estimator.profile() sets it",
    )  # fmt: skip
    profile_folder: str = _make_field(
        "SPARK_ESTIMATOR_PROFILE_FOLDER", "", str, unit="folder",
        effect="where the driver writes the traces of SPARK_ESTIMATOR_PROFILE; -: the current folder",
    )  # fmt: skip
    worker_threads: int | None = _make_field(
        "SPARK_ESTIMATOR_WORKER_THREADS", None, _parse_count, unit="threads",
        effect="threads of numeric libraries in a worker, unless you set OMP_NUM_THREADS for it (on Spark: "
        "spark.executorEnv.OMP_NUM_THREADS); -: the worker's share of the cores; 0: the libraries choose",
    )  # fmt: skip
    worker_malloc: str = _make_field(
        "SPARK_ESTIMATOR_WORKER_MALLOC", "keep", make_word_parser(MALLOCS), unit="kind",
        effect="keep: a worker's glibc keeps freed memory for the next step, on huge pages where possible; system: no "
        "change",
    )  # fmt: skip
    warm_seconds: float = _make_field(
        "SPARK_ESTIMATOR_WARM", 60.0, _parse_seconds, unit="seconds",
        effect="how long a process that has imported what the last job's ranks needed stays, to fork those of the next "
        "job; 0: each rank is a new process",
    )  # fmt: skip
    gpu_operations: str = _make_field(
        # Horovod's own images set MPI, which is what they were built with.
        "HOROVOD_GPU_OPERATIONS", "auto", make_word_parser(GPU_OPERATIONS, {"mpi": "auto"}), unit="kind",
        effect="how PyTorch's CUDA tensors travel: nccl: by NCCL, a GPU for each rank; staged: through pinned host "
        "memory, also for ranks that share a GPU; auto: nccl where all ranks can, else staged; copy: PyTorch copies "
        "them to host memory and back; the same on all ranks (MPI, as Horovod's images have it: auto)",
    )  # fmt: skip
    cuda_library: str = _make_field(
        "SPARK_ESTIMATOR_CUDA_LIBRARY", "", _parse_file, unit="path",
        effect="CUDA runtime (libcudart.so); default: the loaded one, such as PyTorch's, else of NVIDIA's wheel",
    )  # fmt: skip
    nccl_library: str = _make_field(
        "SPARK_ESTIMATOR_NCCL_LIBRARY", "", _parse_file, unit="path",
        effect="NCCL (libnccl.so); default: the loaded one, such as PyTorch's, else of NVIDIA's wheel",
    )  # fmt: skip
    driver_channel: bool = _make_field(
        "SPARK_ESTIMATOR_DRIVER_CHANNEL", True, _parse_bool, unit="1 or 0",
        effect="0: workers don't connect to the driver; their output comes through SPARK_ESTIMATOR_LOG_DIR, or else "
        "the last lines are shown when the job ends",
    )  # fmt: skip
    log_folder: str = _make_field(
        "SPARK_ESTIMATOR_LOG_DIR", "", _parse_folder, unit="folder",
        effect="shared folder with the same path on driver and executors: workers that can't connect to the driver "
        "write their output there, one file per rank, and the driver shows it as it comes; -: only the last lines are "
        "shown, when the job ends",
    )  # fmt: skip
    status_line: bool = _make_field(
        "SPARK_ESTIMATOR_STATUS_LINE", True, _parse_bool, unit="1 or 0",
        effect="0: launchers show no status line while a job runs, and estimators no progress; by default they do on a "
        "terminal or in a notebook, and estimators print theirs elsewhere. Nor are slow ranks named",
    )  # fmt: skip
    spool_folder: str = _make_field(
        SPOOL_VARIABLE, "", str, unit="folder",
        effect="where each host keeps its ranks' rows during training; memory: in memory, as by default where "
        "spark.io.encryption.enabled is true; else the default is Spark's local folder (SPARK_LOCAL_DIRS), or the "
        "system's temporary folder",
    )  # fmt: skip
    table_folders: tuple[str, ...] = _make_field(
        "SPARK_ESTIMATOR_TABLE_FOLDERS", (), _parse_folders, unit="folders",
        effect="comma-separated folders and URLs below which a Delta table's log may name files that are not below its "
        "own folder, as a shallow clone's are not",
    )  # fmt: skip
    ssh_command: str = _make_field(
        "SPARK_ESTIMATOR_SSH_COMMAND", "ssh", str, unit="command",
        effect="command with which launchers reach other hosts, with options if needed: ssh -F my_config",
    )  # fmt: skip
    remote_python: str = _make_field(
        "SPARK_ESTIMATOR_REMOTE_PYTHON", "", str, unit="path",
        effect="Python interpreter on hosts reached by ssh; -: same path as on the launcher's host",
    )  # fmt: skip
    rendezvous_fd: int | None = _make_field(
        RENDEZVOUS_FD_VARIABLE, None, _parse_count, unit="descriptor",
        effect="set by the launcher: descriptor from which the process reads its rank and its peers",
    )  # fmt: skip
    attempt: int = _make_field(
        ATTEMPT_VARIABLE, 1, _parse_positive_count, unit="attempts",
        effect="set by launchers: 1 for the first attempt, one more after each restart (max_restarts)",
    )  # fmt: skip
    launched_size: int | None = _make_field(
        "HOROVOD_SIZE", None, _parse_count, unit="ranks",
        effect="set by launchers for scripts; init() warns when it differs from the size of the job, and raises an "
        "error when it is more than 1 and no launcher of spark_estimator started the process",
    )  # fmt: skip
    ignore_launcher: bool = _make_field(
        IGNORE_LAUNCHER_VARIABLE, False, _parse_bool, unit="1 or 0",
        effect="1: init() starts a job of one rank in a process that mpirun, srun, torchrun or another launcher "
        "started in a job of several; 0: init() joins that job",
    )  # fmt: skip
    job_key: str = dataclasses.field(default="", repr=False, metadata={
        "variable": JOB_KEY_VARIABLE, "parse": str, "unit": "key",
        "effect": "secret of at least 32 characters, the same in all processes that mpirun, srun or the like started: "
        "by it they join one job, with MASTER_ADDR as rank 0's host. Not shown",
    })  # fmt: skip
    job_key_file: str = _make_field(
        "SPARK_ESTIMATOR_JOB_KEY_FILE", "", _parse_file, unit="file",
        effect="file on each host that holds such a secret, and that its user alone can read; -: "
        "~/.spark_estimator/job_key, if it is there. For launchers that send the environment over the network in clear",
    )  # fmt: skip
    job_folder: str = _make_field(
        "SPARK_ESTIMATOR_JOB_FOLDER", "", _parse_folder, unit="folder",
        effect="folder that all hosts of such a job share, in which rank 0 leaves a key for the others; -: "
        "~/.spark_estimator/jobs",
    )  # fmt: skip
    elastic: bool = _make_field(
        "HOROVOD_ELASTIC", False, _parse_bool, unit="1 or 0",
        effect="set by the launcher of an elastic job",
    )  # fmt: skip
    elastic_timeout_seconds: float = _make_field(
        "HOROVOD_ELASTIC_TIMEOUT", 600.0, _parse_positive_seconds, unit="seconds",
        effect="time that the launcher of an elastic job waits for the ranks of a new round; same as --elastic-timeout",
    )  # fmt: skip
    standby: int = _make_field(
        "SPARK_ESTIMATOR_STANDBY", 0, _parse_count, unit="processes",
        effect="processes that an elastic job, or a fit with max_restarts, starts in free slots beside its ranks, to "
        "replace lost ranks at once",
    )  # fmt: skip
    replace_within_seconds: float = _make_field(
        "SPARK_ESTIMATOR_REPLACE_WITHIN", 120.0, _parse_seconds, unit="seconds",
        effect="time that a fit with max_restarts waits for a process that replaces a lost rank, before it continues "
        "on fewer ranks",
    )  # fmt: skip
    preemption_signal: str = _make_field(
        "SPARK_ESTIMATOR_PREEMPTION_SIGNAL", "", _parse_signal, unit="name",
        effect="signal by which a rank, or a host's agent, learns that its machine is about to be taken back: SIGTERM, "
        "SIGUSR1, SIGUSR2, SIGPWR; not set: none. It then ends no rank; what ends a job kills its ranks",
    )  # fmt: skip
    preemption_command: str = _make_field(
        "SPARK_ESTIMATOR_PREEMPTION_COMMAND", "", _parse_command, unit="command",
        effect="command that each rank runs every 5 seconds, without a shell; when it succeeds, the rank's machine is "
        "about to be taken back",
    )  # fmt: skip
    launched_local_size: int | None = _make_field(
        "HOROVOD_LOCAL_SIZE", None, _parse_positive_count, unit="ranks",
        effect="set by launchers for scripts; `env` shows decisions for this number of ranks on a host",
    )  # fmt: skip

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `environ` (default: the process's environment). An empty value counts as unset.

        Raises:
            ValueError: a value is invalid; the message names the variable, the value and the expected form.
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
                f"SPARK_ESTIMATOR_HEARTBEAT_SECONDS={settings.heartbeat_seconds:g}, so that one late heartbeat "
                "doesn't count as a lost rank."
            )
        return settings

    @classmethod
    def is_set(cls, field: str, environ: Mapping[str, str] | None = None) -> bool:
        """Return whether the variable of a field has a value in `environ` (default: the process's environment)."""
        environ = os.environ if environ is None else environ
        return bool(environ.get(cls.__dataclass_fields__[field].metadata["variable"], "").strip())

    def describe(self, decided: Mapping[str, Decision] | None = None, environ: Mapping[str, str] | None = None) -> str:
        """Return a table with a line for each variable: name, current value, its source, default, unit, effect.

        Below it: Horovod's variables without effect here, and variables that are set but that nothing reads.

        Args:
            decided: the values, by field, that the process chooses where no variable is set.
            environ: the environment that the settings were read from; default: the process's environment.
        """
        environ = os.environ if environ is None else environ
        rows = [("variable", "in force", "from", "default", "unit", "effect")]
        for field in dataclasses.fields(self):
            variable = field.metadata["variable"]
            value, default = getattr(self, field.name), field.default
            in_force, why = "(set)" if value and not field.repr else _format(value), "default"
            if environ.get(variable, "").strip():
                why = "environment"
            elif value != default:
                why = "another variable"
            elif decided and field.name in decided:
                decision = decided[field.name]
                in_force, why = "auto" if decision.value < 0 else str(decision.value), decision.why
            rows.append((variable, in_force, why, _format(default), field.metadata["unit"], field.metadata["effect"]))
        lines = align_columns(rows)
        lines += ["", "Horovod variables without effect:"]
        lines += align_columns(
            [(name, environ.get(name, "").strip() or "-", why) for name, why in WITHOUT_EFFECT.items()]
        )
        lines += ["", "Variables that launchers set for scripts; other values have no effect:"]
        lines += align_columns(
            [(name, environ.get(name, "").strip() or "-", why) for name, why in SET_FOR_SCRIPTS.items()]
        )
        unknown = find_unread_variables(environ)
        if unknown:
            lines += ["", "Set, but not read by anything (misspelled?): " + ", ".join(unknown)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Decision:
    """A value that the process chooses because its variable is not set.

    Attributes:
        value: the chosen value, as the engine takes it; -1: the engine decides at run time.
        why: the reason, for messages.
    """

    value: int
    why: str


#: Horovod's variables without effect here, with the reason.
WITHOUT_EFFECT = {
    "HOROVOD_CYCLE_TIME": "the engine has no cycle: each request wakes it",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is negotiated as a unit, and fusion doesn't change its results",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "the allgather algorithm is selected by size and hosts",
    "HOROVOD_TORUS_ALLREDUCE": "HOROVOD_HIERARCHICAL_ALLREDUCE is the only algorithm by hosts",
    **dict.fromkeys(
        (
            "HOROVOD_AUTOTUNE",
            "HOROVOD_AUTOTUNE_LOG",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
            "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        ),
        "no parameters are tuned: the engine chooses algorithms by size and hosts",
    ),
    "HOROVOD_NUM_NCCL_STREAMS": "the engine uses one separate stream",
    **dict.fromkeys(
        (f"HOROVOD_GPU_{op}" for op in ("ALLREDUCE", "ALLGATHER", "ALLTOALL", "BROADCAST", "REDUCESCATTER")),
        "a build option of Horovod; HOROVOD_GPU_OPERATIONS applies to all operations",
    ),
    "HOROVOD_BATCH_D2D_MEMCOPIES": "grouped tensors are sent without being copied into one buffer",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "completion is always asynchronous: only streams wait for each other",
    "HOROVOD_DISABLE_NVTX_RANGES": "the engine has no NVTX ranges",
    "HOROVOD_ENABLE_XLA_OPS": "the engine has no XLA operations",
    "HOROVOD_MPI_THREADS_DISABLE": "the engine doesn't use MPI",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum doesn't use MPI and has no chunks",
    "HOROVOD_CCL_CACHE": "the engine doesn't use oneCCL",
    "HOROVOD_CCL_BGT_AFFINITY": "the engine doesn't use oneCCL; see HOROVOD_THREAD_AFFINITY",
    "HOROVOD_GLOO_IFACE": "the launcher selects the address where a rank listens",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "the launcher sends each rank the addresses of its peers",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "the launcher sends each rank the addresses of its peers",
    "HOROVOD_SECRET_KEY": "the launcher sends each rank the job's key through a pipe, not in its environment",
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "the GPU with the index of the local rank is the one that Spark gave",
    "HOROVOD_SPARK_WORK_DIR": "a rank works in the folder of its Spark task",
    "HOROVOD_SPARK_PYTHONPATH": "a rank has the Python path of its Spark task",
    **dict.fromkeys(
        (
            *(f"HOROVOD_{w}_{part}" for w in ("WITH", "WITHOUT") for part in ("PYTORCH", "TENSORFLOW", "MXNET")),
            *(f"HOROVOD_{w}_{part}" for w in ("WITH", "WITHOUT") for part in ("GLOO", "MPI", "NVTX")),
            *(f"HOROVOD_NCCL_{part}" for part in ("HOME", "INCLUDE", "LIB", "LINK")),
            *("HOROVOD_CUDA_HOME", "HOROVOD_ROCM_HOME", "HOROVOD_GPU", "HOROVOD_ALLOW_MIXED_GPU_IMPL"),
            *("HOROVOD_BUILD_ARCH_FLAGS", "HOROVOD_BUILD_CUDA_CC_LIST", "HOROVOD_CMAKE", "HOROVOD_DEBUG"),
        ),
        "an option of Horovod's build; the wheel has one form for all machines",
    ),
}

#: Variables that launchers set for scripts to read, with their meaning.
SET_FOR_SCRIPTS = {
    "HOROVOD_RANK": "the rank of the process, 0 to size - 1",
    "HOROVOD_SIZE": "the number of ranks of the job",
    "HOROVOD_LOCAL_RANK": "the index of the rank on its host",
    "HOROVOD_LOCAL_SIZE": "the number of ranks on the host",
    "HOROVOD_CROSS_RANK": "the index of the host among the hosts that have a rank with this local rank",
    "HOROVOD_CROSS_SIZE": "the number of hosts that have a rank with this local rank",
    "HOROVOD_HOSTNAME": "the name of the rank's host",
    "HOROVOD_CONTROLLER": "gloo, for scripts that check it",
    "HOROVOD_CPU_OPERATIONS": "gloo, for scripts that check it",
}

#: Variables that launchers set for their own workers, with their meaning.
SET_FOR_WORKERS = {
    JOB_VARIABLE: "the identifier of the attempt; not secret",
    JOINED_VARIABLE: "set by init() to the job of another launcher that it joined, for processes that a rank starts",
    PROCESS_VARIABLE: "a mark by which the supervisor finds processes that the worker left behind",
    SPARK_FILES_VARIABLE: "the folder with the files of SparkContext.addFile, for SparkFiles.get",
    FEED_FD_VARIABLE: "descriptor from which the worker reads its rows of a DataFrame",
    WORKER_CHOICES_VARIABLE: "the settings of threads and memory that the launcher chose for the worker",
    PROGRESS_FD_VARIABLE: "descriptor to which the worker writes its progress",
    MASTER_VARIABLE: "the MASTER_ADDR:MASTER_PORT that the launcher set; torch's env:// store is authenticated there",
    "ACCELERATE_USE_CPU": "true in a rank that sees no GPU: Hugging Face's Accelerate and Trainer then use all ranks",
}


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines with aligned columns. The last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([cell.ljust(width) for cell, width in zip(cells, widths, strict=True)] + [last])
        for *cells, last in rows
    ]


def _format(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _list_known_variables() -> set[str]:
    fields = {field.metadata["variable"] for field in dataclasses.fields(Settings)}
    return fields | WITHOUT_EFFECT.keys() | SET_FOR_SCRIPTS.keys() | SET_FOR_WORKERS.keys()


def find_unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables with one of the prefixes that nothing reads, such as misspelled ones."""
    names = (name for name in environ if name.startswith(("HOROVOD_", "SPARK_ESTIMATOR_")))
    return sorted(set(names) - _list_known_variables())


def find_misspelled_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that nothing reads and whose names resemble a setting's, with that name.

    Args:
        environ: where to look; default: the process's environment.
    """
    environ = os.environ if environ is None else environ
    known = _list_known_variables()
    close = {name: difflib.get_close_matches(name, known, 1, 0.9) for name in find_unread_variables(environ)}
    return {name: matches[0] for name, matches in close.items() if matches}


def requests_autotune() -> bool:
    """Return whether this process's environment asks for autotuning, which has no effect."""
    return os.environ.get("HOROVOD_AUTOTUNE", "").strip().lower() in ("1", "true", "yes", "on")


def find_gpu_hiding() -> str:
    """Return the setting that hides all GPUs from CUDA here, such as ``CUDA_VISIBLE_DEVICES=''``; "": none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"CUDA_VISIBLE_DEVICES={visible!r}" if visible is not None and visible.strip() in ("", "-1") else ""


def make_horovod_variables(topology: _Ranks, hostname: str) -> dict[str, str]:
    """Make the variables that Horovod's launcher sets for a rank, for scripts that read them.

    Args:
        topology: the rank, and its position in the job and on its host.
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


def set_rank_variables(topology: _Ranks, hostname: str, more: Mapping[str, str]) -> None:
    """Update this process's environment for the next round, by `make_horovod_variables` and `more`."""
    os.environ.update({**make_horovod_variables(topology, hostname), **more})
