"""Times the engine's collectives and those of gloo, Open MPI and MPICH in one interleaved run on this host.

``python -m benchmarks.collectives [--np 2] [--bytes 4,1024,...] [--op ...] [--tcp]`` prints a line for
each op and size: medians in microseconds of the slowest rank, and ratios. The results of every library are checked
before they are timed; a wrong result ends the run. Every buffer is written again before each op, as in a training step;
this is not timed.

Columns: native, the C ABI on private memory; shared, the same on memory from the engine's allocator; python, the
package's Python API (named, synchronous, on torch tensors); gloo, through torch.distributed in the same processes;
openmpi and mpich, in C; bound, a lower bound for an op without any wait: for an allreduce, a plain c[i] = a[i] + b[i]
over each rank's share; for an alltoall, one copy of the input; on all ranks at once.

``--busy 2`` and ``--jvm`` run other programs beside the ranks, as executors have them; ``--quota 1`` limits the
processor time of all ranks together, as containers do.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import neighbours, programs
from benchmarks.command_line import Report, ended_by_signals, list_of, parser_of, positive
from benchmarks.interleaved import OPS, BenchmarkError, Group, Subject
from benchmarks.namespaces import UnavailableError
from benchmarks.tables import Ratio
from spark_estimator.collectives.rendezvous import make_local_rendezvous
from spark_estimator.console import end_with_reader

DEFAULT_BYTES = (4, 1024, 65536, 1 << 20, 16 << 20, 102_400_000)
_MODULE = "benchmarks.collectives"
PEERS = ("gloo", "openmpi", "mpich")
RATIOS = (
    Ratio("gloo", "python"),
    Ratio("openmpi", "native"),
    Ratio("mpich", "native"),
    Ratio("bound", "native"),
    Ratio("bound", "shared"),
)


def start_subjects(
    stack: contextlib.ExitStack, size: int, peers: Sequence[str], *, tcp: bool, report: Callable[[str], None]
) -> list[Subject]:
    """Starts the ranks of every library that is available on this machine.

    Args:
        stack: ends the ranks at its exit.
        size: number of ranks of each library.
        peers: the libraries to compare with, from `PEERS`.
        tcp: use loopback TCP instead of shared memory.
        report: prints a line for each unavailable library, with the reason.

    Raises:
        BenchmarkError: an available library does not start.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark")))
    subjects: list[Subject] = []

    def add(make: Callable[[], Group], columns: Sequence[tuple[str, str]]) -> None:
        try:
            group = stack.enter_context(make())
        except UnavailableError as error:
            report(f"skipped: {', '.join(name for name, _ in columns)}: {error}.")
        else:
            subjects.extend(Subject(name, group, variant) for name, variant in columns)

    native = (
        [("native", "plan"), ("bound", "bound")]
        if tcp
        else [("native", "plan"), ("shared", "shared"), ("bound", "bound")]
    )
    add(lambda: programs.native_group(folder, size, tcp=tcp), native)
    with socket.socket() as probe:  # gloo needs a free port
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}" if "gloo" in peers else None
    environment = {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"} if tcp else {}
    columns = [("python", "python"), *([("gloo", "gloo")] if address else [])]
    add(
        lambda: programs.python_group("python", make_local_rendezvous(size), gloo=address, environment=environment),
        columns,
    )
    for name in ("openmpi", "mpich"):
        if name in peers:
            add(functools.partial(programs.mpi_group, name, folder, size, tcp=tcp), [(name, "mpi")])
    order = ["native", "shared", "python", *PEERS, "bound"]
    return sorted(subjects, key=lambda subject: order.index(subject.name))


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs the ranks of all libraries on this host, and prints the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = parser_of(_MODULE, __doc__, ops=OPS, sizes=DEFAULT_BYTES)
    parser.add_argument("--np", type=positive, default=2, help="ranks (default 2)")
    parser.add_argument("--tcp", action="store_true", help="use loopback TCP instead of shared memory")
    parser.add_argument("--peers", type=list_of(PEERS), default=PEERS, help=f"peers: {', '.join(PEERS)}; '' for none")
    neighbours.add_options(parser)
    options = parser.parse_args(words)
    report = Report(options, _MODULE, words)
    channel = "loopback TCP" if options.tcp else "shared memory"
    title = f"{options.np} ranks on {report.machine['cores']} cores ({report.machine['processor']}), {channel}"
    title += neighbours.title(options)
    try:
        with ended_by_signals(), neighbours.beside(options), contextlib.ExitStack() as stack:
            subjects = start_subjects(stack, options.np, options.peers, tcp=options.tcp, report=report.report)
            libraries = [subject.name for subject in subjects if subject.name in ("openmpi", "mpich")]
            versions = {name: programs.version_of(name) for name in libraries}
            facts = {"ranks": options.np, "channel": channel, "versions": versions}
            report.measure(f"{title}; us, slowest rank", subjects, RATIOS, facts)
    except BenchmarkError as error:
        raise SystemExit(f"benchmark: {error}") from error
    report.write()


if __name__ == "__main__":
    main()
