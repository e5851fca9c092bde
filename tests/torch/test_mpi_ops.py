"""What old scripts import from horovod.torch.mpi_ops."""

from __future__ import annotations

import pytest

import spark_estimator.torch as hvd
from spark_estimator.torch import mpi_ops


def test_every_public_name_is_there_and_the_same() -> None:
    for name in hvd.__all__:
        assert getattr(mpi_ops, name) is getattr(hvd, name)


def test_average_and_op_are_one_operation() -> None:
    combine = mpi_ops.handle_average_backwards_compatibility
    assert combine(None, None) == combine(hvd.Average, None) == hvd.Average
    assert combine(hvd.Max, None) == hvd.Max
    with pytest.raises(ValueError, match="average"):
        combine(hvd.Sum, True)
