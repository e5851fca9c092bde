"""The compressors on numpy arrays: a binding is only a cast."""

from __future__ import annotations

import numpy
import pytest

from spark_estimator.collectives.compression.casts import CastCompressor, check_compressor


class Half(CastCompressor):
    wire_dtype = numpy.float16

    @staticmethod
    def cast(tensor: numpy.ndarray, dtype: numpy.dtype) -> numpy.ndarray:
        return tensor.astype(dtype)

    @staticmethod
    def is_floating(dtype: numpy.dtype) -> bool:
        return bool(numpy.issubdtype(dtype, numpy.floating))


def test_a_cast_makes_a_compressor() -> None:
    for dtype in (numpy.float32, numpy.float64):
        sent, ctx = Half.compress(numpy.ones(3, dtype))
        assert (sent.dtype, ctx) == (numpy.float16, dtype)
        assert Half.decompress(sent, ctx).dtype == dtype
    integers = numpy.ones(3, numpy.int64)
    sent, ctx = Half.compress(integers)
    assert sent is integers
    assert ctx == numpy.int64
    assert check_compressor(Half, kind="allreduce") is Half


def test_a_class_whose_functions_need_an_object_is_refused() -> None:
    class Scaled:
        def compress(self, tensor: object) -> tuple[object, None]:
            return tensor, None

        def decompress(self, tensor: object, ctx: object) -> object:
            return tensor

    compressor = Scaled()
    assert check_compressor(compressor) is compressor
    with pytest.raises(ValueError, match=r"compression=Scaled is a class .* takes self: .*compression=Scaled\(\)"):
        check_compressor(Scaled)
