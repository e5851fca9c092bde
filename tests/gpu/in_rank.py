"""What a rank of ``check.py`` runs: one task after the other, each a separate membership, with a note of each.

The notes are in a file, which stays however the rank ends. A task that takes too long ends its rank, and the stacks of
that rank's threads are stored beside the notes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from spark_estimator.errors import PeerLostError
from tests.gpu.goals import Line

#: A check, which raises if a result is wrong, or a figure, which returns the lines to report.
Task = Callable[[], "Sequence[Line] | None"]


class Note(NamedTuple):
    """A rank's report on a task.

    Attributes:
        name: of the task.
        ended: False: it has begun.
        error: with its traceback; "": none.
        lines: its output.
        way: the engine's description of how its tensors were sent; "": none from a GPU.
    """

    name: str
    ended: bool
    error: str = ""
    lines: tuple[Line, ...] = ()
    way: str = ""


def use_gpu(rank: int, own_gpus: bool, machines: bool) -> None:
    """Chooses the GPU of a rank, and its machine, before any other call; the arguments are those of a `Way`."""
    if machines:
        os.environ["NCCL_HOSTID"] = f"machine-{rank}"
    torch.cuda.set_device(rank if own_gpus else 0)


def run_tasks(
    rank: int, tasks: Mapping[str, Task], begin: Callable[[int], None], described: str, seconds: float, folder: str
) -> None:
    """Runs tasks; what one raises is in its note, and ends nothing but the loss of a peer does.

    Args:
        rank: this one.
        tasks: by name.
        begin: chooses the rank's GPU.
        described: the engine's expected description of how GPU tensors are sent.
        seconds: that each may take.
        folder: of the notes.
    """
    begin(rank)
    with notes_file(folder, rank).open("a") as notes, stacks_file(folder, rank).open("a") as stacks:
        for name, task in tasks.items():
            _write(notes, Note(name, False))
            faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
            note, goes_on = _run(name, task, described)
            faulthandler.cancel_dump_traceback_later()
            _write(notes, note)
            if not goes_on:
                return  # others would wait for the lost one at each init()


def _run(name: str, task: Task, described: str) -> tuple[Note, bool]:
    """The task's note, and whether another one can be run."""
    lines: Sequence[Line] = ()
    way = error = ""
    goes_on = False
    try:
        hvd.init()
        goes_on = True
        torch.manual_seed(1)
        lines = task() or ()
        torch.cuda.synchronize()
        way = context.engine().describe("gpu")
        assert described in way or not way, f"tensors go another way than {described!r}: {way!r}"
    except Exception as raised:
        error = traceback.format_exc()
        goes_on = goes_on and not isinstance(raised, PeerLostError)
    try:
        hvd.shutdown()
    except Exception:
        error += traceback.format_exc()
        goes_on = False
    return Note(name, True, error, tuple(lines), way), goes_on


def notes_file(folder: str, rank: int) -> Path:
    return Path(folder, f"notes-{rank}.jsonl")


def stacks_file(folder: str, rank: int) -> Path:
    return Path(folder, f"stacks-{rank}.txt")


def read_notes(folder: str, rank: int) -> dict[str, Note]:
    """The last note of each task that a rank has begun."""
    path = notes_file(folder, rank)
    notes = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        name, ended, error, lines, way = json.loads(text)
        notes[name] = Note(name, ended, error, tuple(Line(*line) for line in lines), way)
    return notes


def _write(notes: IO[Any], note: Note) -> None:
    notes.write(json.dumps(note) + "\n")
    notes.flush()
