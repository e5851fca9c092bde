"""On which host each process of an elastic job is, and where there is room for another. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_estimator.launch.hosts import Host


class Seats:
    """The slots of a job's hosts. A host that was lost is not used again.

    Args:
        hosts: in the order in which they are filled.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._slots = {host.name: host.slots for host in hosts}
        self._taken: dict[int, str] = {}

    @property
    def room(self) -> int:
        """How many processes there can be at the same time."""
        return sum(self._slots.values())

    def take(self, process: int) -> str:
        """The host of a process that is about to be started: the first with a free slot.

        Raises:
            LookupError: there is none.
        """
        taken = list(self._taken.values())
        for host, slots in self._slots.items():
            if taken.count(host) < slots:
                self._taken[process] = host
                return host
        raise LookupError(f"all {self.room} slots are taken")

    def leave(self, process: int) -> None:
        """A process is gone."""
        self._taken.pop(process, None)

    def lose(self, host: str) -> bool:
        """A host is out of contact. Whether that is new."""
        return self._slots.pop(host, None) is not None
