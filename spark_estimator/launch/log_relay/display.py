"""Displays the ranks' lines: on this process's streams, on others, and in files of each rank."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from spark_estimator.errors import PreflightError
from spark_estimator.observe.driver_log import ShowLine, print_line, print_text, report_loss, shown_on
from spark_estimator.security import file_modes


class TextStream(Protocol):
    """A target of lines; its ``flush()`` is called if it has one."""

    def write(self, text: str, /) -> Any: ...


def make_line_printer(
    stdout: TextStream | None = None, stderr: TextStream | None = None, *, with_time: bool = False
) -> ShowLine:
    """Make a function that shows each line as ``[rank]<stdout>:text``, like Horovod.

    Args:
        stdout, stderr: for the lines of the ranks' streams of that name; None: those of this process.
        with_time: each line begins with the time at which it was received, as in ``Tue Nov 24 09:30:00 2026``.

    Raises:
        TypeError: a stream cannot be written to, or takes bytes.
    """
    streams = {"stdout": stdout, "stderr": stderr}
    custom: dict[str, object] = {name: stream for name, stream in streams.items() if stream is not None}
    for name, stream in custom.items():
        if not callable(getattr(stream, "write", None)) or isinstance(stream, (io.RawIOBase, io.BufferedIOBase)):
            raise TypeError(f"{name} must be an open text file or an object with write(); got {stream!r}.")
    if stdout is None and stderr is None and not with_time:
        return print_line

    lossy: set[str] = set()

    def show(rank: int, name: str, text: str) -> None:
        stream = streams[name]
        head = f"{time.asctime() if with_time else ''}[{rank}]<{name}>:"
        if stream is None:
            standard = sys.stderr if name == "stderr" else sys.stdout
            print_text(f"{head}{shown_on(standard, text)}", standard)
            return
        try:
            stream.write(f"{head}{shown_on(stream, text)}\n")
            if hasattr(stream, "flush"):  # so that a file can be followed
                stream.flush()
        except OSError as error:
            if name not in lossy:
                lossy.add(name)
                report_loss(str(getattr(stream, "name", "") or f"the stream for the ranks' {name}"), error)

    return show


class OutputFiles:
    """``DIR/rank.N/stdout`` and ``stderr``, N padded with zeros to one width; `show` shows the lines as well."""

    def __init__(self, folder: Path, size: int, show: ShowLine = print_line) -> None:
        self._folder = folder
        self._width = len(str(size - 1))
        self._show = show
        self._stack = contextlib.ExitStack()
        self._files: dict[tuple[int, str], TextIO] = {}
        self._is_lossy = False
        try:
            for rank in range(size):
                self._open(rank)
        except OSError as error:
            self._stack.close()
            raise PreflightError(
                f"The folder for the ranks' output, {folder}, can't be written: {error.strerror}. Name one that this "
                "user can create or write to."
            ) from error

    def __enter__(self) -> OutputFiles:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stack.close()
        except OSError as error:  # the rest of a file that was not written
            self._report(error)

    def show(self, rank: int, stream: str, text: str) -> None:
        """Show a line and write it to its file."""
        self._show(rank, stream, text)
        if rank < 0:  # a process that joins an elastic job has no rank at first
            return
        try:
            if (rank, stream) not in self._files:  # such a job may grow
                self._open(rank)
            self._files[rank, stream].write(text + "\n")
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._is_lossy:
            self._is_lossy = True
            report_loss(f"the ranks' output in {self._folder}", error)

    def _open(self, rank: int) -> None:
        folder = self._folder / f"rank.{rank:0{self._width}d}"
        file_modes.make_folders(str(folder))
        for stream in ("stdout", "stderr"):
            # Line by line, so that a job can be followed with tail -f.
            file = open(folder / stream, "w", encoding="utf-8", buffering=1, opener=file_modes.opener)  # noqa: SIM115
            self._files[rank, stream] = self._stack.enter_context(file)
