"""The algebra of low-rank approximation, with the same bits on every rank and processor.

Matrix products and factorisations of libraries round differently from one processor to the next. So values that must be
equal on all ranks are computed by two kinds of operations only: sums of whole numbers, which are the same in every
order, and operations element by element, each in a separate kernel, which IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import math

import torch

# How little of a column may be left when its part along the others is taken away, squared; below it is their shadow.
_SHADOW = 1e-10
# Elements that are worked on at a time: they stay in a core's cache.
_CACHED = 1 << 16


def first_factor(columns: int, rank: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """A matrix [columns, rank] of random numbers in -1 ... 1 that depend on the arguments alone.

    Whole numbers of the generator, scaled: its normal distribution is computed differently on different processors.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 20), 1 << 20, (columns, rank), generator=generator).to(dtype) / (1 << 20)


def orthonormal(matrix: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """An orthonormal basis of what the columns of a matrix span, from the first column to the last (Cholesky QR).

    Columns are rounded to a number of bits for which their products add up exactly: 26 for up to 1000 rows, 21 for a
    million.

    Args:
        matrix: [rows, rank], finite, in host memory.

    Returns:
        The basis, [rows, rank] in the matrix's type, and for each column whether it added a direction. One that did
        not is zero.
    """
    bits = min(30, (62 - matrix.shape[0].bit_length()) // 2)
    scales = torch.tensor([_power_of_two(peak, bits) for peak in _peaks(matrix)], dtype=torch.float64)
    # [rank, rows] whole numbers up to 2 ** bits; a scale that is a power of two changes no digits.
    columns = (matrix.t().to(torch.float64) * scales.unsqueeze(1)).round_()
    scaled = columns.to(torch.int64)
    products = (scaled.unsqueeze(1) * scaled.unsqueeze(0)).sum(-1).tolist()
    lower = _cholesky(products)
    for j, row in enumerate(lower):
        for i in range(j):
            if row[i]:
                columns[j] -= columns[i] * row[i]
        columns[j] = columns[j] * (1.0 / row[j]) if row[j] else 0.0
    return columns.t().to(matrix.dtype).contiguous(), [bool(row[j]) for j, row in enumerate(lower)]


def scaled_columns(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with each column divided by a power of two, so that its largest element is in 0.5 ... 1."""
    scales = torch.tensor([_power_of_two(peak, 0) for peak in _peaks(matrix)], dtype=torch.float64)
    return (matrix.to(torch.float64) * scales).to(matrix.dtype)


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``left @ right.t()`` into `out`, by sums of columns times rows in a fixed order.

    Args:
        left: [rows, rank].
        right: [columns, rank].
        out: [rows, columns], on the same device and of the same type.
    """
    rows = right.t().contiguous()
    step = max(1, _CACHED // max(1, out.shape[1])) if out.is_cpu else out.shape[0]
    scratch = torch.empty_like(out[:step])
    for start in range(0, out.shape[0], step):
        part, left_rows = out[start : start + step], left[start : start + step]
        torch.mul(left_rows[:, :1], rows[0], out=part)
        for k in range(1, left.shape[1]):
            # Two kernels: one could round the product and the sum together, or not.
            term = torch.mul(left_rows[:, k : k + 1], rows[k], out=scratch[: len(part)])
            part.add_(term)
    return out


def _peaks(matrix: torch.Tensor) -> list[float]:
    peaks: list[float] = matrix.abs().amax(0).tolist()
    return peaks


def _power_of_two(peak: float, bits: int) -> float:
    """By which `peak` becomes 2 ** (bits - 1) or more, and less than 2 ** bits; 0 for 0."""
    # The smallest doubles cannot be lifted so high by one factor: they count as zero.
    return math.ldexp(1.0, bits - math.frexp(peak)[1]) if peak > 1e-290 else 0.0


def _cholesky(products: list[list[int]]) -> list[list[float]]:
    """The lower triangle L with ``L @ L.T == products``; a column that depends on those before it has a row of zeros.

    Args:
        products: [rank, rank] the columns' dot products.
    """
    lower: list[list[float]] = []
    for j, dots in enumerate(products):
        row = [0.0] * len(products)
        for i in range(j):
            if lower[i][i]:
                remainder = float(dots[i])
                for k in range(i):
                    remainder -= row[k] * lower[i][k]
                row[i] = remainder / lower[i][i]
        square = float(dots[j])
        for k in range(j):
            square -= row[k] * row[k]
        if square > _SHADOW * dots[j]:
            row[j] = math.sqrt(square)
        else:
            row = [0.0] * len(products)
        lower.append(row)
    return lower
