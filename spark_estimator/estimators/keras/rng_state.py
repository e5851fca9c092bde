"""Where the chance of a process stands, besides what Keras' layers keep: NumPy's, and PyTorch's on that backend."""

from __future__ import annotations

from typing import Any

import numpy

from spark_estimator.keras.importing import backend


def rng_state() -> dict[str, Any]:
    """For a checkpoint within an epoch. On PyTorch, Keras' dropout without a seed draws from PyTorch's own chance."""
    _, keys, place, has_gauss, gauss = numpy.random.get_state()
    found: dict[str, Any] = {"numpy": [keys, place, has_gauss, gauss]}
    if backend() == "torch":
        import torch

        found["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_available():
            found["cuda"] = torch.cuda.get_rng_state().numpy()
    return found


def set_rng_state(state: dict[str, Any]) -> None:
    """Goes on from there."""
    keys, place, has_gauss, gauss = state["numpy"]
    numpy.random.set_state(("MT19937", keys, int(place), int(has_gauss), float(gauss)))
    if backend() == "torch" and "torch" in state:
        import torch

        torch.set_rng_state(torch.from_numpy(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]))
