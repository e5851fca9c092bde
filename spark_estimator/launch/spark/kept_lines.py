"""What becomes of a rank's lines where no connection to the driver is had: files that it sees, else the last few lines.

The last lines come back with the rank's manifest, when the job has ended well; of one that fails, with its report.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.observe.log_files import LogWriter

#: How many lines of a rank come back at most, and how many bytes.
MOST_LINES = 50
_MOST_BYTES = 64 << 10


class KeptLines:
    """Takes the lines and messages of one rank."""

    def __init__(self, job: JobSpec) -> None:
        self._folder = Path(job.log_folder, job.job_id) if job.log_folder else None
        self._writer: LogWriter | None = None
        self._last: collections.deque[tuple[str, str]] = collections.deque()
        self._bytes = 0
        self._left_out = 0

    def take(self, rank: int, stream: str, text: str) -> list[tuple[str, str]]:
        """One more line of "stdout" or "stderr", or a message ("").

        Returns:
            Those that may not all reach the driver, this one or others before it.
        """
        if self._folder is not None:
            if self._writer is None:
                self._writer = LogWriter(self._folder, rank)
            if self._writer.line(stream, text):
                return []
            return self._keep([*self._writer.unwritten(), (stream, text)])
        return self._keep([(stream, text)])

    def close(self) -> list[tuple[str, str]]:
        """Writes what is still to be written. Returns as `take`."""
        if self._writer is None:
            return []
        self._writer.close()
        return self._keep(self._writer.unwritten())

    def _keep(self, lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
        for stream, text in lines:
            self._last.append((stream, text))
            self._bytes += len(text)
        while len(self._last) > MOST_LINES or self._bytes > _MOST_BYTES:
            self._bytes -= len(self._last.popleft()[1])
            self._left_out += 1
        return lines

    def to_manifest(self) -> dict[str, Any]:
        """What the manifest says of them: see `results.Manifest`."""
        problem = None if self._writer is None else self._writer.error
        return {
            "lines": [list(pair) for pair in self._last],
            "left_out": self._left_out,
            "logged": 0 if self._writer is None or problem is not None else self._writer.written,
            "log_problem": "" if problem is None else str(problem),
        }
