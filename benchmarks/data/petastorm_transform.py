"""Times what an identity `TransformSpec` costs the petastorm-compatible loaders and readers.

``python -m benchmarks.data.petastorm_transform [--rows 500000] [--rounds 7]`` prints, for each kind of data, the rows
per second without and with ``TransformSpec(lambda frame: frame)``, and the cost of it in percent: of the time passed,
and of the processor time of all threads, which other programs on the machine disturb less. Both are the medians of the
ratios of interleaved rounds.

- *loader*: an epoch of `DataLoader` in batches of 1,024 rows, from rows that were decoded in the warm-up round.
- *reader*: an epoch of `make_batch_reader`, which decodes the files.
- *rows*: an epoch of `make_reader`, whose transform takes a dict for each row, of a quarter of the rows.

Kinds of data: *numbers* has 20 float32 columns; *arrays* a tenth of the rows, with 784 float32 each, and a label;
*mixed* 4 float32 columns, a label, a truth value and an array of 8; *texts* a label and a text (not for the loader).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import torch

from benchmarks import programs
from benchmarks.backends import Backend, time_interleaved
from benchmarks.command_line import ended_by_signals, positive
from spark_estimator.data.petastorm import DataLoader, TransformSpec, make_batch_reader, make_reader

_MODULE = "benchmarks.data.petastorm_transform"
_BATCH = 1024
_FILES = 4
_GROUP_ROWS = 50_000


def tables(rows: int) -> dict[str, pyarrow.Table]:
    """The kinds of data, each with a column `label` of 0, 1, 2, ..."""
    chance = numpy.random.default_rng(0)

    def label(count: int) -> pyarrow.Array:
        return pyarrow.array(numpy.arange(count, dtype=numpy.float32))

    def matrix(count: int, width: int) -> pyarrow.Array:
        values = pyarrow.array(chance.random(count * width, numpy.float32))
        return pyarrow.ListArray.from_arrays(pyarrow.array(numpy.arange(count + 1, dtype=numpy.int32) * width), values)

    def numbers(count: int, width: int) -> dict[str, pyarrow.Array]:
        return {f"x{number}": pyarrow.array(chance.random(count, numpy.float32)) for number in range(width)}

    few = max(1, rows // 10)
    return {
        "numbers": pyarrow.table({"label": label(rows), **numbers(rows, 19)}),
        "arrays": pyarrow.table({"label": label(few), "image": matrix(few, 784)}),
        "mixed": pyarrow.table(
            {
                "label": label(rows),
                **numbers(rows, 4),
                "true": pyarrow.array(numpy.arange(rows) % 3 == 0),
                "eight": matrix(rows, 8),
            }
        ),
        "texts": pyarrow.table({"label": label(rows), "text": [f"row {number}" for number in range(rows)]}),
    }


class Timed(Backend):
    """A backend that also notes its rounds' processor time, in seconds."""

    def __init__(self, name: str, rows: int, run: Callable[[], float]) -> None:
        super().__init__(name, rows, self._timed)
        self._plain_run = run
        self.processor_seconds: list[float] = []

    def _timed(self) -> float:
        started = time.process_time()
        result = self._plain_run()
        self.processor_seconds.append(time.process_time() - started)
        return result


def cost(old: Sequence[float], new: Sequence[float]) -> float:
    """In percent, the median over rounds."""
    return 100 * (statistics.median(later / sooner for sooner, later in zip(old, new, strict=True)) - 1)


def backends_of(folder: Path, kind: str, rows: int) -> list[tuple[Timed, Timed]]:
    """For loader, reader and rows: without and with the identity."""
    first = min(folder.iterdir())

    def mean(batches: Iterable[Any]) -> float:
        total = sum(float(batch.sum(dtype=numpy.float64)) for batch in batches)
        return total / rows

    def loader(spec: TransformSpec | None) -> Callable[[], float]:
        made = DataLoader(make_batch_reader(f"file://{folder}", transform_spec=spec, seed=0), _BATCH)
        return lambda: mean(batch["label"].numpy() for batch in made)

    def reader(spec: TransformSpec | None) -> Callable[[], float]:
        def run() -> float:
            with make_batch_reader(f"file://{folder}", transform_spec=spec, seed=0) as made:
                return mean(batch.label for batch in made)

        return run

    def by_row(spec: TransformSpec | None) -> Callable[[], float]:
        def run() -> float:
            with make_reader(f"file://{first}", transform_spec=spec, seed=0) as made:
                return sum(float(row.label) for row in made)

        return run

    pairs = []
    for name, make in {"loader": loader, "reader": reader, "rows": by_row}.items():
        if (name, kind) == ("loader", "texts"):
            continue
        specs = {"": None, ", identity": TransformSpec(lambda frame: frame)}
        count = pyarrow.parquet.ParquetFile(first).metadata.num_rows if name == "rows" else rows
        plain, identity = (Timed(f"{name}, {kind}{text}", count, make(spec)) for text, spec in specs.items())
        pairs.append((plain, identity))
    return pairs


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=positive, default=500_000, help="of numbers and texts (default 500000)")
    parser.add_argument("--rounds", type=positive, default=7, help="interleaved rounds (default 7)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']})", flush=True)
    print(f"{'':28}{'rows/s':>12}{'identity':>12}{'passed':>10}{'processor':>10}", flush=True)
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="transform") as folder:
        for kind, table in tables(options.rows).items():
            place = Path(folder, kind)
            place.mkdir()
            size = -(-table.num_rows // _FILES)
            for start in range(0, table.num_rows, size):
                pyarrow.parquet.write_table(
                    table.slice(start, size), place / f"{start:09}.parquet", row_group_size=_GROUP_ROWS
                )
            for plain, identity in backends_of(place, kind, table.num_rows):
                time_interleaved([plain, identity], options.rounds)
                passed = cost(plain.seconds, identity.seconds)
                # The first round is the warm-up.
                processor = cost(plain.processor_seconds[1:], identity.processor_seconds[1:])
                print(
                    f"{plain.name:28}{plain.rate:12,.0f}{identity.rate:12,.0f}{passed:9.1f}%{processor:9.1f}%",
                    flush=True,
                )


if __name__ == "__main__":
    main()
