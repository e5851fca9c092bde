"""Shows at the driver what reaches it by no connection: ranks' lines from shared files, and the last ones of manifests.

The driver's half of `kept_lines`. Which of the two is in force is said in one sentence.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from spark_estimator.errors import ResultError
from spark_estimator.launch.job.monitor import Event, LauncherMessage, Lines, Message
from spark_estimator.launch.job.results import RankManifest, ResultRow, manifests_of
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark.kept_lines import MOST_LINES
from spark_estimator.observe.driver_log import coloured, printable
from spark_estimator.observe.log_files import INTERVAL_SECONDS, LogReader

# What ranks have written may take so long to be seen on another host.
_PATIENCE = timedelta(seconds=20)
# Of a job that failed nobody says how much was written.
_LAST_LOOK = timedelta(seconds=1)


class LateLines:
    """Of one start of all ranks.

    Args:
        job: of which the lines are.
        connected: whether executors have an address to connect to; they may still not reach it.
        put: hands an event to who shows it; may block.
    """

    def __init__(self, job: JobSpec, put: Callable[[Event], None], *, connected: bool) -> None:
        self._job = job
        self._put = put
        self._folder = Path(job.log_folder, job.job_id)
        self._reader = LogReader(self._folder, job.size) if job.log_folder else None
        self._said = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="spark_estimator log files", daemon=True)
        if self._reader is not None:
            self._thread.start()
        if not connected and job.forward_lines:
            self._say_which()

    def end(self) -> None:
        """Looks for no more lines. Idempotent."""
        self._over.set()

    def finish(self, rows: Sequence[ResultRow] | None) -> None:
        """Shows what is left.

        Args:
            rows: of a job that has ended well; None: it has not.
        """
        manifests: list[RankManifest] = []
        with contextlib.suppress(ResultError):  # whoever wants the values will tell
            manifests = manifests_of(rows or [])
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
        for rank, stream, text in self._reader.lines():
            self._say_which()
            self._put(_event(rank, stream, text))

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
                    LauncherMessage(
                        f"{count} of rank {rank}'s lines in {self._folder} are not to be seen on the driver"
                    )
                )

    def _show(self, manifest: RankManifest) -> None:
        if manifest.log_problem:
            self._put(
                LauncherMessage(
                    f"rank {manifest.rank} (host {printable(manifest.host)}) could not write its lines to a file "
                    f"(SPARK_ESTIMATOR_LOG_DIR), so only its last ones come: {printable(manifest.log_problem)}"
                )
            )
        elif manifest.lines:
            self._say_which()
        if manifest.left_out:
            text = f"[{manifest.left_out} earlier lines are in the log of its executor]"
            self._put(_event(manifest.rank, "stdout" if self._job.forward_lines else "", text))
        for stream, text in manifest.lines:
            self._put(_event(manifest.rank, stream, text))

    def _say_which(self) -> None:
        if self._said:
            return
        self._said = True
        what = "ranks' lines" if self._job.forward_lines else "what ranks give to log_to_driver"
        if self._reader is not None:
            where = f"{what} come through files in {self._folder}"
        else:
            where = (
                f"of {what} the last {MOST_LINES} of each rank are shown when the job has ended well, and all stand in "
                "the executors' logs. To see them while it runs, set SPARK_ESTIMATOR_LOG_DIR to a folder that "
                "executors and driver share"
            )
        self._put(LauncherMessage(f"the executors do not reach the driver: {where}."))


def _event(rank: int, stream: str, text: str) -> Event:
    return Lines(rank, stream, [coloured(text)]) if stream else Message(rank, printable(text))
