"""What ``check.py`` measures on real GPUs, beside what the hardware does by itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import spark_estimator.torch as hvd

ONE, SHARED, STAGED, COPIED, OWN = (
    "one rank",
    "two ranks on one GPU",
    "two ranks, staged",
    "two ranks, PyTorch's copies",
    "two ranks, a GPU each",
)
_ELEMENTS = 25_000_000  # 100 MB of float32


def measured(rank: int, name: str, own_gpus: bool, trace: str) -> list[str]:
    """The lines of one figure."""
    torch.cuda.set_device(rank if own_gpus else 0)
    hvd.init()
    try:
        return FIGURES[name][1](trace)
    finally:
        hvd.shutdown()


def seconds_of(function: Callable[[], object], times: int = 20) -> float:
    """The median of so many runs, each to its end on the GPU; all ranks begin together."""
    for _ in range(3):
        function()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        hvd.barrier()
        began = time.perf_counter()
        function()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def allreduce_100_mb(trace: str) -> list[str]:
    """In place; beside copies of as many bytes on the device, and from and to pinned memory."""
    tensor = torch.ones(_ELEMENTS, device="cuda")
    other = torch.empty_like(tensor)
    pinned = torch.empty(_ELEMENTS, pin_memory=True)
    reduced = seconds_of(lambda: hvd.allreduce_(tensor, name="100 MB"))
    on_device = seconds_of(lambda: other.copy_(tensor))
    there_and_back = seconds_of(lambda: tensor.copy_(pinned.copy_(tensor, non_blocking=True), non_blocking=True))
    rate = tensor.nbytes / 1e9
    return [
        f"{reduced * 1e3:.2f} ms, {rate / reduced:.1f} GB/s; a copy on the device {on_device * 1e3:.2f} ms "
        f"({reduced / on_device:.1f} times); to pinned memory and back {there_and_back * 1e3:.2f} ms "
        f"({reduced / there_and_back:.2f} times)"
    ]


def small_ones(trace: str) -> list[str]:
    """What the CPU pays for a request, and how long a small one takes."""
    tensor = torch.ones(256, device="cuda")
    for _ in range(50):
        hvd.synchronize(hvd.allreduce_async_(tensor, name="small"))
    submits, waits = [], []
    for _ in range(300):
        torch.cuda.synchronize()
        hvd.barrier()
        began = time.perf_counter()
        handle = hvd.allreduce_async_(tensor, name="small")
        submitted = time.perf_counter()
        hvd.synchronize(handle)
        submits.append(submitted - began)
        waits.append(time.perf_counter() - submitted)
    whole = seconds_of(lambda: hvd.allreduce_(tensor, name="blocking"), 200)
    return [
        f"submit {statistics.median(submits) * 1e6:.0f} us, synchronize {statistics.median(waits) * 1e6:.0f} us of "
        f"CPU; allreduce_ of 1 KB to its end on the GPU {whole * 1e6:.0f} us"
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


def transformer_step(trace: str) -> list[str]:
    """A step with and without exchange; and how much of the exchange is hidden behind computing."""
    torch.manual_seed(0)
    rows = torch.randn(16, 256, 1024, device="cuda")
    plain = transformer()
    without = step_of(plain, torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True), rows)
    ours = transformer()
    ours.load_state_dict(plain.state_dict())
    wrapped = hvd.DistributedOptimizer(
        torch.optim.AdamW(ours.parameters(), lr=1e-5, fused=True), ours.named_parameters()
    )
    with_exchange = step_of(ours, wrapped, rows)
    rounds = [(seconds_of(without, 10), seconds_of(with_exchange, 10)) for _ in range(3)]
    alone, exchanged = (statistics.median(each) for each in zip(*rounds, strict=True))
    count = sum(param.numel() for param in plain.parameters())
    lines = [
        f"{count / 1e6:.0f} million parameters: {exchanged * 1e3:.2f} ms, without DistributedOptimizer "
        f"{alone * 1e3:.2f} ms ({exchanged / alone:.3f} times)"
    ]
    return lines + ([] if hvd.size() == 1 else overlap(with_exchange, trace))


def overlap(step: Callable[[], None], trace: str) -> list[str]:
    """By the profiler: while how much of the time that other streams are at work the computing stream is, too."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    if trace:
        Path(trace).mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(Path(trace, f"step-{hvd.rank()}.json")))
    by_stream: dict[int, list[tuple[float, float]]] = {}
    for event in profiler.profiler.kineto_results.events():
        if "CUDA" in str(event.device_type()) and event.duration_ns() > 0:
            begin = event.start_ns()
            by_stream.setdefault(event.device_resource_id(), []).append((begin, begin + event.duration_ns()))
    if len(by_stream) < 2:
        return [f"the profiler saw {len(by_stream)} stream(s): no overlap to tell"]
    computing = max(by_stream, key=lambda stream: len(by_stream[stream]))
    busy = joined(by_stream[computing])
    others = joined([span for stream, spans in by_stream.items() if stream != computing for span in spans])
    together = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in others
        for other_begin, other_end in busy
    )
    total = sum(end - begin for begin, end in others)
    return [
        f"streams of the exchange are at work for {total / 3e6:.2f} ms a step, {together / total:.0%} beside computing"
    ]


def joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time without overlaps."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


#: Name -> the ways in which it is measured, and what does it.
FIGURES: dict[str, tuple[tuple[str, ...], Callable[[str], list[str]]]] = {
    "allreduce of 100 MB": ((ONE, SHARED, STAGED, COPIED, OWN), allreduce_100_mb),
    "small allreduces": ((ONE, SHARED, STAGED, OWN), small_ones),
    "transformer step": ((ONE, SHARED, COPIED, OWN), transformer_step),
}
