"""The state of a process' random number generators outside of Keras' layers: Python's, NumPy's and PyTorch's."""

from __future__ import annotations

import random
from typing import Any

import numpy

from spark_estimator.keras.importing import backend


def get_rng_state() -> dict[str, Any]:
    """Return the state for a checkpoint within an epoch. On PyTorch, Keras' dropout without a seed draws from
    PyTorch's generator.
    """
    _, keys, position, has_gauss, gauss = numpy.random.get_state()
    _, words, second = random.getstate()
    result: dict[str, Any] = {
        "numpy": [keys, position, has_gauss, gauss],
        "python": [numpy.array(words, numpy.uint32), second],
    }
    if backend() == "torch":
        import torch

        result["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_available():
            result["cuda"] = torch.cuda.get_rng_state().numpy()
    return result


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `get_rng_state` returned."""
    keys, position, has_gauss, gauss = state["numpy"]
    numpy.random.set_state(("MT19937", keys, int(position), int(has_gauss), float(gauss)))
    words, second = state["python"]
    random.setstate((3, tuple(words.tolist()), second))
    if backend() == "torch" and "torch" in state:
        import torch

        torch.set_rng_state(torch.from_numpy(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]))
