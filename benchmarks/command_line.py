"""The command-line options and the output that the benchmarks of collectives share."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import programs, tables
from benchmarks.interleaved import DTYPES, OPS, Figure, Form, Line, Subject, measure
from benchmarks.tables import Ratio


def parser_of(
    module: str, description: str | None, *, ops: Sequence[str], sizes: Sequence[int]
) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks of collectives have.

    Args:
        module: name of the module, for the usage line.
        description: for ``--help``.
        ops, sizes: defaults of ``--op`` and ``--bytes``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=list_of(sizes=True), default=tuple(sizes), help="bytes of a rank's tensor")
    parser.add_argument("--dtype", type=list_of(DTYPES), default=("float32",), help=", ".join(DTYPES))
    parser.add_argument("--op", type=list_of(OPS), default=tuple(ops), help=", ".join(OPS))
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each library, op and size (default 1)")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    return parser


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM exits the block by an exception, as Ctrl-C does, so that ranks and temporary files are cleaned up."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def positive(text: str) -> int:
    """Parses a whole number, 1 or more; for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def list_of(words: Sequence[str] = (), *, sizes: bool = False) -> Callable[[str], tuple[str, ...] | tuple[int, ...]]:
    """A parser of comma-separated lists of `words`, or of sizes in bytes; for argparse."""

    def read(text: str) -> tuple[str, ...] | tuple[int, ...]:
        parts = tuple(filter(None, text.split(",")))
        if sizes:
            return tuple(positive(part) for part in parts)
        for part in parts:
            if part not in words:
                raise argparse.ArgumentTypeError(f"{part!r} is not one of {', '.join(words)}")
        return parts

    return read


def forms_of(ops: Iterable[str], dtypes: Iterable[str], sizes: Iterable[int]) -> list[Form]:
    """The forms to measure, in this order; a barrier once, at the end."""
    ops, sizes, dtypes = list(ops), list(sizes), list(dtypes)
    forms = [Form(op, dtype, size) for op in ops if op != "barrier" for dtype in dtypes for size in sizes]
    return forms + ([Form("barrier", dtypes[0], 0)] if "barrier" in ops else [])


class Report:
    """Measures the forms that the options select, prints each result at once, and writes all of them at the end.

    Args:
        options: parsed by the parser of `parser_of`.
        module, words: module and arguments of the command, which the JSON file records.
    """

    def __init__(self, options: argparse.Namespace, module: str, words: Sequence[str]) -> None:
        self._options = options
        self._command = shlex.join(["python", "-m", module, *words])
        self._screen = sys.stderr if str(options.json) == "-" else sys.stdout
        self._runs: list[dict[str, object]] = []
        self.machine = programs.machine()

    def report(self, line: str) -> None:
        """Prints a line, on stderr if the JSON goes to standard output."""
        print(line, file=self._screen, flush=True)

    def measure(
        self,
        title: str,
        subjects: Sequence[Subject],
        ratios: Sequence[Ratio],
        facts: Mapping[str, object],
        computed: Mapping[str, Callable[[Form], float | None]] | None = None,
    ) -> None:
        """Measures every form that the options select, and prints a table.

        Args:
            title: of the table.
            subjects: the measured columns.
            ratios: columns with ratios of other columns.
            facts: properties of this run, for the JSON file.
            computed: columns that are computed, in microseconds; None if the column does not apply to a form.

        Raises:
            BenchmarkError: a result is wrong, or a library failed.
        """
        self.report(title)
        computed = computed or {}
        names = [*(subject.name for subject in subjects), *computed]
        lines: list[Line] = []
        options = self._options
        for form in forms_of(options.op, options.dtype, options.bytes):
            measured = measure(form, subjects, options.seconds)
            known = {name: time for name, compute in computed.items() if (time := compute(form)) is not None}
            figures = {**measured.figures, **{name: Figure.computed(time) for name, time in known.items()}}
            lines.append(replace(measured, figures=figures))
            head, *rows = tables.cells(lines[-1:], names, ratios)
            if not options.markdown:
                self.report(tables.text([head, *rows] if len(lines) == 1 else rows, head))
        if options.markdown:
            self.report(tables.markdown(tables.cells(lines, names, ratios)))
        self._runs.append({**facts, "results": tables.plain(lines)})

    def write(self) -> None:
        """Writes the JSON file if ``--json`` is set."""
        if self._options.json is not None:
            tables.write_json(
                self._options.json, {"command": self._command, "machine": self.machine, "runs": self._runs}
            )
