"""The random number generators of a process, as values that PyTorch's restricted unpickler reads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch


def get_random_state() -> dict[str, Any]:
    """Return the generators of this process: Python's, numpy's, torch's."""
    kind, keys, position, has_gauss, gauss = numpy.random.get_state()
    result = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(numpy.asarray(keys).astype(numpy.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        result["cuda"] = torch.cuda.get_rng_state()
    return result


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set the generators of this process."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, value = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype(numpy.uint32), position, has_gauss, value))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
