"""Digests of files: damage and lost ends are found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_estimator.store.digests import compute_digest, find_flaw, make_seal, remove_seal

CONTENT = b"some bytes\nsha256:" + bytes(range(256))


def test_content_is_the_same_after_sealing() -> None:
    whole = CONTENT + make_seal(CONTENT)
    assert find_flaw(whole) == "" and remove_seal(whole) == CONTENT
    assert find_flaw(make_seal(b"")) == "" and remove_seal(make_seal(b"")) == b""


@settings(deadline=None)  # another process may hold the processor
@given(st.integers(0, len(CONTENT + make_seal(CONTENT)) - 1), st.integers(0, 7))
def test_one_changed_bit_is_found(position: int, bit: int) -> None:
    damaged = bytearray(CONTENT + make_seal(CONTENT))
    damaged[position] ^= 1 << bit
    assert find_flaw(bytes(damaged)) != ""


def test_what_is_wrong_is_named() -> None:
    whole = CONTENT + make_seal(CONTENT)
    assert find_flaw(b"x" + whole[1:]) == (
        f"it is damaged, as its {len(whole)} bytes are not those that were written (by their SHA-256)"
    )
    for torn in (whole[:-1], whole[:10], b"", CONTENT):
        assert f"of its {len(torn)} bytes the last are not its SHA-256, so its end is lost" in find_flaw(torn)
    assert "damaged" in find_flaw(whole[5:]), "a lost beginning"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_digest_of_a_file(tmp_path: Path, size: int) -> None:
    """Of sizes around the piece that is read at a time."""
    content = bytes(range(256)) * (size // 256 + 1)
    file = tmp_path / "file"
    file.write_bytes(content[:size])
    assert compute_digest(file) == hashlib.sha256(content[:size]).hexdigest()
    with pytest.raises(FileNotFoundError):
        compute_digest(tmp_path / "missing")
