"""The functions of ``horovod.common.util`` about the build."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_estimator.compat import build_questions


def test_frameworks_of_this_package_that_are_installed() -> None:
    assert build_questions.extension_available("torch")
    assert build_questions.extension_available("torch", verbose=True)
    assert not build_questions.extension_available("mxnet")
    assert not build_questions.extension_available("collectives"), "a module of this package, but no framework"


def test_gpus_of_frameworks() -> None:
    import torch

    assert build_questions.gpu_available("torch") is torch.cuda.is_available()
    assert build_questions.gpu_available("mxnet") is False


@pytest.mark.parametrize(("ranks", "is_power"), [(0, False), (1, True), (2, True), (3, False), (12, False), (64, True)])
def test_powers_of_two(ranks: int, is_power: bool) -> None:
    assert build_questions.num_rank_is_power_2(ranks) is is_power


def test_what_is_built() -> None:
    assert build_questions.gloo_built() is True
    for absent in ("mpi", "rocm", "ddl", "ccl"):
        assert getattr(build_questions, f"{absent}_built")(verbose=True) is False
    assert isinstance(build_questions.nccl_built(), bool) and isinstance(build_questions.cuda_built(), bool)


def test_the_import_loads_neither_the_engine_nor_a_framework() -> None:
    program = (
        "import sys, spark_estimator.compat.build_questions\n"
        "loaded = {'torch', 'numpy', 'spark_estimator._native'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
