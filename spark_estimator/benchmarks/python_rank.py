"""One rank of the Python group of a benchmark: the package's own path from Python, and gloo's, in the same process.

It answers the commands that stand at the head of ``native/benchmarks/measured_rank.h`` and is started by
``python_group`` with its rendezvous in hand. Its variants are "python" (as a user calls it: named, synchronous, on
torch tensors), "gloo" (``torch.distributed``), and "link" (plain sockets round the hosts, carrying what no allreduce
can avoid to carry: the network's bound).
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

import spark_estimator.torch as hvd
from spark_estimator.benchmarks.interleaved import Form
from spark_estimator.benchmarks.link import Ring
from spark_estimator.benchmarks.protocol import answer_commands
from spark_estimator.launch.worker.worker import bind_to_parent

_UNCOUNTED = 2


class Call(NamedTuple):
    """An op that is ready to be called again and again.

    Attributes:
        run: does it.
        output: where its result is then; None: it is what `run` returns.
    """

    run: Callable[[], object]
    output: torch.Tensor | None = None


class Library(Protocol):
    """What can be measured here."""

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        """One op on `tensor`.

        Raises:
            NotOfferedError: the library does not have the op; the text says why.
        """


class NotOfferedError(Exception):
    """A library does not have an op."""


class Ours:
    """The package as its users call it."""

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        name = f"{form.op}.{form.dtype}.{form.bytes}"
        function = getattr(hvd, f"{form.op}_" if form.op in ("allreduce", "broadcast") else form.op, None)
        if function is None:
            raise NotOfferedError(f"this version has no {form.op}")
        if form.op == "barrier":
            return Call(function, tensor)
        if form.op == "broadcast":
            return Call(lambda: function(tensor, 0, name=name))
        if form.op in ("allreduce", "reducescatter"):
            return Call(lambda: function(tensor, op=hvd.Sum, name=name))
        return Call(lambda: function(tensor, name=name))


class Gloo:
    """``torch.distributed`` over gloo, into memory that is made beforehand."""

    def __init__(self, address: str) -> None:
        dist.init_process_group("gloo", init_method=address, rank=hvd.rank(), world_size=hvd.size())

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        size = hvd.size()
        if form.op == "allreduce":
            return Call(lambda: dist.all_reduce(tensor), tensor)
        if form.op == "broadcast":
            return Call(lambda: dist.broadcast(tensor, 0), tensor)
        if form.op == "barrier":
            return Call(dist.barrier, tensor)
        if form.op == "allgather":
            joined = torch.empty(size * tensor.numel(), dtype=tensor.dtype)
            return Call(lambda: dist.all_gather_into_tensor(joined, tensor), joined)
        if form.op == "reducescatter":
            share = torch.empty(tensor.numel() // size, dtype=tensor.dtype)
            return Call(lambda: dist.reduce_scatter_tensor(share, tensor), share)
        swapped = torch.empty_like(tensor)
        return Call(lambda: dist.all_to_all_single(swapped, tensor), swapped)


class Link:
    """The bytes of an allreduce that the hosts' links must carry, and nothing else: no numbers to check."""

    def __init__(self) -> None:
        self._ring = Ring.connect()

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        if form.op != "allreduce":
            raise NotOfferedError("the link's bound is known for allreduce only")
        return Call(self._ring.carrier(2 * (self._ring.hosts - 1) * form.bytes // self._ring.hosts), tensor)


def count_of(form: Form, size: int) -> int:
    """Elements of each rank's input; as ``bench_size`` of ``measured_rank.h`` has it."""
    if form.op == "barrier":
        return 0
    count = max(1, form.bytes // _dtype(form).itemsize)
    return max(size, count // size * size) if form.op in ("reducescatter", "alltoall") else count


def given(form: Form, rank: int, count: int) -> torch.Tensor:
    """The input of `rank` when numbers are checked: small whole numbers that tell where they come from."""
    shift = rank % 3 if form.op in ("allreduce", "reducescatter") else 7 * (rank % 16)
    return (torch.arange(count) % 7 + shift).to(_dtype(form))


def expected(form: Form, rank: int, size: int, count: int) -> torch.Tensor:
    """What `rank` must get from those."""
    if form.op == "broadcast":
        return given(form, 0, count)
    inputs = [given(form, other, count) for other in range(size)]
    share = slice(rank * (count // size), (rank + 1) * (count // size))
    if form.op == "allgather":
        return torch.cat(inputs)
    if form.op == "alltoall":
        return torch.cat([each[share] for each in inputs])
    total = torch.stack(inputs).to(torch.float64).sum(0).to(_dtype(form))
    return total[share] if form.op == "reducescatter" else total


class Rank:
    """Answers commands. Of a variant it keeps what the last form needed, so that its turns find the same memory.

    Args:
        libraries: by variant.
    """

    def __init__(self, libraries: dict[str, Library]) -> None:
        self._libraries = libraries
        self._form: Form | None = None
        self._ready: dict[str, tuple[list[torch.Tensor], list[Call]]] = {}

    def answer(self, line: str) -> str:
        """The answer to one command, without the end of line."""
        verb, variant, op, dtype, size, batch, *samples = line.split()
        form = Form(op, dtype, int(size))
        try:
            if int(batch) != form.batch:
                raise ValueError(f"a batch of {batch} where {form.batch} belongs to {form}")
            tensors, calls = self._prepared(variant, form)
            if verb == "check":
                return self._check(variant, form, tensors, calls)
            return "times " + " ".join(f"{time:.0f}" for time in self._block(form, tensors, calls, int(samples[0])))
        except NotOfferedError as error:
            return f"unsupported {error}"
        except Exception as error:
            return "failed " + " ".join(f"{type(error).__name__}: {error}".split())

    def _prepared(self, variant: str, form: Form) -> tuple[list[torch.Tensor], list[Call]]:
        if form != self._form:
            self._ready.clear()
            self._form = form
        if variant not in self._ready:
            library = self._libraries[variant]
            tensors = [torch.ones(count_of(form, hvd.size()), dtype=_dtype(form)) for _ in range(form.batch)]
            self._ready[variant] = tensors, [library.call(form, tensor) for tensor in tensors]
        return self._ready[variant]

    def _check(self, variant: str, form: Form, tensors: list[torch.Tensor], calls: list[Call]) -> str:
        for tensor in tensors:
            tensor.copy_(given(form, hvd.rank(), tensor.numel()))
        hvd.barrier()
        for number, (tensor, call) in enumerate(zip(tensors, calls, strict=True)):
            returned = call.run()
            result = returned if call.output is None else call.output
            wanted = expected(form, hvd.rank(), hvd.size(), tensor.numel())
            if variant != "link" and form.op != "barrier" and not _alike(result, wanted):
                return f"wrong numbers on rank {hvd.rank()}, op {number} of {form.batch}"
        return "ok"

    def _block(self, form: Form, tensors: list[torch.Tensor], calls: list[Call], samples: int) -> list[float]:
        """Nanoseconds an op, for each sample."""
        times = []
        for _ in range(_UNCOUNTED + samples):
            for tensor in tensors:
                tensor.fill_(1)
            hvd.barrier()  # ours for all: gloo's lets the ranks go at too different times
            start = time.perf_counter_ns()
            for call in calls:
                call.run()
            times.append((time.perf_counter_ns() - start) / form.batch)
        return times[_UNCOUNTED:]


def _alike(result: object, wanted: torch.Tensor) -> bool:
    return isinstance(result, torch.Tensor) and torch.equal(result, wanted)


def _dtype(form: Form) -> torch.dtype:
    dtype = getattr(torch, form.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def main() -> None:
    """Entry point of each process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path, help="where the controller listens")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--gloo", help="tcp://host:port where gloo's ranks meet")
    parser.add_argument("--link", action="store_true", help="offer the variant that measures the network itself")
    options = parser.parse_args()
    bind_to_parent(options.parent)
    warnings.simplefilter("ignore")  # of torch, about names that it is going to change
    torch.set_num_threads(1)
    hvd.init()
    libraries: dict[str, Library] = {"python": Ours()}
    if options.gloo:
        libraries["gloo"] = Gloo(options.gloo)
    if options.link:
        libraries["link"] = Link()
    rank = Rank(libraries)
    answer_commands(options.socket, hvd.rank(), hvd.size(), rank.answer)
    if options.gloo:
        with contextlib.suppress(Exception):  # its peers may have gone first
            dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
