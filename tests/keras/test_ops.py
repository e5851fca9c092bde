"""Collectives on single values: numbers, lists, arrays and tensors of Keras' backend."""

from __future__ import annotations

import pytest

from tests.keras.conftest import RankPool


def test_numbers_arrays_and_tensors(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        def listed(value: object) -> object:
            assert keras.ops.is_tensor(value) is (keras.backend.backend() == "tensorflow")  # as in Horovod
            return numpy.asarray(value).tolist()

        assert (hvd.size(), hvd.rank()) == (2, rank)
        assert listed(hvd.allreduce(1.0 + rank)) == 1.5
        assert listed(hvd.allreduce(numpy.full(2, rank, "float32"), op=hvd.Sum)) == [1.0, 1.0]
        assert listed(hvd.allgather([rank, 5])) == [0, 5, 1, 5]
        assert listed(hvd.broadcast(numpy.array([rank]), 1)) == [1]
        assert listed(hvd.reducescatter(numpy.arange(2.0) + rank, op=hvd.Sum)) == [1.0 + 2 * rank]
        tensor = keras.ops.convert_to_tensor(numpy.array([1.0, 3.0], "float32") + rank)
        for compression in (hvd.Compression.none, hvd.Compression.bf16):
            reduced = hvd.allreduce(tensor, compression=compression)
            assert keras.ops.is_tensor(reduced)
            assert keras.backend.standardize_dtype(reduced.dtype) == "float32"
            assert keras.ops.convert_to_numpy(reduced).tolist() == [1.5, 3.5]
        ones, twos = hvd.grouped_allreduce([tensor, numpy.array([2.0])], op=hvd.Max)
        assert keras.ops.convert_to_numpy(ones).tolist() == [2.0, 4.0] and listed(twos) == [2.0]
        with pytest.raises(ValueError, match="not both"):
            hvd.allreduce(1.0, average=True, op=hvd.Sum)

    two_ranks.run(check)
