"""Horovod's old module of collectives."""

from __future__ import annotations

import pytest

import spark_estimator.tensorflow as hvd
from spark_estimator.tensorflow import mpi_ops


def test_the_operation_of_both_arguments() -> None:
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average
    assert mpi_ops.handle_average_backwards_compatibility(hvd.Max, None) == hvd.Max
    with pytest.warns(DeprecationWarning):
        assert mpi_ops.handle_average_backwards_compatibility(None, False) == hvd.Sum
    with pytest.raises(ValueError, match="either op"):
        mpi_ops.handle_average_backwards_compatibility(hvd.Sum, True)
    with pytest.raises(ValueError, match="op=77 must be"):
        mpi_ops.handle_average_backwards_compatibility(77, None)


def test_it_has_the_names_of_the_package() -> None:
    assert mpi_ops._basics is hvd
    assert hvd.handle_average_backwards_compatibility is mpi_ops.handle_average_backwards_compatibility
    assert mpi_ops.allreduce is hvd.allreduce and mpi_ops.rank is hvd.rank
