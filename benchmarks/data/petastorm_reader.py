"""Petastorm's side of ``benchmarks/data/reader.py``: a program for an environment in which petastorm works.

It is run by its path, and reads commands from standard input, one JSON object per line:
``{"mode": "horovod", "folder": "...", "columns": [...], "batch": 1024, "rows": 2000000, "check": false}``. With
`check`, it reads one epoch and answers with the `fingerprint` of its rows. Without `check`, it reads `rows` rows from
an endless reader and answers with the seconds. Each answer is one line of JSON.
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


def fingerprint(batches: Iterator[Mapping[str, Any]], columns: list[str]) -> dict[str, int]:
    """Three numbers that show whether every row occurs exactly once, independent of the order of the rows.

    Args:
        batches: batches of rows, each with a tensor or array per column.
        columns: names of the columns.
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
    """Endless readers, which are kept between commands."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Iterator[Any]] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Executes one command and returns its answer."""
        columns = command["columns"]
        if command["check"]:
            # One thread: the thread pool of petastorm 0.13.1 sometimes ends an epoch before all rows were read.
            return dict(fingerprint(iter(self._loader(command, 1, "dummy")), columns))
        key = command["mode"], command["folder"]
        if key not in self._running:
            self._running[key] = iter(self._loader(command, None, "thread"))
        batches = self._running[key]
        started = time.perf_counter()
        remaining, total = command["rows"], 0.0
        while remaining > 0:
            batch = next(batches)
            first = batch[columns[0]]
            total += float(first.reshape(len(first), -1)[:, 0].sum())
            remaining -= len(first)
        return {"seconds": time.perf_counter() - started, "total": total}

    def _loader(self, command: dict[str, Any], epochs: int | None, pool: str) -> Any:
        from petastorm import make_batch_reader
        from petastorm.pytorch import BatchedDataLoader

        as_horovod = command["mode"] == "horovod"
        reader = make_batch_reader(
            f"file://{command['folder']}",
            schema_fields=command["columns"],
            reader_pool_type=pool,
            workers_count=2,  # Horovod's default
            num_epochs=epochs,
            shuffle_rows=as_horovod,
            shuffle_row_groups=True,
        )
        # Horovod shuffles rows within row groups and uses no queue; other users of petastorm shuffle through a queue.
        return BatchedDataLoader(
            reader, command["batch"], shuffling_queue_capacity=0 if as_horovod else 16 * command["batch"]
        )


def main() -> None:
    """Answers commands until the input ends."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    loaders = Loaders()
    for line in sys.stdin:
        try:
            answer = loaders.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
    # A normal exit would wait for petastorm's threads, which wait for a consumer.
    sys.stdout.flush()
    __import__("os")._exit(0)
