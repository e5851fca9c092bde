"""Petastorm's side of ``benchmarks/reader.py``: a program for the environment in which petastorm works.

It is run by its path, and reads a command a line from standard input, as JSON:
``{"way": "horovod", "folder": "...", "columns": [...], "batch": 1024, "rows": 2000000, "check": false}``. With `check`,
one epoch is read, and `seen` tells of it; without, `rows` rows of a reader without end, and the seconds that they took.
Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy


def seen(batches: Iterator[Mapping[str, Any]], columns: list[str]) -> dict[str, int]:
    """What tells whether all rows came, each once, whatever their order: three whole numbers.

    Args:
        batches: tensors or arrays by column.
    """
    rows, bits, first = 0, 0, []
    for batch in batches:
        for name in columns:
            values = numpy.ascontiguousarray(batch[name])
            bits += int(values.view(numpy.uint32).sum(dtype=numpy.uint64))
        first.append(numpy.asarray(batch[columns[0]]).reshape(len(batch[columns[0]]), -1)[:, 0])
        rows += len(first[-1])
    ordered = numpy.sort(numpy.concatenate(first)) if first else numpy.zeros(0, numpy.float32)
    return {"rows": rows, "bits": bits % (1 << 64), "first": zlib.crc32(ordered.tobytes())}


class Loaders:
    """The readers without end, kept from one command to the next."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Iterator[Any]] = {}

    def answer(self, said: dict[str, Any]) -> dict[str, Any]:
        """Does what one command says."""
        columns = said["columns"]
        if said["check"]:
            # One thread: in 0.13.1 the pool of threads ends an epoch without its rows once in a while.
            return dict(seen(iter(self._loader(said, 1, "dummy")), columns))
        key = said["way"], said["folder"]
        if key not in self._running:
            self._running[key] = iter(self._loader(said, None, "thread"))
        batches = self._running[key]
        started = time.perf_counter()
        left, total = said["rows"], 0.0
        while left > 0:
            batch = next(batches)
            first = batch[columns[0]]
            total += float(first.reshape(len(first), -1)[:, 0].sum())
            left -= len(first)
        return {"seconds": time.perf_counter() - started, "total": total}

    def _loader(self, said: dict[str, Any], epochs: int | None, pool: str) -> Any:
        from petastorm import make_batch_reader
        from petastorm.pytorch import BatchedDataLoader

        as_horovod = said["way"] == "horovod"
        reader = make_batch_reader(
            f"file://{said['folder']}",
            schema_fields=said["columns"],
            reader_pool_type=pool,
            workers_count=2,  # Horovod's default
            num_epochs=epochs,
            shuffle_rows=as_horovod,
            shuffle_row_groups=True,
        )
        # Horovod shuffles the rows of a row group and needs no queue; who uses petastorm without it mixes by a queue.
        return BatchedDataLoader(
            reader, said["batch"], shuffling_queue_capacity=0 if as_horovod else 16 * said["batch"]
        )


def main() -> None:
    """Answers until its input ends."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    loaders = Loaders()
    for line in sys.stdin:
        try:
            told = loaders.answer(json.loads(line))
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
    # Petastorm's threads wait for a consumer that is gone.
    sys.stdout.flush()
    __import__("os")._exit(0)
