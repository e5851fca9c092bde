"""Joins the ranks' traces into one, on one clock.

Each rank stamps its events with its own monotonic clock. An op that all ranks take part in ends on all of them at
nearly the same moment and has the same sequence number everywhere: so the median, over common ops, of the difference
between two ranks' ends is the difference of their clocks; some late ends do not move it. When it changes from the
first half of the trace to the second by more than its scatter, the clocks drift, and a line is laid through both
halves' medians (Brown and Mood 1951). Files are read line by line, twice; what is kept of an op takes 32 bytes.
"""

from __future__ import annotations

import json
import os
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spark_estimator.security import file_modes

# The engine writes an event a line, of a few hundred bytes, and a name may have 4,095.
_MAX_LINE_BYTES = 1 << 20
_FORMAT = 1
# Ends of a broadcast are less precise: its root does not wait for other ranks.
_ENDING_TOGETHER = frozenset({"ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BARRIER"})
# Each process set's rows, apart from the others' in one process.
_ROWS_A_SET = 1_000_000
_LEAST_OPS_FOR_DRIFT = 64
_MOST_DRIFT = 500e-6  # what clocks are steered by at most (adjtimex); more is no drift

_Times = TypeVar("_Times", float, NDArray[np.float64])


class TraceError(Exception):
    """The files cannot be joined; the text is for the user."""


@dataclass
class _Trace:
    """One rank's file, and the facts of its first reading."""

    path: Path
    rank: int
    size: int
    process_set: int
    process: str
    wall_clock_minus_own: float  # microseconds
    started: int  # the wall clock's microseconds when the file was begun
    sequences: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    ends: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class _Clock:
    """The correction to subtract from a rank's times, ``offset + drift * (time - origin)``; and its source."""

    offset: float  # microseconds
    description: str
    drift: float = 0.0
    origin: float = 0.0

    def align(self, time: _Times) -> _Times:
        return time - self.offset - self.drift * (time - self.origin)


class _Lines:
    """The events of a file, unwanted ones unread; afterwards, whether it was `complete`, and `broken` lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        self.broken = 0

    def read_events(self, containing: bytes = b"") -> Iterator[dict[str, Any]]:
        """Yield the events whose line has these bytes. Raises TraceError when the file cannot be read."""
        try:
            with open(self.path, "rb") as file:
                while line := file.readline(_MAX_LINE_BYTES):
                    if containing not in line:
                        continue
                    text = line.strip().rstrip(b",")
                    if text in {b"", b"[", b"]"}:
                        self.complete |= text == b"]"
                        continue
                    try:
                        event = json.loads(text)
                    except (ValueError, RecursionError):
                        event = None
                    if isinstance(event, dict) and isinstance(event.get("name"), str):
                        yield event
                    else:
                        self.broken += 1
        except OSError as error:
            raise TraceError(f"{self.path} can't be read: {error.strerror}.") from None


def merge(out: Path, files: Sequence[Path]) -> list[str]:
    """Join `files`, of one job's ranks, into `out`, which is replaced if all succeeds. Return what was done.

    Raises TraceError: a file cannot be read or written, is no rank's trace, or belongs to another job.
    """
    if any(file.exists() and out.exists() and file.samefile(out) for file in files):
        raise TraceError(f"{out} is both the output and an input; the output comes first.")
    if out.exists() and _is_rank_trace(out):
        raise TraceError(f"{out} would be overwritten, but it is a rank's timeline; the output comes first.")
    notes = [f"{file}: skipped, it is empty" for file in files if _is_empty(file)]
    traces = [_read_head(file) for file in files if not _is_empty(file)]
    if not traces:
        raise TraceError("all files are empty.")
    _check_one_job(traces)
    traces.sort(key=lambda trace: (trace.rank, trace.process_set))
    for trace in traces:
        _note_ends(trace)
    clocks = _align(traces)
    partial = out.with_name(f"{out.name}.partial-{secrets.token_hex(8)}")
    try:
        try:
            with open(partial, "x", encoding="utf-8", opener=file_modes.opener) as file:
                notes += _write(file, traces, clocks)
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{out} can't be written: {error.strerror}.") from None
    whole = [trace for trace in traces if trace.process_set == 0]
    missing = sorted(set(range(whole[0].size if whole else 0)) - {trace.rank for trace in whole})
    if missing:
        notes.append(f"missing: rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}")
    ranks = len(clocks)
    return [*notes, f"wrote {out}: {ranks} rank{'s' * (ranks > 1)}; open it in https://ui.perfetto.dev"]


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error.strerror}.") from None


def _read_head(path: Path) -> _Trace:
    """Read a file's first event, which names its rank."""
    first = next(_Lines(path).read_events(), {})
    try:
        facts = first["args"]["spark_estimator"]
        if facts["format"] != _FORMAT:
            raise TraceError(f"{path} is a timeline of format {facts['format']}; this version reads {_FORMAT}.")
        return _Trace(
            path=path,
            rank=int(facts["rank"]),
            size=int(facts["size"]),
            process_set=int(facts["process_set"]),
            process=str(facts["process"]),
            wall_clock_minus_own=float(facts["origin_wall_clock_us"]) - float(facts["origin_us"]),
            started=round(float(facts["origin_wall_clock_us"])),
        )
    except (KeyError, TypeError, ValueError):
        raise TraceError(
            f"{path} is not a timeline of a spark_estimator rank (merged traces can't be merged again)."
        ) from None


def _is_rank_trace(path: Path) -> bool:
    try:
        _read_head(path)
    except TraceError:
        return False
    return True


def _check_one_job(traces: Iterable[_Trace]) -> None:
    seen: dict[tuple[int, int], _Trace] = {}
    for trace in traces:
        other = seen.setdefault((trace.process_set, trace.rank), trace)
        if other is not trace:
            raise TraceError(f"{other.path} and {trace.path} are both from rank {trace.rank}.")
        same_set = next(known for known in seen.values() if known.process_set == trace.process_set)
        if same_set.size != trace.size:
            raise TraceError(
                f"{same_set.path} is of {same_set.size} ranks and {trace.path} of {trace.size}: they are from "
                "different jobs."
            )


def _note_ends(trace: _Trace) -> None:
    """Note the end of every op that succeeded; names of one fused op share a sequence number, the last one counts."""
    sequences, ends, together = array("q"), array("d"), array("b")
    for event in _Lines(trace.path).read_events(containing=b'"sequence":'):
        try:
            arguments = event["args"]
            if "outcome" in arguments or event["name"].startswith("NEGOTIATE_"):
                continue
            end = float(event["ts"]) + float(event["dur"])
            sequence = int(arguments["sequence"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        sequences.append(sequence)
        ends.append(end)
        together.append(event["name"] in _ENDING_TOGETHER)
    numbers, times = np.array(sequences, np.int64), np.array(ends, np.float64)
    best = np.array(together, np.bool_)
    if best.any():
        numbers, times = numbers[best], times[best]
    # np.unique returns the first of equals.
    trace.sequences, last = np.unique(numbers[::-1], return_index=True)
    trace.ends = times[::-1][last]


def _align(traces: Sequence[_Trace]) -> dict[int, _Clock]:
    """Return each rank's clock against the first one's; over a third rank where two have no op in common."""
    reference = traces[0]
    clocks = {reference.rank: _Clock(0.0, "the reference")}
    progress = True
    while progress:
        progress = False
        for trace in traces:
            if trace.rank in clocks:
                continue
            for other in traces:
                if other.rank in clocks and other.process_set == trace.process_set:
                    clock = _compare(trace, other, clocks[other.rank])
                    if clock is not None:
                        clocks[trace.rank] = clock
                        progress = True
                        break
    for trace in traces:
        if trace.rank not in clocks:
            offset = reference.wall_clock_minus_own - trace.wall_clock_minus_own
            clocks[trace.rank] = _Clock(offset, "aligned by wall clock, since there is no common op")
    return clocks


def _compare(trace: _Trace, other: _Trace, other_clock: _Clock) -> _Clock | None:
    common, of_trace, of_other = np.intersect1d(
        trace.sequences, other.sequences, assume_unique=True, return_indices=True
    )
    if not common.size:
        return None
    own_ends = trace.ends[of_trace]
    theirs = other.ends[of_other]
    differences = own_ends - other_clock.align(theirs)
    offset = float(np.median(differences))
    scatter = float(np.median(np.abs(differences - offset)))
    drift, origin = 0.0, 0.0
    if common.size >= _LEAST_OPS_FOR_DRIFT:
        half = common.size // 2
        change = float(np.median(differences[half:]) - np.median(differences[:half]))
        span = float(np.median(own_ends[half:]) - np.median(own_ends[:half]))
        rest = min(_compute_scatter(differences[:half]), _compute_scatter(differences[half:]))
        if span > 0 and abs(change) > 3 * rest and abs(change) <= _MOST_DRIFT * span:
            drift, origin = change / span, float(np.median(own_ends))
            offset = float(np.median(differences - drift * (own_ends - origin)))
            scatter = float(np.median(np.abs(differences - offset - drift * (own_ends - origin))))
    text = f"clock {offset / 1e3:+.3f} ms against rank {other.rank}'s"
    if other_clock.description != "the reference":
        text = f"clock {offset / 1e3:+.3f} ms against the reference, via rank {other.rank}"
    if drift:
        text += f", drifting {drift * 1e6:+.1f} us a second"
    text += f" ({common.size} common op{'s' * (common.size > 1)}, half of them within {scatter:.1f} us)"
    return _Clock(offset, text, drift, origin)


def _compute_scatter(values: NDArray[np.float64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _write(file: IO[str], traces: Sequence[_Trace], clocks: dict[int, _Clock]) -> list[str]:
    """Write the joined trace; return a message on each file."""
    notes = []
    file.write("[\n")
    named: set[int] = set()
    for trace in traces:
        if trace.rank not in named:
            named.add(trace.rank)
            about = {"name": f"rank {trace.rank}, {trace.process}", "start_time_since_epoch_in_micros": trace.started}
            head = [("process_name", about), ("process_sort_index", {"sort_index": trace.rank})]
            for name, arguments in head:
                event = {"ph": "M", "name": name, "pid": trace.rank, "args": arguments}
                file.write(("" if len(named) == 1 and name == "process_name" else ",\n") + _format_event(event))
        lines = _Lines(trace.path)
        count, dropped = 0, 0
        for event in lines.read_events():
            if event["name"] in {"process_name", "process_sort_index"}:
                dropped += _count_dropped(event)
                continue
            try:
                _move(event, trace, clocks[trace.rank])
                line = _format_event(event)
            except (KeyError, TypeError, ValueError, OverflowError):
                lines.broken += 1
                continue
            count += event["ph"] != "M"
            file.write(",\n" + line)
        notes.append(_summarize(trace, clocks[trace.rank], lines, count, dropped))
    file.write("\n]\n")
    return notes


def _format_event(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"), allow_nan=False)


def _count_dropped(event: dict[str, Any]) -> int:
    try:
        return int(event["args"]["spark_estimator_end"]["dropped_events"])
    except (KeyError, TypeError, ValueError):
        return 0


def _move(event: dict[str, Any], trace: _Trace, clock: _Clock) -> None:
    """Put an event on the common clock and into its process set's rows."""
    event["pid"] = trace.rank
    event["tid"] = _ROWS_A_SET * trace.process_set + int(event["tid"])
    if event["ph"] != "M":
        event["ts"] = round(clock.align(float(event["ts"])), 3)
    elif trace.process_set:
        event["args"]["name"] = f"set {trace.process_set}: {event['args']['name']}"


def _summarize(trace: _Trace, clock: _Clock, lines: _Lines, count: int, dropped: int) -> str:
    of_set = f", process set {trace.process_set}" if trace.process_set else ""
    text = f"rank {trace.rank}{of_set}: {trace.path}, {count} events, {clock.description}"
    if not lines.complete:
        text += "; it ends early: the process was killed, its disk was full, or it is still being written"
    if lines.broken:
        text += f"; {lines.broken} line{'s' * (lines.broken > 1)} skipped that could not be parsed"
    if dropped:
        text += f"; {dropped} events were lost while it was written: they came too fast"
    return text
