"""The hosts that a job without Spark may run on: for now, this one under all of its names."""

from __future__ import annotations

import socket


def check_hosts(hosts: str, size: int) -> None:
    """Accepts ``localhost:n`` in its spellings, with slots enough.

    Args:
        hosts: ``host:slots``, with commas between several.
        size: number of ranks.

    Raises:
        ValueError: anything else; the text quotes `hosts` and says what is wrong with it.
    """
    here = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    slots = 0
    for part in hosts.split(","):
        host, _, count = part.strip().rpartition(":")
        if not host:
            host, count = count, "1"
        if not count.isdecimal():
            raise ValueError(f"{hosts}: {part!r} is not of the form host:slots.")
        if host not in here:
            raise ValueError(
                f"{hosts}: {host!r} is not this host. Other hosts are not supported yet; on a Spark cluster, "
                "HorovodRunner(np=N) runs the ranks on its executors."
            )
        slots += int(count)
    if slots < size:
        raise ValueError(f"{hosts} offers {slots} slots, but {size} ranks were asked for.")
