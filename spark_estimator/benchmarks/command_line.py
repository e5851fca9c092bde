"""What the benchmarks of collectives have in common on the command line and on the screen."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from spark_estimator.benchmarks import programs, tables
from spark_estimator.benchmarks.interleaved import DTYPES, OPS, Figure, Form, Line, Subject, measure
from spark_estimator.benchmarks.tables import Ratio


def parser_of(
    module: str, description: str | None, *, ops: Sequence[str], sizes: Sequence[int]
) -> argparse.ArgumentParser:
    """The options that all of them have.

    Args:
        module: for the usage.
        ops, sizes: what is measured when nobody says.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=list_of(sizes=True), default=tuple(sizes), help="sizes of a rank's tensor")
    parser.add_argument("--dtype", type=list_of(DTYPES), default=("float32",), help=", ".join(DTYPES))
    parser.add_argument("--op", type=list_of(OPS), default=tuple(ops), help=", ".join(OPS))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each library, op and size (default 1)")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there; - for standard output")
    return parser


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does: ranks and temporary files are seen to on the way out."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def positive(text: str) -> int:
    """A whole number from 1; for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def list_of(words: Sequence[str] = (), *, sizes: bool = False) -> Callable[[str], tuple[str, ...] | tuple[int, ...]]:
    """For argparse: reads a list with commas, of the given words or of sizes in bytes."""

    def read(text: str) -> tuple[str, ...] | tuple[int, ...]:
        parts = tuple(filter(None, text.split(",")))
        if sizes:
            return tuple(positive(part) for part in parts)
        for part in parts:
            if part not in words:
                raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(words)}")
        return parts

    return read


def forms_of(ops: Iterable[str], dtypes: Iterable[str], sizes: Iterable[int]) -> list[Form]:
    """What to measure, in this order; a barrier once, at the end."""
    ops, sizes, dtypes = list(ops), list(sizes), list(dtypes)
    forms = [Form(op, dtype, size) for op in ops if op != "barrier" for dtype in dtypes for size in sizes]
    return forms + ([Form("barrier", dtypes[0], 0)] if "barrier" in ops else [])


class Report:
    """Measures what the options ask for, shows it as it comes, and writes it down at the end.

    Args:
        options: as the parser of `parser_of` gave them.
        module, words: the command, for who wants to repeat it.
    """

    def __init__(self, options: argparse.Namespace, module: str, words: Sequence[str]) -> None:
        self._options = options
        self._command = shlex.join(["python", "-m", module, *words])
        self._screen = sys.stderr if str(options.json) == "-" else sys.stdout
        self._runs: list[dict[str, object]] = []
        self.machine = programs.machine()

    def say(self, line: str) -> None:
        """Shows a line, beside the JSON when that goes to standard output."""
        print(line, file=self._screen, flush=True)

    def measure(
        self,
        title: str,
        subjects: Sequence[Subject],
        ratios: Sequence[Ratio],
        facts: Mapping[str, object],
        computed: Mapping[str, Callable[[Form], float | None]] | None = None,
    ) -> None:
        """Measures every form that the options ask for, and shows a table of it.

        Args:
            title: of the table.
            subjects: its columns.
            ratios: its further columns.
            facts: what the JSON is to say of this run.
            computed: columns that nobody measures, in microseconds; None where one means nothing.

        Raises:
            BenchmarkError: a number is wrong, or a library failed.
        """
        self.say(title)
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
                self.say(tables.text([head, *rows] if len(lines) == 1 else rows, head))
        if options.markdown:
            self.say(tables.markdown(tables.cells(lines, names, ratios)))
        self._runs.append({**facts, "results": tables.plain(lines)})

    def write(self) -> None:
        """Writes the JSON, if it is wanted."""
        if self._options.json is not None:
            tables.write_json(
                self._options.json, {"command": self._command, "machine": self.machine, "runs": self._runs}
            )
