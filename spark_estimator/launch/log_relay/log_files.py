"""Ranks' lines in files of a folder that executors and driver share, if executors can't connect to the driver.

Each rank appends to its own file, ``rank.0.log``, twice a second; the driver reads what has been added. It has the
lines as they are printed: ``[0]<stdout>:text``, and ``[0] text`` for `log_to_driver`. Where a file system does not
support appending, each piece becomes a separate file: ``rank.0.1.log``, ``rank.0.2.log`` and so on.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

from spark_estimator.security import file_modes

INTERVAL_SECONDS = 0.5
_STOP_SECONDS = 20.0
# A rank that prints faster than its file takes it loses lines, not time.
_MAX_WAITING_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_LINE = re.compile(r"<(stdout|stderr)>:(.*)", re.DOTALL)


def make_log_path(folder: Path, rank: int, number: int) -> Path:
    """Return the path of a rank's file; `number` counts its files, where it needs several."""
    return folder / (f"rank.{rank}.{number}.log" if number else f"rank.{rank}.log")


class LogWriter:
    """A rank's end. `add_line` does not wait for the file system.

    Attributes:
        written: how many lines its files have, once it is closed.
        error: why nothing is written any more; None: it is.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.written = 0
        self.error: Exception | None = None
        self._folder = folder
        self._rank = rank
        self._number = 0
        self._dropped = 0
        self._waiting: list[tuple[str, str]] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="spark_estimator log file", daemon=True)
        self._thread.start()

    def add_line(self, stream: str, text: str) -> bool:
        """Add a line of "stdout" or "stderr", or a message (""); False when nothing can be written any more."""
        with self._lock:
            if self.error is not None:
                return False
            if self._waiting_bytes > _MAX_WAITING_BYTES:
                self._dropped += 1
                return True
            if self._dropped:
                self._keep(
                    stream, f"[{self._dropped} lines were dropped: the rank printed faster than they could be written]"
                )
                self._dropped = 0
            self._keep(stream, text)
        return True

    def take_unwritten(self) -> list[tuple[str, str]]:
        """Return the lines that cannot be written, once there is an `error`; each is returned once."""
        with self._lock:
            if self.error is None:
                return []
            lines, self._waiting = self._waiting, []
            return lines

    def close(self) -> None:
        """Return when all is written, or cannot be."""
        self._closing.set()
        self._thread.join(_STOP_SECONDS)

    def _keep(self, stream: str, text: str) -> None:
        self._waiting.append((stream, text))
        self._waiting_bytes += len(text)

    def _write_on(self) -> None:
        while True:
            last = self._closing.wait(INTERVAL_SECONDS)
            with self._lock:
                lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
            try:
                if lines:
                    self._write("".join(self._format(*line) for line in lines).encode("utf-8", "replace"))
            except Exception as error:  # without memory, for one
                with self._lock:
                    self.error = error
                    self._waiting = lines + self._waiting
                return
            if last:
                return

    def _format(self, stream: str, text: str) -> str:
        """Return a line as the file has it; a message may be several."""
        if stream:
            parts = [f"[{self._rank}]<{stream}>:{text}"]
        else:
            parts = [f"[{self._rank}] {part}" for part in text.split("\n")]
        self.written += len(parts)
        return "".join(f"{part}\n" for part in parts)

    def _write(self, piece: bytes) -> None:
        """Append whole lines. Raises OSError if the file system allows no way to write them."""
        path = make_log_path(self._folder, self._rank, self._number)
        try:
            if not self._number and not path.exists():
                file_modes.make_folders(str(self._folder))
            with open(
                path, "ab", opener=file_modes.opener
            ) as file:  # closed each time: others may see only then what was written
                file.write(piece)
        except OSError:
            if not path.exists():
                raise
            self._number += 1  # it can be written once
            with open(make_log_path(self._folder, self._rank, self._number), "wb", opener=file_modes.opener) as file:
                file.write(piece)


class LogReader:
    """The driver's end; `read`: [ranks] how many lines were read of each."""

    def __init__(self, folder: Path, size: int) -> None:
        self.read = [0] * size
        self._folder = folder
        self._positions = [(0, 0)] * size  # number of the file, bytes of it
        self._pending = [b""] * size

    def read_lines(self) -> Iterator[tuple[int, str, str]]:
        """Yield what is new: (rank, "stdout", "stderr" or "" for a message, text), each rank's in its order."""
        for rank in range(len(self.read)):
            while piece := self._read_piece(rank):
                *whole, self._pending[rank] = (self._pending[rank] + piece).split(b"\n")
                for line in whole:
                    self.read[rank] += 1
                    text = line.decode("utf-8", "replace").removeprefix(f"[{rank}]")
                    match = _LINE.fullmatch(text)
                    yield (rank, match[1], match[2]) if match else (rank, "", text.removeprefix(" "))

    def _read_piece(self, rank: int) -> bytes:
        """Return more of a rank's files; b"" when there is none yet."""
        number, offset = self._positions[rank]
        for candidate, start in ((number, offset), (number + 1, 0)):
            try:
                with make_log_path(self._folder, rank, candidate).open("rb") as file:
                    file.seek(start)
                    piece = file.read(_READ_BYTES)
            except OSError:  # not there yet
                continue
            if piece:
                self._positions[rank] = candidate, start + len(piece)
                return piece
        return b""
