"""SHA-256 of files, by which damage is found before it is read: a bit that a disk or a copy has turned, a lost end.

They detect accidents only: a user who can write a file can write its digest too. They change neither which files are
read without running code, nor which files have to be trusted.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_LINE = b"\nsha256:%s\n"
_LINE_BYTES = len(_LINE % (b"0" * 64))
_PIECE_BYTES = 1 << 20


def make_seal(content: bytes | memoryview) -> bytes:
    """Return the line with the digest of the content, for its end; ``torch.load`` reads over that."""
    return _LINE % hashlib.sha256(content).hexdigest().encode()


def remove_seal(content: bytes) -> bytes:
    """Return the content that was sealed, without the line."""
    return content[:-_LINE_BYTES]


def find_flaw(content: bytes) -> str:
    """Return how this differs from content with its seal, in words after the file's name; empty: in nothing."""
    line = content[-_LINE_BYTES:]
    if not re.fullmatch(rb"\nsha256:[0-9a-f]{64}\n", line):
        return (
            f"of its {len(content)} bytes the last are not its SHA-256, so its end is lost or damaged, or another "
            "program or version has written it"
        )
    with memoryview(content) as view:
        seal = make_seal(view[:-_LINE_BYTES])
    if line != seal:
        return f"it is damaged, as its {len(content)} bytes are not those that were written (by their SHA-256)"
    return ""


def compute_digest(file: Path) -> str:
    """Return a file's SHA-256; of a large one only a piece is in memory. Raises OSError: it cannot be read."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
