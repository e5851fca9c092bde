"""How much of an exchange is hidden behind computing, by a trace of PyTorch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import spark_estimator.torch as hvd
from tests.gpu.goals import Line

_STEPS = 3
#: What the GPU does, by the trace's categories. "gpu_user_annotation" is a name for a span, in which it may do nothing.
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_Span = tuple[float, float]


def overlap(step: Callable[[], object], folder: str) -> Line:
    """Profiles some steps on all ranks.

    Args:
        step: one step, with its exchange.
        folder: where the traces stay; "": nowhere.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as passing:
        path = Path(folder or passing, f"step-{hvd.size()}-ranks-{hvd.rank()}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return summary(events)


def summary(events: Iterable[Mapping[str, Any]]) -> Line:
    """The line of a trace's events, whose times are in microseconds."""
    by_stream: dict[Any, list[_Span]] = {}
    for event in events:
        if event.get("cat") in _WORK and event.get("dur", 0) > 0:
            stream = event.get("args", {}).get("stream", event.get("tid"))
            begin = float(event["ts"])
            by_stream.setdefault(stream, []).append((begin, begin + float(event["dur"])))
    if len(by_stream) < 2:
        return Line(f"the profiler saw work on {len(by_stream)} stream(s) of the GPU: no overlap to tell")
    computing = max(by_stream, key=lambda stream: len(by_stream[stream]))
    busy = joined(by_stream[computing])
    others = joined([span for stream, spans in by_stream.items() if stream != computing for span in spans])
    total = sum(end - begin for begin, end in others)
    return Line(
        f"streams of the exchange are at work for {total / 1e3 / _STEPS:.2f} ms a step, "
        f"{shared(others, busy) / total:.0%} of that beside computing"
    )


def joined(spans: Iterable[_Span]) -> list[_Span]:
    """Spans of time without overlaps, in order."""
    merged: list[_Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def shared(some: list[_Span], others: list[_Span]) -> float:
    """How much time is in both lists of spans, which are in order and without overlaps."""
    total, at, beside = 0.0, 0, 0
    while at < len(some) and beside < len(others):
        (begin, end), (other_begin, other_end) = some[at], others[beside]
        total += max(0.0, min(end, other_end) - max(begin, other_begin))
        if end < other_end:
            at += 1
        else:
            beside += 1
    return total
