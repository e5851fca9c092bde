"""The planner: from a seed and a number to one run, which is a job, its faults and their moments. Pure."""

from __future__ import annotations

import enum
import json
import random
import shlex
from dataclasses import asdict, dataclass

#: Collectives that a step can have; what each computes does not depend on the number of ranks.
OPERATIONS = ("allreduce", "min", "max", "allgather", "broadcast", "alltoall", "reducescatter", "grouped", "barrier")
#: Columns of a step's table: from a scalar to what takes the socket's buffers many times over.
WIDTHS = (1, 17, 1_000, 60_000, 400_000)


class Launcher(enum.Enum):
    """How the job is started."""

    #: ``HorovodRunner(np=-n)``: processes of this host.
    LOCAL = "local"
    #: The same, each rank as if on a separate host, behind a proxy.
    LINKS = "links"
    #: ``horovodrun`` with a command.
    COMMAND = "horovodrun"
    #: An elastic job on this host, which continues with fewer ranks.
    ELASTIC = "elastic"
    #: An elastic job on this host with ``mode="step"``, which replaces lost ranks, and with checkpoints beside it.
    RECOVERY = "recovery"
    #: ``horovod.spark.run`` in a local Spark session.
    SPARK = "spark"

    @property
    def is_elastic(self) -> bool:
        """Whether the job continues when it loses a rank."""
        return self in (Launcher.ELASTIC, Launcher.RECOVERY)


class Kind(enum.Enum):
    """What happens."""

    # The process ends.
    KILL = "kill"
    SEGFAULT = "segfault"
    ABORT = "abort"
    RAISE = "raise"
    RETURN = "return"
    SYS_EXIT = "sys.exit"
    OS_EXIT = "os._exit"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    # The process is silent.
    FREEZE = "freeze"
    STUCK = "stuck"
    # A link is.
    CUT = "cut"
    ONE_WAY = "one-way cut"
    RESET = "reset"
    CORRUPT = "corrupt"
    # It may have no effect.
    PAUSE = "pause"
    GIL = "gil"
    SLOW = "slow"
    STRANGERS = "strangers"
    FULL_DISK = "full disk"
    DELAY = "delay"
    FLAP = "flap"


HARMLESS = frozenset({Kind.PAUSE, Kind.GIL, Kind.SLOW, Kind.STRANGERS, Kind.FULL_DISK, Kind.DELAY, Kind.FLAP})
#: Only other ranks notice this one.
SILENT = frozenset({Kind.STUCK})
LINKS = frozenset({Kind.CUT, Kind.ONE_WAY, Kind.RESET, Kind.CORRUPT, Kind.DELAY, Kind.FLAP})
#: The training's own thread does these, between two steps or within one; a timer does the others at any moment.
BY_PROGRAM = frozenset(
    {Kind.RAISE, Kind.RETURN, Kind.SYS_EXIT, Kind.DESCRIPTORS, Kind.MEMORY, Kind.STUCK, Kind.SLOW, Kind.FULL_DISK}
)
#: What an elastic job is not asked to survive: a rank that ends well has done its work, as far as the launcher knows.
_NOT_ELASTIC = frozenset({Kind.RETURN})


@dataclass(frozen=True)
class Fault:
    """One fault of a run.

    Attributes:
        kind: of fault.
        rank: on which it happens; of a link: the rank before which the proxy is.
        step: -1: before ``init()``; the number of steps: after the last one, before the rank returns.
        milliseconds: after the step has begun; of `Kind.GIL` and `Kind.SLOW`: how long it lasts.
    """

    kind: Kind
    rank: int
    step: int
    milliseconds: int


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        seed, number: what it is made from.
        launcher: how it is started.
        size: number of ranks.
        encrypted: whether the ranks encrypt their connections.
        shared_memory: whether ranks of a host share memory.
        operations: the collectives of each step.
        width: columns of each step's table.
        pace: milliseconds that each rank computes in each step.
        faults: what happens.
    """

    seed: str
    number: int
    launcher: Launcher
    size: int
    encrypted: bool
    shared_memory: bool
    operations: tuple[tuple[str, ...], ...]
    width: int
    pace: int
    faults: tuple[Fault, ...]

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.operations)

    @property
    def replaces_first(self) -> bool:
        """Whether a `Launcher.RECOVERY` job waits for a new process before it continues with fewer ranks."""
        return self.number % 2 == 0

    @property
    def command(self) -> str:
        """The one command that repeats it."""
        return f"make chaos SEED={shlex.quote(self.seed)} RUN={self.number}"

    def to_json(self) -> str:
        """For the ranks."""
        fields = asdict(self) | {"launcher": self.launcher.value}
        fields["faults"] = [asdict(fault) | {"kind": fault.kind.value} for fault in self.faults]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Run:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        faults = tuple(Fault(**{**fault, "kind": Kind(fault["kind"])}) for fault in fields["faults"])
        operations = tuple(map(tuple, fields["operations"]))
        return cls(**{**fields, "launcher": Launcher(fields["launcher"]), "operations": operations, "faults": faults})

    def __str__(self) -> str:
        happens = "; ".join(
            f"{fault.kind.value} on rank {fault.rank}, step {fault.step} + {fault.milliseconds} ms"
            for fault in self.faults
        )
        options = " encrypted" * self.encrypted + " shared" * self.shared_memory
        return (
            f"{self.launcher.value}, np={self.size}{options}, {self.steps} steps of {self.width} columns: "
            f"{happens or 'no fault'}"
        )


def plan(seed: str, number: int) -> Run:
    """The run with this number; the same for the same arguments, on every machine."""
    chance = random.Random(f"{seed}/{number}")
    weights = {Launcher.LOCAL: 8, Launcher.LINKS: 6, Launcher.COMMAND: 3, Launcher.ELASTIC: 6, Launcher.SPARK: 2}
    launcher = chance.choices(list(weights), list(weights.values()))[0]
    if launcher is Launcher.ELASTIC and chance.random() < 0.5:
        launcher = Launcher.RECOVERY
    size = chance.choice((1, 2, 2, 2, 3, 3, 4))
    if launcher is Launcher.LINKS:
        size = max(2, size)
    width = chance.choice(WIDTHS)
    pace = 30 if launcher is Launcher.LINKS else chance.choice((0, 5, 30))
    steps = chance.randint(2, 12)
    operations = tuple(tuple(chance.choices(OPERATIONS, k=chance.randint(1, 4))) for _ in range(steps))
    # Every run ends with a collective, so that a rank that is missing is missed.
    operations = (*operations, ("allreduce",))
    encrypted = chance.random() < 0.35
    count = chance.choices((0, 1, 2, 3), (2, 6, 3, 1))[0]
    kinds = _kinds(launcher, size, encrypted)
    faults: list[Fault] = []
    for _ in range(count):
        fault = _fault(chance, chance.choice(kinds), size, len(operations))
        silent = {other.rank for other in (*faults, fault) if other.kind in SILENT}
        if len(silent) < size:  # a rank is left that misses those
            faults.append(fault)
    return Run(seed, number, launcher, size, encrypted, chance.random() < 0.6, operations, width, pace, tuple(faults))


def _kinds(launcher: Launcher, size: int, encrypted: bool) -> list[Kind]:
    """What can happen to such a job."""
    kinds = [kind for kind in Kind if kind not in LINKS]
    if launcher is Launcher.LINKS:
        # A flipped bit of a tensor shows only where the ranks encrypt.
        kinds = kinds[::2] + [kind for kind in LINKS if encrypted or kind is not Kind.CORRUPT] * 2
        kinds.sort(key=lambda kind: kind.value)
    if launcher is Launcher.RECOVERY:
        # As the fault limits the size of files, the copies in memory and the writers of the rank would have it, too.
        kinds.remove(Kind.FULL_DISK)
    if launcher.is_elastic:
        kinds = [kind for kind in kinds if kind not in _NOT_ELASTIC]
    if size == 1:
        kinds = [kind for kind in kinds if kind not in SILENT]
    return kinds


def _fault(chance: random.Random, kind: Kind, size: int, steps: int) -> Fault:
    rank = chance.randrange(1 if kind in LINKS else 0, size)
    step = chance.randint(-1, steps)
    if kind is Kind.DESCRIPTORS:
        step = -1
    if kind in (Kind.RETURN, Kind.STUCK, Kind.FULL_DISK, Kind.STRANGERS):
        step = chance.randrange(steps)
    lasting = (100, 300, 1_000) if kind in (Kind.GIL, Kind.SLOW) else (0, 1, 2, 5, 15, 40)
    return Fault(kind, rank, step, chance.choice(lasting))
