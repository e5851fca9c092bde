"""The timeline: which file each rank writes, how it is begun and ended, and the verb that joins the files.

The engine writes a Chrome trace of its rank's ops. Horovod has one file, written by rank 0; here every rank has its
own, because what a rank waited for only that rank knows: ``timeline.json`` is rank 0's, ``timeline.rank1.json`` rank
1's, ``timeline.set2.rank1.json`` rank 1's in process set 2. When a job has ended, its driver has got the files that
HOROVOD_TIMELINE asked for (``launch/job/rank_files``), and merges them into ``timeline.json``; ``python -m
spark_estimator timeline merge`` does so for others.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from spark_estimator.errors import HorovodInternalError
from spark_estimator.observe.trace_merge import TraceError, merge
from spark_estimator.security import file_modes
from spark_estimator.security.shared_folders import refuse_foreign

# The value of HOROVOD_TIMELINE with which a job begins without a timeline, to be started by start_timeline().
DYNAMIC = "DYNAMIC"

# Larger traces are not merged when a job ends: it would take more than half a minute.
MOST_JOINED_BYTES = 200 << 20


class _Engine(Protocol):
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> None: ...


def get_path_at_init(setting: str) -> str | None:
    """Return the timeline that HOROVOD_TIMELINE asks ``init()`` for: None when it is unset or DYNAMIC."""
    return None if setting in {"", DYNAMIC} else setting


def make_rank_path(path: str | os.PathLike[str], rank: int, process_set: int = 0) -> str:
    """Return the file that a rank writes for the timeline `path`, which is rank 0's in the job (process set 0)."""
    root, suffix = os.path.splitext(os.fspath(path))
    of_set = f".set{process_set}" if process_set else ""
    of_rank = f".rank{rank}" if rank else ""
    return f"{root}{of_set}{of_rank}{suffix}"


def start(
    engine: _Engine, path: str | os.PathLike[str], rank: int, *, process_set: int = 0, mark_cycles: bool = False
) -> str:
    """Have `engine` write its timeline, over an older file; return its path. `mark_cycles`: when its thread woke, too.

    Raises ValueError: no path, or one is being written; HorovodInternalError: the file cannot be written.
    """
    if not os.fspath(path):
        raise ValueError("The timeline needs a path; got ''.")
    file = os.path.abspath(make_rank_path(path, rank, process_set))
    is_new = not os.path.exists(file)
    try:
        refuse_foreign(file)
        if is_new or os.path.isfile(file):  # the reader of a pipe takes the first end for the last
            with open(file, "ab", opener=file_modes.opener):
                pass
    except OSError as error:
        raise HorovodInternalError(f"the timeline {file} cannot be created: {error.strerror}") from error
    try:
        engine.start_timeline(file, mark_cycles)
    except Exception:
        if is_new:  # one is being written already
            os.unlink(file)
        raise
    return file


def stop(engine: _Engine) -> None:
    """Complete the file, after which it is valid JSON. Does nothing when none is being written."""
    engine.stop_timeline()


def snapshot_files(path: Path) -> dict[Path, tuple[int, int, int]]:
    """Return the existing files of a timeline, and what changes when one is written: for `find_written`."""
    return {file: _get_state(file) for file in _find_files(path)}


def find_written(path: Path, rank: int, before: Mapping[Path, tuple[int, int, int]]) -> list[Path]:
    """Return the files that a rank has written. Files that are as in `before` are another job's."""
    files = [file for file in _find_files(path) if find_rank(path, file.name) == rank]
    return [file for file in files if _get_state(file) != before.get(file)]


def find_rank(path: Path, name: str) -> int | None:
    """Return the rank whose file of the timeline `path` has this name; None: it is another file."""
    match = re.fullmatch(rf"{re.escape(path.stem)}(?:\.set\d+)?(?:\.rank(\d+))?{re.escape(path.suffix)}", name)
    return None if match is None else int(match[1] or 0)


def make_kept_path(path: Path, name: str) -> Path:
    """Return where the driver keeps a rank's file of this name: rank 0's as ``timeline.rank0.json``."""
    return path.with_name(name if name != path.name else f"{path.stem}.rank0{path.suffix}")


def join(path: Path, files: Sequence[Path], *, keep: bool = False) -> str:
    """Merge the files of a job's ranks into the user's file. Return what is missing in it, or why there is none.

    Args:
        keep: the files stay beside it. Where they can't be merged, they do so in any case.
    """
    advice = f"merge them with: python -m spark_estimator timeline merge OUT.json {' '.join(map(str, files[:2]))} ..."
    if sum(file.stat().st_size for file in files) > MOST_JOINED_BYTES:
        return f"the timelines of the ranks are large and were not merged; {advice}"
    if path.is_file():  # of an earlier job: one of its ranks' would not be overwritten
        path.unlink()
    if len(files) == 1:
        os.replace(files[0], path)
        return ""
    try:
        notes = merge(path, files)
    except TraceError as error:
        return f"the timelines of the ranks were not merged: {error} Later, {advice}"
    for file in [] if keep else files:
        file.unlink()
    return "; ".join(f"{path}: {note}" for note in notes if note.startswith("missing"))


def _find_files(path: Path) -> list[Path]:
    """Return the existing files of all ranks, in the order of their names."""
    files = (file for file in sorted(path.parent.glob("*")) if find_rank(path, file.name) is not None)
    return [file for file in files if file.is_file()]


def _get_state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line of ``timeline``."""
    command_line = argparse.ArgumentParser(
        prog="python -m spark_estimator timeline", description="Work with timelines."
    )
    verbs = command_line.add_subparsers(dest="verb", required=True)
    of_merge = verbs.add_parser(
        "merge",
        help="merge the ranks' files into one trace",
        description=(
            "Merges the ranks' files into one trace with one process per rank, for ui.perfetto.dev or "
            "chrome://tracing. Aligns the clocks of the ranks by the ops that they share, which end at nearly the "
            "same time. Truncated files (of a killed process) are read up to their end. A gigabyte of input takes "
            "minutes and 100 MB of memory."
        ),
    )
    of_merge.add_argument("out", metavar="OUT.json", type=Path, help="the merged trace; overwritten on success")
    of_merge.add_argument("files", metavar="IN.json", type=Path, nargs="+", help="the ranks' files, in any order")
    return command_line


def main(argv: list[str] | None = None) -> int:
    """Run ``python -m spark_estimator timeline``: return 0, 1 when files can't be used, 2 when the arguments can't."""
    arguments = make_parser().parse_args(argv)
    try:
        notes = merge(arguments.out, arguments.files)
    except TraceError as error:
        print(f"Failed, nothing was written: {error}", file=sys.stderr)
        return 1
    print("\n".join(notes))
    return 0
