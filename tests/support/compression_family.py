"""What the compressors of every framework's binding have in common, as one test."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark_estimator.collectives.compression.casts import NoneCompressor


def check_family(module: Any, floats: Any, integers: Any, name_of: Any, values: Any) -> None:
    """Tries a binding's compressors.

    Args:
        module: the binding's ``compression``.
        floats, integers: tensors of float32, that half precision can hold, and of int32.
        name_of: tensor -> its type's name.
        values: tensor -> numpy array.
    """
    compression = module.Compression
    assert compression.none is module.NoneCompressor is NoneCompressor
    assert compression.none.compress(floats) == (floats, None)
    assert compression.none.decompress(floats, None) is floats
    for member, compressor, wire in (
        (compression.fp16, module.FP16Compressor, "float16"),
        (compression.bf16, module.BF16Compressor, "bfloat16"),
    ):
        assert member is compressor
        assert pickle.loads(pickle.dumps(member)) is member
        for user in (member, member(), type("Mine", (member,), {})):
            sent, ctx = user.compress(floats)
            assert name_of(sent) == wire
            received = user.decompress(sent, ctx)
            assert name_of(received) == "float32"
            assert values(received).tolist() == values(floats).tolist()
            sent, ctx = user.compress(integers)
            assert sent is integers
            assert name_of(user.decompress(sent, ctx)) == "int32"

    class Doubled(module.Compressor):  # type: ignore[misc,name-defined]
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor * 2, None

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor / 2

    class Lacking:
        compress = Doubled.compress

    check = getattr(module, "checked_compression", None) or (
        lambda value: module.checked_compressor(value, "allreduce")
    )
    for accepted in (Doubled, Doubled(), compression.fp16, compression.none):
        assert check(accepted) is accepted
    for refused in (Lacking, "fp16", 16):
        with pytest.raises(ValueError, match=r"compression=.* must be one of hvd\.Compression\.none, .*decompress"):
            check(refused)


def check_int8(module: Any, floats: Any) -> None:
    """Tests the settings that send gradients as int8, of a binding without buckets.

    Args:
        module: the binding's ``compression``.
        floats: a tensor of float32.
    """
    int8 = module.Compression.int8
    assert int8 is module.Int8Compressor
    assert pickle.loads(pickle.dumps(int8)) is int8
    with pytest.raises(ValueError, match=r"hvd\.Compression\.int8 keeps an error residual"):
        int8.compress(floats)
