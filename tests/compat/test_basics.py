"""`HorovodBasics`: the functions about ranks as methods."""

from __future__ import annotations

import pytest

from spark_estimator.collectives import context
from spark_estimator.compat.basics import HorovodBasics


def test_methods_are_the_functions_about_ranks() -> None:
    basics = HorovodBasics("/somewhere", "mpi_lib_v2")
    for name in ("init", "shutdown", "rank", "size", "local_rank", "is_homogeneous", "nccl_built", "start_timeline"):
        assert getattr(basics, name) is getattr(context, name)
    assert (basics.Average, basics.Sum, basics.Adasum, basics.Min, basics.Max, basics.Product) == tuple(range(6))


def test_unknown_and_private_names() -> None:
    for name in ("nothing", "_private"):
        with pytest.raises(AttributeError, match=name):
            getattr(HorovodBasics(), name)
