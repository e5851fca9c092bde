"""Times allreduces between hosts: network namespaces on this machine, joined by links of a given rate.

``python -m benchmarks.hosts [--layout 2x1,2x2,4x1] [--gigabits 1] [--bytes ...]`` prints a table for
each layout (hosts x ranks per host): medians in microseconds of the slowest rank. Columns: flat, one ring of all ranks;
encrypted, the same over encrypted connections; hierarchical, within hosts through shared memory first, then between
hosts; gloo, in the same processes as flat; link, plain TCP streams with the least bytes that an allreduce must send
over the hosts' links, measured in the same run;
striped, with ``--connections``: flat with that number of data connections between two ranks;
measured, with ``--uplink-gigabits``: flat, or hierarchical where a host has several ranks, with
SPARK_ESTIMATOR_RING_ORDER=measured; the hosts alternate between two racks that a link of that rate connects;
wire, the computed time of these bytes and their headers at the links' rate. link/flat and wire/flat are the reached
fraction of the network's bound. A burst can pass a link faster than its rate, so small messages can exceed 1.

``--model`` adds what ``build/release/benchmarks/simulated_costs`` (after ``make build``) computes for these links:
model, of flat, and model-hosts, of hierarchical. It knows nothing of the processors, which all hosts share here.

``--flow-gigabits`` limits what each connection sends, as some clouds do, those of the others included.

The hosts use this machine's congestion control for TCP, or that of ``--congestion``. One that paces its packets, as bbr
does, limits links that are faster than the processors to the rate that it has estimated; reno shows what the program
needs.

Requires what ``namespaces`` requires; if that is unavailable, prints the reason and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import programs
from benchmarks.command_line import Report, ended_by_signals, parser_of
from benchmarks.interleaved import BenchmarkError, Form, Group, Subject
from benchmarks.namespaces import Network, UnavailableError
from benchmarks.tables import Ratio
from spark_estimator.console import end_with_reader
from spark_estimator.env import CONNECTIONS_VARIABLE, RING_ORDER_VARIABLE

_MODULE = "benchmarks.hosts"
DEFAULT_BYTES = (4, 65536, 1 << 20, 16 << 20)
RATIOS = (
    Ratio("link", "flat"),
    Ratio("wire", "flat"),
    Ratio("wire", "hierarchical"),
    Ratio("wire", "gloo"),
    Ratio("flat", "hierarchical"),
    Ratio("flat", "encrypted"),
    Ratio("flat", "striped"),
    Ratio("flat", "measured"),
    Ratio("hierarchical", "measured"),
    Ratio("wire", "measured"),
    Ratio("wire", "striped"),
    Ratio("gloo", "flat"),
    Ratio("model", "flat"),
    Ratio("model-hosts", "hierarchical"),
)
#: Of the native tests.
SIMULATOR = Path(__file__).parents[1] / "build/release/benchmarks/simulated_costs"
# Of a message between two namespaces, one way.
_LATENCY_US = 50
# Size of an Ethernet frame, and of its TCP payload with time stamps.
_FRAME_BYTES, _PAYLOAD_BYTES = 1514, 1448
# No other process listens in a new namespace, and the port is below the kernel's range of ephemeral ports.
_GLOO_PORT = 29500


class Layout(NamedTuple):
    """A number of hosts, and of ranks per host."""

    hosts: int
    ranks_per_host: int

    @classmethod
    def read(cls, text: str) -> Layout:
        """Parses a layout such as ``2x1``; for argparse."""
        match = re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", text)
        if match is None or int(match[1]) < 2:
            raise argparse.ArgumentTypeError(f"{text!r} is not HOSTSxRANKS with two hosts or more, such as 2x1")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks_per_host}"


def wire_us(hosts: int, size: int, bits_per_second: float) -> float:
    """The least time, in microseconds, for which an allreduce occupies each host's link in each direction.

    Each of h hosts must send 2 (h - 1) / h of the bytes (Patarasuk and Yuan 2009), in frames with headers.
    """
    return 2 * (hosts - 1) / hosts * size * _FRAME_BYTES / _PAYLOAD_BYTES * 8 / bits_per_second * 1e6


def modelled(layout: Layout, gigabits: float, sizes: Sequence[int]) -> dict[str, dict[int, float]]:
    """By column, microseconds of an allreduce by its bytes, as the simulator of the native tests computes them.

    Raises:
        UnavailableError: the simulator was not built.
    """
    if not SIMULATOR.exists():
        raise UnavailableError(f"{SIMULATOR} is missing: `make build` makes it")
    rate = gigabits * _PAYLOAD_BYTES / _FRAME_BYTES
    words = [layout.hosts, layout.ranks_per_host, rate, _LATENCY_US, *sizes]
    printed = subprocess.run([SIMULATOR, *map(str, words)], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in printed.splitlines()]
    columns = {"model": 1} | ({"model-hosts": 2} if layout.ranks_per_host > 1 else {})
    return {name: {int(line[0]): float(line[place]) * 1e6 for line in lines} for name, place in columns.items()}


def _looked_up(times: dict[int, float]) -> Callable[[Form], float | None]:
    return lambda form: times[form.bytes] if form.op == "allreduce" else None


def start_subjects(
    stack: contextlib.ExitStack,
    layout: Layout,
    bits_per_second: int,
    congestion: str | None = None,
    *,
    connections: int = 1,
    flow_bits_per_second: int = 0,
    uplink_bits_per_second: int = 0,
) -> list[Subject]:
    """Creates the hosts and starts all ranks on them.

    Args:
        stack: ends the ranks and removes the hosts at its exit.
        layout: number of hosts and of ranks per host.
        bits_per_second: rate of each host's link, in each direction.
        congestion: TCP's congestion control on the hosts; None for that of this machine.
        connections: for data, between two ranks on different hosts, of one more subject; 1: there is none.
        flow_bits_per_second: what a connection sends at most; 0: as much as the link carries.
        uplink_bits_per_second: as of `Network.open`. With it, one more subject measures the order of its ring.

    Raises:
        UnavailableError: network namespaces are unavailable on this machine.
        BenchmarkError: the ranks did not start.
    """
    network = stack.enter_context(Network.open(layout.hosts, uplink_bits_per_second=uplink_bits_per_second))
    for host in network.hosts:
        host.limit(bits_per_second)
        if congestion is not None:
            host.control_congestion(congestion)

    def ranks(
        name: str,
        hierarchical: bool,
        *,
        with_others: bool = False,
        encrypted: bool = False,
        connections: int = 1,
        ring_order: str = "rank",
    ) -> Group:
        variables = {"HOROVOD_HIERARCHICAL_ALLREDUCE": str(int(hierarchical)), "GLOO_SOCKET_IFNAME": "eth0"}
        variables |= {CONNECTIONS_VARIABLE: str(connections), RING_ORDER_VARIABLE: ring_order}
        group = programs.python_group(
            name,
            network.rendezvous(layout.ranks_per_host, encrypted=encrypted),
            gloo=f"tcp://{network.hosts[0].address}:{_GLOO_PORT}" if with_others else None,
            link=with_others,
            environment=variables,
            flow_bytes_per_second=flow_bits_per_second // 8,
            within=[host.entered() for host in network.hosts for _ in range(layout.ranks_per_host)],
        )
        return stack.enter_context(group)

    flat = ranks("flat", False, with_others=True)
    subjects = [Subject("flat", flat, "python"), Subject("gloo", flat, "gloo"), Subject("link", flat, "link")]
    subjects.insert(1, Subject("encrypted", ranks("encrypted", False, encrypted=True), "python"))
    if connections > 1:
        subjects.insert(2, Subject("striped", ranks("striped", False, connections=connections), "python"))
    if uplink_bits_per_second:
        subjects.insert(
            1, Subject("measured", ranks("measured", layout.ranks_per_host > 1, ring_order="measured"), "python")
        )
    if layout.ranks_per_host > 1:
        hierarchical = ranks("hierarchical", True)
        subjects.insert(1, Subject("hierarchical", hierarchical, "python"))
    return subjects


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments and prints a table for each layout."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = parser_of(_MODULE, __doc__, ops=("allreduce",), sizes=DEFAULT_BYTES)
    parser.add_argument(
        "--layout",
        type=lambda text: [Layout.read(part) for part in text.split(",")],
        default=[Layout(2, 1), Layout(2, 2), Layout(4, 1)],
        help="hosts x ranks per host (default 2x1,2x2,4x1)",
    )
    parser.add_argument("--gigabits", type=float, default=1.0, help="rate of each host's link in Gbit/s (default 1)")
    parser.add_argument(
        "--congestion", metavar="NAME", help="TCP's congestion control on the hosts (default: this machine's)"
    )
    parser.add_argument("--connections", type=int, default=1, help="of the column striped (2 to 8; default: none)")
    parser.add_argument(
        "--flow-gigabits", type=float, default=0.0, help="limit of each connection in Gbit/s (default: none)"
    )
    parser.add_argument(
        "--uplink-gigabits", type=float, default=0.0, help="of a link between two racks in Gbit/s (default: one rack)"
    )
    parser.add_argument("--model", action="store_true", help="add the times that the simulator computes")
    options = parser.parse_args(words)
    if not options.gigabits > 0:
        parser.error(f"--gigabits {options.gigabits}: expected a number above 0.")
    report = Report(options, _MODULE, words)
    try:
        for layout in options.layout:
            with ended_by_signals(), contextlib.ExitStack() as stack:
                subjects = start_subjects(
                    stack,
                    layout,
                    round(options.gigabits * 1e9),
                    options.congestion,
                    connections=options.connections,
                    flow_bits_per_second=round(options.flow_gigabits * 1e9),
                    uplink_bits_per_second=round(options.uplink_gigabits * 1e9),
                )
                title = f"{layout} (hosts x ranks), links of {options.gigabits:g} Gbit/s; us, slowest rank"
                facts = {"layout": str(layout), "gigabits": options.gigabits, "congestion": options.congestion}
                facts |= {"connections": options.connections, "flow_gigabits": options.flow_gigabits}
                facts["uplink_gigabits"] = options.uplink_gigabits

                def wire(form: Form, layout: Layout = layout) -> float | None:
                    rate = options.gigabits * 1e9
                    return wire_us(layout.hosts, form.bytes, rate) if form.op == "allreduce" else None

                model = modelled(layout, options.gigabits, options.bytes) if options.model else {}
                computed = {"wire": wire, **{name: _looked_up(times) for name, times in model.items()}}
                report.measure(title, subjects, RATIOS, facts, computed=computed)
    except UnavailableError as error:
        report.report(f"skipped: {error}.")
    except BenchmarkError as error:
        raise SystemExit(f"benchmark: {error}") from error
    report.write()


if __name__ == "__main__":
    main()
