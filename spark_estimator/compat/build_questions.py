"""``horovod.common.util``: what the build supports, for scripts that ask before ``init()``, and a few small helpers."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache as _cache
from typing import Any, TypeVar

_Item = TypeVar("_Item")

__all__ = [
    "_cache",
    "ccl_built",
    "check_extension",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]


def _answer(question: str) -> bool:
    # Imported by name at the call, so that an import of this module does not load the engine.
    return bool(getattr(importlib.import_module("spark_estimator.collectives.context"), question)())


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether this package supports the framework (such as "torch") and the framework is installed."""
    binding = importlib.util.find_spec(f"spark_estimator.{ext_base_name}")
    return binding is not None and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework ("torch", "tensorflow") sees a GPU."""
    if ext_base_name not in ("torch", "tensorflow") or importlib.util.find_spec(ext_base_name) is None:
        return False
    framework = importlib.import_module(ext_base_name)
    if ext_base_name == "tensorflow":
        return bool(framework.config.list_physical_devices("GPU"))
    return bool(framework.cuda.is_available())


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether the number of ranks is a power of 2, as Adasum requires."""
    return num_rank > 0 and not num_rank & (num_rank - 1)


def gloo_built(verbose: bool = False) -> bool:
    """Return True: collectives on CPU tensors work. Scripts check for Gloo to learn that."""
    return _answer("gloo_built")


def mpi_built(verbose: bool = False) -> bool:
    """Return False: MPI is not used."""
    return _answer("mpi_built")


def nccl_built(verbose: bool = False) -> bool:
    """Return whether GPU collectives use NCCL."""
    return _answer("nccl_built")


def cuda_built(verbose: bool = False) -> bool:
    """Return whether the engine works on GPU memory."""
    return _answer("cuda_built")


def rocm_built(verbose: bool = False) -> bool:
    """Return False: ROCm is not used."""
    return _answer("rocm_built")


def ddl_built(verbose: bool = False) -> bool:
    """Return False: IBM's DDL is not used."""
    return _answer("ddl_built")


def ccl_built(verbose: bool = False) -> bool:
    """Return False: Intel's oneCCL is not used."""
    return _answer("ccl_built")


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Return if the binding that `args` end with ("torch", "tensorflow") can be imported.

    Args:
        ext_name: of the binding, for the message.
        ext_env_var, pkg_path: not used.

    Raises:
        ImportError: the binding, or its framework, is missing.
    """
    framework = {"mpi_lib_v2": "torch"}.get(args[-1] if args else "", ext_name.rpartition(".")[2])
    if not extension_available(framework):
        raise ImportError(f"{ext_name} is not available: {framework} is not installed, or this package has no binding.")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is at least another one, by their first three numbers.

    Raises:
        ValueError: one doesn't begin with three numbers.
    """
    numbers = []
    for text in (ver, target):
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a version of the form major.minor.patch.")
        numbers.append(tuple(map(int, match.groups())))
    return numbers[0] >= numbers[1]


def split_list(items: Sequence[_Item], chunks: int) -> list[Sequence[_Item]]:
    """Return `chunks` parts of nearly equal size, in order; the first ones are larger."""
    size, larger = divmod(len(items), chunks)
    ends = [number * size + min(number, larger) for number in range(chunks + 1)]
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def is_iterable(value: Any) -> bool:
    """Return whether ``iter(value)`` works."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Give the process these environment variables in this context; those that are None stay as they are."""
    before = {name: os.environ.get(name) for name, value in variables.items() if value is not None}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Return a function of (op, average) that returns the operation which the two arguments mean together.

    Args:
        reduce_ops: has the attributes Average and Sum.
    """

    def choose(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("op and average can't be combined: give one of them.")
        if op is not None:
            return op
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return choose
