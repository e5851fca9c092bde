"""Lines of ranks whose executors can't connect to the driver: through shared files, else the last ones at the end.

`UnsentLines` runs in the executor, `LateLines` on the driver. The last lines are in the rank's manifest if the job has
succeeded; a rank that fails sends them with its report. The driver prints once which way is used.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_estimator.errors import ResultError
from spark_estimator.launch.job.events import Event, LauncherMessage, Lines, Message
from spark_estimator.launch.job.results import RankManifest, ResultRow, read_manifests
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.log_relay.log_files import INTERVAL_SECONDS, LogReader, LogWriter
from spark_estimator.observe.driver_log import coloured, printable

# How long it may take until another host sees what a rank has written.
_PATIENCE = timedelta(seconds=20)
# The same for a job that failed: there is no manifest with the number of lines.
_LAST_LOOK = timedelta(seconds=1)

#: The most lines of a rank that are returned, and the most bytes.
MOST_LINES = 50
_MOST_BYTES = 64 << 10


class UnsentLines:
    """Takes the lines and messages of one rank."""

    def __init__(self, job: JobSpec) -> None:
        self._folder = Path(job.log_folder, job.job_id) if job.log_folder else None
        self._writer: LogWriter | None = None
        self._last: collections.deque[tuple[str, str]] = collections.deque()
        self._bytes = 0
        self._left_out = 0

    def take(self, rank: int, stream: str, text: str) -> list[tuple[str, str]]:
        """Take a line of a stream, or a message (""). Return the lines that may not all reach the driver."""
        if self._folder is not None:
            if self._writer is None:
                self._writer = LogWriter(self._folder, rank)
            if self._writer.add_line(stream, text):
                return []
            return self._keep([*self._writer.take_unwritten(), (stream, text)])
        return self._keep([(stream, text)])

    def close(self) -> list[tuple[str, str]]:
        """Write the remaining lines. Returns as `take`."""
        if self._writer is None:
            return []
        self._writer.close()
        return self._keep(self._writer.take_unwritten())

    def _keep(self, lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
        for stream, text in lines:
            self._last.append((stream, text))
            self._bytes += len(text)
        while len(self._last) > MOST_LINES or self._bytes > _MOST_BYTES:
            self._bytes -= len(self._last.popleft()[1])
            self._left_out += 1
        return lines

    def to_manifest(self) -> dict[str, Any]:
        """Return their part of the manifest: see `results.RankManifest`."""
        problem = None if self._writer is None else self._writer.error
        return {
            "lines": [list(pair) for pair in self._last],
            "left_out": self._left_out,
            "logged": 0 if self._writer is None or problem is not None else self._writer.written,
            "log_problem": "" if problem is None else str(problem),
        }


class LateLines:
    """The lines of one attempt's ranks.

    Args:
        job: the ranks' job.
        connected: whether executors have an address to connect to; they may still not reach it.
        put: passes an event to the display; may block.
    """

    def __init__(self, job: JobSpec, put: Callable[[Event], None], *, connected: bool) -> None:
        self._job = job
        self._put = put
        self._folder = Path(job.log_folder, job.job_id)
        self._reader = LogReader(self._folder, job.size) if job.log_folder else None
        self._transport_announced = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="spark_estimator log files", daemon=True)
        if self._reader is not None:
            self._thread.start()
        if not connected and job.forward_lines:
            self._announce_transport()

    def end(self) -> None:
        """Look for no more lines. Idempotent."""
        self._over.set()

    def finish(self, rows: Sequence[ResultRow] | None) -> None:
        """Show the remaining lines; `rows`: of a job that has succeeded; None: it has not."""
        manifests: list[RankManifest] = []
        with contextlib.suppress(ResultError):  # the code that reads the values raises it
            manifests = read_manifests(rows or [])
        if self._reader is not None:
            self.end()
            self._thread.join(_PATIENCE.total_seconds())
            if not self._thread.is_alive():
                self._read_to_the_end(manifests)
        for manifest in manifests:
            self._show(manifest)

    def _follow(self) -> None:
        while not self._over.wait(INTERVAL_SECONDS):
            self._read()

    def _read(self) -> None:
        assert self._reader is not None
        for rank, stream, text in self._reader.read_lines():
            self._announce_transport()
            self._put(_make_event(rank, stream, text))

    def _read_to_the_end(self, manifests: Sequence[RankManifest]) -> None:
        assert self._reader is not None
        written = {manifest.rank: manifest.logged for manifest in manifests}
        deadline = time.monotonic() + (_PATIENCE if manifests else _LAST_LOOK).total_seconds()
        while True:
            self._read()
            missing = {rank: count - self._reader.read[rank] for rank, count in written.items()}
            if (manifests and not any(missing.values())) or time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        for rank, count in missing.items():
            if count:
                self._put(
                    LauncherMessage(f"{count} of rank {rank}'s lines in {self._folder} are not visible on the driver")
                )

    def _show(self, manifest: RankManifest) -> None:
        if manifest.log_problem:
            self._put(
                LauncherMessage(
                    f"rank {manifest.rank} (host {printable(manifest.host)}) could not write its lines to a file "
                    f"(SPARK_ESTIMATOR_LOG_DIR), so only its last lines are shown: {printable(manifest.log_problem)}"
                )
            )
        elif manifest.lines:
            self._announce_transport()
        if manifest.left_out:
            text = f"[{manifest.left_out} earlier lines are in its executor's log]"
            self._put(_make_event(manifest.rank, "stdout" if self._job.forward_lines else "", text))
        for stream, text in manifest.lines:
            self._put(_make_event(manifest.rank, stream, text))

    def _announce_transport(self) -> None:
        if self._transport_announced:
            return
        self._transport_announced = True
        kind = "lines" if self._job.forward_lines else "log_to_driver messages"
        if self._reader is not None:
            transport = f"the ranks' {kind} are sent through files in {self._folder}"
        else:
            transport = (
                f"the last {MOST_LINES} {kind} of each rank are shown after the job succeeds; the executors' logs have "
                "all. To see them earlier, set SPARK_ESTIMATOR_LOG_DIR to a folder that executors and driver share"
            )
        self._put(LauncherMessage(f"the executors can't connect to the driver: {transport}."))


def _make_event(rank: int, stream: str, text: str) -> Event:
    return Lines(rank, stream, [coloured(text)]) if stream else Message(rank, printable(text))
