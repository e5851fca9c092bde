"""What a supervisor reports: to a `Relay` while its worker runs, and as an `Outcome` at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_estimator.errors import ResultError
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.observe.progress import Progress


class Relay(Protocol):
    """Receives a worker's messages from its supervisor. Called in the supervisor's thread; must not block for long."""

    def note_begin(self, rank: int, pid: int) -> None:
        """Note that user code begins."""

    def pass_lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        """Pass on lines of "stdout" or "stderr" that were read together, without their ends."""

    def log(self, rank: int, message: str) -> None:
        """Pass on a message for the person at the driver."""

    def note_progress(self, rank: int, progress: Progress) -> None:
        """Note how far the rank is; called once a second where ``JobSpec.progress`` asks for it."""

    def record(self, rank: int, record: Mapping[str, Any]) -> None:
        """Pass on a record of an estimator's training."""

    def pass_file(self, rank: int, name: str, piece: str) -> bool:
        """Pass on a piece of a file, after the worker's end; waits for room. Return whether the driver may get it."""

    def note_failure(self, report: FailureReport) -> None:
        """Note that the rank has failed; it may not have ended yet."""


@dataclass(frozen=True)
class Outcome:
    """How a worker ended.

    Attributes:
        rank, host, pid: which one; pid is the command's own where a command was run.
        exit_code: negative is the number of a signal.
        failure: None when it ended well.
        value: the pickled value; None when none was wanted or it did not arrive.
        sha256: of the value, as the worker computed it.
    """

    rank: int
    host: str
    pid: int
    exit_code: int
    failure: FailureReport | None
    value: bytes | None = field(default=None, repr=False)
    sha256: str = ""

    @property
    def pickled(self) -> bytes:
        """Return `value`, if it is what the rank has sent. Raises ResultError: it is not."""
        if self.value is None or hashlib.sha256(self.value).hexdigest() != self.sha256:
            raise ResultError(f"the value of rank {self.rank} (host {self.host}) is incomplete or damaged.")
        return self.value
