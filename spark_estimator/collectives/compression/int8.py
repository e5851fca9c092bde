"""The errors of rounding to int8, for bindings that have new tensors in each step: stored by key, per engine.

The engine adds a residue to the next tensor that is submitted with it; see ``se_tensor.residue`` of the C ABI.
"""

from __future__ import annotations

import itertools
import math
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from spark_estimator._native import DType
from spark_estimator.collectives import context
from spark_estimator.collectives.call import Form
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.process_set import ProcessSet

#: Tensors of fewer elements are sent as float32: biases and norms are few bytes, and worth their precision.
LEAST_ELEMENTS = 1024

#: Elements that have a scale in common: kInt8BlockValues of ``native/base/kernels/int8_block.h``.
BLOCK = 256

# A graph that another process has saved has keys of that process.
_PROCESS = secrets.token_hex(4)
_numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
_counter = itertools.count()
_kept: weakref.WeakKeyDictionary[Engine, dict[object, NDArray[Any]]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def count_wire_bytes(elements: int) -> int:
    """Return how many bytes `elements` elements take between hosts: one each, and a float32 for each block."""
    return elements + 4 * math.ceil(elements / BLOCK)


def find_residues(process_set: ProcessSet | None, keys: Sequence[object], forms: Sequence[Form]) -> tuple[int, ...]:
    """Return addresses for `call.Call.residues`: of zeros at first, and of the rounding errors afterwards.

    Memory stays as long as the engine: a job's ranks begin with none after another ``init()``.

    Args:
        process_set: whose ranks exchange the tensors; None: all.
        keys: of each tensor; the same in each step, and another tensor's are others.
        forms: type and shape of each tensor.

    Returns:
        [tensors]; 0 for one that is sent as it is.
    """
    engine = context.engine(process_set)
    with _lock:
        by_key = _kept.setdefault(engine, {})
        addresses = []
        for key, (dtype, shape) in zip(keys, forms, strict=True):
            elements = math.prod(shape)
            if dtype is not DType.FLOAT32 or elements < LEAST_ELEMENTS:
                addresses.append(0)
                continue
            residue = by_key.get((key, elements))
            if residue is None:
                residue = by_key[key, elements] = numpy.zeros(elements, numpy.float32)
            addresses.append(residue.ctypes.data)
        return tuple(addresses)


def make_key(variable: Any) -> str:
    """Return a key for the rounding error of a variable's gradients; unique for each object of this process."""
    with _lock:
        entry = _numbers.get(id(variable))
        if entry is None or entry[0]() is not variable:
            entry = _numbers[id(variable)] = (weakref.ref(variable), next(_counter))
        return f"{_PROCESS}.{entry[1]}"
