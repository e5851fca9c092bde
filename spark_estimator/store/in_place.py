"""Replaces a file on a file system of fsspec's that writes in place, as HDFS does: a crash leaves a whole file.

No step needs a rename, which many of these file systems do by copying. The new content is written to ``.NAME.next``
first, with its SHA-256 at the end; then into the file itself; then ``.NAME.next`` is removed. While ``.NAME.next`` is
whole, readers use it and not the file. A program that was killed leaves a whole ``.NAME.next``, or a whole file.
"""

from __future__ import annotations

import contextlib
from typing import Any

from spark_estimator.store.digests import find_flaw, make_seal, remove_seal

# Object stores show an object when it is whole; fsspec's memory sets it at once.
_WHOLE_AT_ONCE = {"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "obs", "cos", "tos", "r2"}


def writes_in_place(fs: Any) -> bool:
    """Return whether a file that is being written can be seen before it is whole."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return not protocols & _WHOLE_AT_ONCE


def read(fs: Any, path: str) -> bytes:
    """Return the last content that was written whole. Raises FileNotFoundError: there is none."""
    before = _read_next(fs, path)
    if before is not None:
        return before
    content: bytes = fs.cat_file(path)
    meanwhile = _read_next(fs, path)  # a writer may have begun to replace what was read
    return content if meanwhile is None else meanwhile


def write(fs: Any, path: str, content: bytes) -> None:
    """Replace the content. Raises OSError: not written, or in part; `read` then gives the previous one, or the new."""
    following = _make_next_path(path)
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    left = _read_next(fs, path)
    if left is not None:  # a writer was killed before the file was whole
        fs.pipe_file(path, left)
    try:
        with fs.open(following, "wb") as file:
            file.write(content)
            file.write(make_seal(content))
        _check_size(fs, following, len(content) + len(make_seal(b"")))
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(following)
        raise
    fs.pipe_file(path, content)
    _check_size(fs, path, len(content))
    fs.rm_file(following)


def remove_next(fs: Any, path: str) -> None:
    """Remove what a writer that was killed has left of a file, which is removed, too."""
    with contextlib.suppress(FileNotFoundError):
        fs.rm_file(_make_next_path(path))


def _make_next_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.next"


def _read_next(fs: Any, path: str) -> bytes | None:
    """Return the content that is to replace the file's; None: there is none that is whole."""
    try:
        content: bytes = fs.cat_file(_make_next_path(path))
    except FileNotFoundError:
        return None
    return None if find_flaw(content) else remove_seal(content)


def _check_size(fs: Any, path: str, size: int) -> None:
    fs.invalidate_cache(path.rpartition("/")[0])
    result = fs.info(path).get("size")
    if result not in (None, size):
        raise OSError(f"{path}: {result} of {size} bytes were written")
