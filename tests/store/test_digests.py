"""Digests of files: damage and lost ends are found."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_estimator.store.digests import digest_of, flaw_of, seal_of, sealed, unsealed

CONTENT = b"some bytes\nsha256:" + bytes(range(256))


def test_content_is_the_same_after_sealing() -> None:
    stream = io.BytesIO(CONTENT)
    stream.seek(3)
    whole = sealed(stream)
    assert whole == CONTENT + seal_of(CONTENT)
    assert flaw_of(whole) == "" and unsealed(whole) == CONTENT
    assert flaw_of(seal_of(b"")) == "" and unsealed(seal_of(b"")) == b""


@settings(deadline=None)  # another process may hold the processor
@given(st.integers(0, len(CONTENT + seal_of(CONTENT)) - 1), st.integers(0, 7))
def test_one_changed_bit_is_found(position: int, bit: int) -> None:
    damaged = bytearray(CONTENT + seal_of(CONTENT))
    damaged[position] ^= 1 << bit
    assert flaw_of(bytes(damaged)) != ""


def test_what_is_wrong_is_named() -> None:
    whole = CONTENT + seal_of(CONTENT)
    assert flaw_of(b"x" + whole[1:]) == (
        f"it is damaged, as its {len(whole)} bytes are not those that were written (by their SHA-256)"
    )
    for torn in (whole[:-1], whole[:10], b"", CONTENT):
        assert f"of its {len(torn)} bytes the last are not its SHA-256, so its end is lost" in flaw_of(torn)
    assert "damaged" in flaw_of(whole[5:]), "a lost beginning"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_digest_of_a_file(tmp_path: Path, size: int) -> None:
    """Of sizes around the piece that is read at a time."""
    content = bytes(range(256)) * (size // 256 + 1)
    file = tmp_path / "file"
    file.write_bytes(content[:size])
    assert digest_of(file) == hashlib.sha256(content[:size]).hexdigest()
    with pytest.raises(FileNotFoundError):
        digest_of(tmp_path / "missing")
