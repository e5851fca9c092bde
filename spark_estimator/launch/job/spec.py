"""The values that a launcher sends to its supervisors and workers; and the assignment of ranks.

`JobSpec` goes from the driver to every supervisor, `TaskFacts` from each supervisor to all others, `WorkerSpec` from a
supervisor to its worker. The key of the job is only in the last one, and is sent only through the worker's stdin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_estimator.collectives.rendezvous import Endpoint, PeerFacts, Rendezvous, host_id, make_job_id
from spark_estimator.collectives.torch_variables import make_torch_variables
from spark_estimator.compat.importer import make_worker_variables
from spark_estimator.env import ATTEMPT_VARIABLE, Settings, make_horovod_variables
from spark_estimator.launch.job.gpus import Pinning, TaskGpus, pin_gpus
from spark_estimator.launch.job.options import MAX_RESULT_BYTES, JobOptions
from spark_estimator.launch.job.pickling import describe_function, dump_function
from spark_estimator.launch.job.versions import read_own_versions
from spark_estimator.observe.profiling import check_ranks
from spark_estimator.observe.status_line import wants_progress
from spark_estimator.peer_json import parse_object
from spark_estimator.security.encryption import Policy, check_encryption

_PRELOADABLE = ("torch", "tensorflow")
# The pickle's opcode SHORT_BINUNICODE, its length, and a name such as ``horovod.torch``: a docstring is none.
_SHORT_TEXT = re.compile(rb"\x8c(.)(?=([\w.]+))", re.DOTALL)
_READ_AT_IMPORT = re.compile(rb"TORCH(?:_COMPILE|_LOGS|DYNAMO|INDUCTOR)")


@dataclass(frozen=True)
class ChannelAddress:
    """The address of the driver for its supervisors, and the token that proves that they belong to the job.

    The token is sent with the task, as the function does. It opens the driver channel (facts, lines, messages, failure
    reports) but not the ring: the ring's key is made of the token and of what every task draws when it starts.
    """

    host: str
    port: int
    token: bytes = field(repr=False)


@dataclass(frozen=True)
class JobSpec:
    """One job, as the driver describes it to every supervisor.

    Attributes:
        job_id: names this attempt; not secret. Each worker's environment has it as `JOB_VARIABLE`.
        size: number of ranks.
        attempt: how often the job has been started, this time included.
        function: what is run, for messages: ``train()`` or the command.
        payload: cloudpickle of (function, args, kwargs); empty when a command is run.
        command: program and arguments; empty when a function is run.
        environment: variables that every worker gets, before it starts.
        environment_if_unset: the same, for those that its host has not set otherwise.
        preload: modules that a worker imports while its supervisor is still gathering addresses.
        all_results: every rank's value is wanted, not only rank 0's.
        forward_lines: the workers' lines are sent to the driver.
        progress: the workers report how far they are.
        log_folder: shared by executors and driver; for lines if the driver cannot be connected to. '': none.
        driver_host_id: `host_id` of the driver.
        driver_sys_path: where the driver finds modules; used by the workers on its own host.
        channel: None when there is no driver channel.
        max_result_bytes: a rank's larger value is refused.
        versions: of Python and packages on the driver, see ``versions.read_own_versions``.
        gpus_per_rank: as in ``gpus.pin_gpus``.
        encrypted: whether connections between hosts are encrypted.
    """

    job_id: str
    size: int
    function: str
    payload: bytes = field(default=b"", repr=False)
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment_if_unset: Mapping[str, str] = field(default_factory=dict, repr=False)
    preload: tuple[str, ...] = ()
    all_results: bool = False
    forward_lines: bool = True
    progress: bool = False
    log_folder: str = ""
    driver_host_id: str = ""
    driver_sys_path: tuple[str, ...] = ()
    channel: ChannelAddress | None = None
    max_result_bytes: int = MAX_RESULT_BYTES
    attempt: int = 1
    versions: Mapping[str, str] = field(default_factory=read_own_versions, repr=False)
    gpus_per_rank: float | None = None
    encrypted: bool = False

    @classmethod
    def build(
        cls, function: Callable[..., Any], size: int, options: JobOptions, environment: Mapping[str, str] | None = None
    ) -> JobSpec:
        """Make the job that calls `function` on `size` ranks; each launcher adds its own facts by `replace`.

        Args:
            environment: every worker's, before it starts; None: that of `options` as it is.

        Raises:
            TypeError: as `check_call`.
            PicklingError: the function or an argument can't be pickled.
            PreflightError: a rank is to be profiled that the job does not have.
        """
        check_ranks({**os.environ, **options.variables}, size)
        payload = dump_function(function, options.args, options.kwargs or {})
        return cls(
            job_id=make_job_id(),
            size=size,
            function=describe_function(function),
            payload=payload,
            environment={**make_worker_variables(), **(options.variables if environment is None else environment)},
            environment_if_unset=options.environment_if_unset,
            preload=find_modules_to_preload(payload),
            all_results=options.all_results,
            forward_lines=options.show_line is not None,
            progress=wants_progress(options.progress_display),
            driver_host_id=host_id(),
            driver_sys_path=list_sys_path(),
            max_result_bytes=options.max_result_bytes,
            encrypted=requires_encryption(),
        )

    @property
    def result_ranks(self) -> range:
        """Return the ranks whose value is sent."""
        return range(self.size if self.all_results else 1)


def requires_encryption() -> bool:
    """Return whether a job encrypts its connections without regard to Spark. Raises EncryptionUnavailableError."""
    if Settings.read().encryption != Policy.REQUIRE.value:
        return False
    check_encryption()
    return True


@dataclass(frozen=True)
class TaskFacts:
    """The facts that one supervisor sends to all others before ranks exist. Partitions number the supervisors from 0.

    Attributes:
        gpus: what its task has of them.
        key_share: 32 random bytes; the shares of all supervisors and the channel's token make the key of the job.
        versions: of Python and packages, to be compared.
    The others are as in `PeerFacts`.
    """

    host: str
    host_id: str
    address: str
    port: int
    local_name: str
    pid: int
    gpus: TaskGpus = field(default_factory=TaskGpus)
    key_share: bytes = field(default=b"", repr=False)
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return one line. It holds a share of the key: for the driver channel and Spark's own exchange only."""
        return json.dumps({**asdict(self), "key_share": self.key_share.hex()})

    @classmethod
    def from_json(cls, text: str) -> TaskFacts:
        """Make the facts from what `to_json` returned."""
        fields = parse_object(text)
        fields["key_share"] = bytes.fromhex(fields["key_share"])
        gpus = fields["gpus"]
        fields["gpus"] = TaskGpus(tuple(gpus["names"]), tuple(gpus["uuids"]), tuple(gpus["there"]), gpus["visible"])
        return cls(**fields)


@dataclass(frozen=True)
class WorkerSpec:
    """The description that one worker receives through its stdin, before the payload.

    Attributes:
        function, command, all_results: as in `JobSpec`.
        rendezvous: who it is and who the others are; holds the key.
        environment: variables of this rank: HOROVOD_*, CUDA_VISIBLE_DEVICES.
        sys_path: where it finds modules, from now on.
        python_path: PYTHONPATH as its own children shall see it; None removes it.
        max_result_bytes: a larger value is refused.
    """

    function: str
    rendezvous: Rendezvous
    environment: Mapping[str, str] = field(repr=False)
    sys_path: tuple[str, ...] = ()
    python_path: str | None = None
    command: tuple[str, ...] = ()
    all_results: bool = False
    max_result_bytes: int = MAX_RESULT_BYTES

    @property
    def wants_result(self) -> bool:
        """Return whether this rank's value is to be sent."""
        return self.all_results or self.rendezvous.rank == 0

    def to_json(self) -> str:
        """Return the whole value as JSON, key included. Only for the worker's stdin."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({**fields, "rendezvous": self.rendezvous.to_json(), "environment": dict(self.environment)})

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """Make the spec from what `to_json` returned."""
        fields: dict[str, Any] = json.loads(text)
        fields["rendezvous"] = Rendezvous.from_json(fields["rendezvous"])
        fields["sys_path"] = tuple(fields["sys_path"])
        fields["command"] = tuple(fields["command"])
        return cls(**fields)


def assign_ranks(host_ids: Sequence[str]) -> list[int]:
    """Return the rank of each partition: ranks of a host are contiguous, in partition order; partition 0 is rank 0.

    Args:
        host_ids: [partitions] the host of each partition. Hosts are ordered by their lowest partition.

    Returns:
        [partitions] ranks, a permutation of 0 ... n-1.
    """
    hosts = list(dict.fromkeys(host_ids))
    order = sorted(range(len(host_ids)), key=lambda partition: (hosts.index(host_ids[partition]), partition))
    ranks = [0] * len(host_ids)
    for rank, partition in enumerate(order):
        ranks[partition] = rank
    return ranks


def derive_job_key(shares: Sequence[bytes], token: bytes, job_id: str) -> bytes:
    """Derive the key that all ranks compute alike from what each has contributed, 32 bytes.

    A process that has listened to the exchange knows the shares but not the token, which was sent with the task;
    a process that can read a task's description knows the token but not the shares.

    Args:
        shares: [partitions] 32 random bytes each.
        token: of the driver channel; empty without one.
    """
    return hashlib.sha256(b"".join(shares) + token + job_id.encode()).digest()


def make_rendezvous(everyone: Sequence[TaskFacts], partition: int, job: JobSpec, endpoint: Endpoint) -> Rendezvous:
    """Make the rendezvous of the worker of `partition`.

    Args:
        everyone: [partitions] all supervisors' facts.
        endpoint: the sockets that this worker has inherited, under the numbers that they have here.
    """
    ranks = assign_ranks([facts.host_id for facts in everyone])
    peers = sorted(
        (
            PeerFacts(rank, facts.host, facts.host_id, facts.address, facts.port, facts.local_name, facts.pid)
            for rank, facts in zip(ranks, everyone, strict=True)
        ),
        key=lambda peer: peer.rank,
    )
    return Rendezvous(
        job_id=job.job_id,
        key=derive_job_key(
            [facts.key_share for facts in everyone], job.channel.token if job.channel else b"", job.job_id
        ),
        rank=ranks[partition],
        peers=tuple(peers),
        listen_fd=endpoint.tcp.fileno(),
        local_fd=-1 if endpoint.local is None else endpoint.local.fileno(),
        encrypted=job.encrypted,
    )


def pin_worker_gpus(everyone: Sequence[TaskFacts], partition: int, job: JobSpec) -> Pinning:
    """Return the GPUs that the worker of `partition` shall see. Raises ValueError: as ``gpus.pin_gpus``."""
    host = everyone[partition].host_id
    here = [number for number, facts in enumerate(everyone) if facts.host_id == host]
    return pin_gpus([everyone[number].gpus for number in here], here.index(partition), job.gpus_per_rank)


def make_worker_spec(job: JobSpec, rendezvous: Rendezvous, variables: Mapping[str, str] | None = None) -> WorkerSpec:
    """Make the spec that the calling supervisor sends to the worker that becomes `rendezvous.rank`."""
    peer = rendezvous.peers[rendezvous.rank]
    environment = {**make_horovod_variables(rendezvous.topology, peer.host), **(variables or {})}
    if rendezvous.awaited:  # not known yet
        environment = {name: value for name, value in environment.items() if not name.endswith(("_RANK", "_SIZE"))}
    else:
        environment |= make_torch_variables(rendezvous)
    environment[ATTEMPT_VARIABLE] = str(job.attempt)
    sys_path = list(sys.path)
    if job.driver_host_id == host_id():
        # Modules beside the user's script can be imported on the driver; on the driver's host also here.
        sys_path += [entry for entry in job.driver_sys_path if entry not in sys_path]
    asked_for = job.environment.get("PYTHONPATH")
    if asked_for is not None:
        sys_path += [entry for entry in asked_for.split(os.pathsep) if entry and entry not in sys_path]
    return WorkerSpec(
        function=job.function,
        rendezvous=rendezvous,
        environment=environment,
        sys_path=tuple(sys_path),
        python_path=os.environ.get("PYTHONPATH") if asked_for is None else asked_for,
        command=job.command,
        all_results=job.all_results,
        max_result_bytes=job.max_result_bytes,
    )


def find_modules_to_preload(payload: bytes) -> tuple[str, ...]:
    """Find what the payload names, and the driver has loaded: importing it before the function runs hides its cost.

    These are the frameworks, and this package's modules, also by Horovod's names. It is none where the function names a
    variable that PyTorch reads when it is imported, since the function may set it before.

    Args:
        payload: a pickle of protocol 4 or later.
    """
    if _READ_AT_IMPORT.search(payload):
        return ()
    names = {head[2][: head[1][0]] for head in _SHORT_TEXT.finditer(payload) if len(head[2]) >= head[1][0]}
    modules = [part for part in _PRELOADABLE if part in sys.modules and any(part.encode() in name for name in names)]
    for name in sorted(names):
        module = re.sub(rb"^horovod\b", b"spark_estimator", name).decode()
        # Keras has to be imported after the choice of its backend, which the function makes.
        if module in sys.modules and module.startswith("spark_estimator.") and "keras" not in module:
            modules.append(module)
    return tuple(modules)


def list_sys_path() -> tuple[str, ...]:
    """Return this process's module search path, with the current folder spelled out."""
    return tuple(entry or os.getcwd() for entry in sys.path)
