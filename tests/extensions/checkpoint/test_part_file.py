"""One rank's part in pieces, with checksums that are not known before."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.extensions.checkpoint.part_writer import CHUNK_BYTES, chunks, write_all


def test_chunks_carry_checksums_into_the_text_behind_each_hole() -> None:
    content = memoryview(bytes(range(100)))
    result = b"".join(bytes(chunk) for chunk in chunks(content, 100, [(10, 20, (32, 40)), (60, 5, (70,))]))
    expected = bytearray(content)
    for place in (32, 40):
        expected[place : place + 4] = zlib.crc32(content[10:30]).to_bytes(4, "little")
    expected[70:74] = zlib.crc32(content[60:65]).to_bytes(4, "little")
    assert result == bytes(expected)
    assert io.BytesIO(result).getbuffer().nbytes == 100


@pytest.mark.parametrize("end", [0, 1, 99])
def test_a_part_without_holes_is_as_it_is(end: int) -> None:
    content = memoryview(bytes(range(100)))
    assert b"".join(map(bytes, chunks(content, end, []))) == bytes(content[:end])


@pytest.mark.parametrize("size", [1, 2, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_hole_of_any_size_comes_in_bounded_pieces(size: int) -> None:
    content = bytes(8) + bytes([7]) * size + bytes(8)
    pieces = list(chunks(memoryview(content), len(content), [(8, size, (size + 10,))]))
    assert max(map(len, pieces)) <= CHUNK_BYTES
    result = b"".join(map(bytes, pieces))
    assert result[: size + 10] == content[: size + 10]
    assert result[size + 10 : size + 14] == zlib.crc32(content[8 : size + 8]).to_bytes(4, "little")
    assert content[size + 10 :] == bytes(6), "the memory itself is not changed"


class Slow(io.BytesIO):
    """Takes few bytes at a time, as a pipe or an object store does, and is no file of this machine."""

    def write(self, content: Any) -> int:
        return super().write(bytes(content)[:3])


@pytest.mark.parametrize("pieces", [[], [b""], [b"abc", b"", bytearray(b"defgh"), memoryview(b"ij")]])
def test_all_is_written_also_where_a_stream_takes_less(tmp_path: Path, pieces: Sequence[Any]) -> None:
    expected = b"".join(map(bytes, pieces))
    slow = Slow()
    assert write_all(slow, iter(pieces), lambda: None) == len(expected)
    assert slow.getvalue() == expected
    with (tmp_path / "part").open("wb") as file:
        assert write_all(file, iter(pieces), lambda: None) == len(expected)
        assert (tmp_path / "part").read_bytes() == expected, "before the file is closed"


def test_writing_stops_between_two_pieces() -> None:
    wanted = iter([None, None])

    def is_wanted() -> None:
        if next(wanted, 0) == 0:
            raise InterruptedError("another rank has failed")

    stream = io.BytesIO()
    with pytest.raises(InterruptedError, match="another rank"):
        write_all(stream, iter([b"a", b"b", b"c"]), is_wanted)
    assert stream.getvalue() == b"ab"
