"""Gradients on Keras' torch backend: dense, sparse, in groups, and weighed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


def test_gradients(two_ranks: RankPool) -> None:
    if two_ranks.backend != "torch":
        pytest.skip("of torch alone")

    def values(rank: int) -> list[Any]:
        import keras
        import numpy
        import torch

        from spark_estimator._native import ReduceOp
        from spark_estimator.keras import on_torch
        from spark_estimator.keras.compression import Compression
        from spark_estimator.keras.exchange import KerasExchange, StepWeight

        variables = [keras.Variable(numpy.zeros(2, "float32"), name=name) for name in "abc"]
        results: list[Any] = []
        for groups, compression, factor in (
            (None, Compression.none, 1.0),
            (2, Compression.bf16, 1.0),
            (3, Compression.none, 2.0),
        ):
            exchange = KerasExchange("sgd", ReduceOp.AVERAGE, compression, 1.0, groups, False, None)
            exchange.weight = StepWeight(True, factor)
            rows = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([2.0]), (2,))
            gradients = [torch.full((2,), rank + 1.0), rows, torch.full((2,), 4.0)]
            reduced = on_torch.reduce_gradients(exchange, gradients, variables, variables)
            assert {gradient.dtype for gradient in reduced} == {torch.float32}
            results.append([gradient.tolist() for gradient in reduced])
        assert on_torch.factor(exchange) == 2.0
        assert [bool(on_torch.are_all_true(exchange, torch.tensor(flag))) for flag in (True, rank == 0)] == [
            True,
            False,
        ]
        assert on_torch.only_when(torch.tensor(True), lambda: (3, 4), [1, 2]) == [3, 4]
        assert on_torch.only_when(torch.tensor(False), lambda: (3, 4), [1, 2]) == [1, 2]
        return results

    plain = [[1.5, 1.5], [1.0, 1.0], [4.0, 4.0]]
    assert two_ranks.run(values) == [[plain, plain, [[3.0, 3.0], [2.0, 2.0], [8.0, 8.0]]]] * 2
