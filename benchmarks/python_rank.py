"""A rank of the Python group of a benchmark: runs the package's Python API and gloo in the same process.

``python_group`` starts it and passes its rendezvous. It answers the commands that the header comment of
``native/benchmarks/measured_rank.h`` documents. Its variants are "python" (the public API: named, synchronous, on torch
tensors), "gloo" (``torch.distributed``), and "link" (plain sockets in a ring of the hosts, with the least bytes that an
allreduce must send: the network's bound).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

import spark_estimator.torch as hvd
from benchmarks.interleaved import Form
from benchmarks.link import Ring
from benchmarks.protocol import answer_commands
from spark_estimator.launch.worker.worker import bind_to_parent

_UNCOUNTED = 2
_SO_MAX_PACING_RATE = 47  # of Linux; Python has no name for it


class Call(NamedTuple):
    """An op on prepared buffers, which can be called repeatedly.

    Attributes:
        run: performs the op.
        output: the result's buffer; None: `run` returns the result.
    """

    run: Callable[[], object]
    output: torch.Tensor | None = None


class Library(Protocol):
    """A library with collectives."""

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        """Prepares an op on `tensor`.

        Raises:
            UnsupportedError: the library does not have the op; the message names the reason.
        """


class UnsupportedError(Exception):
    """A library does not have an op."""


class Ours:
    """This package's public API."""

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        name = f"{form.op}.{form.dtype}.{form.bytes}"
        function = getattr(hvd, f"{form.op}_" if form.op in ("allreduce", "broadcast") else form.op, None)
        if function is None:
            raise UnsupportedError(f"this version has no {form.op}")
        if form.op == "barrier":
            return Call(function, tensor)
        if form.op == "broadcast":
            return Call(lambda: function(tensor, 0, name=name))
        if form.op in ("allreduce", "reducescatter"):
            return Call(lambda: function(tensor, op=hvd.Sum, name=name))
        return Call(lambda: function(tensor, name=name))


class Gloo:
    """``torch.distributed`` over gloo, with preallocated outputs."""

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
    """Sends the least bytes that an allreduce must send over the hosts' links. There is no result to check."""

    def __init__(self) -> None:
        self._ring = Ring.connect()

    def call(self, form: Form, tensor: torch.Tensor) -> Call:
        if form.op != "allreduce":
            raise UnsupportedError("the link's bound is defined for allreduce only")
        return Call(self._ring.carrier(2 * (self._ring.hosts - 1) * form.bytes // self._ring.hosts), tensor)


def count_of(form: Form, size: int) -> int:
    """Number of elements of each rank's input, as ``bench_size`` of ``measured_rank.h``."""
    if form.op == "barrier":
        return 0
    count = max(1, form.bytes // _dtype(form).itemsize)
    return max(size, count // size * size) if form.op in ("reducescatter", "alltoall") else count


def checked_input(form: Form, rank: int, count: int) -> torch.Tensor:
    """The input of `rank` for a check: small whole numbers that depend on the rank and the position."""
    shift = rank % 3 if form.op in ("allreduce", "reducescatter") else 7 * (rank % 16)
    return (torch.arange(7) + shift).to(_dtype(form)).repeat(count // 7 + 1)[:count]


def expected(form: Form, rank: int, size: int, count: int) -> torch.Tensor:
    """The correct result on `rank` for these inputs."""
    if form.op == "broadcast":
        return checked_input(form, 0, count)
    inputs = (checked_input(form, other, count) for other in range(size))
    share = slice(rank * (count // size), (rank + 1) * (count // size))
    if form.op == "allgather":
        return torch.cat(list(inputs))
    if form.op == "alltoall":
        return torch.cat([each[share] for each in inputs])
    total = torch.zeros(count)  # the sums of these numbers are exact in float32
    for each in inputs:  # one at a time: all ranks of this machine check large tensors at once
        total += each
    result = total.to(_dtype(form))
    return result[share] if form.op == "reducescatter" else result


class Rank:
    """Answers commands. It keeps the buffers of the current form, so that all blocks of a variant use the same memory.

    Args:
        libraries: variant -> library.
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
                raise ValueError(f"the command has batch {batch}, but {form} has batch {form.batch}")
            tensors, calls = self._prepared(variant, form)
            if verb == "check":
                return self._check(variant, form, tensors, calls)
            return "times " + " ".join(f"{time:.0f}" for time in self._block(form, tensors, calls, int(samples[0])))
        except UnsupportedError as error:
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
            tensor.copy_(checked_input(form, hvd.rank(), tensor.numel()))
        hvd.barrier()
        for number, (tensor, call) in enumerate(zip(tensors, calls, strict=True)):
            returned = call.run()
            result = returned if call.output is None else call.output
            correct = expected(form, hvd.rank(), hvd.size(), tensor.numel())
            if variant != "link" and form.op != "barrier" and not _equal(result, correct):
                return f"wrong result on rank {hvd.rank()}, op {number} of {form.batch}"
        return "ok"

    def _block(self, form: Form, tensors: list[torch.Tensor], calls: list[Call], samples: int) -> list[float]:
        """Nanoseconds per op, for each sample."""
        times = []
        for _ in range(_UNCOUNTED + samples):
            for tensor in tensors:
                tensor.fill_(1)
            hvd.barrier()  # this package's for all libraries: gloo's barrier releases the ranks at too different times
            start = time.perf_counter_ns()
            for call in calls:
                call.run()
            times.append((time.perf_counter_ns() - start) / form.batch)
        return times[_UNCOUNTED:]


def _equal(result: object, correct: torch.Tensor) -> bool:
    return isinstance(result, torch.Tensor) and torch.equal(result, correct)


def _dtype(form: Form) -> torch.dtype:
    dtype = getattr(torch, form.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _limit_connections(bytes_per_second: int) -> None:
    """Has the kernel send at most at this rate on each TCP connection of this process, also on those of libraries."""
    for path in Path("/proc/self/fd").iterdir():
        if not path.is_socket():  # nor the descriptor of this listing, which is closed by now
            continue
        with socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, bytes_per_second)


def main() -> None:
    """Entry point of each process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path, help="the socket on which the controller listens")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--gloo", help="tcp://host:port of gloo's rendezvous")
    parser.add_argument("--flow-bytes-per-second", type=int, default=0, help="limit of each TCP connection")
    parser.add_argument("--link", action="store_true", help="offer the variant that measures the network itself")
    options = parser.parse_args()
    bind_to_parent(options.parent)
    warnings.simplefilter("ignore")  # torch's deprecation warnings
    torch.set_num_threads(1)
    hvd.init()
    libraries: dict[str, Library] = {"python": Ours()}
    if options.gloo:
        libraries["gloo"] = Gloo(options.gloo)
    if options.link:
        libraries["link"] = Link()
    rank = Rank(libraries)

    def answer(line: str) -> str:
        if options.flow_bytes_per_second:
            _limit_connections(options.flow_bytes_per_second)
        return rank.answer(line)

    answer_commands(options.socket, hvd.rank(), hvd.size(), answer)
    if options.gloo:
        with contextlib.suppress(Exception):  # its peers may have exited
            dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
