"""Brings files from the ranks' hosts to the driver when a rank has ended: timelines, and traces of `profile`.

A supervisor sends the files of its worker in pieces (`RankFiles`), after all processes of that have ended; the driver
writes them where the user has asked for them (`DriverFiles`), and merges timelines when the job has ended. No file is
in memory as a whole. A file that is larger than `MAX_FILE_BYTES`, or for which there is no connection, stays in place.
"""

from __future__ import annotations

import base64
import os
import secrets
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from spark_estimator.env import Settings
from spark_estimator.launch.job.events import FilePiece
from spark_estimator.launch.job.outcome import Relay
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.observe import profiling, timeline
from spark_estimator.observe.driver_log import announce, printable
from spark_estimator.security import file_modes

#: A rank's larger file is not sent. Twice that is more than a merge at the job's end reads in half a minute.
MAX_FILE_BYTES = timeline.MOST_JOINED_BYTES
# In base64, incompressible, a piece still fits into a frame of the driver channel.
_PIECE_BYTES = 1 << 19


class RankFiles:
    """The files of one worker. Make it before the worker starts: files that do not change are another job's.

    Args:
        environ: of the worker.
        mark: by which its processes name their traces (see `profiling.list_traces`).
    """

    def __init__(self, environ: Mapping[str, str], mark: str) -> None:
        path = timeline.get_path_at_init(environ.get("HOROVOD_TIMELINE", "").strip())
        # In an elastic job the files of one round are overwritten by other processes in the next.
        self._timeline = None if path is None or environ.get("HOROVOD_ELASTIC") else Path(path)
        self._before = {} if self._timeline is None else timeline.snapshot_files(self._timeline)
        self._list_traces = partial(profiling.list_traces, environ, mark)

    def send(self, rank: int, host: str, relay: Relay) -> None:
        """Send the files, which are removed here; a line at the driver names those that stay."""
        files = self._list_traces()
        if self._timeline is not None:
            files |= {file: file.name for file in timeline.find_written(self._timeline, rank, self._before)}
        for file, name in files.items():
            try:
                problem = _send(file, lambda piece, name=name: relay.pass_file(rank, name, piece))  # type: ignore[misc]
            except OSError as error:
                problem = f"it can't be read or removed: {error.strerror}"
            if problem:
                relay.log(rank, f"spark_estimator: {file.absolute()} of rank {rank} stays on host {host}: {problem}")


def _send(file: Path, pass_piece: Callable[[str], bool]) -> str:
    """Send a file and remove it. Return why it stays; '' if it doesn't. Raises OSError."""
    with open(file, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_FILE_BYTES:
            return f"it has {size >> 20} MiB, and at most {MAX_FILE_BYTES >> 20} are sent to the driver"
        while piece := stream.read(_PIECE_BYTES):
            if not pass_piece(base64.b64encode(zlib.compress(piece, 1)).decode()):
                return "there is no connection to the driver"
    file.unlink()
    # Not before it is removed: the driver may share this folder, and then puts its file there under the same name.
    pass_piece("")
    return ""


class _Incoming:
    """A file that arrives in pieces, under another name until it is complete."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._size = 0
        self._partial = target.with_name(f"{target.name}.partial-{secrets.token_hex(8)}")
        self._stream: IO[bytes] = open(self._partial, "xb", opener=file_modes.opener)  # noqa: SIM115  # see `finish`

    def add(self, piece: str) -> None:
        """Add a piece. Raises ValueError, zlib.error: it is not what `_send` makes; OSError: it can't be written."""
        content = zlib.decompressobj().decompress(base64.b64decode(piece), _PIECE_BYTES)
        self._size += len(content)
        if self._size > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES >> 20} MiB")
        self._stream.write(content)

    def finish(self) -> None:
        """Put the file in place."""
        self._stream.close()
        os.replace(self._partial, self.target)

    def discard(self) -> None:
        """Remove what has arrived."""
        with suppress(OSError):
            self._stream.close()
        self._partial.unlink(missing_ok=True)


class DriverFiles:
    """The driver's end, for one start of a job's ranks; a context manager, within which the job runs."""

    def __init__(self, job: JobSpec) -> None:
        self._variables = {**os.environ, **job.environment}
        self._size = job.size
        path = timeline.get_path_at_init(self._variables.get("HOROVOD_TIMELINE", "").strip())
        self._timeline = None if path is None else Path(path).absolute()
        self._folder = Path(self._variables.get(profiling.FOLDER_VARIABLE) or ".").absolute()
        self._incoming: dict[tuple[int, str], _Incoming | None] = {}  # None: refused
        self._timelines: list[Path] = []
        self._traces: list[Path] = []

    def __enter__(self) -> DriverFiles:
        return self

    def take(self, piece: FilePiece) -> None:
        """Take a piece. A file that can't be used or written is dropped, with a line."""
        key = piece.rank, piece.name
        try:
            if key not in self._incoming:
                self._incoming[key] = _Incoming(self._choose_target(piece))
            incoming = self._incoming[key]
            if incoming is None:
                return
            if piece.content:
                incoming.add(piece.content)
                return
            del self._incoming[key]
            incoming.finish()
            (self._traces if profiling.is_trace(piece.name) else self._timelines).append(incoming.target)
        except (OSError, ValueError, zlib.error) as error:
            self._drop(key, str(error))

    def __exit__(self, *_: object) -> None:
        for key in [key for key, incoming in self._incoming.items() if incoming is not None]:
            self._drop(key, "it has not arrived completely, and is still on the rank's host")
        for trace in self._traces:
            announce(f"wrote {trace}; open it in https://ui.perfetto.dev")
        if self._timeline is None or not self._timelines:
            return
        try:
            keep = Settings.read(self._variables).timeline_rank_files
            problem = timeline.join(self._timeline, self._timelines, keep=keep)
        except (OSError, ValueError) as error:
            problem = f"the timelines of the ranks were not merged: {error}"
        if problem:
            announce(problem)

    def _choose_target(self, piece: FilePiece) -> Path:
        """Return where a file belongs. Raises ValueError: the job has not asked for it."""
        if profiling.is_trace(piece.name):
            file_modes.make_folders(str(self._folder))
            return self._folder / piece.name
        if self._timeline is None or timeline.find_rank(self._timeline, piece.name) != piece.rank:
            raise ValueError("a file of this name is not expected from it")
        return timeline.make_kept_path(self._timeline, piece.name)

    def _drop(self, key: tuple[int, str], why: str) -> None:
        incoming, self._incoming[key] = self._incoming.get(key), None
        if incoming is not None:
            incoming.discard()
        announce(f"{printable(key[1])} of rank {key[0]} was not stored: {why}")
