"""One collective on tensors, checked and ready to run: each of Horovod's forms of an op runs or submits one.

A blocking form calls `Collective.run`, which works in the calling thread; an asynchronous one calls
`Collective.submit` and hands out a number. The functions below make collectives from what users give.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.compression import int8
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.ops import Tensor
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.reductions import make_request_name
from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch.collectives.device import await_outputs, collect_rows, find_location, warn_about_int8
from spark_estimator.torch.collectives.memory import (
    describe_call,
    make_wire_tensor,
    to_wire_form,
    to_writable_wire_form,
    write_back,
)
from spark_estimator.torch.collectives.pending import register_pending
from spark_estimator.torch.collectives.reductions import Average, Sum, check_adasum

Result = TypeVar("Result")

#: Rows that each rank gave to an allgather, or sent to this one in an alltoall.
Rows = tuple[int, ...]

only: Callable[[Sequence[Any]], Any] = operator.itemgetter(0)


@dataclass(slots=True)
class Collective(Generic[Result]):
    """A collective that can be run, or submitted, once.

    Attributes:
        op: the kind, for the engine.
        name: for the engine; a kind when `unnamed`. See `make_request_name`.
        unnamed: whether the ranks' calls are matched by their order.
        tensors: what the wire forms share their memory with, or are copies of.
        keep: what owns that memory.
        result: waits for the handle (None: there is nothing to wait for), and returns the user's result.
        options: further arguments of ``collectives.ops.submit``.
    """

    op: Op
    name: str
    unnamed: bool
    tensors: Sequence[Tensor]
    keep: object
    result: Callable[[Handle | None], Result]
    options: Mapping[str, Any]

    def run(self, *, repeats: bool = True) -> Result:
        """Run it and return its result. Raise as ``ops.run``. Without `repeats` no call of the name follows."""
        arguments: dict[str, Any] = {"keep": self.keep, "unnamed": self.unnamed, "repeats": repeats, **self.options}
        return self.result(collectives.run(self.op, self.name, self.tensors, **arguments))

    def submit(self, of: Callable[[Result], object] | None = None) -> int:
        """Submit it; return the number for `synchronize`, which applies `of`. Raise as ``ops.submit``."""
        handle = collectives.submit(
            self.op, self.name, self.tensors, keep=self.keep, unnamed=self.unnamed, **self.options
        )
        result = self.result
        return register_pending(handle, lambda: result(handle) if of is None else of(result(handle)))


def make_allreduce(
    tensors: Sequence[torch.Tensor],
    kind: str,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet | None,
    *,
    in_place: bool = False,
    residues: Sequence[object] = (),
) -> Collective[list[torch.Tensor]]:
    """Make an allreduce of tensors that are reduced as one, each into a new one or in place.

    Args:
        tensors: as the user gave them.
        kind: of the user's call: names of different kinds are different names.
        name: the user's; None: by order.
        op, prescale, postscale, process_set: as in `allreduce`.
        in_place: whether the results replace the tensors' values.
        residues: a key for each tensor, which are then sent as int8 between hosts, unless they are on a GPU; see
            ``collectives.compression.int8``.
    """
    wire = to_writable_wire_form if in_place else to_wire_form
    location = find_location(tensors, kind, process_set)
    sources = [wire(tensor, kind, location.device) for tensor in tensors]
    if op is ReduceOp.ADASUM:
        check_adasum(op, context.engine(process_set).size, kind)
    if in_place and len(sources) > 1:
        _check_apart(sources, kind)
    outputs = sources if in_place else [torch.empty_like(source) for source in sources]

    gpu = location.make_gpu(kind)

    def fetch_result(handle: Handle | None) -> list[torch.Tensor]:
        await_outputs(handle, gpu, (*sources, *outputs), kind)
        if in_place:
            return [write_back(output, tensor) for output, tensor in zip(outputs, tensors, strict=True)]
        return _move_to_devices(outputs, tensors)

    described_tensors = [make_wire_tensor(source, output) for source, output in zip(sources, outputs, strict=True)]
    forms = [tensor[2:] for tensor in described_tensors]
    if residues and gpu is not None:
        warn_about_int8()
        residues = ()
    owed = int8.find_residues(process_set, residues, forms) if residues else ()
    factors = {"prescale": prescale, "postscale": postscale}
    return Collective(
        Op.ALLREDUCE,
        *make_request_name(kind, name),
        described_tensors,
        (sources, outputs),
        fetch_result,
        {"reduce_op": op, **factors, "process_set": process_set, "gpu": gpu, "residues": owed},
    )


def _check_apart(tensors: Sequence[torch.Tensor], kind: str) -> None:
    """Raise ValueError when two tensors share memory: each would be reduced with what the other has left there."""
    ranges = sorted(
        (tensor.data_ptr(), tensor.nbytes, number) for number, tensor in enumerate(tensors) if tensor.nbytes
    )
    for (start, length, number), (following, _, other) in itertools.pairwise(ranges):
        if start + length > following:
            first, second = sorted((number, other))
            raise ValueError(
                f"{describe_call(kind)}: tensors {first} and {second} of the group share memory, so they cannot be "
                "reduced in place together. Use the function without a trailing underscore, or clone one of them."
            )


def make_allgather(
    tensors: Sequence[torch.Tensor], kind: str, name: str | None, process_set: ProcessSet | None
) -> Collective[list[tuple[torch.Tensor, Rows]]]:
    """Make an allgather of tensors in one request; a result has the ranks' numbers of rows. Raises IndexError."""
    location = find_location(tensors, kind, process_set)
    sources = [to_wire_form(tensor, kind, location.device) for tensor in tensors]
    for number, source in enumerate(sources):
        if source.dim() == 0:
            which = "a" if len(sources) == 1 else f"tensor {number} is a"
            raise IndexError(
                f"{describe_call(kind)}: tensors are joined along dimension 0, and {which} 0-dimensional tensor has no "
                "rows: unsqueeze it."
            )

    gpu = location.make_gpu(kind)

    def fetch_result(handle: Handle | None) -> list[tuple[torch.Tensor, Rows]]:
        assert handle is not None
        every = collect_rows(handle, location, gpu, sources, kind)
        return [(joined.to(tensor.device), rows) for (joined, rows), tensor in zip(every, tensors, strict=True)]

    wires = [_describe_input(source) for source in sources]
    return Collective(
        Op.ALLGATHER,
        *make_request_name(kind, name),
        wires,
        sources,
        fetch_result,
        {"process_set": process_set, "gpu": gpu},
    )


def make_broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    kind: str,
    name: str | None,
    process_set: ProcessSet | None,
    *,
    in_place: bool = False,
) -> Collective[torch.Tensor]:
    """Make a broadcast of a tensor, into a new one or in place. Sending raises ValueError: the set lacks the root."""
    location = find_location([tensor], kind, process_set)
    source = (to_writable_wire_form if in_place else to_wire_form)(tensor, kind, location.device)
    output = source if in_place else torch.empty_like(source)
    gpu = location.make_gpu(kind)

    def fetch_result(handle: Handle | None) -> torch.Tensor:
        await_outputs(handle, gpu, (source, output), kind)
        return write_back(output, tensor) if in_place else output.to(tensor.device)

    return Collective(
        Op.BROADCAST,
        *make_request_name(kind, name),
        [make_wire_tensor(source, output)],
        (source, output),
        fetch_result,
        {"root_rank": root_rank, "process_set": process_set, "gpu": gpu},
    )


def make_alltoall(
    tensor: torch.Tensor, splits: object, kind: str, name: str | None, process_set: ProcessSet | None
) -> Collective[tuple[torch.Tensor, torch.Tensor]]:
    """Make an alltoall of a tensor's rows; the result is a pair: the received rows, and [size] their numbers.

    Raises:
        ValueError: the tensor has no rows to share, or the splits do not share them.
    """
    location = find_location([tensor], kind, process_set)
    source = _require_rows(tensor, kind, location.device)
    engine = context.engine(process_set)
    gpu = location.make_gpu(kind)
    shares = _check_splits(splits, source.shape[0], engine, kind)
    if shares is not None:
        source = source[: sum(shares)]
    device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")

    def fetch_result(handle: Handle | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert handle is not None
        [(joined, rows)] = collect_rows(handle, location, gpu, [source], kind)
        return joined.to(tensor.device), torch.tensor(rows, dtype=torch.int32, device=device)

    wires = [_describe_input(source)]
    name, unnamed = make_request_name(kind, name)
    return Collective(
        Op.ALLTOALL,
        name,
        unnamed,
        wires,
        source,
        fetch_result,
        {"splits": shares, "process_set": process_set, "gpu": gpu},
    )


def make_reducescatter(
    tensors: Sequence[torch.Tensor],
    kind: str,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet | None,
) -> Collective[list[torch.Tensor]]:
    """Make a reducescatter of tensors; each rank gets its rows. See `make_allreduce` for the arguments.

    Raises:
        ValueError: a tensor has no rows to share.
        HorovodInternalError: the op is neither Average nor Sum.
    """
    if op not in (Average, Sum):
        raise HorovodInternalError(
            f"{describe_call(kind)}: op=hvd.{op.name.title()} is not supported. Use hvd.Average or hvd.Sum, or slice "
            "this rank's rows from an allreduce."
        )
    location = find_location(tensors, kind, process_set)
    sources = [_require_rows(tensor, kind, location.device) for tensor in tensors]
    engine = context.engine(process_set)
    outputs = [
        source.new_empty((source.shape[0] // engine.size + (engine.rank < source.shape[0] % engine.size), *row_shape))
        for source in sources
        for row_shape in [source.shape[1:]]
    ]
    gpu = location.make_gpu(kind)

    def fetch_result(handle: Handle | None) -> list[torch.Tensor]:
        await_outputs(handle, gpu, (*sources, *outputs), kind)
        return _move_to_devices(outputs, tensors)

    return Collective(
        Op.REDUCESCATTER,
        *make_request_name(kind, name),
        [make_wire_tensor(source, output) for source, output in zip(sources, outputs, strict=True)],
        (sources, outputs),
        fetch_result,
        {"reduce_op": op, "prescale": prescale, "postscale": postscale, "process_set": process_set, "gpu": gpu},
    )


def check_group(tensors: object, kind: str) -> list[torch.Tensor]:
    """Return the members of a group. Raises ValueError when there are none, or they are no list."""
    if not isinstance(tensors, (list, tuple)):
        raise ValueError(f"{describe_call(kind)}: a list of tensors is needed, not {tensors!r:.100}.")
    if not tensors:
        raise ValueError(f"{describe_call(kind)}: at least one tensor is needed, and the list is empty.")
    return list(tensors)


def _require_rows(tensor: torch.Tensor, kind: str, device: torch.device) -> torch.Tensor:
    source = to_wire_form(tensor, kind, device)
    if source.dim() == 0:
        raise ValueError(
            f"{describe_call(kind)}: tensors are split along dimension 0, and a 0-dimensional tensor has no rows: "
            "unsqueeze it."
        )
    return source


def _check_splits(splits: object, rows: int, engine: Engine, kind: str) -> tuple[int, ...] | None:
    """Return [size] how many rows are sent to each rank, together at most as many as there are; None: equally many."""
    lengths = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    if lengths is None or (isinstance(lengths, (list, tuple)) and not lengths):
        if rows % engine.size:
            raise ValueError(
                f"{describe_call(kind)}: {rows} rows can't be divided equally among {engine.size} ranks; pass splits."
            )
        return None
    try:
        shares = tuple(operator.index(share) for share in lengths)  # type: ignore[attr-defined]
    except TypeError:
        shares = ()
    if len(shares) != engine.size or min(shares) < 0 or sum(shares) > rows:
        raise ValueError(
            f"{describe_call(kind)}: splits={splits!r} must be {engine.size} non-negative integers, one per rank, that "
            f"add up to at most the {rows} rows."
        )
    return shares


def _describe_input(source: torch.Tensor) -> Tensor:
    """Make the engine's form of a tensor for an op that makes the memory for its result itself."""
    return make_wire_tensor(source)._replace(output=0)


def _move_to_devices(outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [output.to(tensor.device) for output, tensor in zip(outputs, tensors, strict=True)]
