"""The functions of ``horovod.common.util`` that describe the build, for scripts that call them before ``init()``."""

from __future__ import annotations

import importlib
import importlib.util


def _answer(question: str) -> bool:
    # Imported by name at the call, so that an import of this module does not load the engine.
    return bool(getattr(importlib.import_module("spark_estimator.collectives.context"), question)())


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this package supports the framework (such as "torch") and the framework is installed."""
    binding = importlib.util.find_spec(f"spark_estimator.{ext_base_name}")
    return binding is not None and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework ("torch", "tensorflow") sees a GPU."""
    if ext_base_name not in ("torch", "tensorflow") or importlib.util.find_spec(ext_base_name) is None:
        return False
    framework = importlib.import_module(ext_base_name)
    if ext_base_name == "tensorflow":
        return bool(framework.config.list_physical_devices("GPU"))
    return bool(framework.cuda.is_available())


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether the number of ranks is a power of 2, as Adasum requires."""
    return num_rank > 0 and not num_rank & (num_rank - 1)


def gloo_built(verbose: bool = False) -> bool:
    """True: collectives on CPU tensors work. Scripts check for Gloo to learn that."""
    return _answer("gloo_built")


def mpi_built(verbose: bool = False) -> bool:
    """False: MPI is not used."""
    return _answer("mpi_built")


def nccl_built(verbose: bool = False) -> bool:
    """Whether GPU collectives use NCCL."""
    return _answer("nccl_built")


def cuda_built(verbose: bool = False) -> bool:
    """Whether the engine works on GPU memory."""
    return _answer("cuda_built")


def rocm_built(verbose: bool = False) -> bool:
    """False: ROCm is not used."""
    return _answer("rocm_built")


def ddl_built(verbose: bool = False) -> bool:
    """False: IBM's DDL is not used."""
    return _answer("ddl_built")


def ccl_built(verbose: bool = False) -> bool:
    """False: Intel's oneCCL is not used."""
    return _answer("ccl_built")
