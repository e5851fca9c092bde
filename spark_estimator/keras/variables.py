"""Variables in words, by which the ranks compare what they are about to exchange."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def lines_of(variables: Iterable[Any]) -> list[str]:
    """Name, type and shape of each variable: ``dense/kernel float32 (3, 4)``."""
    return [f"{plain_name(variable)} {_dtype(variable)} {tuple(variable.shape)}" for variable in variables]


def plain_name(variable: Any) -> str:
    """A variable's path without Keras' own numbers: ``dense_3/kernel`` is ``dense/kernel``.

    They depend on how many layers that process has made before, which may be another number on each rank. The variables
    of an optimizer have them within: ``adam/sequential_1_dense_3_kernel_momentum``.
    """
    path = str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))
    return re.sub(r"_\d+(?=[_/]|$)", "", path)


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype)).rpartition(".")[2]
