"""Stores that are slow, or fail; importable where the writer runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, BinaryIO, cast

from spark_estimator.store import FilesystemStore


class GatedStore(FilesystemStore):
    """Parts are not written while the file ``closed`` is in the folder above; all writes fail while ``broken`` is."""

    def open(self, path: str, mode: str = "rb", *, make_folder: bool = True) -> BinaryIO:
        stream = super().open(path, mode, make_folder=make_folder)
        return cast(BinaryIO, _Gated(stream, Path(self.prefix_path).parent)) if "w" in mode else stream


class _Gated:
    def __init__(self, stream: BinaryIO, folder: Path) -> None:
        self._stream = stream
        self._folder = folder

    def write(self, content: Any) -> int:
        while (self._folder / "closed").exists():
            time.sleep(0.005)
        if (self._folder / "broken").exists():
            raise OSError(28, os.strerror(28))
        return self._stream.write(content)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def __enter__(self) -> _Gated:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
