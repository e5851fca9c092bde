"""What a profile asks for: some ranks, and some of their steps; and the names of the traces that come of it.

A launcher passes the request to its ranks in their environment; `spark_estimator.torch.profiling` records there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_estimator.errors import PreflightError

PROFILE_VARIABLE = "SPARK_ESTIMATOR_PROFILE"
FOLDER_VARIABLE = "SPARK_ESTIMATOR_PROFILE_FOLDER"
_TRACE = re.compile(r"profile-rank\d+-steps\d+-\d+\.json\.gz")


@dataclass(frozen=True)
class ProfileRequest:
    """The ranks and steps that are profiled, counted from 0 and from 1."""

    ranks: tuple[int, ...]
    first: int
    last: int

    @classmethod
    def make(cls, rank: int | Sequence[int], steps: Sequence[int]) -> ProfileRequest:
        """Make a request of a user's arguments. Raises TypeError, ValueError: they can't be used."""
        ranks = (rank,) if isinstance(rank, int) else tuple(rank)
        numbers = (*ranks, *steps)
        if len(steps) != 2 or not ranks or any(type(number) is not int for number in numbers):
            raise TypeError(f"profile(rank=0, steps=(10, 13)) takes whole numbers; got rank={rank!r}, steps={steps!r}.")
        if min(ranks) < 0:
            raise ValueError(f"profile(rank={rank!r}): ranks are counted from 0.")
        if not 2 <= steps[0] <= steps[1]:
            raise ValueError(
                f"profile(steps={steps!r}): these are the first and the last step, counted from 1; the first must be 2 "
                "or later, as recording begins when the step before it has ended."
            )
        return cls(ranks, *steps)

    @classmethod
    def parse(cls, text: str) -> ProfileRequest:
        """Make a request of ``RANKS:FIRST-LAST``, such as ``0,3:10-13``. Raises ValueError: it is none."""
        match = re.fullmatch(r"(\d+(?:,\d+)*):(\d+)(?:-(\d+))?", text.strip())
        if match is None:
            raise ValueError(f"{PROFILE_VARIABLE}={text!r}: it must be RANKS:FIRST-LAST, such as 0:10-13 or 0,3:10-13.")
        return cls.make([int(rank) for rank in match[1].split(",")], (int(match[2]), int(match[3] or match[2])))

    def __str__(self) -> str:
        return f"{','.join(map(str, self.ranks))}:{self.first}-{self.last}"

    @property
    def words(self) -> str:
        """Return the steps, for messages."""
        return f"steps {self.first} to {self.last}" if self.first < self.last else f"step {self.first}"


def check_ranks(environ: Mapping[str, str], size: int) -> None:
    """Raise PreflightError if a job of `size` ranks has no rank that is to be profiled; ValueError: as `parse`."""
    text = environ.get(PROFILE_VARIABLE, "").strip()
    for rank in ProfileRequest.parse(text).ranks if text else ():
        if rank >= size:
            raise PreflightError(
                f"rank {rank} can't be profiled: the job has {size} rank{'s' * (size > 1)}, counted from 0 "
                f"({PROFILE_VARIABLE}={text})."
            )


def make_trace_path(environ: Mapping[str, str], mark: str, name: str) -> Path:
    """Return where a rank's process with this environment writes a trace, for the supervisor that has marked it."""
    return Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"spark_estimator-{mark}-{name}"


def list_traces(environ: Mapping[str, str], mark: str) -> dict[Path, str]:
    """Return the traces that a worker's processes have written, with their names."""
    prefix = make_trace_path(environ, mark, "")
    files = prefix.parent.glob(f"{prefix.name}*")
    names = {file: file.name.removeprefix(prefix.name) for file in files}
    return {file: name for file, name in names.items() if is_trace(name)}


def is_trace(name: str) -> bool:
    """Return whether a trace may have this name."""
    return _TRACE.fullmatch(name) is not None
