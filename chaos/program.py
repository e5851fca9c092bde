"""What each rank of a run calls: collectives whose results one process can compute, and this rank's faults.

All numbers are small integers, so that the results are exact in any order, and no result depends on the number of
ranks: an elastic job has to return the same result as a job that lost no rank.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import numpy.typing

from chaos.faults import Faults
from chaos.plan import Run

Table = numpy.typing.NDArray[numpy.float32]

# Twelve rows can be divided among one to four ranks.
_ROWS = 12
_PRIME = 1_000_003
#: Where rank 0 writes what has been computed so far, and where the ranks of a command write their results.
CHECKPOINT, RESULT = "checkpoint", "result"


class WrongNumbersError(AssertionError):
    """A collective has returned other numbers than one process computes."""


def expected(run: Run) -> int:
    """The result of a run, computed by one process without collectives."""
    state = 0
    for step, operations in enumerate(run.operations):
        table = table_of(run, step)
        for operation in operations:
            state = _advance(state, _alone(operation, table))
    return state


def train(text: str, folder: str) -> int:
    """The function of every rank.

    Args:
        text: the run, as JSON.
        folder: of the run.
    """
    from spark_estimator.collectives import context, objects
    from spark_estimator.elastic import ObjectState, rejoin, run_fn
    from spark_estimator.store import replacement  # noqa: F401  # on a busy machine, imports take longer than a stall

    run = Run.from_json(text)
    faults = Faults(run, Path(folder))
    faults.before_init()
    context.init()
    faults.identify(context.rank(), context.size())

    def loop(state: Any) -> int:
        faults.identify(context.rank(), context.size())
        while state.step < run.steps:
            if faults.at(state.step):
                return -1  # early, as far as the other ranks know
            time.sleep(run.pace / 1000)
            table = table_of(run, state.step)
            for position, operation in enumerate(run.operations[state.step]):
                name = f"step{state.step}/{position}"
                result = _together(operation, table, name, state.step)
                right = _alone(operation, table)
                if result.shape != right.shape or not (result == right).all():
                    raise WrongNumbersError(f"{operation} in step {state.step}: {result} instead of {right}")
                state.value = _advance(state.value, result)
            if context.rank() == 0:
                _save(state.value, Path(folder))
            state.step += 1
            state.commit()
        faults.at(run.steps)
        return int(state.value)

    wrapped: Callable[..., int] = run_fn(loop, rejoin)
    state = ObjectState(objects.broadcast_object, context.rank, step=0, value=0)
    value = wrapped(state) if run.launcher.is_elastic else loop(state)
    context.shutdown()
    return value


def _save(value: int, folder: Path) -> None:
    """Replaces the checkpoint; a full disk costs only the checkpoint."""
    from spark_estimator.store.replacement import replace_file

    try:
        replace_file(str(folder / CHECKPOINT), checkpoint_of(value))
    except OSError as error:
        print(f"no checkpoint: {error}", file=sys.stderr)


def checkpoint_of(value: int) -> bytes:
    """The bytes of a checkpoint, whose every part depends on the value."""
    words = " ".join(str(value + number) for number in range(5_000))
    return f"{words}\n{zlib.crc32(words.encode())}".encode()


def checkpoint_is_whole(content: bytes) -> bool:
    """Whether it is one that `checkpoint_of` made."""
    words, _, checksum = content.decode().rpartition("\n")
    return str(zlib.crc32(words.encode())) == checksum


def table_of(run: Run, step: int) -> Table:
    """The numbers of one step, the same on every rank."""
    start = zlib.crc32(f"{run.seed}/{run.number}/{step}".encode())
    flat = (numpy.arange(_ROWS * run.width, dtype=numpy.int64) * 7 + start) % 101
    return flat.astype(numpy.float32).reshape(_ROWS, run.width)


def _advance(state: int, result: Table) -> int:
    return (state * 31 + int(result.sum(dtype=numpy.float64)) + zlib.crc32(result.tobytes())) % _PRIME


def _alone(operation: str, table: Table) -> Table:
    """What one process computes."""
    if operation in ("min", "max"):
        return numpy.asarray(table.min(axis=0) if operation == "min" else table.max(axis=0))
    if operation in ("allgather", "alltoall"):
        return table
    if operation == "broadcast":
        return table * 2
    if operation == "barrier":
        return numpy.zeros(1, numpy.float32)
    return numpy.asarray(table.sum(axis=0))


def _together(operation: str, table: Table, name: str, step: int) -> Table:
    """The same, of parts of the table that the ranks have."""
    from spark_estimator.collectives import arrays, context, ops

    rank, size = context.rank(), context.size()
    part = numpy.array_split(table, size)[rank]
    if operation == "allreduce":
        return arrays.allreduce(numpy.ascontiguousarray(part.sum(axis=0)), arrays.ReduceOp.SUM, name)
    if operation == "min":
        return arrays.allreduce(part.min(axis=0), arrays.ReduceOp.MIN, name)
    if operation == "max":
        return arrays.allreduce(part.max(axis=0), arrays.ReduceOp.MAX, name)
    if operation == "allgather":
        return arrays.allgather(part, name)
    if operation == "broadcast":
        root = step % size
        return arrays.broadcast(table * 2 if rank == root else numpy.full_like(table, -1), root, name)
    if operation == "alltoall":
        # Each rank gives every other its share of the rows; together these are all of the table.
        sizes = [len(rows) for rows in numpy.array_split(part, size)]
        received, _ = arrays.alltoall(part, sizes, name)
        everyone = arrays.allgather(received, f"{name}/rows")
        return _in_order(everyone, table, size)
    if operation == "reducescatter":
        columns = arrays.reducescatter(numpy.ascontiguousarray(part.sum(axis=0)), arrays.ReduceOp.SUM, name)
        return arrays.allgather(columns, f"{name}/all")
    if operation == "grouped":
        half = len(part) // 2
        sums = [part[:half].sum(axis=0), part[half:].sum(axis=0)]
        first, second = arrays.grouped_allreduce(sums, arrays.ReduceOp.SUM, name)
        return numpy.asarray(first + second)
    ops.barrier()
    return numpy.zeros(1, numpy.float32)


def _in_order(everyone: Table, table: Table, size: int) -> Table:
    """Puts rows that an alltoall has sent and an allgather has joined back into the table's order."""
    parts = numpy.array_split(numpy.arange(len(table)), size)
    pieces = [numpy.array_split(part, size) for part in parts]
    order = numpy.concatenate([pieces[source][target] for target in range(size) for source in range(size)])
    result = numpy.empty_like(table)
    result[order] = everyone
    return result


def main() -> None:
    """What ``horovodrun`` runs: writes the result to a file."""
    file, folder = sys.argv[1:]
    value = train(Path(file).read_text(), folder)
    Path(folder, f"{RESULT}.{os.environ['HOROVOD_RANK']}").write_text(str(value))


if __name__ == "__main__":
    main()
