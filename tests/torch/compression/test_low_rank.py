"""The algebra of low-rank approximation: bases, products, and that their bits do not depend on the processor."""

from __future__ import annotations

import pytest
import torch

from spark_estimator.torch.compression.low_rank import first_factor, orthonormal, product, scaled_columns


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [3, 64, 5000])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_basis_is_orthonormal_and_spans_the_columns(rows: int, rank: int, dtype: torch.dtype) -> None:
    matrix = random(rows, rank, dtype=dtype) * torch.tensor([1e-12, 1.0, 1e9], dtype=dtype)[:rank]
    basis, added = orthonormal(matrix)
    assert basis.dtype == dtype
    assert added == [True] * rank
    torch.testing.assert_close(basis.t() @ basis, torch.eye(rank, dtype=dtype), rtol=0, atol=1e-5)
    torch.testing.assert_close(basis @ (basis.t() @ matrix), matrix, rtol=1e-4, atol=1e-5 * matrix.abs().max().item())


def test_columns_that_add_no_direction_are_zero() -> None:
    column = random(50, 1)
    basis, added = orthonormal(torch.cat([torch.zeros(50, 1), column, column * 3, random(50, 1, seed=2)], dim=1))
    assert added == [False, True, False, True]
    assert basis[:, 0].abs().max() == basis[:, 2].abs().max() == 0
    nonzero = basis[:, [1, 3]]
    torch.testing.assert_close(nonzero.t() @ nonzero, torch.eye(2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-300])
def test_a_matrix_of_next_to_nothing(tiny: float) -> None:
    basis, added = orthonormal(torch.full((4, 2), tiny, dtype=torch.float64))
    assert added == [tiny == 1e-45, False]
    assert torch.isfinite(basis).all()
    assert torch.isfinite(scaled_columns(torch.full((4, 2), tiny, dtype=torch.float32))).all()


def test_the_order_of_rows_does_not_change_a_bit() -> None:
    """Sums in another order are what another processor, or another number of threads, makes of them."""
    matrix = random(1000, 3)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(orthonormal(matrix)[0][order], orthonormal(matrix[order])[0])


def test_scales_are_powers_of_two() -> None:
    matrix = random(30, 3) * torch.tensor([1e-20, 1.0, 1e20])
    scaled = scaled_columns(matrix)
    peaks = scaled.abs().amax(0)
    assert (peaks >= 0.5).all()
    assert (peaks <= 1).all()
    mantissas = [torch.frexp(each).mantissa for each in (matrix, scaled)]
    assert torch.equal(mantissas[0], mantissas[1])


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_products_are_sums_in_order(rank: int) -> None:
    first, second = random(700, rank), random(300, rank, seed=2)
    out = product(first, second, torch.empty(700, 300))
    torch.testing.assert_close(out, first @ second.t(), rtol=1e-5, atol=1e-5)
    expected = first[:, :1] * second[:, 0]
    for k in range(1, rank):
        expected = expected + first[:, k : k + 1] * second[:, k]
    assert torch.equal(out, expected)


def test_the_first_factor_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    factor = first_factor(20, 2, 5, torch.float32)
    torch.manual_seed(2)
    assert torch.equal(factor, first_factor(20, 2, 5, torch.float32))
    assert not torch.equal(factor, first_factor(20, 2, 6, torch.float32))
    assert factor.abs().max() <= 1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_matrix_of_that_rank_is_reproduced(rank: int) -> None:
    matrix = random(60, rank) @ random(rank, 40, seed=2)
    basis, _ = orthonormal(matrix @ first_factor(40, rank, 0, torch.float32))
    made = product(basis, matrix.t() @ basis, torch.empty(60, 40))
    torch.testing.assert_close(made, matrix, rtol=0, atol=1e-5)
