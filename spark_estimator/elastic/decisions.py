"""The user's settings of an elastic job, and the decisions of a `RoundPlanner`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Terms:
    """The user's settings.

    Attributes:
        size: number of ranks to begin with.
        min_size: the least to continue with, 1 <= min_size <= size.
        replace: new processes are started while there is room: to replace lost ones, and more, up to `max_size`.
        max_size: the most ranks that the job may have, if `replace`; None: `size`.
        standby: this number of processes more are started where there is room, if `replace`, and wait to replace
            lost ranks without the time that a process needs to start.
        reset_limit: how many rounds may follow the first; None: any number, as long as there is progress (see
            `FRUITLESS_ROUNDS`).
        timeout: how long to wait for the members of a new round, and for newcomers without whom there are too few.
        patience: how long a round may wait for newcomers before it begins with fewer than `size` ranks. All ranks of
            the last round have to end well. None: a round waits for newcomers only if there are less than `min_size`
            ranks, and `min_size` ranks have to end well.
    """

    size: int
    min_size: int
    replace: bool = False
    reset_limit: int | None = None
    timeout: timedelta = timedelta(seconds=600)
    max_size: int | None = None
    standby: int = 0
    patience: timedelta | None = None

    @property
    def most(self) -> int:
        """Return the most ranks that the job may have."""
        return self.size if self.max_size is None else self.max_size

    @property
    def places(self) -> int:
        """Return the most processes that the job may have."""
        return self.most + self.standby

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.size:
            raise ValueError(
                f"min_size={self.min_size} must be from 1 to size={self.size}, the ranks that the job starts with."
            )
        if self.most < self.size:
            raise ValueError(
                f"max_size={self.max_size} must be at least size={self.size}, the ranks that the job starts with."
            )
        if self.reset_limit is not None and self.reset_limit < 0:
            raise ValueError(f"reset_limit={self.reset_limit} must be at least 0.")
        if self.timeout <= timedelta(0):
            raise ValueError(f"timeout={self.timeout} must be more than 0.")
        if self.patience is not None and self.patience < timedelta(0):
            raise ValueError(f"patience={self.patience} must be at least 0.")


# --- Decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Start the next round with these processes, which all wait. A process's position is its rank."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Announce:
    """Notify these of a waiting newcomer, or of a removed slot, so that they leave the round at the next commit."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Dissolve:
    """Notify these that their round has lost a rank: if they are still connecting, they stop waiting for others."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Start `count` newcomers. `standby`: no rank is missing, and they wait for a loss."""

    count: int
    standby: bool = False


@dataclass(frozen=True)
class Kill:
    """End this process, which the job cannot use any more. `why` follows "was stopped" in messages."""

    process: int
    why: str


@dataclass(frozen=True)
class Release:
    """End these: their slots were removed. It is not a failure, and the job does not need them."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Fail:
    """End the job: it cannot continue. `why` is a sentence."""

    why: str


@dataclass(frozen=True)
class Finish:
    """All members have ended, and enough of them well. What newcomers there are is to be ended."""


Decision = Begin | Announce | Dissolve | Start | Kill | Release | Fail | Finish
