"""The functions of ``horovod.common.util`` about the build."""

from __future__ import annotations

import os
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


def test_versions_and_lists() -> None:
    assert build_questions.is_version_greater_equal_than("2.10.0", "2.9.1")
    assert not build_questions.is_version_greater_equal_than("1.9.9", "2.0.0")
    with pytest.raises(ValueError, match=r"'2\.1' is not a version"):
        build_questions.is_version_greater_equal_than("2.1", "2.0.0")
    assert build_questions.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert build_questions.is_iterable("ab") and not build_questions.is_iterable(1)


def test_variables_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_OLD", "1")
    monkeypatch.delenv("SOME_NEW", raising=False)
    with build_questions.env(SOME_OLD="2", SOME_NEW="3", SOME_NONE=None):
        assert (os.environ["SOME_OLD"], os.environ["SOME_NEW"]) == ("2", "3")
    assert os.environ["SOME_OLD"] == "1" and "SOME_NEW" not in os.environ


def test_extensions() -> None:
    build_questions.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "/somewhere", "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet is not available"):
        build_questions.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "/somewhere", "mpi_lib")


def test_op_and_average() -> None:
    class Ops:
        Average, Sum = "average", "sum"

    chosen = build_questions.get_average_backwards_compatibility_fun(Ops)
    assert [chosen(None, None), chosen(None, True), chosen(None, False), chosen("max", None)] == [
        "average",
        "average",
        "sum",
        "max",
    ]
    with pytest.raises(ValueError, match="can't be combined"):
        chosen("sum", True)
