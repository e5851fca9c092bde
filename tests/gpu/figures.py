"""What ``check.py`` measures on real GPUs, beside the hardware's own figures and the goals."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.gpu.goals import Line, at_least, at_most
from tests.gpu.in_rank import Task
from tests.gpu.nccl_direct import averaging_by_nccl
from tests.gpu.overlap import overlap
from tests.gpu.timing import by_one_rank, interleaved, seconds_of
from tests.gpu.ways import COPIED, MACHINES, ONE, OWN, SHARED

#: Of float32: 100 MB.
_ELEMENTS = 25_000_000
_IN_A_ROW = 10
#: Small requests that are submitted before the first is waited for, and how often.
_SMALL, _ROUNDS = 300, 7
_STEPS = 30


def allreduce_100_mb(way: str) -> list[Line]:
    """In place, on all ranks at the same time; beside what there is to compare the way with."""
    tensor = torch.ones(_ELEMENTS, device="cuda")
    single = seconds_of(lambda: hvd.allreduce_(tensor, name="100 MB"))
    taken = seconds_of(lambda: hvd.allreduce_(tensor, name="100 MB"), 10, in_a_row=_IN_A_ROW)
    lines = [
        Line(
            f"{taken * 1e3:.3f} ms each of {_IN_A_ROW} in a row: {tensor.nbytes / taken / 1e9:.1f} GB/s of the tensor, "
            f"{hvd.size() * tensor.nbytes / taken / 1e9:.1f} GB/s of all ranks'; a single one {single * 1e3:.3f} ms"
        )
    ]
    compare = {SHARED: _beside_the_bus, OWN: _beside_nccl, MACHINES: _beside_nccl}.get(way)
    return lines + ([] if compare is None else compare(tensor, taken))


def _beside_the_bus(tensor: torch.Tensor, taken: float) -> list[Line]:
    """Copies to pinned memory and from it run at the same time; the ranks' GPU has one bus."""
    other = torch.empty_like(tensor)
    to, of = (torch.empty(_ELEMENTS, pin_memory=True) for _ in range(2))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def both_ways() -> None:
        with torch.cuda.stream(streams[0]):
            to.copy_(tensor, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            other.copy_(of, non_blocking=True)

    alone = by_one_rank(lambda: seconds_of(both_ways, 10, in_a_row=_IN_A_ROW, together=False))
    return [
        Line(f"to and from pinned memory at once, by one rank alone: {alone * 1e3:.3f} ms; {hvd.size()} share the bus"),
        at_least("of what that allows", 100 * hvd.size() * alone / taken, 80, "%"),
    ]


def _beside_nccl(tensor: torch.Tensor, taken: float) -> list[Line]:
    """By NCCL as torch.distributed calls it, in turns with ours."""
    try:
        with averaging_by_nccl() as average:
            ours, direct = [], []
            for _ in range(3):  # other moments, other clocks
                direct.append(seconds_of(lambda: average(tensor), 10, in_a_row=_IN_A_ROW))
                ours.append(seconds_of(lambda: hvd.allreduce_(tensor, name="100 MB"), 10, in_a_row=_IN_A_ROW))
    except Exception as error:
        return [Line(f"NCCL called directly is not measured: {type(error).__name__}: {error}")]
    mine, by_nccl = statistics.median(ours), statistics.median(direct)
    return [
        Line(f"NCCL called by torch.distributed: {by_nccl * 1e3:.3f} ms, ours {mine * 1e3:.3f} ms"),
        at_most("over NCCL called directly", 100 * (mine / by_nccl - 1), 2, "%"),
    ]


def small_ones(way: str) -> list[Line]:
    """What the calling thread pays for a request, and how long a small one takes."""
    tensors = [torch.ones(256, device="cuda") for _ in range(_SMALL)]

    def submit_all() -> list[int]:
        return [hvd.allreduce_async_(tensor, name=f"small {number}") for number, tensor in enumerate(tensors)]

    costs, walls = [], []
    for turn in range(_ROUNDS + 2):
        torch.cuda.synchronize()
        hvd.barrier()
        began, at = time.thread_time_ns(), time.perf_counter()
        handles = submit_all()
        cost, wall = time.thread_time_ns() - began, time.perf_counter() - at
        for handle in handles:
            hvd.synchronize(handle)
        if turn >= 2:  # the first ones agree on names
            costs.append(cost / 1e3 / _SMALL)
            walls.append(wall * 1e6 / _SMALL)
    submits, waits = [], []
    for _ in range(_SMALL):
        torch.cuda.synchronize()
        hvd.barrier()
        at = time.perf_counter()
        handle = hvd.allreduce_async_(tensors[0], name="small 0")
        submitted = time.perf_counter()
        hvd.synchronize(handle)
        submits.append(submitted - at)
        waits.append(time.perf_counter() - submitted)
    whole = seconds_of(lambda: hvd.allreduce_(tensors[0], name="small 0"), 200)
    for _ in range(2):  # the first round loads the kernel
        torch.cuda.synchronize()
        at = time.perf_counter()
        for tensor in tensors:
            tensor.add_(1)
        launch = (time.perf_counter() - at) * 1e6 / _SMALL
    return [
        at_most(f"CPU time of submitting, of {_SMALL} in a row", statistics.median(costs), 10, "us"),
        Line(
            f"by the clock {statistics.median(walls):.1f} us; a single one {statistics.median(submits) * 1e6:.1f} us, "
            f"and {statistics.median(waits) * 1e6:.0f} us to synchronize it; allreduce_ of 1 KB to its end on the "
            f"GPU {whole * 1e6:.0f} us"
        ),
        Line(
            f"PyTorch needs {launch:.1f} us to launch a kernel here (tensor.add_(1)): submitting costs "
            f"{statistics.median(walls) / launch:.1f} times that"
        ),
    ]


def transformer() -> nn.Module:
    """100 million parameters."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0, device="cuda")
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()

    return step


def transformer_step(way: str, folder: str) -> list[Line]:
    """A step with and without exchange, in turns; and how much of the exchange is hidden behind computing."""
    torch.manual_seed(0)
    rows = torch.randn(16, 256, 1024, device="cuda")
    plain, ours = transformer(), transformer()
    ours.load_state_dict(plain.state_dict())
    without = step_of(plain, torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True), rows)
    wrapped = hvd.DistributedOptimizer(
        torch.optim.AdamW(ours.parameters(), lr=1e-5, fused=True), ours.named_parameters()
    )
    with_exchange = step_of(ours, wrapped, rows)
    alone, exchanged = interleaved([without, with_exchange], _STEPS)
    count = sum(param.numel() for param in plain.parameters())
    text = (
        f"{count / 1e6:.0f} million parameters: {exchanged * 1e3:.2f} ms, without DistributedOptimizer "
        f"{alone * 1e3:.2f} ms ({exchanged / alone:.3f} times)"
    )
    if way == ONE:
        return [Line(text), at_most("over plain PyTorch", 100 * (exchanged / alone - 1), 1, "%")]
    try:
        hidden = overlap(with_exchange, folder)
    except (OSError, RuntimeError, ValueError) as error:  # a profiler that cannot be used is no fault of the exchange
        hidden = Line(f"the overlap is not measured: {type(error).__name__}: {error}")
    return [Line(text), hidden]


def figures(way: str, folder: str) -> dict[str, Task]:
    """What is measured in a way; traces go to a folder, "": nowhere."""
    tasks: dict[str, tuple[Sequence[str], Task]] = {
        "allreduce of 100 MB": ((ONE, SHARED, COPIED, OWN, MACHINES), functools.partial(allreduce_100_mb, way)),
        "small allreduces": ((ONE, SHARED, OWN, MACHINES), functools.partial(small_ones, way)),
        "transformer step": ((ONE, SHARED, COPIED, OWN, MACHINES), functools.partial(transformer_step, way, folder)),
    }
    return {name: task for name, (wanted, task) in tasks.items() if way in wanted}
