"""A store, and a writer of ``torch.distributed.checkpoint``, with a limited number of bytes per second."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from spark_estimator.store import FilesystemStore


class ThrottledStore(FilesystemStore):
    """A folder whose files take `rate` bytes a second.

    Attributes:
        rate: in bytes; 0: as fast as the folder is.
    """

    rate = 0.0

    def open(self, path: str, mode: str = "rb", *, make_folder: bool = True) -> BinaryIO:
        stream = super().open(path, mode, make_folder=make_folder)
        return cast(BinaryIO, Throttled(stream, self.rate)) if "w" in mode and self.rate else stream


class Throttled:
    """A file that is written at this rate, in bytes a second."""

    def __init__(self, stream: BinaryIO, rate: float) -> None:
        self._stream = stream
        self._rate = rate

    def write(self, content: Any) -> int:
        size = memoryview(content).nbytes
        time.sleep(size / self._rate)
        self._stream.write(content)
        return size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Throttled:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def throttled_writer(folder: str, rate: float) -> Any:
    """A ``FileSystemWriter`` whose files are throttled."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    writer = FileSystemWriter(folder, sync_files=False)
    create = writer.fs.create_stream

    @contextlib.contextmanager
    def create_stream(path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with create(path, mode) as stream:
            yield Throttled(cast(BinaryIO, stream), rate) if "w" in mode and rate else stream

    writer.fs.create_stream = create_stream  # type: ignore[method-assign]
    return writer
