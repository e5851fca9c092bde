"""The compressors of the Keras binding, on each backend."""

from __future__ import annotations

import pytest

from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_the_family(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        from spark_estimator.keras import compression
        from tests.support.compression_family import check_family, check_int8

        check_family(
            compression,
            keras.ops.convert_to_tensor([1.0, -0.5]),
            keras.ops.convert_to_tensor([1, 2], dtype="int32"),
            lambda tensor: keras.backend.standardize_dtype(tensor.dtype),
            keras.ops.convert_to_numpy,
        )
        check_int8(compression, keras.ops.convert_to_tensor([1.0, -0.5]))
        assert compression.checked_compression(None) is compression.Compression.none  # by the environment

    two_ranks.run(check)
