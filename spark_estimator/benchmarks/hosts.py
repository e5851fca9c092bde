"""Times allreduces between hosts: network namespaces on this machine, joined by links of a given rate.

``python -m spark_estimator.benchmarks.hosts [--layout 2x1,2x2,4x1] [--gigabits 1] [--bytes ...]`` prints a table for
each layout (hosts x ranks on each): medians in microseconds of the slowest rank. Columns: flat, one ring of all ranks;
hierarchical, inside hosts through shared memory first and then across; gloo, in the same processes as flat; link, plain
TCP streams that carry just what no allreduce can avoid to carry over the hosts' links, measured in the same run; wire,
what those bytes and their headers take at the links' rate, computed. link/flat and wire/flat are the part of the
network's bound that is reached; small messages pass a link faster than its rate, in bursts.

Needs what ``namespaces`` needs; where that is not to be had it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from spark_estimator.benchmarks import programs
from spark_estimator.benchmarks.command_line import Report, ended_by_signals, parser_of
from spark_estimator.benchmarks.interleaved import BenchmarkError, Form, Group, Subject
from spark_estimator.benchmarks.namespaces import Network, UnavailableError
from spark_estimator.benchmarks.tables import Ratio
from spark_estimator.console import ends_with_its_reader

_MODULE = "spark_estimator.benchmarks.hosts"
DEFAULT_BYTES = (4, 65536, 1 << 20, 16 << 20)
RATIOS = (
    Ratio("link", "flat"),
    Ratio("wire", "flat"),
    Ratio("wire", "hierarchical"),
    Ratio("wire", "gloo"),
    Ratio("flat", "hierarchical"),
    Ratio("gloo", "flat"),
)
# Ethernet's frame and what TCP with time stamps puts into it.
_FRAME_BYTES, _PAYLOAD_BYTES = 1514, 1448
# Nothing else listens in a namespace that has just been made, and kernels give such ports to nobody by themselves.
_GLOO_PORT = 29500


class Layout(NamedTuple):
    """So many hosts with so many ranks each."""

    hosts: int
    ranks_per_host: int

    @classmethod
    def read(cls, text: str) -> Layout:
        """``2x1``; for argparse."""
        found = re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", text)
        if found is None or int(found[1]) < 2:
            raise argparse.ArgumentTypeError(f"{text!r} is not HOSTSxRANKS with two hosts or more, as 2x1")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks_per_host}"


def wire_us(hosts: int, size: int, bits_per_second: float) -> float:
    """Microseconds that an allreduce keeps each host's link busy in each direction, at the least.

    2 (h - 1) / h of the bytes have to leave each of h hosts (Patarasuk and Yuan 2009), in frames with their headers.
    """
    return 2 * (hosts - 1) / hosts * size * _FRAME_BYTES / _PAYLOAD_BYTES * 8 / bits_per_second * 1e6


def start_subjects(stack: contextlib.ExitStack, layout: Layout, bits_per_second: int) -> list[Subject]:
    """Makes the hosts and starts all ranks on them.

    Args:
        stack: ends the ranks and lets go of the hosts when it is left.
        layout: hosts and ranks.
        bits_per_second: of each host's link, in each direction.

    Raises:
        UnavailableError: network namespaces cannot be had here.
        BenchmarkError: the ranks did not start.
    """
    network = stack.enter_context(Network.open(layout.hosts))
    for host in network.hosts:
        host.limit(bits_per_second)

    def ranks(name: str, hierarchical: bool, *, with_others: bool) -> Group:
        variables = {"HOROVOD_HIERARCHICAL_ALLREDUCE": str(int(hierarchical)), "GLOO_SOCKET_IFNAME": "eth0"}
        group = programs.python_group(
            name,
            network.rendezvous(layout.ranks_per_host),
            gloo=f"tcp://{network.hosts[0].address}:{_GLOO_PORT}" if with_others else None,
            link=with_others,
            environment=variables,
            within=[host.entered() for host in network.hosts for _ in range(layout.ranks_per_host)],
        )
        return stack.enter_context(group)

    flat = ranks("flat", False, with_others=True)
    subjects = [Subject("flat", flat, "python"), Subject("gloo", flat, "gloo"), Subject("link", flat, "link")]
    if layout.ranks_per_host > 1:
        hierarchical = ranks("hierarchical", True, with_others=False)
        subjects.insert(1, Subject("hierarchical", hierarchical, "python"))
    return subjects


@ends_with_its_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments and prints a table for each layout."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = parser_of(_MODULE, __doc__, ops=("allreduce",), sizes=DEFAULT_BYTES)
    parser.add_argument(
        "--layout",
        type=lambda text: [Layout.read(part) for part in text.split(",")],
        default=[Layout(2, 1), Layout(2, 2), Layout(4, 1)],
        help="hosts x ranks on each (default 2x1,2x2,4x1)",
    )
    parser.add_argument("--gigabits", type=float, default=1.0, help="a second, of each host's link (default 1)")
    options = parser.parse_args(words)
    if not options.gigabits > 0:
        parser.error(f"--gigabits {options.gigabits}: a link carries more than nothing.")
    report = Report(options, _MODULE, words)
    try:
        for layout in options.layout:
            with ended_by_signals(), contextlib.ExitStack() as stack:
                subjects = start_subjects(stack, layout, round(options.gigabits * 1e9))
                title = f"{layout} (hosts x ranks), links of {options.gigabits:g} Gbit/s; us, slowest rank"
                facts = {"layout": str(layout), "gigabits": options.gigabits}

                def wire(form: Form, layout: Layout = layout) -> float | None:
                    rate = options.gigabits * 1e9
                    return wire_us(layout.hosts, form.bytes, rate) if form.op == "allreduce" else None

                report.measure(title, subjects, RATIOS, facts, computed={"wire": wire})
    except UnavailableError as error:
        report.say(f"skipped: {error}.")
    except BenchmarkError as error:
        raise SystemExit(f"benchmark: {error}") from error
    report.write()


if __name__ == "__main__":
    main()
