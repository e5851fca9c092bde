"""Tracks which host each process of an elastic job is on, which hosts have free slots, and which are out. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from spark_estimator.launch.job.hosts import Host

#: A host is not used again after this number of failed ranks.
FAILURES = 3


@dataclass(frozen=True)
class Cooldown:
    """How long a host is out that has failed: `first`, then twice as long each time, and never longer than `most`."""

    first: timedelta
    most: timedelta

    def __post_init__(self) -> None:
        if not timedelta(0) < self.first <= self.most:
            raise ValueError(
                f"a cool-down of {self.first.total_seconds():g} to {self.most.total_seconds():g} seconds: it is more "
                "than 0, and the second number is no less than the first."
            )

    def get_seconds(self, times: int) -> float:
        """Return how long a host is out for the `times`-th time, from 1."""
        return min(self.first.total_seconds() * 2.0 ** min(times - 1, 60), self.most.total_seconds())


#: How long a machine that is about to be taken back is left alone. Then the warning was wrong.
WARNED_FOR = timedelta(minutes=5)

#: Where no other was asked for.
WHILE_IT_BOOTS = Cooldown(timedelta(seconds=10), timedelta(minutes=10))


class Placement:
    """The slots of a job's hosts. Times are seconds, on a clock of the caller's.

    A host is *out* when it was out of contact, or `FAILURES` ranks have failed on it; the last host is never excluded
    for failures. A host stays out permanently, or until its cool-down is over.

    Args:
        hosts: in the order in which they are filled.
        cooldown: None: a host that is out stays out.

    Attributes:
        warnings: processes that the launcher has to warn, and why their machines are taken back.
    """

    def __init__(self, hosts: Sequence[Host], cooldown: Cooldown | None = None) -> None:
        self._slots = {host.name: host.slots for host in hosts}
        self._cooldown = cooldown
        self.warnings: dict[int, str] = {}
        self._warned: set[str] = set()
        self._taken: dict[int, str] = {}
        self._out: dict[str, float] = {}  # until when
        self._failures: Counter[str] = Counter()
        self._times_out: Counter[str] = Counter()

    @property
    def room(self) -> int:
        """Return how many processes there can be at the same time."""
        return sum(self._list_usable().values())

    @property
    def some_may_return(self) -> bool:
        """Return whether a host is out that will be used again."""
        return any(until < math.inf for host, until in self._out.items() if host in self._slots)

    def take(self, process: int) -> str:
        """Take the first free slot for a process about to be started. Return its host. Raises LookupError: none."""
        taken = Counter(self._taken.values())
        for host, slots in self._list_usable().items():
            if taken[host] < slots:
                self._taken[process] = host
                return host
        raise LookupError(f"all {self.room} slots are taken")

    def leave(self, process: int) -> None:
        """Free the slot of a process that has ended."""
        self._taken.pop(process, None)

    def offer(self, hosts: Sequence[Host]) -> list[str]:
        """Replace the list of hosts, of which known ones keep their places. Return a text for each changed host."""
        offered = {host.name: host.slots for host in hosts}
        changes = [f"{name} is gone" for name in self._slots if name not in offered]
        for name, slots in offered.items():
            before = self._slots.get(name, 0)
            if slots != before:
                has = f"{name} has {slots} slot{'s' * (slots != 1)}"
                changes.append(has + (f", before {before}" if before else ""))
        stay = {name: offered[name] for name in self._slots if name in offered}
        self._slots = stay | offered
        return changes

    def note_loss(self, host: str, now: float) -> str:
        """Note that a host is out of contact. Return for how long it is out, in words; '' when that is not new."""
        return self._put_out(host, now, self._cooldown) if host in self._list_usable() else ""

    def note_unreachable(self, host: str, now: float) -> str:
        """Note that a host was unavailable for a new process: as `note_loss`, but it may only just be booting."""
        return self._put_out(host, now, self._cooldown or WHILE_IT_BOOTS) if host in self._list_usable() else ""

    def note_warning(self, process: int, now: float) -> bool:
        """Note that a process's machine is about to be taken back. Return whether other slots may be used instead."""
        usable, host = self._list_usable(), self._taken[process]
        others = usable.keys() - {host}
        if host in usable and others:
            self._put_out(host, now, Cooldown(WARNED_FOR, WARNED_FOR))
            self._warned.add(host)
        return bool(others)

    def find_warned(self) -> list[int]:
        """Return those of `find_surplus` that are there because their machines are about to be taken back."""
        return [process for process, host in self._taken.items() if host in self._warned]

    def note_failure(self, host: str, now: float) -> str:
        """Note that a rank has failed on a host. Return for how long the host is out, in words; '' if it isn't."""
        self._failures[host] += 1
        usable = self._list_usable()
        if self._failures[host] < FAILURES or host not in usable or len(usable) == 1:
            return ""
        return self._put_out(host, now, self._cooldown)

    def readmit_hosts(self, now: float) -> list[str]:
        """Use the hosts again whose cool-down is over. Return them."""
        hosts = [host for host, until in self._out.items() if until <= now]
        for host in hosts:
            del self._out[host]
            self._warned.discard(host)
        return [host for host in hosts if host in self._slots]

    def find_surplus(self) -> list[int]:
        """Return the processes without a slot; on a host with fewer slots than processes, the last started."""
        usable, used = self._list_usable(), Counter[str]()
        surplus = []
        for process, host in sorted(self._taken.items()):
            used[host] += 1
            if used[host] > usable.get(host, 0):
                surplus.append(process)
        return surplus

    def _list_usable(self) -> dict[str, int]:
        return {host: slots for host, slots in self._slots.items() if host not in self._out}

    def _put_out(self, host: str, now: float, cooldown: Cooldown | None) -> str:
        self._times_out[host] += 1
        if cooldown is None:
            self._out[host] = math.inf
            return "will not be used again"
        seconds = cooldown.get_seconds(self._times_out[host])
        self._out[host] = now + seconds
        return f"will not be used for {seconds:g} seconds"
