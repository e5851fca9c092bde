"""The picture of a file is what torch.save writes."""

from __future__ import annotations

import io
import zipfile
import zlib

import pytest
import torch

from spark_estimator.extensions.checkpoint.image import align, make_frame, move_hole, save_to_bytes


def filled(tensor: torch.Tensor) -> bytes:
    frame = make_frame(tuple(tensor.shape), tensor.dtype)
    content = bytearray(frame.size)
    for offset, text in frame.texts:
        content[offset : offset + len(text)] = text
    if frame.hole is not None:
        numbers = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        content[frame.hole.offset : frame.hole.offset + frame.hole.size] = numbers
        for place in frame.hole.checksums:
            content[place : place + 4] = zlib.crc32(numbers).to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (130, 7), (0, 4)])
def test_torch_reads_it(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    content = filled(tensor)
    result = torch.load(io.BytesIO(content), weights_only=True)
    assert result.dtype == dtype
    assert result.shape == shape
    assert save_to_bytes(result.clone()) == save_to_bytes(tensor.clone())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None


def test_places_move_with_the_piece() -> None:
    hole = make_frame((9,), torch.float64).hole
    assert hole is not None
    assert (move_hole(hole, 640).offset, move_hole(hole, 640).size) == (hole.offset + 640, 72)
    assert [align(offset) for offset in (0, 1, 64, 65)] == [0, 64, 64, 128]
